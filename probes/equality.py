"""Is the resumed run the run that was never killed?  Compared bit by bit, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BITS = ("loss_hex", "norm_hex", "lr_hex", "ids", "data_crc32")

OWN = "local_loss_hex"


@dataclass(frozen=True)
class Unequal:
    """One step of one rank that differs, and in what."""

    rank: int
    step: int
    what: list[str]
    expected: dict[str, Any]
    found: dict[str, Any]

    def __str__(self) -> str:
        parts = [
            f"{what} {self.found.get(what)} instead of {self.expected.get(what)}"
            for what in self.what
        ]
        return f"rank {self.rank}, step {self.step}: {'; '.join(parts)}"


def first_apart(unequal: Sequence[Unequal]) -> list[Unequal]:
    """Those of the first step that differs, and there the ranks whose own loss does, if any.

    Loss and norm are the whole job's, so one rank that computes wrongly makes every rank unequal;
    what its own sequences gave is its own.
    """
    first = min((one.step for one in unequal), default=0)
    there = [one for one in unequal if one.step == first]
    own = [one for one in there if one.found.get(OWN) != one.expected.get(OWN)]
    return own or there


def unequal_steps(
    reference: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], first: int = 1
) -> list[Unequal]:
    """Steps from `first` on where the ranks' results differ from the reference's.

    Both are the trainer's results in order of rank.  A step that one of them lacks is unequal.
    """
    found = []
    for wanted, given in zip(reference, other, strict=True):
        want = {step["step"]: step for step in wanted["steps"] if step["step"] >= first}
        have = {step["step"]: step for step in given["steps"] if step["step"] >= first}
        for number in sorted(want.keys() | have.keys()):
            a, b = want.get(number, {}), have.get(number, {})
            what = [key for key in BITS if a.get(key) != b.get(key)]
            if what:
                found.append(Unequal(wanted["rank"], number, what, a, b))
    return found
