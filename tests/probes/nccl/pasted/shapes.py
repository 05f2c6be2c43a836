"""Old and foreign shapes of lines."""

from __future__ import annotations

import re

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, size_line, start, warn
from tests.recordings.generate.nccl_logs import Job

LINES = Job("2.21.5").text().splitlines()
SHAPES = {
    "InfiniBand of 2.4": Case(
        "NCCL version 2.4.2+cuda10.0\n"
        + info("NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:10.1.0.1<0>"),
        set(),
        "no `Using network` line",
        "networks   IB",
    ),
    "four GPUs in one process": Case(
        "NCCL version 2.11.4+cuda11.4\n"
        + "".join(
            info(
                f"Channel 00 : {n}[{n}] -> {(n + 1) % 4}[{(n + 1) % 4}] via P2P/direct pointer",
                device=n,
            )
            for n in range(4)
        ),
        set(),
        "threads of a process are ranks",
        "4 ranks, 1 host",
    ),
    "k9s borders": Case(
        "".join(f"│ {line}   │\n" for line in LINES), set(), "a terminal's frame", "", "rdma"
    ),
    "trailing blanks": Case(
        "".join(f"{line}     \n" for line in LINES), set(), "pasted cells", "", "rdma"
    ),
    "escaped arrows": Case(
        "\n".join(LINES).replace("->", "-&gt;") + "\n", set(), "a web page", "", "rdma"
    ),
    "carriage returns": Case(
        "".join(f"{line}\r\n" for line in LINES), set(), "Windows", "", "rdma"
    ),
    "MPI's prefix": Case(
        "".join(f"[1,0]<stdout>:{line}\n" for line in LINES),
        set(),
        "mpirun --tag-output",
        "",
        "rdma",
    ),
    "sizes of 2.3": Case(
        "NCCL version 2.3.7+cuda9.0\n"
        + "".join(
            info(
                f"rank {n} nranks 2",
                "NET : Using interface ib0:10.1.0.1<0>",
                "Using internal Network IB",
                f"comm 0x55 rank {n} nranks 2",
                f"Ring 00 : {n} -> {1 - n} [send] via NET/IB/0/GDRDMA",
                f"comm 0x55 rank {n} nranks 2 - COMPLETE",
                host=f"gpu0{n}",
                pid=n + 50,
            )
            for n in range(2)
        ),
        set(),
        "ranks and size stand in lines of their own",
        "2 ranks, 2 hosts, NCCL 2.3.7",
        "rdma",
    ),
    "a proxy is connected, and no rank": Case(
        info(
            *BEGIN,
            start(0, 2),
            "Connected to proxy localRank 0 -> connection 0x7f00",
            size_line(0, 2, 2),
        ),
        set(),
        "it comes before any edge",
        "stage      graph",
    ),
    "rings of 2.12, whose trees follow": Case(
        info("Channel 00/0 : 7[a01d0] -> 6[a01c0] via P2P/IPC", "Connected all rings"),
        set(),
        "init is not done",
        "stage      connect",
    ),
    "advice of RCCL is a note": Case(
        info(*BEGIN)
        + warn('init.cc:179 Missing "iommu=pt" from kernel command line which can lead to hang!'),
        set(),
        "a known cause of P2P that hangs",
        'note: nccl.log:4: init.cc Missing "iommu=pt"',
    ),
    "ACCL's prefix": Case(
        "".join(
            re.sub(r"^(\w+):(\d+):(\d+) \[(\d)\] NCCL", r"[\1][\2:\3][\4][init.cc:77] NCCL", line)
            + "\n"
            for line in LINES
        ),
        set(),
        "host, process, device and source in brackets",
        "4 ranks, 2 hosts",
        "rdma",
    ),
    "a glued timestamp": Case(
        "".join(f"2024-05-01T10:00:00.123-07:00{line}\n" for line in LINES),
        set(),
        "it is no part of the host",
        "2 hosts",
        "rdma",
    ),
    "a glued timestamp in UTC": Case(
        "".join(f"2024-05-01T10:00:00.123456Z{line}\n" for line in LINES),
        set(),
        "as above",
        "2 hosts",
        "rdma",
    ),
    "redacted hosts": Case(
        "\n".join(LINES).replace("node0:", "<host_a>:").replace("node1:", "<host_b>:") + "\n",
        set(),
        "names in angle brackets",
        "2 hosts",
        "rdma",
    ),
    "pods in brackets": Case(
        "\n".join(LINES).replace("node0:", "[worker-0]:").replace("node1:", "[worker-1]:") + "\n",
        set(),
        "kubectl's prefix",
        "2 hosts",
        "rdma",
    ),
    "direct shared memory": Case(
        "NCCL version 2.7.8+cuda10.2\n"
        + info(
            "Ring 00 : 0[1a000] -> 1[1b000] via direct shared memory",
            "comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1a000 - Init COMPLETE",
        )
        + info(
            "Ring 00 : 1[1b000] -> 0[1a000] via direct shared memory",
            "comm 0x56 rank 1 nranks 2 cudaDev 1 busId 1b000 - Init COMPLETE",
            pid=4002,
            device=1,
        ),
        set(),
        "the text of SHM to 2.8",
        "2 inside a host",
        "intra-node",
    ),
    "a warning cut by MPI": Case(
        info(*BEGIN, start(0, 4)).rstrip("\n")
        + "\n"
        + warn(
            "misc/socket.cc:1 socketStartConnect: Connect to 10.1.0.2<4> failed : Connection refused"
        ).rstrip("\n")
        + "[1,3]<stdout>:gpu04 says something else\n",
        {"INIT-BOOTSTRAP"},
        "the next rank's text is not part of it",
    ),
    "sockets of 2.4": Case(
        "NCCL version 2.4.7+cuda9.2\n"
        + "".join(
            info(
                "NET/IB : No device found.",
                f"NET/Socket : Using [0]ens3:10.1.0.{n}<0>",
                f"Ring 00 : {n} -> {(n + 1) % 2} [send] via NET/Socket/0",
                host=f"gpu0{n}",
                pid=n + 50,
            )
            for n in range(2)
        ),
        {"FAB-TCP", "FAB-NO-DEVICE"},
        "no `Using network` line",
        "Socket",
        "tcp",
    ),
}
