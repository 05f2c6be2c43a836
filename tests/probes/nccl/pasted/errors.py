"""Errors of connections and of ranks."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, PIECE, Case, info, size_line, start, warn
from tests.recordings.generate.nccl_logs import Job

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
        "the connection to 10.1.0.9 broke: the error began at this peer, or in the network",
    ),
    "a scanner of ports": Case(
        info(*BEGIN)
        + warn("misc/socket.cc:1 socketFinalizeAccept: wrong magic 74656d2f20544547 != 9a2c1e"),
        set(),
        "NCCL goes on",
        "no rank of this job",
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
    "a truncated message of the start, after it": Case(
        info(*BEGIN, start(0, 16), size_line(0, 16, 2))
        + TRUNCATED
        + info("bootstrap.cc:554 -> 3", "transport.cc:204 -> 3", "group.cc:64 -> 3 [Async thread]"),
        {"NCCL-ERROR"},
        "no line shows a second version",
        "2.19 and 2.20 can mix up two messages of the start",
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
        "ranks send messages of other sizes",
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
        "the peer, or the way to it",
        "the connection to gpu07 broke",
    ),
    "the proxy of the same process closed": Case(
        info(*BEGIN, start(0, 16))
        + warn(
            "proxy.cc:1177 [Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2"
        )
        + warn(
            "misc/socket.cc:49 socketProgress: Connection closed by remote peer gpu01.lan<57557>"
        )
        + warn("proxy.cc:912 Proxy Call to rank 3 failed (Connect)"),
        {"NCCL-ERROR"},
        "no other host is at fault",
        "NCCL-ERROR [gpu01]: gpu01: a thread of NCCL failed: the error began earlier, on this host or "
        "at another rank (proxy.cc [Proxy Service 3] Failed",
    ),
    "a GPU number that is not there": Case(
        warn("transport/p2p.cc:275 Cuda failure 101 'invalid device ordinal'"),
        {"NCCL-ERROR"},
        "no illegal access, no ECC",
        "Give each rank a GPU that it sees",
    ),
    "the peer reset": Case(
        info(*BEGIN, start(0, 16))
        + warn(
            "include/socket.h:403 Call to recv from 10.1.0.9<4> failed : Connection reset by peer"
        ),
        {"NCCL-ERROR"},
        "as above, by address",
        "the connection to 10.1.0.9 broke",
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
        "these errors follow from the finding above",
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
        "began earlier, on this host or at another rank",
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
    "a failed call of a rank that is done": Case(
        Job("2.21.5").text() + info("init.cc:1089 -> 4", host="node0", pid=1000),
        set(),
        "a program may ask for what is not there, and go on",
        "no fault found",
    ),
}
