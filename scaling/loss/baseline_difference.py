"""Splits the growth of collective segments ("meetings") since one node, by the nodes' runs alone.

Meetings contain both compute and communication, and compute grows for other reasons. The rung of
one node, which every node ran alone, separates them. The slowest of these nodes, step by step, is
the time of the meetings if communication were free. The rest is communication.

    growth = slow + slowing + variation + tail + communication        exactly
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import critical_path
from scaling.loss import significance
from scaling.loss.significance import Series, excess_over_peers, expected_maximum, median_error
from scaling.loss.throttling import find_throttling, local_work_seconds, subtract_idle_slowdown

# Equal steps repeat within this share on a healthy machine. It is half of the 8 % that the author
# of "NCCL Ring vs Tree for Multi-Node LLM Fine-Tuning" gives as the noise of complete runs.
HEALTHY_NOISE = 0.04

LIKELY_Z = 1.64  # standard errors: one in twenty by chance, enough for a second, independent check


@dataclass(frozen=True)
class CollectiveSegmentGrowth:
    """Seconds per step that meetings gained since one node; the five terms sum to `growth`.

    `slow`: the slowest node is that much slower alone. `slowing`: nodes became slower over the
    window. `variation`: the slowest of all nodes varies from step to step. `tail`: steps far
    above this rung's typical step. `communication`: the rest, with its standard `error`.

    `spikes` is the part of variation and tail from outliers and from noise above HEALTHY_NOISE.
    `ordinary` is the cost of healthy nodes' noise. `base_s` is the seconds of the meetings on
    one node.

    `also_slow` are nodes slower by less than `slow_node`, with their seconds. The job does not
    wait for them. `compute_slowed` is whether the slowing is known to be compute.
    """

    growth: float
    slow: float
    slowing: float
    variation: float
    tail: float
    communication: float
    error: float
    spikes: float
    ordinary: float
    base_s: float
    slow_node: str | None = None
    also_slow: Mapping[str, float] = field(default_factory=dict)
    slowing_node: str | None = None
    compute_slowed: bool = True
    spiky_node: str | None = None


def split_growth(base: Rung, rung: Rung) -> CollectiveSegmentGrowth:
    """Split the seconds that the meetings of a rung gained since one node.

    `base` is the rung of one node, run on every node. Raises ValueError if a node of `rung` did
    not run alone.
    """
    names = list(dict.fromkeys(rung.nodes))
    if missing := [name for name in names if name not in base.nodes]:
        raise ValueError(f"{', '.join(missing)} did not run alone: the run of 1 node lacks it")
    transfer = {name: critical_path(base.steps_on(name)).transfer for name in names}
    alone = {name: _sum_series(series.values()) for name, series in transfer.items()}
    local_work = {name: local_work_seconds(base, name) for name in names}
    base_s = statistics.fmean(critical_path(base.median_node()).transfer_by_step())
    seconds = critical_path(rung.steps).transfer_by_step()
    throttling, slowing_node, steady, collective = find_throttling(alone, local_work, seconds, rung)
    slow_names = _find_slow_nodes(steady, local_work)
    if slow_names and base.separable and rung.separable:
        # With three nodes or fewer, a node that slows down distorts the others' reference.
        many_peers = len(names) > 3 or not (throttling.now or throttling.past)
        compared = [name for name in slow_names if many_peers or name == slowing_node]
        steady = subtract_idle_slowdown(steady, compared, base, rung)
        slow_names = _find_slow_nodes(steady, {n: local_work_seconds(rung, n) for n in names})
    slow = statistics.median(steady[slow_names[0]]) - base_s if slow_names else 0.0
    frontier, noise = _compute_frontier(transfer, alone, steady)
    typical, expected = statistics.median(collective), statistics.median(frontier)
    communication, variation, slow, slowing_s = _carry_negatives(
        typical - expected - throttling.past + throttling.waited,
        expected - base_s - slow,
        slow,
        throttling.now + throttling.past,
    )
    tail = statistics.fmean(collective) - typical
    outliers = {name: significance.outlier_excess(series, noise) for name, series in steady.items()}
    broad_noise = expected_maximum(len(names)) * max(0.0, noise - HEALTHY_NOISE * base_s)
    likely = broad_noise + statistics.fmean(map(max, zip(*outliers.values(), strict=True)))
    own_spikes = statistics.fmean(significance.outlier_excess(collective))
    spiky = {n: sum(value > 0 for value in excess) for n, excess in outliers.items()}
    return CollectiveSegmentGrowth(
        growth=statistics.fmean(collective) + throttling.now + throttling.waited - base_s,
        slow=slow,
        slowing=slowing_s,
        variation=variation,
        tail=tail,
        communication=communication,
        error=math.hypot(median_error(collective), median_error(frontier)),
        spikes=max(own_spikes, min(likely, max(0.0, tail + variation))),
        ordinary=expected_maximum(len(names)) * min(noise, HEALTHY_NOISE * base_s),
        base_s=base_s,
        slow_node=slow_names[0] if slow_names else None,
        also_slow={name: statistics.median(steady[name]) - base_s for name in slow_names[1:]},
        slowing_node=slowing_node,
        compute_slowed=throttling.is_compute,
        spiky_node=significance.dominant_node(spiky),
    )


def _sum_series(series: Iterable[Sequence[float]]) -> list[float]:
    return [sum(row) for row in zip(*series, strict=True)]


def _compute_frontier(
    transfer: Mapping[str, dict[str, list[float]]], alone: Series, steady: Series
) -> tuple[list[float], float]:
    """Return (seconds of all meetings by step if communication were free, a node's noise in them).

    Nodes wait for the slowest node in each meeting separately. So the maxima of the meetings
    are added up, and so is the noise. Slowing that was subtracted from a node's step is
    subtracted from each meeting too.
    """
    series: dict[str, list[list[float]]] = {}
    for name, segments in transfer.items():
        ratios = [x / y if y else 1.0 for x, y in zip(steady[name], alone[name], strict=True)]
        for segment, spent in segments.items():
            scaled = [x * y for x, y in zip(spent, ratios, strict=True)]
            series.setdefault(segment, []).append(scaled)
    slowest = [[max(row) for row in zip(*nodes, strict=True)] for nodes in series.values()]
    deviations = [map(significance.mad_deviation, nodes) for nodes in series.values()]
    return _sum_series(slowest), sum(map(statistics.median, deviations))


def _find_slow_nodes(steady: Series, local_work: Series) -> list[str]:
    """List the nodes that are slower than the others beyond the noise, slowest first.

    The excess must be clear in meetings, or clear in the node's local work and likely in
    meetings.
    """
    if len(steady) < 2:
        return []
    slow = []
    for name in steady:
        excess = excess_over_peers(steady, name)
        likely = statistics.median(excess) > LIKELY_Z * median_error(excess)
        if significance.is_significant(excess, len(steady)) or (
            likely
            and significance.is_significant(excess_over_peers(local_work, name), len(local_work))
        ):
            slow.append(name)
    return sorted(slow, key=lambda name: -statistics.median(steady[name]))


def _carry_negatives(*terms: float) -> tuple[float, ...]:
    """Return terms with the same sum, in which a term below 0 is taken from the next one.

    Communication is never below 0. It would be if the nodes alone varied more than in this
    rung. A negative rest is added to the second term, variation.
    """
    result, deficit = [], 0.0
    for term in terms:
        result.append(max(0.0, term + deficit))
        deficit = min(0.0, term + deficit)
    result[1] += deficit  # a rung faster than one node: variation may be negative
    return tuple(result)
