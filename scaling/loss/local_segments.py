"""What the segments without a collective gained since one node, and on which node."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from scaling.ladder.ladder import Rung
from scaling.ladder.skew import Account
from scaling.loss.significance import clear, relative


@dataclass(frozen=True)
class Own:
    """What one own segment gained since one node, seconds per step: common + sum of `nodes`.

    common: every node is slower, `shared` if beyond the noise.  nodes: what the job waited for one
    node that came last, beyond the median rank; `tied` are those slower beyond the noise.
    """

    segment: str
    common: float
    shared: bool
    nodes: dict[str, float]
    tied: tuple[str, ...]
    alone: float


def own_levels(base: Rung, here: Rung, mine: Account, first: Account) -> list[Own]:
    """What each segment without a collective gained.  `mine`, `first`: the accounts of the two."""
    names = list(dict.fromkeys(here.nodes))
    segments = [name for name in here.steps[0][0].segments if name not in mine.transfer]
    found = []
    for segment in segments:
        typical, extra = _typical(mine, segment)
        before, waited = _typical(first, segment)
        nodes = dict.fromkeys(names, 0.0)
        for rank, seconds in extra.items():
            nodes[here.nodes[rank]] += seconds
        # The ranks of one node wait for each other as well: that much is no loss of this rung.
        beyond, known = sum(nodes.values()), sum(waited.values())
        nodes = {n: s - known * s / beyond if beyond > 0 else 0.0 for n, s in nodes.items()}
        growth = statistics.fmean(mine.own(segment)) - statistics.fmean(first.own(segment))
        more = [x - y for x, y in zip(typical, before, strict=False)]
        found.append(
            Own(
                segment=segment,
                common=growth - sum(nodes.values()),
                shared=clear(more, tests=len(segments)),
                nodes=nodes,
                tied=_tied(here, segment, len(names) * len(segments)),
                alone=statistics.fmean(before),
            )
        )
    return found


def _typical(found: Account, segment: str) -> tuple[list[float], dict[int, float]]:
    """(the median rank's seconds by step, mean seconds that each rank cost beyond it)."""
    typical, extra = [0.0] * found.steps, dict[int, float]()
    for charge in found.charges:
        if charge.segment == segment:
            typical[charge.step] += charge.typical
            if charge.rank is not None:
                more = (charge.seconds - charge.typical) / found.steps
                extra[charge.rank] = extra.get(charge.rank, 0.0) + more
    return typical, extra


def _tied(here: Rung, segment: str, tests: int) -> tuple[str, ...]:
    """Nodes whose slowest rank is slower in this segment than the other nodes', beyond noise."""
    names = list(dict.fromkeys(here.nodes))
    if len(names) < 2:
        return ()
    slowest = {
        name: [
            max(step.segments[segment] for step in at) for at in zip(*here.on(name), strict=True)
        ]
        for name in names
    }
    return tuple(name for name in names if clear(relative(slowest, name), tests=tests))
