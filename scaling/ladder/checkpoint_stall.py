"""Measures how long a save stalls the job, and whether the others wait for one node's writing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.ladder.ladder import WARM_UP_STEPS, Rung
from scaling.ladder.skew import critical_path

# Ranks write equal shares into one file system. The others wait for a node if it writes more than
# SLOW_RATIO times as long as they do, and the excess is more than MIN_STALL_SHARE of the stall.
SLOW_RATIO, MIN_STALL_SHARE = 2.0, 0.5


@dataclass(frozen=True)
class CheckpointSave:
    """One save of one job.

    `stall_s` is the seconds by which it stalled the job, `size_bytes` the size of the complete
    checkpoint. `write_s` is each rank's own seconds of writing, without its waits for others.
    """

    step: int
    stall_s: float
    size_bytes: int
    write_s: tuple[float, ...]


def collect_saves(rung: Rung) -> list[CheckpointSave]:
    """Collect the saves in a rung's timed steps that every rank made, in order.

    A save's stall is its time on the critical path (skew.py), which counts each moment once.
    """
    stalls = critical_path(rung.steps).local_by_step("checkpoint")
    by_rank = [{save["step"]: save for save in saves} for saves in rung.saves]
    steps = [
        step
        for step in by_rank[0]
        if step > WARM_UP_STEPS and all(step in rank_saves for rank_saves in by_rank)
    ]
    return [
        CheckpointSave(
            step=step,
            stall_s=stalls[step - WARM_UP_STEPS - 1],
            size_bytes=by_rank[0][step]["bytes"],
            write_s=tuple(rank_saves[step]["own"] for rank_saves in by_rank),
        )
        for step in steps
    ]


def median_save(saves: Sequence[CheckpointSave]) -> CheckpointSave:
    """Pick the save with the median stall (of two, the longer). Needs one save or more."""
    return sorted(saves, key=lambda save: save.stall_s)[len(saves) // 2]


def slowest_writer(write_s: Sequence[float]) -> tuple[int, float, float]:
    """Return (rank of the longest writing, its seconds, median seconds of the others).

    Needs two ranks or more. `write_s` may also be by node: then the index is the node's.
    """
    index = max(range(len(write_s)), key=write_s.__getitem__)
    return index, write_s[index], statistics.median([*write_s[:index], *write_s[index + 1 :]])


def slow_writer_node(save: CheckpointSave, nodes: Sequence[str]) -> str | None:
    """Return the node whose writing a save waits for; None if it is no single node.

    `nodes` are the ranks' nodes, in order of rank.
    """
    node_s: dict[str, float] = {}
    for node, seconds in zip(nodes, save.write_s, strict=True):
        node_s[node] = max(seconds, node_s.get(node, 0.0))
    if len(node_s) < 2:
        return None
    index, seconds, peers_s = slowest_writer([*node_s.values()])
    stands_out = (
        seconds > SLOW_RATIO * peers_s and seconds - peers_s > MIN_STALL_SHARE * save.stall_s
    )
    return [*node_s][index] if stands_out else None
