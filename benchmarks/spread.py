"""Several values of one figure, in one line."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def spread(values: Iterable[float]) -> str:
    """`median (least to most, n=count)`."""
    known = sorted(values)
    if not known:
        return "none"
    return f"{statistics.median(known):.3g} ({known[0]:.3g} to {known[-1]:.3g}, n={len(known)})"
