"""Pieces of a start: they show no hang and no missing rank."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, PIECE, Case, info, size_line, start, warn

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
    "one rank of a process with two GPUs": Case(
        info(*BEGIN, start(3, 8), device=1) + info("Setting affinity for GPU 2 to ff", device=2),
        set(),
        "the other GPU is of a rank too, whose number is not in the piece",
        f"{PIECE}: it has the rank number of only one of 8 ranks",
    ),
    "one rank past the all-gather, and one before it": Case(
        info(*BEGIN, start(0, 16), size_line(0, 16, 2))
        + info(*BEGIN, start(1, 16), pid=4002, device=1),
        set(),
        "what one of them gathered came from all ranks",
        f"{PIECE}: it has the lines of 2 of 16 ranks",
    ),
    "a rank of which only the number is there": Case(
        info("comm 0x55 rank 0 nranks 2", pid=50) + info(*BEGIN, start(1, 2), pid=51, device=1),
        set(),
        "none of its processes is unknown",
        "the lines of rank 0 on gpu01 end at the step",
    ),
    "all ranks end at one early line": Case(
        info(*BEGIN, start(0, 2), size_line(0, 2, 2))
        + info(*BEGIN, start(1, 2), size_line(1, 2, 2), host="gpu02", pid=77),
        set(),
        "a piece that was cut there looks the same",
        "the ranks hang there, or this part of the log ends there",
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
        "rank 3 never joined, or this part of the log ends too early",
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
        "the first lines of some of its processes are missing",
    ),
    "a job of one rank": Case(
        info(*BEGIN, start(0, 1)),
        set(),
        "it has all ranks",
        "all 1 ranks end at the step `topology`",
    ),
    "four threads of a process": Case(
        "".join(info(*BEGIN, start(n, 4), device=n) for n in range(4)),
        set(),
        "each is a rank",
        "all 4 ranks end at the step `topology`",
    ),
    "two attempts of one rank": Case(
        info(*BEGIN, start(0, 2)) + info(*BEGIN, start(0, 2), pid=4002),
        set(),
        "a process that was started again is no second rank",
        "it has the lines of only one of 2 ranks",
    ),
    "the last of four ranks has just begun": Case(
        "".join(info(*BEGIN, start(n, 4), pid=50 + n, device=n) for n in range(3))
        + info(BEGIN[0], start(3, 4), pid=53, device=3)
        + info("Setting affinity for GPU 0 to ffff", pid=50),
        set(),
        "in the next moment it may go on",
        "the ranks hang there, or this part of the log ends there",
    ),
    "size at the end of an edge": Case(
        info("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA comm 0x55 nRanks 32"),
        set(),
        "an edge names the size",
        "of 32 ranks",
    ),
}
