"""What a save holds a job up by, and whether one node's own writing is what the others wait for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.ladder.ladder import WARM_UP, Rung
from scaling.ladder.skew import account

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
    """The saves among a rung's timed steps that every rank made, in their order.

    Held up is what the job lost by the frontier's account (skew.py): each moment once.
    """
    lost = account(rung.steps).own("checkpoint")
    made = [{save["step"]: save for save in saves} for saves in rung.saves]
    steps = [step for step in made[0] if step > WARM_UP and all(step in mine for mine in made)]
    return [
        Save(
            step=step,
            held_up=lost[step - WARM_UP - 1],
            bytes=made[0][step]["bytes"],
            own=tuple(mine[step]["own"] for mine in made),
        )
        for step in steps
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
