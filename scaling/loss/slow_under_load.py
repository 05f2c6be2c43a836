"""What waits show of nodes that are slow in company only, on a clock that tells waits from compute.

A meeting less its waits is compute, each node's own.  Sound nodes compute as they did alone; one
that does not shares power, air or a neighbour's load with the others.  They wait for it: that is
skew, and no network's.  Transfer, which even the last rank waits for, is what is left for it.
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
    """What meetings gained since the nodes ran alone, seconds per step.

    transfer: even the last rank waits so much more, or ranks leave collectives so far apart.
    common: the typical node computes so much longer.  nodes: what the job waits for each that
    computes longer than that, beyond the noise.
    """

    transfer: float
    common: float
    nodes: dict[str, float]


def find_load_slowdown(base: Rung, rung: Rung, unaligned_s: float = 0.0) -> LoadSlowdown | None:
    """Find which nodes are slow in company.  None where a clock tells no waits.

    `base` is the rung of one node, run on every node; `unaligned_s` what ranks wait, in seconds per
    step, for no rank's own work.
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
    """What nodes' meetings took `alone`, less what the `slow` of them computed longer only there.

    What a node lost while it ran alone, and no longer does, costs no step of the others.
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
    """Mean seconds of meetings that no rank's compute in the timed ones accounts for."""
    return statistics.fmean(critical_path(ranks).transfer_by_step()) - statistics.fmean(
        slowest_compute(ranks, segments)
    )
