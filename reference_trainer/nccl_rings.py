"""Reads the rings over which NCCL sums, from NCCL's own log.

The last bits of a sum depend on the order. Two runs with the same rings, channels and protocol sum
in the same order. A replaced node, or a rail that is down, makes other rings.
"""

from __future__ import annotations

import os
import re
from functools import cache

# INFO(NCCL_GRAPH, "Ring %02d : %d -> %d -> %d", channel, before, rank, after), NCCL's src/init.cc.
RING = re.compile(rb"\bRing 0*(\d+) : (\d+) -> (\d+) -> (\d+)")
# With these settings the order depends on the rings alone: no tree, no sum inside the switch
# (NVLS), and one protocol, because the others split a message differently.
PINNED = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
LOG_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


def pin_order() -> list[str]:
    """Pin NCCL's order of sums in this process; return a message for each variable set otherwise.

    NCCL reads the variables with its first communicator.
    """
    overruled = [
        f"{name} is {value} here, not {os.environ[name]}: sums must have one order"
        for name, value in PINNED.items()
        if os.environ.get(name, value) != value
    ]
    os.environ.update(PINNED)
    return overruled


@cache
def open_log() -> int | None:
    """Open a log of NCCL in memory and return its descriptor; a file would outlive a killed rank.

    Returns None if the operator has set where NCCL logs. NCCL opens its log once, so it is the same
    for all runs of a process.
    """
    if any(os.environ.get(name) for name in LOG_VARIABLES):
        return None
    log = os.memfd_create("nccl-log")
    told = ("INFO", "GRAPH", f"/proc/self/fd/{log}")
    os.environ.update(zip(LOG_VARIABLES, told, strict=True))
    return log


def log_length() -> int:
    """Return how many bytes NCCL has logged so far; a run that begins now reads only later ones."""
    log = open_log()
    return os.fstat(log).st_size if log is not None else 0


def read_rings(since: int) -> list[str] | None:
    """Read the rings through this rank that NCCL logged after byte `since`; None if none."""
    if (log := open_log()) is None:
        return None
    text = os.pread(log, os.fstat(log).st_size - since, since)
    rings = sorted({tuple(map(int, found)) for found in RING.findall(text)})
    return [f"{channel}: {a} -> {b} -> {c}" for channel, a, b, c in rings] or None
