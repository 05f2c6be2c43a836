"""Maps NCCL's error texts to causes, each with the remedy that fits it.

Causes and fixes are those of NCCL's troubleshooting guide and its issues. Numbers are those of
errno.h and of ibv_wc_status.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class ErrorCause(NamedTuple):
    """Cause of an error by the `pattern` of its text; the default `remedy` is the catalogue's."""

    pattern: re.Pattern[str]
    reason: str
    remedy: str = ""


def find_cause(causes: tuple[ErrorCause, ...], text: str) -> ErrorCause:
    """Find the first cause whose pattern is in the text; the last cause matches any text."""
    return next(cause for cause in causes if cause.pattern.search(text))


ANY_TEXT = re.compile("")
QP_SETUP_CAUSES = (
    ErrorCause(
        re.compile(r"timed out|with -?110\b"),
        "the other end does not answer on this rail",
        "where each rail is a network of its own, keep NCCL on it: NCCL_CROSS_NIC=0 (or NCCL 2.29 "
        "and later); else give the two ports' addresses a way to each other",
    ),
    ErrorCause(
        re.compile(r"Invalid argument|No data available|with -?(?:22|61)\b"),
        "the port's GID cannot be used",
        "leave NCCL_IB_GID_INDEX unset since NCCL 2.21 (before, set the index that `show_gids` has "
        "for RoCE v2), and see that the port's interface is up and has its address",
    ),
    ErrorCause(
        re.compile(r"unreachable|No route|with -?(?:101|113)\b"),
        "no route leads from one port to the other",
        "leave NCCL_IB_GID_INDEX unset and name the routed network in NCCL_IB_ADDR_RANGE (and "
        "NCCL_IB_ADDR_FAMILY), or add the route between the RoCE networks",
    ),
    ErrorCause(
        re.compile(r"No such device|with -?19\b"),
        "the port's network interface is not there",
        "give the container the RoCE interface as well as /dev/infiniband (host network, or the "
        "device plugin's interface)",
    ),
    ErrorCause(ANY_TEXT, "the queue pair cannot change its state"),
)
STATUS = r"(?:status=(?:\w+\()?|with error )"
QP_BREAK_CAUSES = (
    ErrorCause(
        re.compile(STATUS + r"(?:4|8|10)\b"),
        "the NIC may not reach the memory",
        "GPU memory is registered and yet out of reach: turn ACS off or set iommu=pt, reload "
        "nvidia_peermem; NCCL_NET_GDR_LEVEL=LOC shows whether GPUDirect is the cause",
    ),
    ErrorCause(
        re.compile(STATUS + r"1[23]\b"),
        "the other end does not answer any more",
        "look at cable, switch port and `rdma statistic` of both hosts (lossless RoCE: PFC), and "
        "whether the peer died; at the very first message also at GID and routes",
    ),
    ErrorCause(
        ANY_TEXT,
        "it ended with an error",
        "it follows from another error: look for the first error of the job, and at the peer's log",
    ),
)
ROUTE_FIX = (
    "this interface leads to no such address: set NCCL_SOCKET_IFNAME to one that joins all nodes; "
    "IPv4 here and IPv6 there: NCCL_SOCKET_FAMILY"
)
CONNECT_CAUSES = (
    ErrorCause(
        re.compile(r"refused|exceeded retries"),
        "refused",
        "nobody listens there: see whether that rank lives and is of this job; a firewall that "
        "rejects looks the same: open all ports between the nodes",
    ),
    ErrorCause(
        re.compile(r"timed out|exceeded timeouts"),
        "timed out",
        "packets are dropped: open net.ipv4.ip_local_port_range between the nodes (firewall, "
        "NetworkPolicy), or NCCL_SOCKET_IFNAME names an interface that leads elsewhere",
    ),
    ErrorCause(re.compile(r"[Nn]o route"), "no route", ROUTE_FIX),
    ErrorCause(re.compile(r"unreachable"), "unreachable", ROUTE_FIX),
    ErrorCause(ANY_TEXT, "failed"),
)
# Remedies for hangs, which log no error.
FAMILY_FIX = "let all nodes use one family: NCCL_SOCKET_FAMILY=AF_INET (or AF_INET6) on every rank"
MESH_FIX = (
    "a service mesh or NetworkPolicy between the ranks looks like this: no sidecar for these pods, "
    "any port from pod to pod; so does a rank that was never started: count the processes"
)
COLLECTIVE_FIX = (
    "look at the ranks that lag behind; NCCL_P2P_DISABLE=1 shows whether ACS or the IOMMU breaks "
    "copies between GPUs (turn ACS off, iommu=pt); NCCL_MULTI_RANK_GPU_ENABLE must not be set"
)
# Phases of a slow start -> remedy.
DRIVER_FIX = "keep the driver loaded between jobs: nvidia-persistenced, or `nvidia-smi -pm 1`"
SOCKET_FIX = (
    "the network that ranks start over is slow: NCCL_SOCKET_IFNAME to a fast interface that joins "
    "all nodes; look at lost packets and at name lookups there"
)
PHASE_FIXES = {
    "kernels": DRIVER_FIX,
    "alloc": DRIVER_FIX,
    "topo": f"{DRIVER_FIX}; see whether `nvidia-smi topo -m` is slow too",
    "bootstrap": SOCKET_FIX,
    "allgathers": SOCKET_FIX,
    "graphs": "give the topology ready-made (NCCL_TOPO_FILE of that machine); look at CPU limits",
    "connections": "look at retries and error counters of the RDMA ports of the named hosts",
    "rest": "look at CPU limits and other load on the named hosts",
}
LATE_FIX = (
    "start all ranks together: see what held the named rank up before it joined (image, imports)"
)
