"""Finds nodes that become slower while they run: in a rung, or before it, while they ran alone.

There are two independent checks: the time in collective segments ("meetings"), and the node's local
work between them. Local work has less noise and names the node. In a meeting all ranks wait for the
slowest and look alike.

If local work shows nothing, the waits may. A node that is slow after a meeting's last collective
makes the others wait in the next one. It spends the least time there. The cause may also be its
links. If waits are timed, they are subtracted from the time in meetings, and the node is not
guessed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.ladder.ladder import Rung
from scaling.ladder.skew import COLLECTIVE_SEGMENTS, slowest_compute, split_segment
from scaling.ladder.step_breakdown import by_step, mean_seconds
from scaling.loss.significance import (
    Series,
    dominant_node,
    excess_over_peers,
    fit_rise,
    fit_shape,
    is_rising,
    mad_deviation,
)

# If two of three ranks wait for the third, a mean rank waits two thirds of the cost. In the meeting
# in which the third rank is late, it is one third.
MIN_SKEW_SHARE = 0.6

STEADY_SEGMENTS = ("optimizer", "other")  # local work that takes longer on a slow processor


@dataclass(frozen=True)
class ThrottlingCost:
    """Seconds per step lost to nodes that became slower.

    `now`: lost in this rung. `past`: lost because the node became slower before it, while it
    ran alone. `waited`: lost in this rung because timed waits became longer, which is not
    slowing. `is_compute` is whether the slowing is known to be compute.
    """

    now: float = 0.0
    past: float = 0.0
    waited: float = 0.0
    is_compute: bool = True


def find_throttling(
    alone: dict[str, list[float]],
    local_work: dict[str, list[float]],
    collective: list[float],
    rung: Rung,
) -> tuple[ThrottlingCost, str | None, dict[str, list[float]], list[float]]:
    """Return (cost, node, the nodes' series and the rung's series without the slowing).

    A node that became slower alone and is stable in this rung had reached its lower speed
    before. It costs the complete slowdown in every step.
    """
    slowdowns = _find_slowdowns(alone, local_work)
    steady = {
        name: _subtract_series(series, slowdowns[name]) if name in slowdowns else series
        for name, series in alone.items()
    }
    worst = max(slowdowns, key=lambda name: slowdowns[name][-1], default=None)
    together = {name: local_work_seconds(rung, name) for name in alone}
    local_slowdowns = _local_slowdowns(together)
    node = max(local_slowdowns, key=lambda name: local_slowdowns[name][-1], default=worst)
    scale = statistics.median(map(statistics.median, alone.values()))
    busy, waited = collective, 0.0
    if rung.separable:
        busy = slowest_compute(rung.steps, rung.steps[0][0].exposed)
        waits = _subtract_series(collective, busy)
        if is_rising(waits):
            wait_rise = fit_rise(waits)
            waited = statistics.fmean(wait_rise)
            collective = _subtract_series(collective, wait_rise)
    fits = [fit_rise(busy)] if is_rising(busy) else []
    if node in local_slowdowns:
        fits.append(fit_shape(local_slowdowns[node], busy, scale))
    if fits := [fit for fit in fits if fit]:
        fit = min(fits, key=lambda fit: mad_deviation(_subtract_series(busy, fit)))
        is_compute = rung.separable or node in local_slowdowns
        node = node if is_compute else _find_awaited_node(rung, fit) or node
        cost = ThrottlingCost(statistics.fmean(fit), waited=waited, is_compute=is_compute)
        return cost, node, steady, _subtract_series(collective, fit)
    past = _frontier_shift(steady, worst, slowdowns[worst][-1:])[0] if worst else 0.0
    return ThrottlingCost(past=past, waited=waited), worst, steady, collective


def _subtract_series(series: Sequence[float], subtracted: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(series, subtracted, strict=True)]


def _find_awaited_node(rung: Rung, slowdown: Sequence[float]) -> str | None:
    """Find the node that the others wait for in a meeting of the slowed steps; None if not clear.

    With two ranks, each may wait for the other, so no node can be named.
    """
    is_slow = [value > max(slowdown) / 2 for value in slowdown]
    if len(rung.steps) < 3 or all(is_slow):
        return None
    after, before = (
        [
            [step for step, slow in zip(steps, is_slow, strict=True) if slow is wanted]
            for steps in rung.steps
        ]
        for wanted in (True, False)
    )
    lost = mean_seconds(after) - mean_seconds(before)
    for segment in COLLECTIVE_SEGMENTS:
        if segment in after[0][0].segments:
            after_split = split_segment(after, segment)
            if after_split.skew - split_segment(before, segment).skew > MIN_SKEW_SHARE * lost > 0:
                return dominant_node(Counter(rung.nodes[rank] for rank in after_split.last_ranks))
    return None


def _frontier_shift(steady: Series, node: str, slowdown: list[float]) -> list[float]:
    """Compute by how much one node's slowdown raises the time of the slowest node.

    It is 0 while another node is slower.
    """
    medians = {name: statistics.median(series) for name, series in steady.items()}
    slack = max(medians.values()) - medians[node]
    return [max(0.0, value - slack) for value in slowdown]


def _find_slowdowns(alone: dict[str, list[float]], local_work: Series) -> dict[str, list[float]]:
    """Find nodes that slowed down alone: seconds of their meetings above the start, by step.

    A node's local work is a second, independent check. It has less noise if single steps of
    meetings are outliers.
    """
    peers, local_slowdowns, slowdowns = list(alone.values()), _local_slowdowns(local_work), {}
    for name, series in alone.items():
        if is_rising(series, len(alone), peers):
            slowdowns[name] = fit_rise(series)
        elif name in local_slowdowns and (
            slowdown := fit_shape(local_slowdowns[name], series, statistics.median(series))
        ):
            slowdowns[name] = slowdown
    return slowdowns


def _local_slowdowns(local_work: Series) -> dict[str, list[float]]:
    """Find nodes whose local work grows over the window compared with the other nodes'.

    Returns the relative growth by node and step.
    """
    excess = {
        name: excess_over_peers(local_work, name) for name in local_work if len(local_work) > 1
    }
    peers = list(excess.values())
    return {
        name: [value / statistics.median(local_work[name]) for value in fit_rise(series)]
        for name, series in excess.items()
        if is_rising(series, len(local_work), peers) and statistics.median(local_work[name]) > 0
    }


def local_work_seconds(rung: Rung, node: str) -> list[float]:
    """List the seconds of a node's steady local work by step, mean over its ranks.

    Data and checkpoints are left out, because they slow down for reasons other than the
    processor. If waits are timed, the compute inside meetings is included.
    """
    first = rung.steps[0][0]
    waited_segments = first.exposed if rung.separable else ()
    names = [name for name in first.segments if name in STEADY_SEGMENTS or name in waited_segments]
    return by_step(rung.steps_on(node), lambda step: step.compute_in(names))
