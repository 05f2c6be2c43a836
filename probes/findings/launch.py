"""Findings of LAUNCH."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

LAUNCH: dict[str, Entry] = {
    "LAUNCH-FAILED": Entry(
        "A documented command failed.",
        Cause.INFRASTRUCTURE,
        "read the transcript; a user would be stuck at this line",
    ),
    "LAUNCH-ENV": Entry(
        "A rank lacks a rendezvous variable, or has a wrong or inconsistent one.",
        Cause.APPLICATION,
        "let the launcher set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT on every rank",
    ),
}
