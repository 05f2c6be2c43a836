"""Findings: faults by their code in the catalogue, with the suspects of this case."""

from __future__ import annotations

from collections.abc import Iterable

from probes.findings.catalogue import CATALOGUE
from reports.record import Finding

MAX_NAMES = 8  # names listed in one finding


def join_names(names: Iterable[str], max_names: int = MAX_NAMES) -> str:
    """Join names as `a, b, c and 5 more`: the first `max_names` of them; "" for none."""
    all_names = list(names)
    suffix = f" and {len(all_names) - max_names} more" if len(all_names) > max_names else ""
    return ", ".join(all_names[:max_names]) + suffix


def finding(
    code: str,
    statement: str,
    suspects: list[str] | None = None,
    *,
    evidence: list[str] | None = None,
    remedy: str = "",
) -> Finding:
    """Build a finding of a catalogued code, with its cause and remedy.  Raises KeyError for others.

    A `remedy` that fits this case better replaces the catalogue's.
    """
    entry = CATALOGUE[code]
    return Finding(
        code=code,
        statement=statement,
        suspects=suspects or [],
        cause=entry.cause,
        remedy=remedy or entry.remedy,
        evidence=evidence or [],
    )
