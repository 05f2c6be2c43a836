"""Answer to one question about a machine or a cluster, and what it means for a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

UNPROVEN, FAIL = "UNPROVEN", "FAIL"  # what a run would say of the criteria
OK = "ok"


@dataclass(frozen=True)
class Answer:
    """What was found to a question; `state` is OK, or what a run would say of `criteria`.

    `do` is an order to the reader; "" where nothing need be done.
    """

    question: str
    found: str
    state: str = OK
    criteria: tuple[str, ...] = ()
    do: str = ""


def affected(answers: Iterable[Answer], state: str) -> list[str]:
    """List the criteria with this state in a run, each once, in the order of the answers."""
    named = (id for answer in answers if answer.state == state for id in answer.criteria)
    return list(dict.fromkeys(named))
