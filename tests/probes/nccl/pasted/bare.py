"""Warnings that nothing else tells, and texts without NCCL's prefix."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, warn

BARE = {
    "a device that cannot be opened, on one host": Case(
        "h1:1:2 [0] NCCL WARN NET/IB : Unable to open device mlx5_9\n",
        set(),
        "no network is accused with one host, but the warning is told",
        "note: nccl.log:1: NET/IB : Unable to open device mlx5_9",
    ),
    "no EFA device, on one host": Case(
        warn("nccl_ofi.c:77 NET/OFI Only EFA provider is supported"),
        set(),
        "as above",
        "NET/OFI Only EFA provider is supported",
    ),
    "RDMA without an IP interface": Case(
        warn("transport/net_ib.cc:9 NET/IB : No IP interface found."),
        set(),
        "as above",
        "note: nccl.log:1: transport/net_ib.cc NET/IB : No IP interface found.",
    ),
    "nodes with fewer devices": Case(
        warn("graph/topo.cc:9 Detected mixed local Net device counts"),
        set(),
        "as above",
        "Detected mixed local Net device counts",
    ),
    "libfabric over TCP": Case(
        warn("nccl_ofi.c:9 NET/OFI Selected Provider is tcp;ofi_rxm"),
        set(),
        "as above",
        "NET/OFI Selected Provider is tcp;ofi_rxm",
    ),
    "versions that NCCL itself compares": Case(
        warn(
            "init.cc:9 Mismatched NCCL version detected : rank 0 version 22304 rank 1 version 22105"
        ),
        {"NCCL-VERSION"},
        "since 2.23 it says so",
        "rank 0 version 22304 rank 1 version 22105",
    ),
    "a retry that nothing follows": Case(
        info(*BEGIN)
        + warn(
            "misc/socket.cc:9 socketPollConnect: connect to 10.0.0.2<4> returned Connection refused, "
            "retrying (1/34)"
        ),
        {"INIT-BOOTSTRAP"},
        "the rank has not joined since",
        "cannot connect to 10.0.0.2",
    ),
    "INFO without a prefix": Case(
        "INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_9'\n",
        set(),
        "the reason is told, and no connection is seen",
        "note: nccl.log:1: NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_9'",
    ),
    "a source file, and WARN": Case(
        "include/socket.h:340 WARN Socket creation failed : Address family not supported by protocol\n",
        set(),
        "2.2 wrote no mark",
        "Socket creation failed : Address family not supported",
    ),
    "a connection, the text alone": Case(
        "socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused\n",
        {"INIT-BOOTSTRAP"},
        "no other program begins so",
        "cannot connect to 10.0.0.2 by TCP (refused)",
    ),
    "a GPU, the text alone": Case(
        "  Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000\n",
        {"NCCL-DUP-GPU"},
        "as above",
    ),
    "a queue pair, the text alone": Case(
        "Call to ibv_modify_qp failed with error Connection timed out\n",
        {"INIT-QP"},
        "as above",
        "does not answer on this rail",
    ),
    # Near misses.
    "a database that refuses": Case(
        "INFO:root:Connect to db:5432 failed : Connection refused\nINFO Connect to x failed: timeout\n",
        set(),
        "another program's words",
        "no line of NCCL's",
    ),
    "a warning of Java": Case(
        "WARN Connection pool exhausted\n2026-11-20 WARN worker: Unable to open device /dev/video0\n",
        set(),
        "another program's words",
        "no line of NCCL's",
    ),
    "an error of Python's sockets": Case(
        "socket.timeout: timed out\nsocket.gaierror: [Errno -2] Name or service not known\n",
        set(),
        "Python writes a dot behind socket",
        "no line of NCCL's",
    ),
    "a page about NCCL": Case(
        'See "Call to ibv_modify_qp failed" in the guide; Duplicate GPU means two ranks on one\n',
        set(),
        "the words stand within a sentence",
        "no line of NCCL's",
    ),
    "advice, on one host": Case(
        info(*BEGIN) + warn("init.cc:9 NUMA auto balancing enabled which can lead to variability"),
        set(),
        "it is told, and nothing is accused",
        "note: nccl.log:4: init.cc NUMA auto balancing",
    ),
}
