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
        "Set NCCL_CROSS_NIC=0 (or use NCCL 2.29 or later) where each rail is its own network. "
        "Otherwise add a route between the addresses of the two ports.",
    ),
    ErrorCause(
        re.compile(r"Invalid argument|No data available|with -?(?:22|61)\b"),
        "the port's GID cannot be used",
        "Unset NCCL_IB_GID_INDEX since NCCL 2.21 (before, set the index that `show_gids` has for "
        "RoCE v2). Check that the port's interface is up and has its address.",
    ),
    ErrorCause(
        re.compile(r"unreachable|No route|with -?(?:101|113)\b"),
        "no route leads from one port to the other",
        "Unset NCCL_IB_GID_INDEX and name the routed network in NCCL_IB_ADDR_RANGE (and "
        "NCCL_IB_ADDR_FAMILY). Or add the route between the RoCE networks.",
    ),
    ErrorCause(
        re.compile(r"No such device|with -?19\b"),
        "the port's network interface is missing",
        "Give the container the RoCE interface as well as /dev/infiniband (host network, or the "
        "device plugin's interface).",
    ),
    ErrorCause(ANY_TEXT, "the queue pair cannot change its state"),
)
STATUS = r"(?:status=(?:\w+\()?|with error )"
QP_BREAK_CAUSES = (
    ErrorCause(
        re.compile(STATUS + r"(?:4|8|10)\b"),
        "the NIC cannot reach the memory",
        "Turn ACS off or set iommu=pt, and reload nvidia_peermem: GPU memory is registered but "
        "cannot be reached. Set NCCL_NET_GDR_LEVEL=LOC to see whether GPUDirect is the cause.",
    ),
    ErrorCause(
        re.compile(STATUS + r"1[23]\b"),
        "the other end does not answer any more",
        "Check cable, switch port and `rdma statistic` of both hosts (lossless RoCE: PFC), and "
        "whether the peer died. If it was the first message, check GID and routes too.",
    ),
    ErrorCause(
        re.compile(STATUS + r"9\b"),
        "the other end refused the request",
        "Read the peer's log. Check that both ends have the same NCCL, plugin and variables.",
    ),
    ErrorCause(
        ANY_TEXT,
        "it ended with an error",
        "Find the first error of the job, and read the peer's log: this one follows from another.",
    ),
)
# Errors that share a code -> remedy.
ERROR_FIXES = {
    "shm-attach": "Let all ranks of a node share /dev/shm and the IPC namespace (one container, or "
    "--ipc=host), or set NCCL_CUMEM_HOST_ENABLE=0. Check that the rank that made it is alive.",
    "peer-access": "Set NCCL_CUMEM_HOST_ENABLE=0 if the line is of shm.cc. Otherwise give the "
    "container all GPUs of the job with --ipc=host, or set NCCL_P2P_DISABLE=1.",
    "disagree": "Check that all ranks call the same collective with the same size, and have the "
    "same NCCL variables. Set NCCL_PROTO=Simple to see which: then it waits instead.",
    "shm-denied": "Let the job's user write to /dev/shm: mode 1777, no read-only mount, and no "
    "file of another user in the way.",
    "cuda-memory": "Free memory of the GPU: other processes (`nvidia-smi`), a smaller batch or "
    "model. NCCL takes less with NCCL_MAX_NCHANNELS and NCCL_BUFFSIZE.",
    "cuda-init": "Run `nvidia-smi` on the named host: driver and GPUs must answer there. Start no "
    "rank by fork after CUDA was used, and give the container the driver's own libraries.",
    "shm-cuda": "Set NCCL_CUMEM_HOST_ENABLE=0 (since NCCL 2.24). If it still fails, see whether "
    "the job runs with NCCL_SHM_DISABLE=1: more room in /dev/shm does not help, because it is CUDA "
    "that refuses the memory (driver, virtual GPU, WSL).",
    "no-address": "Check that all ranks run the same NCCL, and that rank 0's unique id reaches "
    "them unchanged. Read the log of rank 0 too: it may have no usable interface.",
    "no-pci": "Use a newer NCCL, or take the device out: a USB or virtual network card has no "
    "place there. Or give NCCL the tree (NCCL_TOPO_FILE).",
    "argument": "Mend the program: the named call has a wrong rank, pointer, size or communicator.",
    "cuda": "Read the error of CUDA. An illegal access or a failed launch is mostly a fault of the "
    "program: CUDA_LAUNCH_BLOCKING=1 shows the call. An ECC error or a lost GPU is the host's: "
    "look for an Xid in `dmesg`, and drain that GPU.",
    "cuda-driver": "Update the driver of the named host, or use a torch and NCCL that are built "
    "for the CUDA of `nvidia-smi`.",
    "cuda-exit": "Find out why the process ended: its first error, or a thread that left. This "
    "error only follows from that.",
    "cuda-kernel": "Use a torch and NCCL that are built for this GPU and for the CUDA of the "
    "driver: this NCCL holds no kernel that it can run here.",
    "net-missing": "Find out why its plugin does not load: the lines of NET/Plugin name the file, "
    "or what it lacks (a library, a newer glibc). Without it, unset NCCL_NET.",
    "cuda-peers": "Start one process per GPU: one process can map 8 other GPUs at most where no "
    "NVSwitch connects them.",
    "nic": "Look for the device in `dmesg` (mlx5) of the named host: firmware, PCIe, a reset. "
    "Read the peers' logs too: an error of a queue may follow from theirs.",
    "ofi-broke": "Check that the peer is alive, and the network to it: security group or firewall, "
    "routes, link. RC is a number of errno.h (110 timed out, 113 no route to host).",
    "port-error": "Check cable and switch port of the named device: its link went down. "
    "`rdma link` and the port's error counters show whether it flaps.",
}


def fix_of_cuda(errors: str) -> str:
    """Return the remedy for an error of CUDA that torch or nccl-tests report; "" for others."""
    if "driver version is insufficient" in errors:
        return ERROR_FIXES["cuda-driver"]
    if "no kernel image" in errors:
        return ERROR_FIXES["cuda-kernel"]
    return ERROR_FIXES["cuda"] if CUDA_ERROR.search(errors) else ""


CUDA_ERROR = re.compile(r"CUDA error|C(?:UDA|uda) failure")
GDR_DISTANCE_FIX = (
    "Compare the places of GPUs and network cards (`nvidia-smi topo -m`) with NCCL_NET_GDR_LEVEL: "
    "GPUDirect works on that host for other connections."
)
DESYNC_FIX = (
    "Look at what the named ranks did: they did not call the collective in which the others wait. "
    "Read their log, and a stack (py-spy). Torch's flight recorder has more "
    "(TORCH_NCCL_TRACE_BUFFER_SIZE)."
)
TIMEOUT_FIX = (
    "Look for the rank that did not join the collective: compare what all ranks did last "
    "(SeqNum), and read its log and its stack (py-spy). Torch's flight recorder names it "
    "(TORCH_NCCL_TRACE_BUFFER_SIZE)."
)
PLUGIN_FIX = (
    "Check that the plugin fits libfabric and the driver, and that its device is there: "
    "`fi_info -p efa`. Without it, NCCL_NET_PLUGIN=none shows whether the rest works."
)
START_SIZE_FIX = (
    "Give all ranks one version of NCCL and the same NCCL variables. If they have both, use NCCL "
    "2.21 or later: 2.19 and 2.20 can mix up two such messages."
)
FOLLOW_UP_FIX = (
    "Read the log of the named rank or host: its first error is the cause. If it has none, check "
    "the network between them."
)
TRACE_FIX = "Find the first WARN of the job, in the logs of all ranks: it names the cause."
ROUTE_FIX = (
    "Set NCCL_SOCKET_IFNAME to an interface that connects all nodes: this one does not lead to "
    "that address, or a firewall rejects it. Set NCCL_SOCKET_FAMILY if some nodes use IPv4 and "
    "others IPv6."
)
CONNECT_CAUSES = (
    ErrorCause(
        re.compile(r"\b127\.\d|<::1>|\[::1\]"),
        "an address that is valid on its own host only",
        "Set NCCL_SOCKET_IFNAME to an interface that connects all nodes. If all ranks are on one "
        "host, read the log of the rank that ended first.",
    ),
    ErrorCause(
        re.compile(r"169\.254\.|fe80:"),
        "an address that is valid on one link only",
        "Set NCCL_SOCKET_IFNAME to an interface with a routed address: this one has none.",
    ),
    ErrorCause(
        re.compile(r"\b172\.17\.\d"),
        "an address of Docker's own bridge, as it seems",
        "Start the containers of all nodes with --network=host: 172.17.0.0/16 is mostly a bridge "
        "within one host. If it is your network, check that the rank is alive and the port open.",
    ),
    ErrorCause(
        re.compile(r"refused|exceeded retries"),
        "refused",
        "Check that the rank is alive and belongs to this job: no process listens there. A "
        "firewall that rejects looks the same: open all ports between the nodes.",
    ),
    ErrorCause(
        re.compile(r"timed out|exceeded timeouts"),
        "timed out",
        "Open net.ipv4.ip_local_port_range between the nodes (firewall, NetworkPolicy): packets "
        "are dropped. Or correct NCCL_SOCKET_IFNAME if it names an interface that leads elsewhere.",
    ),
    ErrorCause(re.compile(r"[Nn]o route"), "no route", ROUTE_FIX),
    ErrorCause(
        re.compile(r"connection abort"),
        "gave up",
        "Check that the named rank is alive, and read its log: NCCL 2.18 to 2.23 write this after "
        "another error. If it has none, open all ports between the nodes.",
    ),
    ErrorCause(re.compile(r"unreachable"), "unreachable", ROUTE_FIX),
    ErrorCause(ANY_TEXT, "failed"),
)
# Remedies for hangs, which log no error.
FAMILY_FIX = "Set NCCL_SOCKET_FAMILY=AF_INET (or AF_INET6) on every rank."
MESH_FIX = (
    "Check for a service mesh or NetworkPolicy between the ranks: use no sidecar for these pods, "
    "and open all ports from pod to pod. Count the processes: a missing rank looks the same."
)
COLLECTIVE_FIX = (
    "Check the ranks that are behind. Set NCCL_P2P_DISABLE=1 to see whether ACS or the IOMMU "
    "breaks copies between GPUs (turn ACS off, iommu=pt). Unset NCCL_MULTI_RANK_GPU_ENABLE."
)
# Phases of a slow start -> remedy.
DRIVER_FIX = "Keep the driver loaded between jobs: nvidia-persistenced, or `nvidia-smi -pm 1`."
SOCKET_FIX = (
    "Set NCCL_SOCKET_IFNAME to a fast interface that connects all nodes: ranks start over a slow "
    "network. Check lost packets and name lookups there."
)
PHASE_FIXES = {
    "kernels": DRIVER_FIX,
    "alloc": DRIVER_FIX,
    "topo": f"{DRIVER_FIX} Check whether `nvidia-smi topo -m` is slow too.",
    "bootstrap": SOCKET_FIX,
    "allgathers": SOCKET_FIX,
    "graphs": "Give NCCL the topology (NCCL_TOPO_FILE of that machine). Check CPU limits.",
    "connections": "Check retries and error counters of the RDMA ports of the named hosts.",
    "rest": "Check CPU limits and other load on the named hosts.",
}
LATE_FIX = (
    "Start all ranks together. Find what delayed the named rank before it joined (image, imports)."
)
