"""Finds processes of this machine by the program or script that they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PROGRAM_WORDS = 3  # `python -I script`


def read_words(pid: int) -> list[str]:
    """Read a process's command line; [] if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def runs_program(words: Sequence[str], program: str) -> bool:
    """Return whether a command line is of this program or script, or this actor of Ray.

    Ray writes `ray::Worker`, and while a method runs `ray::Worker.run()`.
    """
    names = [Path(word).name for word in words[:PROGRAM_WORDS]]
    return program in names or program in (word.split(".")[0] for word in words[:1])
