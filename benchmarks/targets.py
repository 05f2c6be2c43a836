"""What is held against a target, line by line, and what missed it."""

from __future__ import annotations

MISSED: list[str] = []  # lines whose target is not met


def judged(words: str, met: bool) -> None:
    """One line of what is held against a target."""
    print(f"{words}: {'met' if met else 'NOT met'}", flush=True)
    if not met:
        MISSED.append(words)
