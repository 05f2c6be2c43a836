"""Draws bus bandwidth by message size, with the limit and what it is compared with."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from reports.charts.canvas import THEME, Key, draw_level, open_chart, set_log_ticks
from reports.charts.figure import (
    Figure,
    Number,
    Point,
    binary_size,
    finite,
    name_value,
    or_dash,
    or_nan,
    percent,
    read_columns,
    read_number,
    zip_xy,
)
from reports.numbers import number

TITLE = "Bus bandwidth by message size"
# Other sweeps of a series, by key: name, colour.
OTHERS = {"control": ("the wrong network", THEME.fail), "baseline": ("baseline", THEME.unproven)}
Curve = tuple[str, str, list[Point]]  # name, colour, (bytes, GB/s)


def draw_busbw(series: dict[str, Any]) -> Figure:
    """Draw bus bandwidth in GB/s against message size in bytes.

    Keys: sizes, busbw; optional low, high (edges of the ribbon), limit, line_rate (all in GB/s),
    judged {sizes, busbw}: which sizes are judged, and the judged value, control {sizes, busbw}: the
    same sweep, forced onto the management network, and baseline {sizes, busbw}: an earlier sweep.
    """
    sizes, speeds, low, high = read_columns(series, "sizes", "busbw", "low", "high")
    others: list[Curve] = [
        (name, color, points)
        for key, (name, color) in OTHERS.items()
        if (points := zip_xy(*read_columns(series.get(key) or {}, "sizes", "busbw")))
    ]
    limit, rate = read_number(series.get("limit")), read_number(series.get("line_rate"))
    judged, value, where = _read_judged(series.get("judged") or {}, zip_xy(sizes, speeds))
    sentence = _make_sentence(value, where, limit, rate, others)
    keys = [
        Key(f"measured: {number(value)} GB/s {where}", THEME.link),
        Key(name_value("limit", limit), THEME.marginal, "dashes"),
        Key(name_value("line rate", rate), THEME.soft, "dashes"),
        *(Key(name, color) for name, color, _ in others),
    ]
    with open_chart(TITLE, sentence, keys) as chart:
        axes = chart.plot("busbw, GB/s", "message size")
        ticks = sorted({*finite(sizes), *(x for _, _, points in others for x, _ in points)})
        set_log_ticks(axes, ticks, [binary_size(size) for size in ticks])
        axes.set_ylim(0, 1.08 * max(finite([value, limit, rate, *speeds, *high])) or 1)
        draw_level(axes.axhline, limit, THEME.marginal)
        draw_level(axes.axhline, rate, THEME.soft)
        for _, color, points in others:
            # The control runs at one size only: a line of one point would not show.
            axes.plot(*zip(*points, strict=True), "-" if len(points) > 1 else "o", color=color)
        ribbon = [*zip_xy(sizes, low), *reversed(zip_xy(sizes, high))]
        if ribbon:
            axes.fill(*zip(*ribbon, strict=True), color=THEME.link, alpha=0.2, linewidth=0)
        axes.plot(or_nan(sizes), or_nan(speeds), color=THEME.link)
        axes.plot(*zip(*judged, strict=True), "o", color=THEME.link)
    header = ["size", "busbw GB/s", "low", "high", *(name for name, *_ in others)]
    columns = [speeds, low, high, *([dict(xy).get(x or 0) for x in sizes] for *_, xy in others)]
    rows = [
        [binary_size(size), *map(or_dash, cells)]
        for size, *cells in zip_longest(sizes, *columns)
        if size is not None
    ]
    return Figure(TITLE, sentence, chart.svg, header, rows)


def _read_judged(judged: dict[str, Any], measured: list[Point]) -> tuple[list[Point], float, str]:
    """Return the judged points and value, and where it holds; without them, those of the peak."""
    known, value = dict(measured), read_number(judged.get("busbw"))
    points = [(x, known[x]) for x in finite(read_columns(judged, "sizes")[0]) if x in known]
    if not points or value is None:
        size, peak = max(measured, key=lambda point: point[1])
        return [(size, peak)], peak, f"at {binary_size(size)}"
    first, last = binary_size(points[0][0]), binary_size(points[-1][0])
    return points, value, f"judged at {first} to {last}"


def _make_sentence(
    value: float, where: str, limit: Number, rate: Number, others: list[Curve]
) -> str:
    """Return a sentence: the value, its share of the line rate, the limit, the other sweeps."""
    parts = [f"Bus bandwidth is {number(value)} GB/s {where}"]
    if rate:
        parts.append(f"{percent(value / rate, 0)} of the line rate of {number(rate)}")
    if limit is not None:
        parts.append(f"{'at or above' if value >= limit else 'BELOW'} the limit of {number(limit)}")
    for name, _, points in others:
        parts.append(f"{name} reaches {number(max(y for _, y in points))}")
    return ", ".join(parts) + "."
