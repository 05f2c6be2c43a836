"""Findings: what is wrong, by its code in the catalogue, with the suspects of this case."""

from __future__ import annotations

from collections.abc import Iterable

from probes.findings.catalogue import CATALOGUE
from reports.record import Finding

SHOWN = 8  # names listed in one finding


def listed(words: Iterable[str], most: int = SHOWN) -> str:
    """`a, b, c and 5 more`: the first `most` of them; "" for none."""
    every = list(words)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def finding(
    code: str,
    statement: str,
    suspects: list[str] | None = None,
    *,
    evidence: list[str] | None = None,
    remedy: str = "",
) -> Finding:
    """A finding of a catalogued code (KeyError otherwise), with its cause and remedy.

    A `remedy` that fits this case better takes the place of the catalogue's.
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


def versions_differ(said: str) -> Finding:
    """The driver's versions keep it from joining at all."""
    return finding("HOST-VERSIONS", said, ["the driver"])
