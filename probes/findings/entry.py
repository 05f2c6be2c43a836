"""One entry of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass

from reports.record import Cause


@dataclass(frozen=True)
class Entry:
    """Meaning, cause class and remedy of one code."""

    meaning: str
    cause: Cause
    remedy: str
