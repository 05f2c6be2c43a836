"""Measures all-reduce inside each node, all nodes at once: over what connects its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probes.acceptance.measure import Recorder
from probes.fabric.node_pairs import MIN_RATIO, TRIAL_SECONDS
from probes.fabric.rails.ranks import ranks_by_node
from probes.findings import finding, join_names
from reference_trainer.launch.gang import Gang
from reports.measurement import Limit
from reports.numbers import percent, quantity
from reports.record import Finding
from scaling.collectives.fault_search import typical_speed
from scaling.collectives.node_groups import group_sweep


@dataclass(frozen=True)
class InsideSpeeds:
    """Busbw (GB/s) and wrong elements of the all-reduce inside each node that has several ranks.

    `left_out` are nodes with one rank: they have nothing to reduce.  `ranks` is their number by
    node: only nodes with as many are compared.
    """

    busbw: dict[str, float]
    wrong: dict[str, int]
    left_out: list[str]
    ranks: dict[str, int]

    def typical(self, node: str) -> float:
        """Return the busbw (GB/s) of a healthy node like this one; of two, the faster counts."""
        return typical_speed([self.busbw[peer] for peer in self.peers(node)], MIN_RATIO)[0]

    def peers(self, node: str) -> list[str]:
        """List the nodes that this one is compared with, itself too."""
        return [peer for peer in self.busbw if self.ranks[peer] == self.ranks[node]]

    def shares(self) -> dict[str, float]:
        """Return each node's busbw as a ratio of its typical one, where there are several nodes."""
        known = {node: self.typical(node) for node in self.busbw if len(self.peers(node)) > 1}
        return {node: self.busbw[node] / at if at else 0.0 for node, at in known.items()}


def measure_inside(
    gang: Gang, rank_nodes: Sequence[str], slow: tuple[int, float] | None = None
) -> InsideSpeeds:
    """Run an all-reduce inside each node, all at the same time.

    `slow` (rank, seconds) is for a control: that rank begins each call late.  Raises GangError.
    """
    by_node = ranks_by_node(rank_nodes)
    groups = {node: ranks for node, ranks in by_node.items() if len(ranks) > 1}
    call = [*groups.values()], None, slow
    results = gang.run(group_sweep, *call, timeout=TRIAL_SECONDS) if groups else []
    return InsideSpeeds(
        {node: min(results[rank][0] for rank in ranks) for node, ranks in groups.items()},
        {node: sum(results[rank][1] for rank in ranks) for node, ranks in groups.items()},
        [node for node in by_node if node not in groups],
        {node: len(ranks) for node, ranks in groups.items()},
    )


def judge_inside(
    inside: InsideSpeeds, limits: Callable[[str], Limit | None], measure: Recorder
) -> None:
    """Judge the slowest node by the others, and each by the agreed figure if there is one."""
    if not inside.busbw:
        measure.covered("all-reduce inside nodes was not tested: each node has one rank")
        return
    measure("wrong_elements", sum(inside.wrong.values()), on="all-reduce inside nodes")
    judge_against_others(inside, measure)
    agreed, slowest = (
        limits("all_reduce_inside_node"),
        min(inside.busbw, key=lambda n: inside.busbw[n]),
    )
    if agreed:
        measure(
            "all_reduce_inside_node", inside.busbw[slowest], on=slowest, samples=len(inside.busbw)
        )
    else:
        measure.note("all_reduce_inside_node", inside.busbw[slowest], "GB/s", on=slowest)
    relative = limits("all_reduce_inside_node_against_others")
    least = relative.low if relative and relative.low else 0.0
    measure.explain(find_slow_inside(inside, least, agreed.low if agreed else None))
    left_out = f"; {join_names(inside.left_out)}: one rank" if inside.left_out else ""
    measure.covered(f"all-reduce inside {len(inside.busbw)} nodes, all at once{left_out}")


def judge_against_others(inside: InsideSpeeds, measure: Recorder) -> None:
    """Judge the slowest node as a share of a typical one."""
    shares, name = inside.shares(), "all_reduce_inside_node_against_others"
    if not shares:
        measure(name, None, note="no two nodes have as many ranks")
        return
    slowest = min(shares, key=lambda node: shares[node])
    measure(name, shares[slowest], on=slowest, samples=len(shares))


def find_slow_inside(inside: InsideSpeeds, least: float, agreed: float | None) -> list[Finding]:
    """Name each node whose all-reduce is below `least` of the typical, or below the agreed figure.

    If every node is below the agreed figure, one finding names them all.
    """
    shares, findings = inside.shares(), []
    slow = [node for node, share in shares.items() if share < least]
    for node in slow:
        typical = quantity(inside.typical(node), "GB/s")
        message = f"all-reduce inside {node}: {quantity(inside.busbw[node], 'GB/s')}, "
        message += f"{percent(shares[node])} of a typical node's {typical}"
        findings.append(finding("FAB-SLOW-INSIDE", message, [node]))
    below = [n for n, speed in inside.busbw.items() if agreed and speed < agreed and n not in slow]
    if below:
        speeds = quantity(min(inside.busbw[node] for node in below), "GB/s")
        message = f"all-reduce inside {join_names(below)}: {speeds}. "
        message += f"Agreed: {quantity(agreed or 0.0, 'GB/s')}"
        findings.append(finding("FAB-SLOW-INSIDE", message, below))
    wrong = {node: count for node, count in inside.wrong.items() if count}
    for node, count in wrong.items():
        message = f"all-reduce inside {node} returned {count} wrong elements"
        findings.append(finding("FAB-WRONG-DATA", message, [node]))
    return findings
