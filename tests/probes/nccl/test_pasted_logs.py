"""Pieces of logs as people post them: forty lines of one rank, prefixes, torch's text.

SYNTHETIC: each case is written by us in the shape of public threads; none is copied.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from probes.cli.main import main
from probes.nccl.other_lines import TORCH_ERRORS, TORCH_WORDS
from probes.nccl.patterns import PHRASES, Phrase, find_kinds
from probes.nccl.report import analyse_files
from tests.recordings.generate.nccl_logs import Job, socket
from tests.support.nccl_report import codes, told


class Case(NamedTuple):
    """A text, what must be found in it (`only` these codes), and why."""

    text: str
    only: set[str]
    why: str
    says: str = ""  # a part of the report
    transport: str = ""


def info(*texts: str, host: str = "gpu01", pid: int = 4001, device: int = 0) -> str:
    return "".join(f"{host}:{pid}:{pid + 60} [{device}] NCCL INFO {text}\n" for text in texts)


def warn(text: str, host: str = "gpu01", pid: int = 4001, device: int = 0) -> str:
    source, _, words = text.partition(" ")
    return f"{host}:{pid}:{pid + 60} [{device}] {source} NCCL WARN {words}\n"


BEGIN = (
    "Bootstrap : Using eth0:10.1.0.1<0>",
    "NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.1.0.1<0>",
    "Using network IB",
)


def start(rank: int, size: int) -> str:
    return f"ncclCommInitRank comm 0x55 rank {rank} nranks {size} cudaDev 0 busId 1000 commId 0xab - Init START"


def size_line(rank: int, size: int, nodes: int) -> str:
    return f"comm 0x55 rank {rank} nRanks {size} nNodes {nodes} localRanks {size // nodes} localRank 0 MNNVL 0"


PIECE = "cannot be seen in this piece"
CUT_STARTS = {
    "forty lines of one rank of 16": Case(
        info(*BEGIN, start(3, 16)), set(), "one rank's lines show no hang", PIECE
    ),
    "one rank past the all-gather": Case(
        info(*BEGIN, start(3, 16), size_line(3, 16, 2), "Channel 00/02 : 0 1 2 3"),
        set(),
        "it gathered from all ranks, so none is missing",
        "lines of 1 of 16 ranks",
    ),
    "all ranks end at one early line": Case(
        info(*BEGIN, start(0, 2), size_line(0, 2, 2))
        + info(*BEGIN, start(1, 2), size_line(1, 2, 2), host="gpu02", pid=77),
        set(),
        "a piece that was cut there looks the same",
        "a hang, or the piece ends there",
    ),
    "two of 16 ranks past the all-gather": Case(
        info(*BEGIN, start(0, 16), size_line(0, 16, 2))
        + info(*BEGIN, start(1, 16), size_line(1, 16, 2), pid=4002, device=1),
        set(),
        "both end at one early line; no rank is called missing",
        "lines of 2 of 16 ranks",
    ),
    "the middle of a job's output": Case(
        info(
            "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM"
        ),
        set(),
        "no line gives the size",
        PIECE,
    ),
    "only the network lines": Case(
        info(*BEGIN), set(), "no size, one host", f"{PIECE}: no line gives"
    ),
    "the network lines of two hosts": Case(
        info(*BEGIN) + info(*BEGIN, host="gpu02", pid=77), set(), "no size", "number of ranks"
    ),
    "bootstrap timings": Case(
        info(
            *BEGIN,
            start(0, 8),
            "Bootstrap timings total 0.9 (create 0.1, send 0.2, recv 0.3, ring 0.1, delay 0.0)",
        ),
        set(),
        "every rank has answered",
        "lines of 1 of 8 ranks",
    ),
    "Ray left lines out": Case(
        "".join(
            info(
                *BEGIN,
                f"{start(rank, 2)} [repeated 15x across cluster]",
                host=f"gpu0{rank}",
                pid=50 + rank,
            )
            for rank in range(2)
        ),
        set(),
        "a line that is missing may be one of those",
        "left out repeated lines",
    ),
    "three of eight ranks at the start": Case(
        "".join(info(*BEGIN, start(rank, 8), pid=50 + rank, device=rank) for rank in (1, 2, 6)),
        set(),
        "the others may come after the cut",
        "lines of 3 of 8 ranks",
    ),
    "three of four ranks at the start": Case(
        "".join(info(*BEGIN, start(rank, 4), pid=50 + rank, device=rank) for rank in range(3)),
        set(),
        "the fourth may come after the cut",
        "rank 3 never joined, or the piece ends too early",
    ),
    "the size, and no beginning": Case(
        "".join(
            info(
                f"Channel 00/0 : {n}[0] -> {1 - n}[0] [send] via NET/IB/0/GDRDMA comm 0x55 nRanks 2",
                host=f"gpu0{n}",
            )
            for n in range(2)
        ),
        set(),
        "what came before may explain it",
        "its beginning is missing",
    ),
    "a process beside the ranks that wrote nothing but a warning": Case(
        "".join(info(*BEGIN, start(n, 2), pid=50 + n, device=n) for n in range(2))
        + warn("socket.cc:1 Something that no version of this reader knows", pid=60, device=2),
        set(),
        "it may be the one that stopped the others",
        "of some of its processes the beginning is missing",
    ),
    "a job of one rank": Case(
        info(*BEGIN, start(0, 1)), set(), "it has all ranks", "all 1 ranks end at topology"
    ),
    "four threads of a process": Case(
        "".join(info(*BEGIN, start(n, 4), device=n) for n in range(4)),
        set(),
        "each is a rank",
        "all 4 ranks end at topology",
    ),
    "two attempts of one rank": Case(
        info(*BEGIN, start(0, 2)) + info(*BEGIN, start(0, 2), pid=4002),
        set(),
        "a process that was started again is no second rank",
        "it has the lines of one of 2 ranks",
    ),
    "the last of four ranks has just begun": Case(
        "".join(info(*BEGIN, start(n, 4), pid=50 + n, device=n) for n in range(3))
        + info(BEGIN[0], start(3, 4), pid=53, device=3)
        + info("Setting affinity for GPU 0 to ffff", pid=50),
        set(),
        "in the next moment it may go on",
        "a hang, or the piece ends there",
    ),
    "size at the end of an edge": Case(
        info("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA comm 0x55 nRanks 32"),
        set(),
        "an edge names the size",
        "of 32 ranks",
    ),
}
TRUNCATED = warn("bootstrap.cc:77 Message truncated : received 256 bytes instead of 4")
ERRORS = {
    "a peer that went, and the thread that noticed": Case(
        warn(
            "misc/socket.cc:503 Net : Call to recv from 10.1.0.9<41468> failed : Connection timed out"
        )
        + info("misc/socket.cc:520 -> 2")
        + warn("transport/net_socket.cc:219 NET/Socket : socket progress error")
        + info("include/net.h:32 -> 2"),
        {"NCCL-ERROR"},
        "the second error only follows",
        "this error began at 10.1.0.9",
    ),
    "CUDA that cannot be initialised": Case(
        info(*BEGIN, start(0, 2), "NVLS multicast support is not available on dev 0")
        + warn("transport/nvls.cc:245 Cuda failure 'initialization error'")
        + info("init.cc:872 -> 1"),
        {"NCCL-ERROR"},
        "the file that notices is not the cause",
        "CUDA cannot be initialised",
    ),
    "P2P that cannot be enabled": Case(
        info(*BEGIN, "Could not enable P2P between dev 2(=300000) and dev 1(=200000)"),
        set(),
        "NCCL goes on without",
        "note: nccl.log:4: Could not enable P2P between dev 2",
    ),
    "a driver's library that is not found": Case(
        info(*BEGIN)
        + warn("misc/cudawrap.cc:179 Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='')"),
        set(),
        "NCCL goes on without cuMem and NVLS",
        "note: nccl.log:4: misc/cudawrap.cc Failed to find CUDA library",
    ),
    "a GPU that a peer does not see": Case(
        info(*BEGIN)
        + warn("misc/nvmlwrap.cc:181 nvmlDeviceGetHandleByPciBusId() failed: Not Found"),
        set(),
        "the job may go on, slower",
        "so they cannot use NVLink or P2P",
    ),
    "the memory of a GPU": Case(
        info(*BEGIN) + warn("enqueue.cc:1 Cuda failure 2 'out of memory'"),
        {"NCCL-ERROR"},
        "neither an Xid nor the card",
        "a GPU has no free memory",
    ),
    "shared memory that may not be written": Case(
        info(*BEGIN) + warn("include/shm.h:28 Call to shm_open failed : Permission denied"),
        {"INIT-SHM"},
        "a larger one does not help",
        "mode 1777",
    ),
    "a scanner of ports": Case(
        info(*BEGIN)
        + warn("misc/socket.cc:1 socketFinalizeAccept: wrong magic 74656d2f20544547 != 9a2c1e"),
        set(),
        "NCCL goes on",
        "no rank of this job",
    ),
    "libfabric, and lines of two hosts": Case(
        info(*BEGIN)
        + info(*BEGIN, host="gpu02", pid=77)
        + warn("create_nccl_ofi_component:459 NET/OFI Couldn't open AV. RC: -22", host="gpu02"),
        {"NCCL-ERROR"},
        "an error is told, whichever network the others use",
        "Couldn't open AV",
    ),
    "a rank that the job does not have": Case(
        info(*BEGIN) + warn("init.cc:981 Invalid rank requested : 2/2"),
        {"LAUNCH-ENV"},
        "ranks are counted from 0",
        "Invalid rank requested : 2/2",
    ),
    "a trace with the path of a package": Case(
        warn("/opt/rccl/src/graph/paths.cc:82 Failed to find reverse path from remNode 0/2 to 0/7")
        + info("/opt/rccl/src/graph/paths.cc:608 -> 3", "/opt/rccl/src/init.cc:1248 -> 3"),
        {"NCCL-ERROR"},
        "RCCL writes where it was built",
        "Failed to find reverse path",
    ),
    "a handle of HIP": Case(
        warn("/opt/rccl/src/transport/p2p.cc:220 hipIpcGetMemHandle failed : invalid argument"),
        {"NCCL-ERROR"},
        "as a handle of CUDA",
        "one GPU cannot use the memory of another",
    ),
    "shared memory of 2.4": Case(
        info("Ring 00 : 4[4] -> 3[3] via direct shared memory")
        + warn("include/shm.h:42 Cuda failure 'invalid argument'"),
        {"INIT-SHM"},
        "the header tells what failed",
    ),
    "a segment that is not there, and its first sign": Case(
        warn("misc/shmutils.cc:93 Call to open failed: No such file or directory")
        + warn(
            "misc/shmutils.cc:129 Error while attaching to shared memory segment /dev/shm/nccl-a "
            "(size 14156128), error: No such file or directory (2)"
        ),
        {"INIT-SHM"},
        "both lines are one event",
        "of another rank cannot be opened",
    ),
    "libfabric's own form, of no rank": Case(
        "WARN: Function: create_nccl_ofi_component Line: 459: NET/OFI Couldn't open AV. RC: -22, "
        "ERROR: Invalid argument\n",
        {"NCCL-ERROR"},
        "no line shows two hosts, and it is an error",
        "Couldn't open AV",
    ),
    "a truncated message of the start, after it": Case(
        info(*BEGIN, start(0, 16), size_line(0, 16, 2))
        + TRUNCATED
        + info("bootstrap.cc:554 -> 3", "transport.cc:204 -> 3", "group.cc:64 -> 3 [Async thread]"),
        {"NCCL-ERROR"},
        "no line shows a second version",
        "2.19 and 2.20 can mix up two such messages",
    ),
    "a truncated message of the start, of two versions": Case(
        info("NCCL version 2.19.3+cuda12.3", *BEGIN, start(0, 2))
        + info("NCCL version 2.18.5+cuda12.2", *BEGIN, start(1, 2), host="gpu02", pid=77)
        + TRUNCATED,
        {"NCCL-VERSION"},
        "the versions explain it",
        "2.18.5 on gpu02",
    ),
    "three of four ranks, and torch's timeout": Case(
        "".join(info(*BEGIN, start(rank, 4), pid=50 + rank, device=rank) for rank in range(3))
        + "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n",
        {"INIT-MISSING-RANK"},
        "the piece goes on until the others gave up",
        "rank 3 of 4 never joined",
    ),
    "an unknown warning": Case(
        info(*BEGIN, start(0, 2))
        + info(*BEGIN, start(1, 2), host="gpu02", pid=77)
        + warn("transport/net_ib.cc:900 NET/IB : Something that no version of this reader knows")
        + info("init.cc:1089 -> 3"),
        {"NCCL-ERROR"},
        "an error is no hang without an error",
        "Something that no version",
    ),
    "a fatal trace alone": Case(
        info(
            *BEGIN,
            start(0, 8),
            "init.cc:1089 -> 3",
            "init.cc:1358 -> 3",
            "group.cc:65 -> 3 [Async thread]",
        ),
        {"NCCL-ERROR"},
        "a failed call of init is an error",
        "init.cc:1089 -> 3",
    ),
    "a trace of a proxy thread": Case(
        info(*BEGIN, start(0, 8), "proxy.cc:878 -> 6 [Progress Thread]"), {"NCCL-ERROR"}, "as above"
    ),
    "a harmless trace": Case(
        info("include/net.h:19 -> 2", "net.cc:79 -> 3", *BEGIN, start(3, 16)),
        set(),
        "a network that is not there is asked, and says so",
        PIECE,
    ),
    "a call that goes on": Case(
        info(*BEGIN, start(3, 16), "group.cc:96 -> 7"), set(), "7 is in progress", PIECE
    ),
    "ranks of different sizes": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "transport/net_ib.cc:1096 NET/IB : req 0/1 tag 6 peer 10.1.0.2<4> collective mismatch error, local size 64 remote size 128"
        ),
        {"NCCL-ERROR"},
        "ranks call different sizes",
        "ranks send other sizes",
    ),
    "a truncated message": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "transport/net_socket.cc:493 NET/Socket : peer 10.1.0.2<4> message truncated : receiving 1048576 bytes instead of 65536. NCCL_PROTO"
        ),
        {"NCCL-ERROR"},
        "the same over sockets",
        "NCCL_PROTO=Simple",
    ),
    "connection abort": Case(
        info(*BEGIN, start(0, 16))
        + warn(
            "misc/socket.cc:483 socketStartConnect: Connect to 10.1.0.2<45763> failed : Software caused connection abort"
        ),
        {"INIT-BOOTSTRAP"},
        "the commonest of 2.18 to 2.23",
        "10.1.0.2",
    ),
    "a link-local address": Case(
        info(*BEGIN, start(0, 16))
        + warn(
            "misc/socket.cc:483 socketStartConnect: Connect to fe80::9a03:9bff%ib1<17943> failed : Software caused connection abort"
        ),
        {"INIT-BOOTSTRAP"},
        "an address of one link is the wrong interface",
        "valid on one link only",
    ),
    "an address of no DHCP": Case(
        info(*BEGIN, start(0, 16))
        + warn(
            "misc/socket.cc:483 socketStartConnect: Connect to 169.254.3.1<17943> failed : No route to host"
        ),
        {"INIT-BOOTSTRAP"},
        "169.254 leads nowhere",
        "NCCL_SOCKET_IFNAME",
    ),
    "connect of 2.3": Case(
        info("NET : Using interface ens3:10.1.0.1<0>", "NET/Socket : 1 interfaces found")
        + warn("include/socket.h:361 Call to connect timeout : Connection refused"),
        {"INIT-BOOTSTRAP"},
        "an old text",
        "refused",
    ),
    "accept failed": Case(
        info(*BEGIN, start(0, 4))
        + warn("misc/socket.cc:420 socketTryAccept: Accept failed: Protocol error"),
        {"INIT-BOOTSTRAP"},
        "a rank that cannot be reached",
    ),
    "the peer closed": Case(
        info(*BEGIN, start(0, 16))
        + warn("misc/socket.cc:49 socketProgress: Connection closed by remote peer gpu07<57557>"),
        {"NCCL-ERROR"},
        "it began at the peer",
        "began at gpu07",
    ),
    "the peer reset": Case(
        info(*BEGIN, start(0, 16))
        + warn(
            "include/socket.h:403 Call to recv from 10.1.0.9<4> failed : Connection reset by peer"
        ),
        {"NCCL-ERROR"},
        "as above, by address",
        "began at 10.1.0.9",
    ),
    "a proxy that failed": Case(
        info(*BEGIN, start(0, 16))
        + warn(
            "proxy.cc:1519 [Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2"
        ),
        {"NCCL-ERROR"},
        "a follow-up without a cause here",
        "its first error is the cause",
    ),
    "a cause and what follows": Case(
        info(*BEGIN, start(0, 16))
        + warn("misc/ibvwrap.cc:190 Call to ibv_modify_qp failed with error Connection timed out")
        + warn(
            "proxy.cc:1519 [Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2"
        )
        + info("init.cc:1089 -> 2"),
        {"INIT-QP"},
        "one cause; the rest follows",
        "what follows from it",
    ),
    "a completion without a peer": Case(
        info(*BEGIN)
        + warn(
            "transport/net_ib.cc:833 NET/IB : Got completion with error 4, opcode 0, len 0, vendor err 81"
        ),
        {"INIT-QP"},
        "2.4 to 2.8 name no peer",
        "the NIC cannot reach the memory",
    ),
    "a remote refusal": Case(
        info(*BEGIN)
        + warn(
            "transport/net_ib.cc:1433 NET/IB: Got completion from peer 10.1.0.2<3> with status=9 opcode=0 len=0 vendor err 138"
        ),
        {"INIT-QP"},
        "status 9 comes from the other end",
        "the other end refused",
    ),
    "a GID table that changed before": Case(
        info(*BEGIN, "NET/IB : mlx5_0:1 Got async event : GID table change")
        + warn(
            "transport/net_ib.cc:833 NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129"
        ),
        {"INIT-QP"},
        "the change is the cause",
        "the GID table changed",
    ),
    "a queue pair without a reason": Case(
        info(*BEGIN, start(0, 4)) + warn("misc/ibvwrap.cc:252 Call to ibv_create_qp failed"),
        {"INIT-MEMLOCK"},
        "before 2.12 no errno is logged",
    ),
    "memory that EFA cannot lock": Case(
        info(*BEGIN, start(0, 4))
        + warn("nccl_ofi_net.c:88 NET/OFI Unable to create extended CQ: Cannot allocate memory"),
        {"INIT-MEMLOCK"},
        "libfabric's text",
    ),
    "no room by posix_fallocate": Case(
        info(*BEGIN, start(0, 4))
        + warn("include/shm.h:28 Call to posix_fallocate failed : No space left on device"),
        {"INIT-SHM"},
        "an old text",
    ),
    "a segment of another rank": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "misc/shmutils.cc:134 Error while attaching to shared memory segment /dev/shm/nccl-a (size 14), error: No such file or directory (2)"
        ),
        {"INIT-SHM"},
        "no question of size",
        "--ipc=host",
    ),
    "a path of a GPU that is not there": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "graph/xml.cc:332 Could not find real path of /sys/class/pci_bus/0000:01/../../0000:01:00.0"
        )
        + info("graph/xml.cc:469 -> 2", "init.cc:581 -> 2"),
        {"NCCL-ERROR"},
        "the warning right before the failed call is the cause",
        "/sys/class/pci_bus",
    ),
    "shm that needs peer access": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "transport/shm.cc:590 Cuda failure 217 'peer access is not supported between these two devices'"
        ),
        {"NCCL-ERROR"},
        "no lack of shared memory",
        "NCCL_CUMEM_HOST_ENABLE=0",
    ),
    "an IPC handle": Case(
        info(*BEGIN, start(0, 4))
        + warn(
            "transport/p2p.cc:257 failed to open CUDA IPC handle : 217 peer access is not supported"
        ),
        {"NCCL-ERROR"},
        "copies between GPUs, and no hang",
        "cannot use the memory of another",
    ),
    "one rank twice": Case(
        info(*BEGIN)
        + warn("bootstrap.cc:105 Bootstrap Root : rank 1 of 2 ranks has already checked in"),
        {"LAUNCH-ENV"},
        "two processes claim one rank",
    ),
    "a port that lost its link": Case(
        Job("2.21.5").text()
        + warn(
            "transport/net_ib.cc:94 NET/IB : mlx5_3:1 Got async event : port error",
            host="node1",
            pid=1002,
        ),
        {"NCCL-ERROR"},
        "cable or switch port",
        "Check cable and switch port",
    ),
    "an unknown warning that nothing follows": Case(
        info(*BEGIN, start(0, 2))
        + info(*BEGIN, start(1, 2), host="gpu02", pid=77)
        + warn("transport/net_ib.cc:900 NET/IB : Something that no version of this reader knows"),
        set(),
        "it may be advice; it is quoted, and no hang is claimed beside it",
        "Something that no version",
    ),
    "a rank that timed out": Case(
        "[rank1]:[E ProcessGroupNCCL.cpp:1316] Received a dump signal due to a collective timeout from  rank 34 and we will try to dump\n",
        {"NCCL-ERROR"},
        "torch names the rank",
        "rank 34",
    ),
    "no communicator from rank 0": Case(
        "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout\n",
        {"NCCL-ERROR"},
        "rank 0 did not get so far",
        "ncclUniqueId from [0]",
    ),
    "a service thread after an error": Case(
        info(*BEGIN)
        + warn("proxy.cc:1495 [Service thread] Accept failed Resource temporarily unavailable"),
        {"NCCL-ERROR"},
        "it follows from another rank's error",
        "began at another rank",
    ),
    "old loopback between hosts": Case(
        "".join(
            info(
                "NET : Using interface lo:127.0.0.1<0>",
                "NET/Socket : 1 interfaces found",
                host=f"gpu0{n}",
                pid=50 + n,
            )
            for n in range(2)
        ),
        {"FAB-LOOPBACK"},
        "two hosts cannot meet on lo",
    ),
    "two of four ranks, one a line behind": Case(
        info(*BEGIN, start(0, 4), size_line(0, 4, 2))
        + info(*BEGIN, start(2, 4), host="gpu02", pid=77),
        set(),
        "interleaved output of some ranks shows no hang",
        "lines of 2 of 4 ranks",
    ),
    "P2P that is off": Case(
        Job("2.21.5").text()
        + warn(
            "init.cc:1 P2P is disabled between connected GPUs 0 and 1. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
            host="node0",
            pid=1000,
        ),
        set(),
        "a note",
        "note: ",
    ),
    "a failed call of a rank that is done": Case(
        Job("2.21.5").text() + info("init.cc:1089 -> 4", host="node0", pid=1000),
        set(),
        "a program may ask for what is not there, and go on",
        "nothing found",
    ),
    "advice of RCCL": Case(
        Job("2.21.5").text()
        + warn(
            'init.cc:71 Missing "iommu=pt" from kernel command line which can lead to system instability or hang!',
            host="node0",
            pid=1000,
        ),
        set(),
        "no job fails by it",
        "nothing found",
    ),
}
TORCH = """RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, {kind}, NCCL version 2.19.3
{name}: {meaning}
Last error:
{last}
"""
CUDA_NAME, SYSTEM_NAME = "ncclUnhandledCudaError", "ncclSystemError"


def torch(last: str, name: str = SYSTEM_NAME) -> str:
    return TORCH.format(kind="unhandled error", name=name, meaning="Call failed.", last=last)


OF_TORCH = {
    "a store that went": Case(
        "[rank15]: torch.distributed.DistBackendError: [15] is setting up NCCL communicator and "
        "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
        "store->get('0') got error: Connection reset by peer\n",
        {"NCCL-ERROR"},
        "the whole sentence says who lost whom",
        "[15] is setting up NCCL communicator",
    ),
    "a rank that left": Case(
        "[rank0]:[E515 ProcessGroupNCCL.cpp:1937] Rank 0\n"
        "  - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "      [7] finished collective #182, but didn't join collective #183 (count from 1)\n",
        {"NCCL-ERROR"},
        "torch says which rank the others wait for",
        "NCCL-ERROR [rank 7]: the job reports: [7] finished collective #182",
    ),
    "an error in a last line that is cut": Case(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running coll",
        {"NCCL-ERROR"},
        "its words are whole",
    ),
    "ranks that lag": Case(
        "[E ProcessGroupNCCL.cpp:474]\n\t - To our best knowledge, ranks [2, 3] are the lagging "
        "ranks that caused this timeout. They never joined any collectives\n",
        {"NCCL-ERROR"},
        "the report of torch on a desync names them",
        "ranks [2, 3] are the lagging ranks",
    ),
    "other collectives on other ranks": Case(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running "
        "collective: CollectiveFingerPrint(OpType=ALLREDUCE), but Rank 0 is running ALLGATHER\n",
        {"NCCL-ERROR"},
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "mismatch between collectives",
    ),
    "a duplicate GPU": Case(
        torch(
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "ncclInvalidUsage",
        ),
        {"NCCL-DUP-GPU"},
        "torch repeats NCCL's warning",
    ),
    "no connection": Case(
        torch(
            "socketStartConnect: Connect to 127.0.0.1<45069> failed : Software caused connection abort"
        ),
        {"INIT-BOOTSTRAP"},
        "as above",
        "127.0.0.1",
    ),
    "behind a rank's prefix": Case(
        "".join(
            f"[rank3]: {line}\n"
            for line in torch("Cuda failure 2 'out of memory'", CUDA_NAME).splitlines()
        ),
        {"NCCL-ERROR"},
        "torchrun's prefix",
        "out of memory",
    ),
    "Fabric Manager": Case(
        torch("Cuda failure 802 'system not yet initialized'", CUDA_NAME), {"INIT-NVLS"}, "802"
    ),
    "no address": Case(
        torch(
            "ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)"
        ),
        {"INIT-NO-IFACE"},
        "an address that is none",
    ),
    "an unknown text": Case(
        torch("A sentence that no version of this reader knows"),
        {"NCCL-ERROR"},
        "it is quoted",
        "A sentence that no version",
    ),
    "on the same line": Case(
        "E torch.distributed.DistBackendError: NCCL error, ncclSystemError: x. Last error: Error: failed to extend /dev/shm/nccl-a to 9637892 bytes\n",
        {"INIT-SHM"},
        "log collectors join lines",
    ),
    "nccl-tests": Case(
        "gpu01: Test NCCL failure common.cu:958 'unhandled system error / Last error: '\n",
        {"NCCL-ERROR"},
        "its own text of a failure",
    ),
}
ROWS = """#  Rank  0 Group  0 Pid   4001 on      gpu01 device  0 [0x1a] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   4002 on      gpu01 device  1 [0x1b] NVIDIA A100-SXM4-80GB
"""
SOCKETS = (
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.1.0.1<0>",
    "Using network Socket",
)
NO_NETWORK_TO_ACCUSE = {
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
        "4 ranks, 1 host seen",
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
        "2 ranks, 2 hosts seen, NCCL 2.3.7",
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
        "4 ranks, 2 hosts seen",
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
        "2 intra",
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
CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "start": CUT_STARTS, "error": ERRORS, "torch": OF_TORCH, "network": NO_NETWORK_TO_ACCUSE, "shape": SHAPES,
    }.items()
    for name, case in cases.items()
}  # fmt: skip
MIN_CASES = 60


@pytest.mark.parametrize("name", CASES)
def test_a_piece_says_what_it_can_show(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = told(tmp_path, case.text)
    assert codes(found) == case.only, case.why
    assert case.says in found.text(1000), case.why
    assert not case.transport or found.transport == case.transport, case.why
    assert found.exit_code == (1 if case.only else found.exit_code)


def test_there_are_many_cases_each_with_its_reason() -> None:
    assert len(CASES) >= MIN_CASES
    assert all(case.why for case in CASES.values())


SOUND = {
    "P2P that cannot be enabled",
    "a driver's library that is not found",
    "a GPU that a peer does not see",
    "a scanner of ports",
    "a harmless trace",
    "a call that goes on",
    "a failed call of a rank that is done",
    "an unknown warning that nothing follows",
    "two of four ranks, one a line behind",
    "P2P that is off",
    "advice of RCCL",
}


def test_a_broken_run_is_never_fine() -> None:
    for group in (ERRORS, OF_TORCH):
        assert {name for name, case in group.items() if not case.only} <= SOUND


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.example[:60])
def test_each_row_reads_its_example(phrase: Phrase) -> None:
    assert phrase.kind in find_kinds(phrase.example.encode()), phrase.example
    assert phrase.versions
    assert phrase.meaning


def test_each_sentence_of_torch_is_looked_for() -> None:
    """A chunk without any of the words is not searched."""
    assert all(any(word in error for word in TORCH_WORDS) for error in TORCH_ERRORS)


def test_the_logs_of_all_ranks_show_a_hang(tmp_path: Path) -> None:
    job = Job("2.28.9", last="graph")
    for rank in job.ranks:
        (tmp_path / f"{rank}.log").write_text(job.of(rank))
    found = analyse_files(sorted(tmp_path.iterdir()))
    assert codes(found) == {"INIT-HANG"}
    assert told(tmp_path, job.text()).exit_code == 20, "one file may have been cut there"


GATHERED = "Bootstrap timings total 0.9 (create 0.1, send 0.2, recv 0.3, ring 0.1, delay 0.0)"


@pytest.mark.parametrize("line", ["", GATHERED, size_line(0, 4, 2)])
def test_no_rank_is_missed_where_one_has_heard_of_all(tmp_path: Path, line: str) -> None:
    logs = [info(*BEGIN, start(n, 4), pid=50 + n, device=n) for n in range(3)]
    logs[0] += info(line, pid=50) if line else ""
    assert ("INIT-MISSING-RANK" in codes(told(tmp_path, *logs))) == (not line)


def test_who_left_the_others_is_what_to_look_at(tmp_path: Path) -> None:
    (named,) = told(tmp_path, OF_TORCH["a rank that left"].text).findings
    assert named.suspects == ["rank 7"]
    assert "did not call the collective in which the others wait" in named.remedy
    (plain,) = told(tmp_path, OF_TORCH["a store that went"].text).findings
    assert "did not call the collective" not in plain.remedy


def test_efa_with_gpudirect_has_no_note(tmp_path: Path) -> None:
    found = told(tmp_path, Job("2.28.9", network=lambda host: "AWS Libfabric").text())
    assert (codes(found), found.notes) == (set(), [])


def nccl_log(text: str, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["nccl-log", *words, "-"], input=text.encode())
    return done.exit_code, done.output


def test_standard_input_is_read() -> None:
    code, text = nccl_log(Job("2.28.9", network=socket).text())
    assert code == 1
    assert "FAB-TCP" in text
    assert "stdin:" in text


def test_a_file_that_is_whole_shows_a_hang() -> None:
    text = Job("2.28.9", last="graph", stops={2: "topology"}).text()
    code, said = nccl_log(text)
    assert (code, "INIT-HANG" in said) == (20, False)
    assert "--whole" in said
    code, said = nccl_log(text, "--whole")
    assert (code, "INIT-HANG" in said) == (1, True)


def test_a_log_without_a_line_of_nccl_says_only_that() -> None:
    code, text = nccl_log("step 1 loss 2.3\n")
    assert code == 20
    assert len(text.split(". ")) <= 2
    assert "transport" not in text
    assert "found no line of NCCL's" in " ".join(text.split())


def test_a_finding_is_explained_where_asked() -> None:
    code, text = nccl_log(CASES["error: one rank twice"].text, "--explain")
    assert code == 1
    assert "LAUNCH-ENV" in text
    assert "Set the rendezvous variables of every rank" in text
