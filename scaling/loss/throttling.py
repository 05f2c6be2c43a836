"""Finds accelerators that slow down: by throttling, under load, or by themselves."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.ladder import step_breakdown
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import CriticalPath, RankSteps, by_step, mean_seconds
from scaling.loss import significance
from scaling.loss.significance import Series, excess_over_peers, fit_rise, is_rising, is_significant

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
    alone: Series, local_work: Series, collective: list[float], rung: Rung
) -> tuple[ThrottlingCost, str | None, Series, list[float]]:
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
    local_slowdowns = _local_slowdowns({name: local_work_seconds(rung, name) for name in alone})
    node = max(local_slowdowns, key=lambda name: local_slowdowns[name][-1], default=worst)
    scale = statistics.median(map(statistics.median, alone.values()))
    busy, waited = collective, 0.0
    if rung.separable:
        busy = step_breakdown.slowest_compute(rung.steps, rung.steps[0][0].exposed)
        waits = _subtract_series(collective, busy)
        if is_rising(waits):
            wait_rise = fit_rise(waits)
            waited = statistics.fmean(wait_rise)
            collective = _subtract_series(collective, wait_rise)
    fits = [fit_rise(busy)] if is_rising(busy) else []
    if node in local_slowdowns:
        fits.append(significance.fit_shape(local_slowdowns[node], busy, scale))
    if fits := [fit for fit in fits if fit]:
        fit = min(fits, key=lambda fit: significance.mad_deviation(_subtract_series(busy, fit)))
        is_compute = rung.separable or node in local_slowdowns
        node = node if is_compute else _find_awaited_node(rung, fit) or node
        cost = ThrottlingCost(statistics.fmean(fit), waited=waited, is_compute=is_compute)
        return cost, node, steady, _subtract_series(collective, fit)
    # A slowdown costs nothing as long as another node is slower.
    medians = {name: statistics.median(series) for name, series in steady.items()}
    slack = max(medians.values()) - medians[worst] if worst else 0.0
    past = max(0.0, slowdowns[worst][-1] - slack) if worst else 0.0
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
    pairs = [[*zip(steps, is_slow, strict=True)] for steps in rung.steps]
    after = [[step for step, slow in of_rank if slow] for of_rank in pairs]
    before = [[step for step, slow in of_rank if not slow] for of_rank in pairs]
    lost = mean_seconds(after) - mean_seconds(before)
    for segment in step_breakdown.COLLECTIVE_SEGMENTS:
        if segment in after[0][0].segments:
            after_split = step_breakdown.split_segment(after, segment)
            skew_before = step_breakdown.split_segment(before, segment).skew
            if after_split.skew - skew_before > MIN_SKEW_SHARE * lost > 0:
                last = Counter(rung.nodes[rank] for rank in after_split.last_ranks)
                return significance.dominant_node(last)
    return None


def _find_slowdowns(alone: Series, local_work: Series) -> dict[str, list[float]]:
    """Find nodes that slowed down alone: seconds of their meetings above the start, by step.

    A node's local work is a second, independent check. It has less noise if single steps of
    meetings are outliers.
    """
    peers, local_slowdowns, slowdowns = list(alone.values()), _local_slowdowns(local_work), {}
    for name, series in alone.items():
        local, middle = local_slowdowns.get(name, []), statistics.median(series)
        if is_rising(series, len(alone), peers):
            slowdowns[name] = fit_rise(series)
        elif local and (slowdown := significance.fit_shape(local, series, middle)):
            slowdowns[name] = slowdown
    return slowdowns


def _local_slowdowns(local_work: Series) -> dict[str, list[float]]:
    """Find nodes whose local work grows over the window compared with the other nodes'.

    Returns the relative growth by node and step.
    """
    excess = {n: excess_over_peers(local_work, n) for n in local_work if len(local_work) > 1}
    peers = list(excess.values())
    rising = {name: one for name, one in excess.items() if is_rising(one, len(local_work), peers)}
    medians = {name: statistics.median(local_work[name]) for name in rising}
    known = [name for name in rising if medians[name] > 0]
    return {name: [value / medians[name] for value in fit_rise(rising[name])] for name in known}


def local_work_seconds(rung: Rung, node: str) -> list[float]:
    """List the seconds of a node's steady local work by step, mean over its ranks.

    Data and checkpoints are left out, because they slow down for reasons other than the
    processor. If waits are timed, the compute inside meetings is included.
    """
    first = rung.steps[0][0]
    waited_segments = first.exposed if rung.separable else ()
    names = [name for name in first.segments if name in STEADY_SEGMENTS or name in waited_segments]
    return by_step(rung.steps_on(node), lambda step: step.compute_in(names))


@dataclass(frozen=True)
class LoadSlowdown:
    """Seconds per step that meetings gained since the nodes ran alone.

    `transfer`: the longer wait of even the last rank, and of ranks that leave collectives at
    different times. `common`: the longer compute of the typical node. `nodes`: what the job
    waits for each node that computes longer than that, beyond the noise.
    """

    transfer: float
    common: float
    nodes: dict[str, float]


def find_load_slowdown(base: Rung, rung: Rung, unaligned_s: float = 0.0) -> LoadSlowdown | None:
    """Find nodes that are slow only under load. Returns None if a rung's waits are not separable.

    `base` is the rung of one node, run on every node. `unaligned_s` is the waiting that no
    rank's local work explains, in seconds per step.
    """
    if not (base.separable and rung.separable):
        return None
    names = list(dict.fromkeys(rung.nodes))
    segments = [*rung.steps[0][0].exposed]
    alone, together = ({n: _node_compute(run, n, segments) for n in names} for run in (base, rung))
    growth = {n: [x - y for x, y in zip(together[n], alone[n], strict=False)] for n in names}
    last = [max(zip(row, names, strict=True))[1] for row in zip(*together.values(), strict=True)]
    waited_for: dict[str, float] = {}
    for name in names if len(names) > 1 else ():
        excess = excess_over_peers(growth, name)
        if is_significant(excess, tests=len(names)):
            waited = [x for x, last_node in zip(excess, last, strict=False) if last_node == name]
            waited_for[name] = max(0.0, sum(waited)) / len(excess)
    waits = _mean_waits(rung.steps, segments) - _mean_waits(base.median_node(), segments)
    common = max(0.0, statistics.median_low(map(statistics.median, growth.values())))
    return LoadSlowdown(max(0.0, unaligned_s) + max(0.0, waits), common, waited_for)


def subtract_idle_slowdown(alone: Series, slow: Sequence[str], base: Rung, rung: Rung) -> Series:
    """Subtract from the meetings of the `slow` nodes the compute that was longer only while alone.

    `alone` is seconds of the nodes' meetings when each ran alone, by node and step. Slowness
    that a node no longer has under load costs the others nothing.
    """
    segments = [*rung.steps[0][0].exposed]
    before, now = ({n: _node_compute(run, n, segments) for n in alone} for run in (base, rung))
    result = dict(alone)
    for name in slow:
        excess = (excess_over_peers(series, name) for series in (before, now))
        alone_s, loaded_s = map(statistics.median, excess)
        idle_s = max(0.0, alone_s - max(0.0, loaded_s))
        result[name] = [value - idle_s for value in alone[name]]
    return result


def _node_compute(rung: Rung, node: str, segments: Sequence[str]) -> list[float]:
    """List the seconds by step that the slowest of a node's ranks computes in these meetings."""
    return by_step(rung.steps_on(node), lambda step: step.compute_in(segments), max)


def _mean_waits(ranks: RankSteps, segments: Sequence[str]) -> float:
    """Return the mean seconds of meetings that no rank's compute in the timed segments explains."""
    transfer = step_breakdown.critical_path(ranks).transfer_by_step()
    compute = step_breakdown.slowest_compute(ranks, segments)
    return statistics.fmean(transfer) - statistics.fmean(compute)


@dataclass(frozen=True)
class LocalSegmentGrowth:
    """Seconds per step that one local segment gained since one node: common + sum of `nodes`.

    `common`: every node is slower; `significant` if beyond the noise. `nodes`: what the job
    waited for a node that came last, beyond the median rank. `slow_nodes` are slower beyond the
    noise. `base_s` is the median rank's seconds on one node.
    """

    segment: str
    common: float
    significant: bool
    nodes: dict[str, float]
    slow_nodes: tuple[str, ...]
    base_s: float


def find_local_growth(
    base: Rung, rung: Rung, path: CriticalPath, base_path: CriticalPath
) -> list[LocalSegmentGrowth]:
    """Find the growth of each segment without a collective, from both rungs' critical paths."""
    names = list(dict.fromkeys(rung.nodes))
    segments = [name for name in rung.steps[0][0].segments if name not in path.transfer]
    growths = []
    for segment in segments:
        typical, extra = _typical_and_extra(path, segment)
        base_typical, base_extra = _typical_and_extra(base_path, segment)
        nodes = _extra_by_node(rung, extra, sum(base_extra.values()))
        now, base_s = path.local_by_step(segment), base_path.local_by_step(segment)
        differences = [x - y for x, y in zip(typical, base_typical, strict=False)]
        growths.append(
            LocalSegmentGrowth(
                segment=segment,
                common=statistics.fmean(now) - statistics.fmean(base_s) - sum(nodes.values()),
                significant=is_significant(differences, tests=len(segments)),
                nodes=nodes,
                slow_nodes=_find_slow_nodes(rung, segment, len(names) * len(segments)),
                base_s=statistics.fmean(base_typical),
            )
        )
    return growths


def _extra_by_node(rung: Rung, extra: dict[int, float], base_excess: float) -> dict[str, float]:
    """Sum the ranks' extra seconds by node, minus those of the base rung."""
    nodes = dict.fromkeys(rung.nodes, 0.0)
    for rank, seconds in extra.items():
        nodes[rung.nodes[rank]] += seconds
    # The ranks of one node also wait for each other: that part is no loss of this rung.
    excess = sum(nodes.values())
    return {n: s - base_excess * s / excess if excess > 0 else 0.0 for n, s in nodes.items()}


def _typical_and_extra(path: CriticalPath, segment: str) -> tuple[list[float], dict[int, float]]:
    """Return (the median rank's seconds by step, mean seconds that each rank cost beyond it)."""
    typical, extra = [0.0] * path.steps, dict[int, float]()
    for entry in path.entries:
        if entry.segment == segment:
            typical[entry.step] += entry.typical
            if entry.rank is not None:
                extra_s = (entry.seconds - entry.typical) / path.steps
                extra[entry.rank] = extra.get(entry.rank, 0.0) + extra_s
    return typical, extra


def _find_slow_nodes(rung: Rung, segment: str, tests: int) -> tuple[str, ...]:
    """Find nodes whose slowest rank is slower in this segment than those of the other nodes.

    The excess must be beyond the noise. `tests` is the number of such tests.
    """
    names = list(dict.fromkeys(rung.nodes))
    if len(names) < 2:
        return ()
    slowest = {
        name: by_step(rung.steps_on(name), lambda step: step.segments[segment], max)
        for name in names
    }
    return tuple(n for n in names if is_significant(excess_over_peers(slowest, n), tests=tests))
