"""Computes the growth of segments without a collective since one node, and on which node."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from scaling.ladder.ladder import Rung
from scaling.ladder.skew import CriticalPath
from scaling.ladder.step_breakdown import by_step
from scaling.loss.significance import excess_over_peers, is_significant


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
