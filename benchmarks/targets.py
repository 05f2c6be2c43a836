"""What is held against a target, line by line, and what missed it."""

from __future__ import annotations

import sys

MISSED: list[str] = []  # lines whose target is not met


def judged(words: str, met: bool) -> None:
    """One line of what is held against a target."""
    print(f"{words}: {'met' if met else 'NOT met'}", flush=True)
    if not met:
        MISSED.append(words)


def finish() -> None:
    """End the process: exit code 1 where a target was not met."""
    sys.exit(1 if MISSED else 0)
