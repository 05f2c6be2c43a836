"""Errors while a job ends: told, and no GPU is to be drained for them."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, start, warn
from tests.recordings.generate.nccl_logs import Job

LAUNCH = "'unspecified launch failure'"
RECLAIM = (
    "init.cc:2869 commReclaim: cleanup comm 0x3a0f7f50 rank 1 failed in destroy/abort, error 1"
)
STARTED = info(*BEGIN, start(0, 2).replace("START", "COMPLETE"))
ENDINGS = {
    "memory that cannot be freed": Case(
        STARTED + warn(f"allocator.cc:132 Cuda failure {LAUNCH}") + warn(RECLAIM),
        set(),
        "at the end of the run; which call broke the GPU's state is not here",
        "an error occurred while NCCL freed a communicator, at the end of the run, and no line says",
    ),
    "the failure itself is told": Case(
        STARTED + warn(f"include/alloc.h:132 Cuda failure {LAUNCH}") + warn(RECLAIM),
        set(),
        "every warning is",
        "note: nccl.log:5: include/alloc.h Cuda failure",
    ),
    "an abort": Case(
        STARTED + warn("init.cc:2800 commReclaim: comm 0x3a0f7f50 (rank = 1) in abort, error 1"),
        set(),
        "ncclCommAbort, of a job that stops",
        "at the end of the run",
    ),
    "a sound job that ends badly": Case(
        Job("2.28.9").text()
        + warn(f"allocator.cc:132 Cuda failure {LAUNCH}", host="node0", pid=1000)
        + warn(RECLAIM, host="node0", pid=1000),
        set(),
        "it is never called fine",
        "not proven: an error occurred while NCCL freed a communicator",
    ),
    "a failure, and an exception": Case(
        STARTED
        + warn(f"allocator.cc:132 Cuda failure {LAUNCH}")
        + warn(RECLAIM)
        + "RuntimeError: NCCL error: unhandled cuda error\n",
        {"NCCL-ERROR"},
        "the program says that a call failed",
        "an error occurred while NCCL freed a communicator",
    ),
    # Near misses: failures that are none of the end.
    "an illegal access before the end": Case(
        STARTED + warn("enqueue.cc:47 Cuda failure 700 'an illegal memory access'") + warn(RECLAIM),
        {"NCCL-ERROR"},
        "a collective failed: the end follows from it",
        "a call of CUDA failed",
    ),
    "memory that cannot be freed, without an end": Case(
        STARTED + warn(f"allocator.cc:132 Cuda failure {LAUNCH}"),
        {"NCCL-ERROR"},
        "the run may be in its middle",
        "a call of CUDA failed",
    ),
    "the end of another process": Case(
        STARTED + warn(f"allocator.cc:132 Cuda failure {LAUNCH}") + warn(RECLAIM, pid=77),
        {"NCCL-ERROR"},
        "each process ends by itself",
        "a call of CUDA failed",
    ),
    "a communicator that is freed": Case(
        Job("2.28.9").text()
        + info("comm 0x550000 rank 0 nranks 4 - Destroy COMPLETE", host="node0"),
        set(),
        "so a sound job ends",
        "no fault found",
    ),
}
