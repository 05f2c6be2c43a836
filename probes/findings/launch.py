"""Findings of LAUNCH."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

LAUNCH: dict[str, Entry] = {
    "LAUNCH-FAILED": Entry(
        "A documented command failed.",
        Cause.INFRASTRUCTURE,
        "Open the transcript in the evidence of this result. Its last command failed: correct the documentation, or what the command needs.",
    ),
    "LAUNCH-ENV": Entry(
        "A rank is missing, or a variable of its rendezvous is missing, wrong or inconsistent.",
        Cause.APPLICATION,
        "Let the launcher set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT on every rank.",
    ),
    "LAUNCH-ELSEWHERE": Entry(
        "A rank ran on a host that is not a node of the cluster under test.",
        Cause.INFRASTRUCTURE,
        "Check whose dashboard the submission's address leads to (ingress, tunnel, proxy). Name this cluster with --cluster.",
    ),
    "LAUNCH-DEVICE": Entry(
        "A rank does not compute on its own GPU.",
        Cause.APPLICATION,
        "Install a torch build for these GPUs in the job's environment. Make the launcher request one GPU per rank from Ray.",
    ),
}
