"""Findings of HOSTS."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

HOSTS: dict[str, Entry] = {
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
    "HOST-HEAD": Entry(
        "Ray's head stopped answering while probes ran; Ray ends every driver that waits for it.",
        Cause.INFRASTRUCTURE,
        "look at gcs_server.out and `dmesg` (out of memory?) on the head node, then run it all again",
    ),
    "HOST-NO-ANSWER": Entry(
        "Ray counts a node as alive, but no worker answers there.",
        Cause.INFRASTRUCTURE,
        "look at the raylet's and the runtime environment agent's log on the named node",
    ),
}
