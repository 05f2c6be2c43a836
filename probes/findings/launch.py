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
        "A rank is missing, or a variable of its rendezvous is missing, wrong or inconsistent.",
        Cause.APPLICATION,
        "let the launcher set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT on every rank",
    ),
    "LAUNCH-ELSEWHERE": Entry(
        "A rank ran on a host that is no node of the cluster under test.",
        Cause.INFRASTRUCTURE,
        "see whose dashboard the submission's address leads to (ingress, tunnel, proxy), and name this cluster's with --cluster",
    ),
    "LAUNCH-DEVICE": Entry(
        "A rank does not compute on a GPU of its own.",
        Cause.APPLICATION,
        "install a torch built for these GPUs in the job's environment, and have the launcher ask Ray for one GPU for each rank",
    ),
}
