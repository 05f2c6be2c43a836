"""Counts of ranks and hosts: what is shown as a fact is never false."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, size_line, start, warn
from tests.probes.nccl.pasted.watchdog import caught

HEADER = "#  Rank  {0} Group  0 Pid  478{0} on  {1} device  0 [0x1a] NVIDIA H100\n"
COUNTS = {
    "three GPUs of one process": Case(
        info("Setting affinity for GPU 0 to ff", pid=50)
        + info("Setting affinity for GPU 1 to ff", pid=50, device=1)
        + info("init.cc:9 -> 7", pid=50, device=2),
        set(),
        "nccl-tests -g, JAX and DataParallel have one process for all GPUs",
        "ranks      at least 3 ranks, 1 host",
    ),
    "two GPUs of one process, of a job of two": Case(
        info(*BEGIN, size_line(0, 2, 1))
        + "".join(info("Setting affinity for GPU to ff", device=at) for at in (1, 2)),
        set(),
        "both wrote; only one gives its number",
        "does not show the rank number of each of 2 ranks",
    ),
    "lines that nothing reads": Case(
        info("Allocated 4194304 bytes", pid=1)
        + info("New proxy recv connection 4", pid=2)
        + info("proxyProgressAsync opId=0x7f", pid=3),
        set(),
        "three processes wrote them",
        "ranks      at least 3 ranks, 1 host",
    ),
    "a line written into another": Case(
        "n7:1:91 [0] NCCL INFO [Service thread] Connection closed by ln7:2:95 [1] NCCL INFO Connected "
        "all trees\n",
        set(),
        "ln7 is n7, with a letter of the text before it",
        "ranks      at least 2 ranks, 1 host",
    ),
    "an overwritten line": Case(
        info(*BEGIN, start(0, 16), host="g183", pid=7)
        + "Conneg183:8:95 [1] NCCL INFO comm.cc:9 -> 7\nlg183:9:95 [2] NCCL INFO comm.cc:9 -> 7\n",
        set(),
        "the rest of a word before a host that has a start",
        "16 ranks, 1 host",
    ),
    "two ranks of lines without a host": Case(
        "[0] NCCL INFO comm 0x55 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"
        "[0] NCCL INFO comm 0x56 rank 1 nRanks 4 nNodes 1 localRanks 4 localRank 1 MNNVL 0\n",
        set(),
        "the numbers are in the text",
        "the log has lines of 2 of 4 ranks",
    ),
    "the hosts above nccl-tests' table": Case(
        HEADER.format(0, "n1")
        + HEADER.format(1, "n2")
        + info("comm 0x1 rank 0 nRanks 2", host="n1"),
        set(),
        "the header names both",
        "2 ranks, 2 hosts",
    ),
    "ranks that only torch names": Case(
        "".join(caught(rank, 5) for rank in (0, 3, 4)),
        {"NCCL-ERROR"},
        "never 0 ranks below lines that name three",
        "ranks      at least 3 ranks, host not named",
    ),
    "no rank at all": Case(
        "RuntimeError: NCCL error: unhandled system error\n",
        {"NCCL-ERROR"},
        "nothing is said rather than 0",
        "ranks      none named, NCCL unknown",
    ),
    # Near misses.
    "a thread without a GPU": Case(
        info(*BEGIN, start(3, 8), device=3) + info("misc/socket.cc:9 -> 7", device=0),
        set(),
        "device 0 of a process that uses another is no rank",
        "the log has lines of 1 of 8 ranks",
    ),
    "two hosts of like names": Case(
        info(*BEGIN, start(0, 2), host="n1") + info(*BEGIN, start(1, 2), host="gpun1", pid=9),
        set(),
        "both have a start of their own",
        "2 ranks, 2 hosts",
    ),
    "two hosts of like names, in a piece of warnings": Case(
        warn("misc/socket.cc:9 Some new text", host="n1") + warn("x.cc:9 Other", host="an1", pid=9),
        set(),
        "no line shows which name is whole",
        "at least 2 ranks, 2 hosts",
    ),
    "a login node beside compute nodes": Case(
        info(*BEGIN, start(0, 2), host="c1") + info(*BEGIN, host="loginc1", pid=9),
        set(),
        "the longer name has a bootstrap of its own",
        "2 hosts",
    ),
    "one process of one GPU": Case(
        info("Setting affinity for GPU 5 to ff", "init.cc:9 -> 7", device=5),
        set(),
        "one device is one rank",
        "at least 1 rank, 1 host",
    ),
}
