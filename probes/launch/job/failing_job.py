"""Judges what a user learns from a job that fails: its exit code, and a useful error at its end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probes.launch.path.shell import Transcript

LAST_LINES = 40  # what a terminal shows without scrolling
RANK_LINE = re.compile(r"\battempt=\d+ node=|\btrained .*\bRANK=")
WORD_GAP = 3  # characters between `rank` and its number: "rank 3", "rank=3", "ranks [3"


@dataclass(frozen=True)
class Failure:
    """What the end of a failed job's output must name: each fact, with a pattern for it."""

    name: str
    facts: Mapping[str, str]

    def missing(self, lines: Sequence[str]) -> list[str]:
        """List the facts that none of the last lines names.

        The lines that list all ranks do not count: each of them names a rank and its host.
        """
        end = "\n".join(line for line in lines[-LAST_LINES:] if not RANK_LINE.search(line))
        return [fact for fact, pattern in self.facts.items() if not re.search(pattern, end, re.I)]


def failure_of(name: str, exception: str, rank: int | None = None, host: str = "") -> Failure:
    """Build the failure of a rank on a host, or of the whole job without a rank."""
    facts = {"the error": exception}
    if rank is not None:
        facts["the rank"] = rf"\branks?\W{{0,{WORD_GAP}}}{rank}\b"
        facts["the host"] = rf"(?<![\w-]){re.escape(host.partition('.')[0])}(?![\w-])"
    return Failure(name, facts)


def hidden_error(transcript: Transcript) -> bool:
    """Return whether the commands ended as if nothing had happened."""
    return transcript.exit_code == 0
