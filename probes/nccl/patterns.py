"""Lists the phrases with which NCCL and its plugins report a problem, in all versions read.

Format strings: NCCL 2.18 to 2.30, src/misc/socket.cc, src/misc/ibvwrap.cc, src/transport/net_ib.cc,
src/bootstrap.cc, src/init.cc, src/misc/shmutils.cc, src/plugin/net.cc; aws-ofi-nccl.
"""

from __future__ import annotations

import re

# The text of a warning begins with the NCCL source file that it names: `nvls.cc Cuda ...`.
PATTERNS: dict[str, re.Pattern[bytes]] = {
    kind: re.compile(pattern)
    for kind, pattern in {
        # NCCL 2.30 writes `Count not open`.
        "no-verbs": rb"(?:Failed to open|Cou(?:ld|nt) not open) libibverbs",
        "open-failed": rb"ibv_open_device failed|Unable to open device"
        rb"|NET/IB : No IP interface found",
        "no-interface": rb"(?:Bootstrap|NET/Socket) ?: no (?:socket )?interface found"
        rb"|No interface found in the same subnet|No usable listening interface",
        "refused": rb"[Cc]onnect(?: to)? .{0,200}?(?:failed|returned)\b.{0,80}?"
        rb"(?:refused|timed out|[Nn]o route|unreachable)"
        rb"|socketStartConnect: exceeded (?:timeouts|retries)",
        "retrying": rb"connect.* returned .*, retrying",
        "qp": rb"ibv_modify_qp failed",
        "qp-retrying": rb"ibv_modify_qp failed .*retrying \d",  # INFO, since 2.24
        "qp-broke": rb"Got completion from peer .*(?:status=|with error )",
        "mnnvl": rb"mnnvl\.cc|MNNVL \(cliqueSize|Cuda failure 800\b",
        "limits": rb"Too many open files|pthread_create failed",
        # Older versions only write `Got async event : ...`, whether it is fatal or not.
        "cuda": rb"Cuda failure|async (?:fatal|error) event|non-fatal async event: port error"
        rb"|Got async event : .*error|NET/OFI .*completed with error",
        "port-news": rb"Got (?:non-fatal )?async event ?:|NET/IB : \S+ GID table changed",
        "memlock": rb"ibv_(?:reg_\w*mr\w*|create_\w+)\b.*failed.*Cannot allocate memory",
        "shm": rb"failed to (?:extend|create shared memory file) /dev/shm|/dev/shm.*No space left"
        rb"|(?:creating|attaching to) shared memory segment|transport/shm\.cc Cuda failure",
        "nvls": rb"nvls\.cc C(?:uda|UDA) (?:failure|error)|Cuda failure.*(?:NVLS|multicast)"
        rb"|CUDA error 401|system not yet initialized|NVLS.*[Ff]ail",
        "mixed-sockets": rb"wrong (?:socket )?type \(?(?:peer )?"
        rb"(?:4 != (?:expected )?3|3 != (?:expected )?4)",
        "version": rb"Mismatched NCCL version|Message truncated : received",
        "duplicate-gpu": rb"Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "nic-counts": rb"Detected mixed local Net device counts",
        "links-differ": rb"Attempted to (?:merge|connect) incompatible devices",
        "gdr-why": rb"GPU Direct RDMA Disabled for",
        "plugin-failed": rb"Failed to initialize (?:any )?NET plugin|Plugin load .* returned"
        rb"|NET/OFI.*(?:[Ff]ail|No data available)",
        "efa": rb"fi_getinfo\(\) call failed|provider efa output empty",
        "plugin-absent": rb"NET/Plugin ?: (?:Could not find|No plugin found)",
        "plugin-loaded": rb"NET/Plugin ?: (?:Loaded|Using) |Initialized NET plugin|NET/OFI Selected"
        rb"|Plugin Path :",
        "ofi-tcp": rb"NET/OFI Selected [Pp]rovider is (?:tcp|sockets|net)\b",
    }.items()
}

RETRIES = {"retrying", "qp-retrying"}  # NCCL retries by itself

# Phrase -> phrases that it overrides in the same line, because it is more specific.
OVERRIDES: dict[str, tuple[str, ...]] = {
    "retrying": ("refused",),
    "qp-retrying": ("qp",),
    "mnnvl": ("nvls", "cuda"),
    "nvls": ("cuda",),
    "shm": ("cuda",),
    "efa": ("plugin-failed",),
    "cuda": ("port-news",),
}

# One of these words is in every phrase, so a line without any is not searched.
PREFILTER = (
    *(b"ail", b"returned", b"libibverbs", b"open device", b"interface", b"exceeded", b"status="),
    *(b"/dev/shm", b"shared memory", b"CUDA error", b"not yet init", b"type", b"Mismatched"),
    *(b"truncated", b"Duplicate", b"same GPU", b"mixed local", b"incompatible", b"Disabled for"),
    *(
        b"provider",
        b"Provider",
        b"Selected",
        b"Plugin",
        b"NET plugin",
        b"Got completion",
        b"async",
        b"error",
    ),
)

# First words of very frequent lines (debug subsystems COLL, P2P, TUNING, GRAPH, PROXY) that no
# detector uses.
SKIPPED_WORDS = frozenset(
    (
        b"AllReduce: AllGather: ReduceScatter: Broadcast: Reduce: Send: Recv: AlltoAll: Gather: "
        b"Scatter: Trees Tree Pattern Setting New proxyProgressAsync Received Mem Allocated "
        b"ncclPollProxyResponse threadThresholds MemManager resp.opId= ProxyCall Check === CPU/0"
    ).split()
)
