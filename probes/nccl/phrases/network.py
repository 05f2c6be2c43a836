"""Phrases about interfaces, connections, RDMA devices and network plugins.

Format strings: NCCL 2.2 to 2.30, src/misc/socket.cc, src/misc/ibvwrap.cc, src/transport/net_ib.cc,
src/bootstrap.cc, src/proxy.cc, src/plugin/net.cc; aws-ofi-nccl.
"""

from __future__ import annotations

from probes.nccl.phrases.phrase import ERROR, FOLLOW_UP, NEWS, RETRY, Phrase

PHRASES = (
    Phrase(
        *("no-verbs", rb"(?:Failed to open|Cou(?:ld|nt) not open) libibverbs", "2.2-2.30"),
        *("no RDMA library", NEWS, "misc/ibvwrap.cc Failed to open libibverbs.so[.1]"),
    ),
    Phrase(
        *("open-failed", rb"ibv_open_device failed|Unable to open device", "2.2-2.30"),
        *("an RDMA device cannot be opened", ERROR, "NET/IB : Unable to open device mlx5_0"),
    ),
    Phrase(
        *("open-failed", rb"NET/IB : No IP interface found", "2.2-2.30"),
        *("RDMA without an IP interface", ERROR, "NET/IB : No IP interface found."),
    ),
    Phrase(
        *("no-interface", rb"(?:Bootstrap|NET/Socket|Net) ?: [Nn]o (?:socket )?interface found"),
        *("2.4-2.30", "no interface", ERROR, "Bootstrap : no socket interface found"),
    ),
    Phrase(
        *("no-interface", rb"No interface found in the same subnet", "2.4-2.30"),
        *("no interface leads to rank 0", ERROR),
        "Net : No interface found in the same subnet as remote address 10.0.0.9<4000>",
    ),
    Phrase(
        *("no-interface", rb"No usable listening interface", "2.24-2.30", "no interface", ERROR),
        "NET/Socket : No usable listening interface found",
    ),
    Phrase(
        *("no-interface", rb"family 0 is neither AF_INET", "2.10-2.30", "no address", ERROR),
        "ncclSocketInit: connecting to address  with family 0 is neither AF_INET nor AF_INET6",
    ),
    Phrase(
        *("no-address", rb"family [1-9]\d* is neither AF_INET", "2.10-2.30"),
        *("what came as an address is none", ERROR),
        "Net : connecting to address  with family 33621 is neither AF_INET(2) nor AF_INET6(10)",
    ),
    Phrase(
        *("net-missing", rb"Error: network \S{1,64} not found", "2.10-2.30"),
        *("NCCL_NET names none that is there", ERROR, "net.cc Error: network gIB not found."),
    ),
    Phrase(
        *("no-pci", rb"Attribute \w+ of node \w+ not found", "2.4-2.30"),
        *("a network device has no place in the PCIe tree", ERROR),
        "graph/xml.h Attribute busid of node nic not found",
    ),
    Phrase(
        "refused",
        rb"[Cc]onnect(?: to)? .{0,200}?(?:failed|returned|timeout)\b.{0,80}?"
        rb"(?:refused|timed out|[Nn]o route|unreachable|connection abort|reset by peer)",
        *("2.2-2.30", "a rank cannot connect", ERROR),
        "socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused",
    ),
    Phrase(
        *("refused", rb"socketStartConnect: exceeded (?:timeouts|retries)", "2.12-2.22"),
        *("a rank cannot connect", ERROR, "socketStartConnect: exceeded timeouts (20000)"),
    ),
    Phrase(
        *(
            "refused",
            rb"socketTryAccept: Accept failed",
            "2.10-2.30",
            "a rank cannot be reached",
            ERROR,
        ),
        "socketTryAccept: Accept failed: Too many links",
    ),
    Phrase(
        *("retrying", rb"connect.* returned .*, retrying", "2.12-2.30", "it tries again", RETRY),
        "socketPollConnect: connect to 10.0.0.2<4> returned Connection refused, retrying (1/34)",
    ),
    Phrase(
        *("peer-closed", rb"[Cc]onnection closed by (?:remote )?peer", "2.4-2.30"),
        *("the peer ended", FOLLOW_UP),
        "socketProgress: Connection closed by remote peer node1<57557>",
    ),
    Phrase(
        "peer-closed",
        rb"(?:recv|send)\b.{0,120}?failed ?:.{0,20}?(?:Broken pipe|reset by peer|timed out)",
        *("2.2-2.30", "the peer ended", FOLLOW_UP),
        "Call to recv from 10.0.0.2<4000> failed : Connection reset by peer",
    ),
    Phrase(
        "proxy-failed",
        rb"\[Proxy Service.{0,20}?\] Failed to execute operation|Proxy Call to rank \d+ failed"
        rb"|Error encountered progressing operation=|Socket recv failed while polling"
        rb"|\[Service thread\] Accept failed|NET/Socket : socket progress error",
        *("2.12-2.30", "the thread that sends has failed", FOLLOW_UP),
        "[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2",
    ),
    Phrase(
        *("qp", rb"ibv_modify_qp failed", "2.2-2.30", "no RDMA connection", ERROR),
        "Call to ibv_modify_qp failed with error Connection timed out",
    ),
    Phrase(
        *("qp-retrying", rb"ibv_modify_qp failed .*retrying \d", "2.24-2.30", "it tries again"),
        *(RETRY, "Call to ibv_modify_qp failed with 110 Connection timed out, retrying 1/35 after"),
    ),
    Phrase(
        *("qp-broke", rb"Got completion (?:from peer .*)?(?:status=|with error )", "2.4-2.30"),
        *("an RDMA connection broke", ERROR),
        "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
    ),
    Phrase(
        # Older versions only write `Got async event : ...`, whether it is fatal or not.
        *("nic", rb"async (?:fatal|error) event|Got async event : .*error", "2.4-2.30"),
        *("an RDMA device failed", ERROR, "NET/IB : Got async event : local work queue error"),
    ),
    Phrase(
        *("ofi-broke", rb"NET/OFI .*completed with error", "aws-ofi-nccl"),
        *("a transfer of libfabric failed", ERROR),
        "NET/OFI Request 0x7f completed with error. RC: 113. Error: 2 (UNDELIVERABLE)",
    ),
    Phrase(
        # It may go on without: buffers of the user are copied then.
        *("registration", rb"ibv_reg_\w*mr\w* failed|NET/OFI Unable to register memory"),
        *("2.2-2.30, aws-ofi-nccl", "memory cannot be registered with the NIC", ERROR),
        "misc/ibvwrap.cc Call to ibv_reg_mr_iova2 failed with error Invalid argument",
    ),
    Phrase(
        *("port-error", rb"[Gg]ot (?:non-fatal )?async event ?:.*port error", "2.4-2.30"),
        *("an RDMA port lost its link", ERROR),
        "NET/IB : mlx5_3:1 Got async event : port error",
    ),
    Phrase(
        *("port-news", rb"Got (?:non-fatal )?async event ?:|NET/IB : \S+ GID table changed"),
        *(
            "2.4-2.30",
            "news of a port",
            NEWS,
            "NET/IB : mlx5_0:1 Got async event : GID table change",
        ),
    ),
    Phrase(
        "mixed-sockets",
        rb"wrong (?:socket )?type \(?(?:peer )?"
        rb"(?:4 != (?:expected )?3|3 != (?:expected )?4)",
        *("2.12-2.30", "one end is TCP, the other RDMA", ERROR),
        "socketFinalizeAccept: wrong type 4 != 3",
    ),
    Phrase(
        *("nic-counts", rb"Detected mixed local Net device counts", "2.27-2.30"),
        *("nodes with fewer RDMA devices", NEWS, "Detected mixed local Net device counts"),
    ),
    Phrase(
        *("links-differ", rb"Attempted to (?:merge|connect) incompatible devices", "2.19-2.30"),
        *("InfiniBand and RoCE are joined", ERROR),
        "NET/IB : Attempted to merge incompatible devices: mlx5_0/IB and mlx5_1/RoCE",
    ),
    Phrase(
        *("gdr-why", rb"GPU Direct RDMA Disabled for", "2.4-2.30", "why there is no GPUDirect"),
        *(NEWS, "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
    ),
    Phrase(
        "plugin-failed",
        rb"Failed to initialize (?:any )?NET plugin|Plugin load .* returned"
        rb"|NET/OFI.*(?:[Ff]ail|No data available|Couldn't open)",
        *("2.4-2.30", "a network plugin failed", ERROR),
        "NET/OFI Couldn't open AV. RC: -12, ERROR: Cannot allocate memory",
    ),
    Phrase(
        *("efa", rb"fi_getinfo\(\) call failed|provider efa output empty", "aws-ofi-nccl"),
        *("no EFA device", ERROR, "NET/OFI fi_getinfo() call failed: No data available"),
    ),
    Phrase(
        *(
            "efa",
            rb"Only EFA provider is supported|Couldn't find any optimal provider",
            "aws-ofi-nccl",
            "no EFA device",
            ERROR,
        ),
        "NET/OFI Only EFA provider is supported",
    ),
    Phrase(
        *("plugin-absent", rb"NET/Plugin ?: (?:Could not find|No plugin found)", "2.4-2.30"),
        *("no network plugin", NEWS, "NET/Plugin: Could not find: libnccl-net.so"),
    ),
    Phrase(
        "plugin-loaded",
        rb"NET/Plugin ?: (?:Loaded|Using) |Initialized NET plugin|NET/OFI Selected"
        rb"|Plugin Path :",
        *("2.4-2.30", "a network plugin", NEWS, "NET/Plugin: Loaded net plugin IBext_v8 (v8)"),
    ),
    Phrase(
        *("ofi-tcp", rb"NET/OFI Selected [Pp]rovider is (?:tcp|sockets|net)\b", "aws-ofi-nccl"),
        *("libfabric over TCP", NEWS, "NET/OFI Selected Provider is tcp;ofi_rxm"),
    ),
    Phrase(
        *("foreign", rb"wrong magic", "2.12-2.30", "it was no rank of this job that connected"),
        *(NEWS, "socketFinalizeAccept: wrong magic 74656d2f20544547 != 9a2c1e"),
    ),
)
