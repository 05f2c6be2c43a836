"""Lines that accuse no network, and such that do."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, PIECE, Case, info, size_line, start, warn
from tests.recordings.generate.nccl_logs import Job

ROWS = """#  Rank  0 Group  0 Pid   4001 on      gpu01 device  0 [0x1a] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   4002 on      gpu01 device  1 [0x1b] NVIDIA A100-SXM4-80GB
"""
SOCKETS = (
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.1.0.1<0>",
    "Using network Socket",
)
GDR_ON_RECEIVE = "".join(
    info(
        "NET/IB : GPU Direct RDMA Enabled for GPU 1000 / HCA 0 (distance 1 < 2), read 0",
        f"Ring 00 : {1 - rank}[0] -> {rank}[0] [receive] via NET/IB/0/GDRDMA",
        f"Ring 00 : {rank}[0] -> {1 - rank}[0] [send] via NET/IB/0",
        host=f"gpu0{rank}",
        pid=70 + rank,
    )
    for rank in range(2)
)
NO_NETWORK_TO_ACCUSE = {
    "GPUDirect that only receives": Case(
        GDR_ON_RECEIVE,
        set(),
        "without NVLink NCCL stages what it sends",
        "not proven: nccl.log:3: this host receives with GPUDirect RDMA and sends without it",
        "rdma",
    ),
    "GPUDirect that only receives, and newer words for it": Case(
        GDR_ON_RECEIVE + info("Connected all rings, use ring PXN 0 GDR 0", host="gpu00", pid=70),
        set(),
        "one staged send makes all ranks log GDR 0",
        "transport  rdma, GPUDirect RDMA",
    ),
    "the internal plugin on two hosts": Case(
        "".join(
            info(
                f"Bootstrap : Using eth0:10.1.0.{n}<0>",
                "NET/Plugin: No plugin found (libnccl-net.so)",
                "NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object "
                "file: No such file or directory : when loading libnccl-net.so",
                "NET/Plugin: Using internal network plugin.",
                host=f"gpu0{n}",
                pid=70 + n,
            )
            for n in range(2)
        ),
        set(),
        "most clusters need no plugin",
        "not proven",
    ),
    "RDMA that the command turns off": Case(
        "mpirun -np 2 -x NCCL_IB_DISABLE=1 ./build/all_reduce_perf -g 1\n"
        + "".join(
            warn("misc/ibvwrap.cc:61 Failed to open libibverbs.so[.1]", host=f"gpu0{n}", pid=70 + n)
            for n in range(2)
        ),
        set(),
        "the library is not needed",
        "NCCL_IB_DISABLE=1 turns RDMA off",
    ),
    "two jobs of nccl-tests": Case(
        "".join(
            f"#  Rank  {rank} Group  0 Pid  {90 + rank} on {host} device  {rank} [0x1a] Tesla V100\n"
            for host in ("gpu01", "gpu02")
            for rank in range(2)
        )
        + info("NCCL version 2.18.5+cuda12.2", *BEGIN),
        set(),
        "without MPI each process is a job of its own",
        "note: nccl-tests lists rank 0 on gpu01, gpu02: these are two separate jobs",
    ),
    "an RDMA device that the kernel emulates": Case(
        info("NET/IB : Using [0]rxe0:1/RoCE [RO]; OOB eth0:10.1.0.1<0>", "Using network IB"),
        set(),
        "it works, and no network is seen in use",
        "note: gpu01: rxe0 is emulated by the kernel",
    ),
    "a start over a tunnel": Case(
        info("Bootstrap : Using ip6tnl0:fe80::1<0>", "NET/IB : Using [0]mlx5_0:1/RoCE"),
        set(),
        "nothing says that others do not reach it",
        "note: gpu01: NCCL starts over the tunnel ip6tnl0",
    ),
    "one node of two, by its own edges": Case(
        "".join(
            info(
                *(*BEGIN, start(n, 4), size_line(n, 4, 2)),
                f"Channel 00 : {n}[{n}] -> {1 - n}[{1 - n}] via P2P/CUMEM",
                pid=50 + n,
                device=n,
            )
            for n in range(2)
        ),
        set(),
        "two nodes, and no line between them",
        "lines of 2 of 4 ranks",
        "none",
    ),
    "one of two hosts has begun": Case(
        info(*BEGIN, start(1, 2), host="gpu02", pid=77) + info(*BEGIN[:1]),
        set(),
        "a communicator of two is not alone on its host",
        PIECE,
    ),
    "InfiniBand turned off, one host": Case(
        info("NCCL_IB_DISABLE set by environment to 1.", *BEGIN[:1]),
        set(),
        "no line shows that traffic leaves the host: a note",
        "note: nccl.log:1: NCCL_IB_DISABLE=1 turns RDMA off",
    ),
    "one host's rows of nccl-tests": Case(
        ROWS + info(*SOCKETS), set(), "both ranks are on one host"
    ),
    "one host, no size": Case(
        info(*SOCKETS, "NCCL_IB_DISABLE set by environment to 1."),
        set(),
        "nothing shows a second host",
    ),
    "one host, loopback": Case(
        info(
            "Bootstrap : Using lo:127.0.0.1<0>",
            "NET/Socket : Using [0]lo:127.0.0.1<0>",
            "Using network Socket",
        ),
        set(),
        "a single machine may use it",
    ),
    "Omni-Path": Case(
        Job("2.21.5")
        .text()
        .replace("mlx5_", "hfi1_")
        .replace("/GDRDMA", "")
        .replace("GDR 1", "GDR 0"),
        set(),
        "it has no GPUDirect: a note",
        "Omni-Path",
        "rdma",
    ),
    "one memory": Case(
        ROWS.replace("NVIDIA A100-SXM4-80GB", "NVIDIA GB10").replace(
            "on      gpu01 device  1", "on      gpu02 device  1"
        )
        + Job("2.27.5").text().replace("/GDRDMA", "").replace("GDR 1", "GDR 0"),
        set(),
        "GB10 has one memory: a note",
        "GB10",
        "rdma",
    ),
}
