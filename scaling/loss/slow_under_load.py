"""Finds nodes that are slow only under load, from clocks that separate waits from compute.

A collective segment (a "meeting") minus its waits is compute, each node's own. Healthy nodes
compute as fast as they did alone. A slower node may share power, cooling or load with others. The
others wait for it: that is skew, and not due to the network. Transfer, for which even the last rank
waits, is the part left for the network.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.ladder.ladder import Rung
from scaling.ladder.skew import RankSteps, critical_path, slowest_compute
from scaling.ladder.step_breakdown import by_step
from scaling.loss.significance import excess_over_peers, is_significant


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
    return LoadSlowdown(
        transfer=max(0.0, unaligned_s) + max(0.0, waits),
        common=max(0.0, statistics.median_low(map(statistics.median, growth.values()))),
        nodes=waited_for,
    )


def subtract_idle_slowdown(
    alone: dict[str, list[float]], slow: Sequence[str], base: Rung, rung: Rung
) -> dict[str, list[float]]:
    """Subtract from the meetings of the `slow` nodes the compute that was longer only while alone.

    `alone` is seconds of the nodes' meetings when each ran alone, by node and step. Slowness
    that a node no longer has under load costs the others nothing.
    """
    segments = [*rung.steps[0][0].exposed]
    before, now = ({n: _node_compute(run, n, segments) for n in alone} for run in (base, rung))
    result = dict(alone)
    for name in slow:
        alone_s, loaded_s = (
            statistics.median(excess_over_peers(series, name)) for series in (before, now)
        )
        idle_s = max(0.0, alone_s - max(0.0, loaded_s))
        result[name] = [value - idle_s for value in alone[name]]
    return result


def _node_compute(rung: Rung, node: str, segments: Sequence[str]) -> list[float]:
    """List the seconds by step that the slowest of a node's ranks computes in these meetings."""
    return by_step(rung.steps_on(node), lambda step: step.compute_in(segments), max)


def _mean_waits(ranks: RankSteps, segments: Sequence[str]) -> float:
    """Return the mean seconds of meetings that no rank's compute in the timed segments explains."""
    return statistics.fmean(critical_path(ranks).transfer_by_step()) - statistics.fmean(
        slowest_compute(ranks, segments)
    )
