"""Fits the alpha-beta model of a collective: latency, bandwidth, and residual of the fit.

t(S) = alpha + S x factor(n) / B, after Hockney (1994). alpha covers all steps of the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reports.numbers import percent, quantity
from scaling.bounds import Amount, Bandwidth, Count
from scaling.collectives.operations import Operation


@dataclass(frozen=True)
class Fit:
    """Alpha-beta fit: latency, bus bandwidth, and residual.

    `latency_us` is in microseconds, `bandwidth` in GB/s of bus bandwidth. `residual` is the RMS
    of (model / measured - 1). `points` is the number of sizes. An infinite bandwidth means that
    no size was large enough to measure one.
    """

    latency_us: Amount
    bandwidth: Bandwidth
    residual: Amount
    points: Count

    def __str__(self) -> str:
        return (
            f"alpha-beta fit of {self.points} sizes: latency {self.latency_us:.1f} us, "
            f"bandwidth {quantity(self.bandwidth, 'GB/s')}, residual {percent(self.residual)}"
        )


def fit_alpha_beta(rows: list[dict[str, Any]], operation: Operation, ranks: int) -> Fit | None:
    """Fit alpha and beta by least squares of the relative error, so all sizes weigh the same.

    `rows` are those of `summarise`. With one size only, all its time counts as bandwidth.
    Neither latency nor inverse bandwidth may be negative. Returns None when nothing moved: no
    rows, or one rank.
    """
    if not rows or not operation.factor(ranks):
        return None
    points = [(row["size"] * operation.factor(ranks), row["seconds"]) for row in rows]
    alpha, beta = _solve_least_squares(points)
    if beta <= 0 or alpha < 0:
        slope = sum(x / t for x, t in points) / sum((x / t) ** 2 for x, t in points)
        constant = sum(1 / t for _, t in points) / sum(1 / t**2 for _, t in points)
        alpha, beta = (0.0, slope) if alpha < 0 else (constant, 0.0)
    errors = [(alpha + beta * x) / t - 1 for x, t in points]
    residual = (sum(error**2 for error in errors) / len(errors)) ** 0.5
    return Fit(alpha * 1e6, 1 / beta / 1e9 if beta else float("inf"), residual, len(points))


def _solve_least_squares(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Fit t = a + b x by least squares with weights 1 / t^2; return (a, b).

    `points` are (x, t). With a single x, a is 0.
    """
    if len({x for x, _ in points}) < 2:
        return 0.0, points[0][1] / points[0][0]
    w, wx, wxx, wt, wxt = 0.0, 0.0, 0.0, 0.0, 0.0
    for x, t in points:
        weight = 1 / t**2
        w, wx, wxx = w + weight, wx + weight * x, wxx + weight * x * x
        wt, wxt = wt + weight * t, wxt + weight * x * t
    determinant = w * wxx - wx * wx
    return (wxx * wt - wx * wxt) / determinant, (w * wxt - wx * wt) / determinant
