"""Errors that had no cause or advice of their own."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, warn

ZEROS = "00000000 00000000 00000000 00000000\n"
DUMP = f"mlx5: node3: got completion with error:\n{ZEROS * 3}00000000 {{}} 100076ab 008ae4d3\n"
FAILED = info("init.cc:1089 -> 3", "group.cc:65 -> 3 [Async thread]")
CAUSED = {
    "an endpoint of libfabric": Case(
        warn(
            "nccl_ofi.c:77 NET/OFI Couldn't allocate endpoint. RC: -12, ERROR: Cannot allocate memory"
        ),
        {"INIT-MEMLOCK"},
        "locked memory, not the plugin",
        "memory could not be registered for RDMA",
    ),
    "a registration of libfabric": Case(
        warn(
            "nccl_ofi.c:77 NET/OFI Unable to register memory (type = 2) for device 4. RC: -12, Error: "
            "Cannot allocate memory"
        ),
        {"INIT-MEMLOCK"},
        "the same limit",
    ),
    "an attribute that a topology file lacks": Case(
        info(*BEGIN) + warn("graph/xml.h:70 Attribute arch of node cpu not found") + FAILED,
        {"NCCL-ERROR"},
        "no network card is at fault",
        "Unset NCCL_TOPO_FILE and NCCL_GRAPH_FILE",
    ),
    "a device that the topology lacks": Case(
        info(*BEGIN) + warn("graph/topo.cc:70 Could not find NET with id 0") + FAILED,
        {"NCCL-ERROR"},
        "the file of another machine",
        "NCCL cannot use the topology that it read",
    ),
    "a dump of libmlx5": Case(
        DUMP.format("00008813"),
        {"INIT-QP"},
        "0x13 is a remote access error",
        "an RDMA connection of node3 broke: the NIC cannot reach the memory (syndrome 0x13, vendor "
        "error 0x88)",
    ),
    "another dump of libmlx5": Case(
        DUMP.format("00008716"),
        {"INIT-QP"},
        "0x16: the receiver was not ready",
        "node3 broke (syndrome 0x16, vendor error 0x87)",
    ),
    "libmlx5, without its dump": Case(
        "mlx5: node3: got completion with error:\n",
        {"INIT-QP"},
        "the numbers are cut off",
        "an RDMA connection of node3 broke (got completion",
    ),
    "libfabric without an EFA device": Case(
        "libfabric:41:17::core:core:fi_getinfo_():1391<warn> fi_getinfo: provider efa output empty list\n",
        set(),
        "no second host is seen: it is told, and nothing is accused",
        "libfabric finds no EFA device",
    ),
    "a pipe that broke": Case(
        info(*BEGIN) + warn("include/socket.h:390 Call to write failed : Broken pipe"),
        {"NCCL-ERROR"},
        "write, writev, read and readv as well",
        "the error began at this peer, or in the network",
    ),
    "a proxy, on the line of the error": Case(
        "torch.distributed.DistBackendError: ncclInternalError: Internal check failed. Proxy Call to rank "
        "8 failed (Connect)\n",
        {"NCCL-ERROR"},
        "the thread that connects has failed",
        "the error began earlier, on this host or at another rank (Proxy Call to rank 8 failed (Connect))",
    ),
    "no peer access": Case(
        "RuntimeError: CUDA error: peer access is not supported between these two devices\n",
        {"NCCL-ERROR"},
        "P2P between these GPUs",
        "Set NCCL_P2P_DISABLE=1",
    ),
    # Near misses.
    "a card without a place": Case(
        info(*BEGIN) + warn("graph/xml.h:70 Attribute busid of node nic not found") + FAILED,
        {"NCCL-ERROR"},
        "it is the card, not the file",
        "remove the device",
    ),
    "a topology file that is missing": Case(
        info(*BEGIN)
        + warn(
            "graph/xml.cc:70 Could not open XML topology file /x.xml : No such file or directory"
        ),
        set(),
        "NCCL goes on without it",
        "no line says whether NCCL went on",
    ),
    "an address table of libfabric": Case(
        warn("nccl_ofi.c:77 NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument"),
        {"NCCL-ERROR"},
        "no memory is locked for it",
        "a network plugin failed",
    ),
    "a kernel that names the driver": Case(
        "mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged\nwe got completion with "
        "error: none\n",
        set(),
        "no line of libmlx5",
        "no line of NCCL's",
    ),
    "peer access that is enabled": Case(
        "CUDA peer access is supported between devices 0 and 1; XML Parser ready\n",
        set(),
        "no error",
        "no line of NCCL's",
    ),
    "a program that writes": Case(
        "Call to write failed, trying again : Broken pipeline stage\n",
        set(),
        "another program's words",
        "no line of NCCL's",
    ),
}
