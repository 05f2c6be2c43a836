"""torch's watchdog: in which calls the ranks wait, who is behind, and what cannot be compared."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, start

FINGERPRINT = "CollectiveFingerPrint(SequenceNumber=7, OpType={}, TensorShape=[{}])"


def caught(
    rank: int, number: int, size: int = 9000, op: str = "ALLREDUCE", inner: int = -1, out: int = 0
) -> str:
    """The line that torch 2.6 writes, without the name of the process group."""
    inner = rank if inner < 0 else inner
    out = out or size
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:629] [Rank {inner}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={number}, OpType={op}, NumelIn={size}, "
        f"NumelOut={out}, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
    )


def failed(rank: int, number: int, group: str, enqueued: int = -1, inner: int = -1) -> str:
    """The next line, which names it."""
    inner = rank if inner < 0 else inner
    enqueued = number if enqueued < 0 else enqueued
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:2168] [{group} Rank {inner}]  failure detected by "
        f"watchdog at work sequence id: {number} PG status: last enqueued work: {enqueued}, "
        f"last completed work: {number - 1}\n"
    )


def dumped(rank: int, last: int, group: str = "PG ID 0 PG GUID 0(default_pg)") -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1987] [{group} Rank {rank}] Received a dump signal "
        "due to a collective timeout from  rank 7 and we will try our best to dump the debug info. "
        f"Last enqueued NCCL work: {last}, last completed NCCL work: {last}.This is most likely\n"
    )


WORLD = "PG ID 0 PG GUID 0(default_pg)"
WATCHDOG = {
    "one rank is behind": Case(
        caught(0, 96117) + caught(1, 96117) + caught(7, 64088),
        {"NCCL-ERROR"},
        "the numbers differ, and the operation does not",
        "NCCL-ERROR [rank 7]: rank 7 waits in ALLREDUCE #64088 (9000 elements), ranks 0, 1 wait in "
        "ALLREDUCE #96117 (9000 elements): rank 7 is behind, if these lines are of one process group",
    ),
    "one rank is behind, in a group that is named": Case(
        caught(0, 42) + failed(0, 42, WORLD) + caught(3, 40) + failed(3, 40, WORLD),
        {"NCCL-ERROR"},
        "the group of the next line is that of the call",
        "rank 3 waits in ALLREDUCE #40 (9000 elements), rank 0 waits in ALLREDUCE #42 (9000 "
        "elements): rank 3 is behind; the job reports",
    ),
    "other sizes, one call apart": Case(
        caught(0, 1516, 25165824) + caught(1, 1517, 1),
        {"NCCL-ERROR"},
        "a rank that left out a call cannot be told from one that calls another",
        "rank 0 is behind, or they call different collectives",
    ),
    "another operation at one number": Case(
        caught(13, 5, op="ALLTOALL") + caught(15, 5),
        {"NCCL-ERROR"},
        "the order of calls differs",
        "rank 15 waits in ALLREDUCE #5 (9000 elements), rank 13 waits in ALLTOALL #5 (9000 "
        "elements): they call different collectives",
    ),
    "a rank that did not call it": Case(
        caught(7, 56119) + failed(7, 56119, WORLD) + dumped(4, 56118),
        {"NCCL-ERROR"},
        "the dump of a rank without a timeout gives its last call",
        "rank 7 waits in ALLREDUCE #56119 (9000 elements), rank 4 called nothing after #56118: "
        "rank 4 is behind",
    ),
    "the same call on all ranks that are shown": Case(
        "".join(caught(rank, 7753, op="_REDUCE_SCATTER_BASE") for rank in (0, 3, 4)),
        {"NCCL-ERROR"},
        "the others are not shown: read those",
        "ranks 0, 3, 4 wait in _REDUCE_SCATTER_BASE #7753 (9000 elements), and no line of "
        "these files shows what other ranks do: give all logs",
    ),
    "the same call on every rank of the job": Case(
        info(*BEGIN, *(start(rank, 2).replace("START", "COMPLETE") for rank in (0, 1)))
        + caught(0, 9)
        + caught(1, 9),
        {"NCCL-ERROR"},
        "nobody is missing: the network or a GPU stopped",
        "ranks 0, 1 wait in ALLREDUCE #9 (9000 elements): all 2 ranks wait in this call",
    ),
    "a mismatch that torch's wrapper found": Case(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: "
        f"{FINGERPRINT.format('ALLREDUCE', 8)}, but Rank 0 is running collective: "
        f"{FINGERPRINT.format('BROADCAST', 1)}.\n",
        {"NCCL-ERROR"},
        "the line names both ranks and both calls",
        "rank 2 calls ALLREDUCE #7 of shape [8], rank 0 calls BROADCAST #7 of shape [1]",
    ),
    "older words, without operation": Case(
        "[rank2]:[E ProcessGroupNCCL.cpp:1500] [PG 0 Rank 2] Timeout at NCCL work: 41, last enqueued "
        "NCCL work: 41, last completed NCCL work: 40.\n",
        {"NCCL-ERROR"},
        "torch 2.3 and 2.4",
        "rank 2 waits in collective #41, and no line of these files shows what other ranks do",
    ),
    "a last line that is cut": Case(
        "[rank2]:[E ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective oper",
        {"NCCL-ERROR"},
        "its words are whole",
    ),
    "a process that ends after a timeout": Case(
        "[rank3]:[E ProcessGroupNCCL.cpp:583] [Rank 3] To avoid data inconsistency, we are taking "
        "the entire process down.\n",
        {"NCCL-ERROR"},
        "the timeout itself is not in the piece",
        "Find out whether a rank did not join",
    ),
    "a signal to write the flight recorder": Case(
        "[rank3]:[E ProcessGroupNCCL.cpp:1922] [PG ID 0 PG GUID 0(default_pg) Rank 3] Observed flight "
        "recorder dump signal from another rank via TCPStore.\n",
        {"NCCL-ERROR"},
        "another rank timed out",
        "Find out whether a rank did not join",
    ),
    "a watchdog that ended by something else": Case(
        "[PG 0 Rank 3] Process group watchdog thread terminated with exception: std::bad_alloc\n",
        {"NCCL-ERROR"},
        "the rest of the line has the reason",
        "terminated with exception: std::bad_alloc",
    ),
    "a rank that is behind in one of two groups": Case(
        caught(2, 900, inner=0)
        + failed(2, 900, "PG ID 1 PG GUID 4", inner=0)
        + caught(0, 42)
        + failed(0, 42, WORLD)
        + caught(3, 40)
        + failed(3, 40, WORLD),
        {"NCCL-ERROR"},
        "the other group only waits, and says less",
        "NCCL-ERROR [rank 3]: rank 3 waits in ALLREDUCE #40 (9000 elements), rank 0 waits",
    ),
    "a line without its rank": Case(
        "[E ProcessGroupNCCL.cpp:629] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n",
        {"NCCL-ERROR"},
        "nobody can be compared with it",
        "NCCL-ERROR: the job reports: Watchdog caught collective operation timeout",
    ),
    "a rank whose line has no number": Case(
        caught(0, 5)
        + "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
        "TensorShape=[9000], Timeout(ms)=600000) ran for 600010 milliseconds\n",
        {"NCCL-ERROR"},
        "torch 1.13: where it waits is not known",
        "NCCL-ERROR: rank 0 waits in ALLREDUCE #5 (9000 elements), and no line",
    ),
    # Near misses: what may not be compared, and what is no fault.
    "a rank that called what the others wait in": Case(
        caught(7, 56119) + failed(7, 56119, WORLD) + dumped(4, 56119),
        {"NCCL-ERROR"},
        "its last call is the same: it is not behind",
        "NCCL-ERROR: rank 7 waits in ALLREDUCE #56119 (9000 elements), and no line",
    ),
    "two groups of a tensor-parallel job": Case(
        caught(0, 5, inner=0)
        + failed(0, 5, "PG ID 1 PG GUID 3", inner=0)
        + caught(2, 900, inner=0)
        + failed(2, 900, "PG ID 1 PG GUID 4", inner=0),
        {"NCCL-ERROR"},
        "each group counts by itself: none is behind",
        "NCCL-ERROR: rank 0 waits in ALLREDUCE #5 (9000 elements), and no line",
    ),
    "two groups without a name": Case(
        caught(0, 5, inner=0) + caught(2, 900, inner=0),
        {"NCCL-ERROR"},
        "two ranks with number 0 are of two groups",
        "NCCL-ERROR: rank 0 waits in ALLREDUCE #5 (9000 elements), rank 2 waits in ALLREDUCE #900 "
        "(9000 elements); the job reports",
    ),
    "a rank without a next line, in the same call": Case(
        "".join(caught(rank, 1, 1, "ALLGATHER", out=4) for rank in range(4))
        + "".join(failed(rank, 1, WORLD) for rank in (0, 1, 3)),
        {"NCCL-ERROR"},
        "the call gives as many elements as ranks: all four wait in it",
        "ranks 0, 1, 2, 3 wait in ALLGATHER #1 (1 elements): all 4 ranks wait in this call",
    ),
    "some ranks of a group whose size a call shows": Case(
        caught(2, 45, 800, "_REDUCE_SCATTER_BASE", out=100)
        + failed(2, 45, "PG ID 1 PG GUID 1")
        + caught(3, 45, 800, "_REDUCE_SCATTER_BASE", out=100),
        {"NCCL-ERROR"},
        "eight ranks share the sum",
        "ranks 2, 3 wait in _REDUCE_SCATTER_BASE #45 (800 elements), and no line of these files "
        "shows what the other ranks (of 8) do",
    ),
    "a rank without a next line, and its call in two groups": Case(
        caught(0, 1)
        + failed(0, 1, "PG ID 1 PG GUID 4")
        + caught(2, 1)
        + failed(2, 1, "PG ID 2 PG GUID 7")
        + caught(1, 1),
        {"NCCL-ERROR"},
        "it may be of either",
        "NCCL-ERROR: rank 0 waits in ALLREDUCE #1 (9000 elements), and no line",
    ),
    "elements that are not shared out evenly": Case(
        caught(0, 1, 3, "ALLGATHER", out=10) + caught(1, 1, 3, "ALLGATHER", out=10),
        {"NCCL-ERROR"},
        "the number of ranks is not known",
        "shows what other ranks do",
    ),
    "lines of two groups, one rank without names": Case(
        "".join(
            caught(rank, 100, inner=rank - 4)
            + failed(rank, 100, "PG ID 2 PG GUID 7", inner=rank - 4)
            for rank in (5, 6, 7)
        )
        + caught(4, 12, op="BROADCAST")
        + caught(4, 100, inner=0),
        {"NCCL-ERROR"},
        "its call in the other group is no call of this one",
        "NCCL-ERROR: ranks 4, 5, 6, 7 wait in ALLREDUCE #100 (9000 elements), and no line",
    ),
    "a watchdog that got stuck, and a rank that is behind": Case(
        f"[rank0]:[E ProcessGroupNCCL.cpp:1484] [{WORLD} Rank 0] ProcessGroupNCCL's watchdog got stuck "
        "for 480 seconds\n"
        + caught(0, 42)
        + failed(0, 42, WORLD)
        + caught(3, 40)
        + failed(3, 40, WORLD),
        {"NCCL-ERROR"},
        "who is behind says more than who waits for it",
        "Find out why the named ranks did not call the collective",
    ),
    "a watchdog that got stuck": Case(
        "".join(
            f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1484] [{WORLD} Rank {rank}] ProcessGroupNCCL's "
            "watchdog got stuck for 480 seconds without making progress in monitoring\n"
            for rank in (2, 3)
        ),
        {"NCCL-ERROR"},
        "no call of NCCL is named: the processes are",
        "the job reports: watchdog got stuck (ranks 2, 3)",
    ),
    "a send and its receive": Case(
        caught(0, 3, op="SEND") + caught(1, 8, op="RECV"),
        {"NCCL-ERROR"},
        "sends are counted apart, and pairs differ",
        "NCCL-ERROR: rank 0 waits in SEND #3 (9000 elements), rank 1 waits in RECV #8 (9000 elements); "
        "the job reports",
    ),
    "a send and an all-reduce": Case(
        caught(0, 3, op="SEND") + caught(1, 8),
        {"NCCL-ERROR"},
        "the number of a send says nothing of an all-reduce",
        "NCCL-ERROR: rank 0 waits in SEND #3 (9000 elements), rank 1 waits in ALLREDUCE #8 (9000 "
        "elements); the job reports",
    ),
    "sizes that may differ": Case(
        caught(0, 3, 100, op="ALLTOALL_BASE") + caught(1, 3, 300, op="ALLTOALL_BASE"),
        {"NCCL-ERROR"},
        "each rank has its own share in an all-to-all",
        "rank 1 waits in ALLTOALL_BASE #3 (300 elements); the job reports",
    ),
    "a status that torch writes now and then": Case(
        "[rank0]:[I ProcessGroupNCCL.cpp:1800] [PG 0 Rank 0] NCCL Work update periodically: last "
        "enqueued NCCL work: 40, last completed NCCL work: 39.\n",
        set(),
        "no call is late",
        "no line of NCCL's",
    ),
    "a watchdog that is announced": Case(
        "[rank0]:[I ProcessGroupNCCL.cpp:874] [PG 0 Rank 0] ProcessGroupNCCL initialization options: "
        "size: 2, TIMEOUT(ms): 600000, NCCL_DEBUG: WARN\n[rank0]: NCCL watchdog thread started!\n",
        set(),
        "settings of a start",
        "no line of NCCL's",
    ),
}
