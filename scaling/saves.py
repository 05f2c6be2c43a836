"""What a save holds a job up by, and whether one node's own writing is what the others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.ladder import WARM_UP, Rung
from scaling.skew import account

# Ranks write equal shares into one file system.  A node is what the others wait for if it writes
# for more than so many times as long as they, and this is most of what the save takes.
ODD, MOST = 2.0, 0.5


@dataclass(frozen=True)
class Save:
    """One save: seconds by which it held the job up, bytes of the whole checkpoint, and by rank the
    seconds of its own writing, without its waits for others."""

    step: int
    held_up: float
    bytes: int
    own: tuple[float, ...]


def saves_of(rung: Rung) -> list[Save]:
    """The whole saves among a rung's timed steps, in their order.

    Held up is what the job lost by the frontier's account (skew.py): each moment once.
    """
    lost = account(rung.steps).own("checkpoint")
    return [
        Save(
            step=told[0]["step"],
            held_up=lost[told[0]["step"] - WARM_UP - 1],
            bytes=told[0]["bytes"],
            own=tuple(one["own"] for one in told),
        )
        for told in zip(*rung.saves, strict=True)
        if told[0]["step"] > WARM_UP
    ]


def typical(saves: Sequence[Save]) -> Save:
    """The one that held the job up for the median time (of two the longer); of one or more."""
    return sorted(saves, key=lambda save: save.held_up)[len(saves) // 2]


def slowest(own: Sequence[float]) -> tuple[int, float, float]:
    """(who writes longest, for how many seconds, the median of the others), of two or more."""
    at = max(range(len(own)), key=own.__getitem__)
    return at, own[at], statistics.median([*own[:at], *own[at + 1 :]])


def awaited(save: Save, nodes: Sequence[str]) -> str | None:
    """The node whose writing a save waits for; None where it is no single one.  `nodes` are the
    ranks'."""
    longest: dict[str, float] = {}
    for node, seconds in zip(nodes, save.own, strict=True):
        longest[node] = max(seconds, longest.get(node, 0.0))
    if len(longest) < 2:
        return None
    at, seconds, others = slowest([*longest.values()])
    odd = seconds > ODD * others and seconds - others > MOST * save.held_up
    return [*longest][at] if odd else None
