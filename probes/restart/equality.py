"""Is the resumed run the run that was never killed?  Compared bit by bit, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OWN = "local_loss_hex"  # of a rank's own sequences; loss and norm are the whole job's
BITS = ("loss_hex", OWN, "norm_hex", "lr_hex", "ids", "data_crc32", "digest")


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
            f"{what} {_short(self.found.get(what))} instead of {_short(self.expected.get(what))}"
            for what in self.what
        ]
        return f"rank {self.rank}, step {self.step}: {'; '.join(parts)}"


def _short(value: Any) -> Any:
    """A digest by its beginning; all else whole."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 32 else value


def first_apart(unequal: Sequence[Unequal]) -> tuple[Unequal, list[int]]:
    """Where the first step that differs does, and the ranks that are to blame; none are sometimes.

    One rank that computes wrongly makes every rank unequal.  It is told from them by its own loss,
    in the first step; a wrong gradient shows on none.  ValueError where nothing differs.
    """
    first = min(one.step for one in unequal)
    there = [one for one in unequal if one.step == first]
    own = [one for one in there if OWN in one.what]
    alone = own if len(own) < len(there) else []
    return (alone or there)[0], [one.rank for one in alone]


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
