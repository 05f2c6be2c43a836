"""Reads what a job's output says of its ranks and steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

ATTEMPT = re.compile(r"\battempt=(\d+) (node=.*)$", re.MULTILINE)
TRAINED = re.compile(r"\btrained (.*\bRANK=.*)$", re.MULTILINE)
MAX_SAMPLES = 1_000_000  # of one rank; a job of 20 steps has some hundred
STEP = re.compile(r"\bstep (\d+)/(\d+)\s+loss (\S+)")
PARAMETERS = re.compile(r"\b(\d+) ranks on \S+, (\d+) parameters")


def announced_ranks(text: str) -> list[dict[str, str]]:
    """Read each rank's place, variables, device and training from the job's output.

    If the job was restarted, the last attempt counts.  Ray's command repeats the last lines of a
    job that failed, so equal lines count once.  A rank that a launcher of its own started says at
    the end alone where it is.
    """
    attempts: dict[int, list[dict[str, str]]] = {}
    for match in {match[0]: match for match in ATTEMPT.finditer(text)}.values():
        attempts.setdefault(int(match[1]), []).append(_read_words(match[2]))
    said = [words for words in map(_read_words, TRAINED.findall(text)) if "RANK" in words]
    trained = {words["RANK"]: words for words in said}
    rows = attempts[max(attempts)] if attempts else [*trained.values()]
    return [{**row, **trained.get(row.get("RANK", ""), {})} for row in rows]


def logged_losses(text: str) -> list[float]:
    """Read the loss that the job logged for each step, in order; of a restarted job the last."""
    losses: dict[int, float] = {}
    for step, _, loss in STEP.findall(text):
        try:
            losses[int(step)] = float(loss)
        except ValueError:
            losses[int(step)] = float("nan")
    return [losses[step] for step in sorted(losses)]


def count_job_parameters(text: str) -> int | None:
    """Read the number of the model's parameters; None if the job did not log it."""
    found = PARAMETERS.search(text)
    return int(found[2]) if found else None


def numbers_of(row: Mapping[str, str], name: str) -> list[float]:
    """Read numbers with commas between; what is none is NaN."""
    numbers = []
    for word in filter(None, row.get(name, "").split(",")):
        try:
            numbers.append(float(word))
        except ValueError:
            numbers.append(float("nan"))
    return numbers


def ids_of(row: Mapping[str, str]) -> set[int] | None:
    """Read the samples that a rank trained on, as `0-3,8`; None if it did not say."""
    ids: set[int] = set()
    try:
        for span in row["samples"].split(","):
            first, _, last = span.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            if len(numbers) > MAX_SAMPLES:
                return None
            ids.update(numbers)
    except (KeyError, ValueError, OverflowError):
        return None
    return ids


def _read_words(line: str) -> dict[str, str]:
    words = (word.split("=", 1) for word in line.split() if "=" in word)
    return {name: unquote(value) for name, value in words}
