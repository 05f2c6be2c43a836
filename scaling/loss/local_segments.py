"""What the segments without a collective gained since one node, and on which node."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from scaling.ladder.ladder import Rung
from scaling.ladder.skew import CriticalPath
from scaling.loss.significance import excess_over_peers, is_significant


@dataclass(frozen=True)
class LocalSegmentGrowth:
    """What one own segment gained since one node, seconds per step: common + sum of `nodes`.

    common: every node is slower, `shared` if beyond the noise.  nodes: what the job waited for one
    node that came last, beyond the median rank; `tied` are those slower beyond the noise.
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
    """What each segment without a collective gained.  `mine`, `first`: the accounts of the two."""
    names = list(dict.fromkeys(rung.nodes))
    segments = [name for name in rung.steps[0][0].segments if name not in path.transfer]
    growths = []
    for segment in segments:
        typical, extra = _typical_and_extra(path, segment)
        base_typical, base_extra = _typical_and_extra(base_path, segment)
        nodes = dict.fromkeys(names, 0.0)
        for rank, seconds in extra.items():
            nodes[rung.nodes[rank]] += seconds
        # The ranks of one node wait for each other as well: that much is no loss of this rung.
        excess, base_excess = sum(nodes.values()), sum(base_extra.values())
        nodes = {n: s - base_excess * s / excess if excess > 0 else 0.0 for n, s in nodes.items()}
        growth = statistics.fmean(path.local_by_step(segment)) - statistics.fmean(
            base_path.local_by_step(segment)
        )
        differences = [x - y for x, y in zip(typical, base_typical, strict=False)]
        growths.append(
            LocalSegmentGrowth(
                segment=segment,
                common=growth - sum(nodes.values()),
                significant=is_significant(differences, tests=len(segments)),
                nodes=nodes,
                slow_nodes=_find_slow_nodes(rung, segment, len(names) * len(segments)),
                base_s=statistics.fmean(base_typical),
            )
        )
    return growths


def _typical_and_extra(path: CriticalPath, segment: str) -> tuple[list[float], dict[int, float]]:
    """(the median rank's seconds by step, mean seconds that each rank cost beyond it)."""
    typical, extra = [0.0] * path.steps, dict[int, float]()
    for entry in path.entries:
        if entry.segment == segment:
            typical[entry.step] += entry.typical
            if entry.rank is not None:
                extra_s = (entry.seconds - entry.typical) / path.steps
                extra[entry.rank] = extra.get(entry.rank, 0.0) + extra_s
    return typical, extra


def _find_slow_nodes(rung: Rung, segment: str, tests: int) -> tuple[str, ...]:
    """Nodes whose slowest rank is slower in this segment than the other nodes', beyond noise."""
    names = list(dict.fromkeys(rung.nodes))
    if len(names) < 2:
        return ()
    slowest = {
        name: [
            max(step.segments[segment] for step in row)
            for row in zip(*rung.steps_on(name), strict=True)
        ]
        for name in names
    }
    return tuple(
        name for name in names if is_significant(excess_over_peers(slowest, name), tests=tests)
    )
