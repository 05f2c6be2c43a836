"""The catalogue of findings: what is wrong, who is suspected, what to do.

Each entry of CATALOGUE is documented by `seatrial explain CODE`.  The functions below are pure:
they look at what was measured and say what it means.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.record import Cause, Finding


@dataclass(frozen=True)
class Entry:
    """Meaning, cause class and remedy of one code."""

    meaning: str
    cause: Cause
    remedy: str


CATALOGUE: dict[str, Entry] = {
    "HOST-MISSING": Entry(
        "Fewer nodes are alive than were ordered.",
        Cause.INFRASTRUCTURE,
        "look at the named nodes' power and `ray start` log; then run `ray start --address=...` there",
    ),
    "HOST-EXTRA": Entry(
        "More nodes or GPUs are in the cluster than were ordered.",
        Cause.INFRASTRUCTURE,
        "remove the extra node, or agree a new contract: results would not be of the ordered cluster",
    ),
    "HOST-GPUS": Entry(
        "A node counts other accelerators than were ordered.",
        Cause.HARDWARE,
        "compare `nvidia-smi -L` on the named node with the order; restart Ray there once it is right",
    ),
    "HOST-VERSIONS": Entry(
        "Python, Ray, torch or the driver is not the same everywhere.",
        Cause.INFRASTRUCTURE,
        "use one image on all nodes and for the driver, then restart Ray",
    ),
    "HOST-SHARED": Entry(
        "A node does not see the shared folder.",
        Cause.INFRASTRUCTURE,
        "mount the shared file system on the named node at the agreed path",
    ),
    "HOST-SILENT": Entry(
        "Ray counts a node as alive, but no worker answers there.",
        Cause.INFRASTRUCTURE,
        "look at the raylet's and the runtime environment agent's log on the named node",
    ),
    "FAB-LINK-DOWN": Entry(
        "A node's fabric interface is down or without address, or reaches no other node.",
        Cause.HARDWARE,
        "check cable, switch port and `ip link` of the fabric interface on the named node",
    ),
    "FAB-PAIR-BLOCKED": Entry(
        "Two nodes do not reach each other on the fabric though both reach others.",
        Cause.INFRASTRUCTURE,
        "look for packet filters, routes and ACLs between the two named nodes",
    ),
    "FAB-SLOW-LINK": Entry(
        "Every pair with one node is slow.",
        Cause.HARDWARE,
        "check rate, errors and cable of the named node's fabric link",
    ),
    "FAB-SLOW": Entry(
        "All-reduce is slower than agreed, and no single node or pair stands out.",
        Cause.INFRASTRUCTURE,
        "check the fabric's rate and oversubscription, and what else uses it",
    ),
    "FAB-WRONG-ROAD": Entry(
        "Gradient bytes took another interface than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        "export NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME (or NCCL_IB_HCA) for the fabric before `ray start` on every node",
    ),
    "FAB-WRONG-DATA": Entry(
        "A collective returned wrong elements.",
        Cause.HARDWARE,
        "take the named rank's node out and test its memory, GPU and link",
    ),
    "FAB-NO-START": Entry(
        "The process group could not be made.",
        Cause.INFRASTRUCTURE,
        "read the named error; check interface names and firewalls between nodes",
    ),
    "GANG-HALF": Entry(
        "A job held part of its gang while it waited for the rest.",
        Cause.INFRASTRUCTURE,
        "launch with one placement group per job, never with single actors",
    ),
    "GANG-STUCK": Entry(
        "Neither of two competing gangs was placed, or the waiting one was not placed after release.",
        Cause.NO_PROGRESS,
        "look for a placement group in state RESCHEDULING (`ray list placement-groups`) and remove it",
    ),
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
    "RESTART-NO-FOLDER": Entry(
        "No folder is seen by every node, so a checkpoint cannot be read after a restart.",
        Cause.INFRASTRUCTURE,
        "mount a shared file system everywhere and name it in the contract: [cluster] shared",
    ),
    "RESTART-UNEQUAL": Entry(
        "The resumed run is not the run that was never killed.",
        Cause.APPLICATION,
        "save and restore generators, data position, optimizer and step; see the first unequal step",
    ),
    "RESTART-DEAD": Entry(
        "The run did not come back by itself.",
        Cause.NO_PROGRESS,
        "read the attempts: was there room for a new gang, and a checkpoint that verifies?",
    ),
    "SCALE-STRAGGLER": Entry(
        "One rank keeps all others waiting.",
        Cause.HARDWARE,
        "look at clocks, thermals, CPU limits and other load on the named node",
    ),
    "SCALE-LOSS": Entry(
        "Efficiency is under the limit; the terms say where the time went.",
        Cause.UNKNOWN,
        "begin with the largest term; compare it with the fabric's result",
    ),
}


def finding(
    code: str,
    statement: str,
    suspects: list[str] | None = None,
    *,
    evidence: list[str] | None = None,
) -> Finding:
    """A finding of a catalogued code (KeyError otherwise), with its cause and remedy."""
    entry = CATALOGUE[code]
    return Finding(
        code=code,
        statement=statement,
        suspects=suspects or [],
        cause=entry.cause,
        remedy=entry.remedy,
        evidence=evidence or [],
    )


def versions_differ(said: str) -> Finding:
    """The driver's versions keep it from joining at all."""
    return finding("HOST-VERSIONS", said, ["the driver"])
