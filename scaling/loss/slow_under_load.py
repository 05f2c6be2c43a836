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
from scaling.ladder.skew import Table, account, computing
from scaling.loss.significance import clear, relative


@dataclass(frozen=True)
class Company:
    """What meetings gained since the nodes ran alone, seconds per step.

    transfer: even the last rank waits so much more, or ranks leave collectives so far apart.
    common: the typical node computes so much longer.  nodes: what the job waits for each that
    computes longer than that, beyond the noise.
    """

    transfer: float
    common: float
    nodes: dict[str, float]


def company(base: Rung, here: Rung, leaving: float = 0.0) -> Company | None:
    """`base` is the rung of one node, run on every node.  None where a clock tells no waits.

    `leaving` is what ranks wait, in seconds per step, for no rank's own work.
    """
    if not (base.separable and here.separable):
        return None
    names = list(dict.fromkeys(here.nodes))
    timed = [*here.steps[0][0].exposed]
    alone, together = ({n: _computing(rung, n, timed) for n in names} for rung in (base, here))
    more = {n: [x - y for x, y in zip(together[n], alone[n], strict=False)] for n in names}
    last = [max(zip(at, names, strict=True))[1] for at in zip(*together.values(), strict=True)]
    owed: dict[str, float] = {}
    for name in names if len(names) > 1 else ():
        beyond = relative(more, name)
        if clear(beyond, tests=len(names)):
            mine = [x for x, who in zip(beyond, last, strict=False) if who == name]
            owed[name] = max(0.0, sum(mine)) / len(beyond)
    waits = _waits(here.steps, timed) - _waits(base.median_node(), timed)
    return Company(
        transfer=max(0.0, leaving) + max(0.0, waits),
        common=max(0.0, statistics.median_low(map(statistics.median, more.values()))),
        nodes=owed,
    )


def also_there(
    alone: dict[str, list[float]], slow: Sequence[str], base: Rung, here: Rung
) -> dict[str, list[float]]:
    """What nodes' meetings took `alone`, less what the `slow` of them computed longer only there.

    What a node lost while it ran alone, and no longer does, costs no step of the others.
    """
    timed = [*here.steps[0][0].exposed]
    before, now = ({n: _computing(rung, n, timed) for n in alone} for rung in (base, here))
    found = dict(alone)
    for name in slow:
        was, is_ = (statistics.median(relative(series, name)) for series in (before, now))
        past = max(0.0, was - max(0.0, is_))
        found[name] = [value - past for value in alone[name]]
    return found


def _computing(rung: Rung, node: str, segments: Sequence[str]) -> list[float]:
    """Seconds by step that the slowest of a node's ranks computes in these meetings."""
    return [max(step.computed(segments) for step in at) for at in zip(*rung.on(node), strict=True)]


def _waits(ranks: Table, timed: Sequence[str]) -> float:
    """Mean seconds of meetings that no rank's compute in the timed ones accounts for."""
    return statistics.fmean(account(ranks).met()) - statistics.fmean(computing(ranks, timed))
