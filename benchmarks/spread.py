"""Several values of one figure, in one line; and whether a target is met."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable

MISSED: list[str] = []  # lines whose target is not met


def spread(values: Iterable[float]) -> str:
    """`median (least to most, n=count)`."""
    known = sorted(values)
    if not known:
        return "none"
    return f"{statistics.median(known):.3g} ({known[0]:.3g} to {known[-1]:.3g}, n={len(known)})"


def judged(words: str, met: bool) -> None:
    """One line, and whether its target is met."""
    print(f"{words}: {'met' if met else 'NOT met'}", flush=True)
    if not met:
        MISSED.append(words)


def finish() -> None:
    """End the process: exit code 1 where a target was not met."""
    sys.exit(1 if MISSED else 0)
