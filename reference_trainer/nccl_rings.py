"""In which order NCCL adds up: over which rings, as it says in its own log.

The last bits of a sum depend on that order.  Two runs with the same rings, channels and protocol
add alike; a replaced node, or a rail that is down, makes other rings.
"""

from __future__ import annotations

import os
import re
from functools import cache

# INFO(NCCL_GRAPH, "Ring %02d : %d -> %d -> %d", channel, before, rank, after), NCCL's src/init.cc.
RING = re.compile(rb"\bRing 0*(\d+) : (\d+) -> (\d+) -> (\d+)")
# What makes the order a function of the rings alone: no tree, no sum inside the switch (NVLS), and
# one protocol, for the others cut a message elsewhere.
PINNED = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
LOG_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


def pin_order() -> list[str]:
    """Pin how NCCL adds, in this process; says what was set otherwise.

    NCCL reads it with its first communicator.
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
    """Make NCCL log into memory, not into a file that a killed rank would leave; a descriptor.

    None where the operator has it log elsewhere.  NCCL opens its log once, so it is the same for
    all runs of a process.
    """
    if any(os.environ.get(name) for name in LOG_VARIABLES):
        return None
    log = os.memfd_create("nccl-log")
    told = ("INFO", "GRAPH", f"/proc/self/fd/{log}")
    os.environ.update(zip(LOG_VARIABLES, told, strict=True))
    return log


def log_length() -> int:
    """Measure how much NCCL has logged so far: what a run that begins now does not ask about."""
    log = open_log()
    return os.fstat(log).st_size if log is not None else 0


def read_rings(since: int) -> list[str] | None:
    """Read the rings through this rank that NCCL has told of since; None where it told of none."""
    if (log := open_log()) is None:
        return None
    text = os.pread(log, os.fstat(log).st_size - since, since)
    rings = sorted({tuple(map(int, found)) for found in RING.findall(text)})
    return [f"{channel}: {a} -> {b} -> {c}" for channel, a, b, c in rings] or None
