"""What a save holds a job up by, and whether one node's own writing is what the others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.ladder.ladder import WARM_UP_STEPS, Rung
from scaling.ladder.skew import critical_path

# Ranks write equal shares into one file system.  A node is what the others wait for if it writes
# for more than so many times as long as they, and this is most of what the save takes.
SLOW_RATIO, MIN_STALL_SHARE = 2.0, 0.5


@dataclass(frozen=True)
class CheckpointSave:
    """One save: seconds by which it held the job up, bytes of the whole checkpoint, and by rank the
    seconds of its own writing, without its waits for others."""

    step: int
    stall_s: float
    size_bytes: int
    write_s: tuple[float, ...]


def collect_saves(rung: Rung) -> list[CheckpointSave]:
    """The saves among a rung's timed steps that every rank made, in their order.

    Held up is what the job lost by the frontier's account (skew.py): each moment once.
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
    """The one that held the job up for the median time (of two the longer); of one or more."""
    return sorted(saves, key=lambda save: save.stall_s)[len(saves) // 2]


def slowest_writer(write_s: Sequence[float]) -> tuple[int, float, float]:
    """(who writes longest, for how many seconds, the median of the others), of two or more."""
    index = max(range(len(write_s)), key=write_s.__getitem__)
    return index, write_s[index], statistics.median([*write_s[:index], *write_s[index + 1 :]])


def slow_writer_node(save: CheckpointSave, nodes: Sequence[str]) -> str | None:
    """The node whose writing a save waits for; None where it is no single one.  `nodes` are the
    ranks'."""
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
