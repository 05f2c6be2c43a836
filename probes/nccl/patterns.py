"""Lists the phrases with which NCCL, RCCL and plugins report a problem, in all versions read.

Format strings: NCCL 2.2 to 2.30, src/misc/socket.cc, src/misc/ibvwrap.cc, src/transport/net_ib.cc,
src/bootstrap.cc, src/init.cc, src/proxy.cc, src/misc/shmutils.cc, src/plugin/net.cc; aws-ofi-nccl.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Phrase(NamedTuple):
    """One way to report something: a row of PHRASES.

    The text of a warning begins with the NCCL source file that it names: `nvls.cc Cuda ...`.
    `versions` are those of NCCL, where nothing else is named.  `example` is a line of that form; a
    test reads it.
    """

    kind: str
    pattern: bytes
    versions: str
    meaning: str
    severity: str  # error, retry, follow-up, news or harmless
    example: str


ERROR, RETRY, FOLLOW_UP, NEWS, HARMLESS = "error", "retry", "follow-up", "news", "harmless"
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
        *("no-interface", rb"neither AF_INET", "2.10-2.30", "no address", ERROR),
        "ncclSocketInit: connecting to address  with family 0 is neither AF_INET nor AF_INET6",
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
        *("mnnvl", rb"mnnvl\.cc|MNNVL \(cliqueSize|Cuda failure 800\b", "2.21-2.30"),
        *("NVLink between hosts", ERROR, "mnnvl.cc MNNVL (cliqueSize 8) is enabled but not usable"),
    ),
    Phrase(
        *("limits", rb"Too many open files|pthread_create failed", "2.2-2.30"),
        *("a limit of the process", ERROR, "Call to socket failed : Too many open files"),
    ),
    Phrase(
        "peer-access",
        rb"transport/shm\.cc Cuda failure 217|failed to open CUDA IPC handle"
        rb"|(?:cuda|hip)Ipc\w{1,32} failed",
        *("2.7-2.30, RCCL", "one GPU cannot use the memory of another", ERROR),
        "transport/p2p.cc failed to open CUDA IPC handle : 217 peer access is not supported",
    ),
    Phrase(
        *(
            "disagree",
            rb"(?:[Cc]ollective mismatch|Mismatched collective|[Mm]essage truncated : receiving)",
            "2.4-2.30",
        ),
        *("ranks send other sizes than their peers receive", ERROR),
        "NET/Socket : peer 10.0.0.2<4> message truncated : receiving 1048576 bytes instead of 8192",
    ),
    Phrase(
        *("rank-beyond", rb"Invalid rank requested", "2.2-2.30"),
        *("a rank that is not below the size", ERROR, "Invalid rank requested : 2/2"),
    ),
    Phrase(
        *("rank-twice", rb"has already checked in", "2.4-2.30", "two processes claim one rank"),
        *(ERROR, "Bootstrap Root : rank 0 of 4 ranks has already checked in"),
    ),
    Phrase(
        # Older versions only write `Got async event : ...`, whether it is fatal or not.
        *("cuda", rb"Cuda failure|async (?:fatal|error) event", "2.2-2.30"),
        *("CUDA or the card failed", ERROR, "Cuda failure 700 'an illegal memory access'"),
    ),
    Phrase(
        *("cuda-init", rb"Cuda failure.{0,8}initialization error", "2.2-2.30"),
        *("no CUDA: the file that notices is not the cause", ERROR),
        "transport/nvls.cc Cuda failure 3 'initialization error'",
    ),
    Phrase(
        *("cuda-memory", rb"Cuda failure.{0,8}out of memory", "2.2-2.30"),
        *("a GPU's memory is full", ERROR, "enqueue.cc Cuda failure 2 'out of memory'"),
    ),
    Phrase(
        *("port-error", rb"[Gg]ot (?:non-fatal )?async event ?:.*port error", "2.4-2.30"),
        *("an RDMA port lost its link", ERROR),
        "NET/IB : mlx5_3:1 Got async event : port error",
    ),
    Phrase(
        *("cuda", rb"Got async event : .*error|NET/OFI .*completed with error", "2.4-2.30"),
        *("the card failed", ERROR, "NET/IB : Got async event : local work queue error"),
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
        "memlock",
        rb"ibv_(?:reg_\w*mr\w*|create_\w+)\b.*failed.*Cannot allocate memory"
        rb"|Unable to create extended CQ: Cannot allocate",
        *("2.2-2.30", "memory cannot be locked", ERROR),
        "Call to ibv_reg_mr failed with error Cannot allocate memory",
    ),
    Phrase(
        *("memlock", rb"Call to ibv_create_(?:qp|cq) failed\s*$", "2.2-2.11"),
        *("memory cannot be locked: these versions log no reason", ERROR),
        "misc/ibvwrap.cc Call to ibv_create_qp failed",
    ),
    Phrase(
        "shm-attach",
        rb"attaching to shared memory segment .*No such file"
        rb"|shmutils\.cc Call to open failed.{0,4}No such file",
        "2.12-2.30",
        *("the segment of another rank is not there", ERROR),
        "Error while attaching to shared memory segment /dev/shm/n-a (size 9), error: No such file",
    ),
    Phrase(
        *("shm-denied", rb"shm_open failed.{0,4}Permission denied|/dev/shm.*Permission denied"),
        *("2.2-2.30", "/dev/shm may not be written", ERROR),
        "Call to shm_open failed : Permission denied",
    ),
    Phrase(
        "shm",
        rb"failed to (?:extend|create shared memory file) /dev/shm|/dev/shm.*No space left"
        rb"|(?:creating|attaching to) shared memory segment"
        rb"|(?:transport/shm\.cc|include/shm\.h|misc/shmutils\.cc) "
        rb"C(?:uda failure|all to \w+ failed)"
        rb"|posix_fallocate failed : No space",
        *("2.2-2.30", "no shared memory", ERROR),
        "Error: failed to extend /dev/shm/nccl-a to 9637892 bytes",
    ),
    Phrase(
        "nvls",
        rb"nvls\.cc C(?:uda|UDA) (?:failure|error)|Cuda failure.*(?:NVLS|multicast)"
        rb"|CUDA error 401|system not yet initialized|NVLS.*[Ff]ail",
        *("2.17-2.30", "NVLink multicast failed", ERROR),
        "transport/nvls.cc Cuda failure 1 'invalid argument'",
    ),
    Phrase(
        "mixed-sockets",
        rb"wrong (?:socket )?type \(?(?:peer )?"
        rb"(?:4 != (?:expected )?3|3 != (?:expected )?4)",
        *("2.12-2.30", "one end is TCP, the other RDMA", ERROR),
        "socketFinalizeAccept: wrong type 4 != 3",
    ),
    Phrase(
        *("version", rb"Mismatched NCCL version", "2.23-2.30", "ranks have different versions"),
        *(ERROR, "Mismatched NCCL version detected : rank 0 version 22304 rank 1 version 22105"),
    ),
    Phrase(
        # A mix of versions, or two messages of 2.19 and 2.20 in the wrong order (fixed in 2.21).
        *("start-size", rb"Message truncated : received", "2.2-2.30"),
        *("ranks disagree about a message of the start", ERROR),
        "bootstrap.cc Message truncated : received 256 bytes instead of 4",
    ),
    Phrase(
        *("duplicate-gpu", rb"Duplicate GPU detected|Multiple Ranks are using the same GPU"),
        *("2.6-2.30", "two ranks use one GPU", ERROR),
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
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
        # Others are harmless: `include/net.h:19 -> 2` of a network that is not there.  7 is no
        # error: it works on.
        "trace",
        rb"^(?:\S{1,200}/)?(?:init|group|bootstrap|proxy)\.(?:cc|cu):\d+ -> [1-689]\b",
        *("2.2-2.30, RCCL", "a call of NCCL failed", FOLLOW_UP, "init.cc:1089 -> 3 [Async thread]"),
    ),
    Phrase(
        *("foreign", rb"wrong magic", "2.12-2.30", "it was no rank of this job that connected"),
        *(NEWS, "socketFinalizeAccept: wrong magic 74656d2f20544547 != 9a2c1e"),
    ),
    Phrase(
        *("gpu-hidden", rb"nvmlDeviceGetHandleByPciBusId\(\) failed: Not Found", "2.7-2.30"),
        *("a peer's GPU is not seen", NEWS),
        "misc/nvmlwrap.cc nvmlDeviceGetHandleByPciBusId() failed: Not Found",
    ),
    Phrase(
        "p2p-off",
        rb"P2P is disabled between connected GPUs|Could not enable P2P between dev",
        *("2.7-2.30", "GPU P2P is off"),
        *(
            NEWS,
            "P2P is disabled between connected GPUs 2 and 1. You can repress this message with",
        ),
    ),
    Phrase(
        *("iommu", rb'Missing "(?:amd_)?iommu=', "RCCL", "P2P of GPUs may hang", HARMLESS),
        'Missing "iommu=pt" from kernel command line which can lead to system instability or hang!',
    ),
    Phrase(
        *("no-cuda-library", rb"Failed to find CUDA library", "2.18-2.30", "no cuMem, no NVLS"),
        *(HARMLESS, "misc/cudawrap.cc Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='')"),
    ),
    Phrase(
        "harmless",
        rb"falling back to simple order|NUMA auto balancing"
        rb"|Cannot get incoming CPU|Could not find a path for pattern"
        rb"|HSA_FORCE_FINE_GRAIN_PCIE"
        rb"|Kernel .{0,60}?not (?:qualified|supported)|\bdeprecated\b"
        rb"|[Uu]nable to (?:find|read) NUMA|Could not get speed|libnuma",
        *("2.2-2.30, RCCL", "advice that no job fails by", HARMLESS),
        "NUMA auto balancing enabled which can lead to variability in the performance!",
    ),
)
KINDS = dict.fromkeys(phrase.kind for phrase in PHRASES)
PATTERNS: dict[str, re.Pattern[bytes]] = {
    kind: re.compile(b"|".join(phrase.pattern for phrase in PHRASES if phrase.kind == kind))
    for kind in KINDS
}
SEVERITIES = {phrase.kind: phrase.severity for phrase in PHRASES}
# A job that ends as it should may write the same as news.
WARNINGS = {kind for kind, severity in SEVERITIES.items() if severity == FOLLOW_UP} - {"trace"}
RETRIES = {kind for kind, severity in SEVERITIES.items() if severity == RETRY}

# Phrase -> phrases that it overrides in the same line, because it is more specific.
OVERRIDES: dict[str, tuple[str, ...]] = {
    "retrying": ("refused",),
    "qp-retrying": ("qp",),
    "mnnvl": ("nvls", "cuda"),
    "nvls": ("cuda", "cuda-memory"),
    "cuda-init": ("cuda", "nvls", "shm"),
    "cuda-memory": ("cuda", "shm"),
    "shm-denied": ("shm",),
    "peer-access": ("shm", "cuda"),
    "shm": ("cuda",),
    "shm-attach": ("shm",),
    "port-error": ("cuda", "port-news"),
    "efa": ("plugin-failed",),
    "cuda": ("port-news",),
    "refused": ("peer-closed",),
    "limits": ("refused",),
}

# One of these words is in every phrase, so a line without any is not searched.
PREFILTER = (
    *(b"ail", b"returned", b"libibverbs", b"open device", b"interface", b"exceeded", b"status="),
    *(b"/dev/shm", b"shared memory", b"not yet init", b"type", b"ismatch", b"truncated"),
    *(b"Duplicate", b"same GPU", b"mixed local", b"incompatible", b"isabled", b"rovider"),
    *(b"Selected", b"lugin", b"Got completion", b"async", b"rror", b" -> ", b"closed by"),
    *(
        b"checked in",
        b"enable P2P",
        b"neither AF_INET",
        b"extended CQ",
        b"Couldn't open",
        b"timeout",
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


def find_kinds(text: bytes) -> list[str]:
    """Find the kinds of phrases in a text, without those that another one overrides."""
    found = [kind for kind, pattern in PATTERNS.items() if pattern.search(text)]
    return [kind for kind in found if not any(kind in OVERRIDES.get(k, ()) for k in found)]
