"""Exceptions of the program: quoted where no line of NCCL explains the end."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, start
from tests.probes.nccl.pasted.watchdog import caught
from tests.recordings.generate.nccl_logs import Job

TRACE = '{0}Traceback (most recent call last):\n{0}  File "train.py", line 9, in <module>\n{0}{1}\n'
SHAPE = "ValueError: expected sequence of length 8 at dim 1 (got 7)"
FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'"
SUMMARY = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n"
)
EXCEPTIONS = {
    "of one rank": Case(
        TRACE.format("[rank3]: ", SHAPE) + SUMMARY,
        set(),
        "type, message and rank; torchrun's own only follows",
        f"nccl.log:3: the last exception is `{SHAPE}` (rank 3). Correct this first",
    ),
    "of an actor": Case(
        TRACE.format("\x1b[36m(RankActor pid=123, ip=10.0.0.1)\x1b[0m ", FILE),
        set(),
        "Ray names process and address",
        f"the last exception is `{FILE}` (process 123 on 10.0.0.1)",
    ),
    "of two ranks": Case(
        TRACE.format("[rank3]: ", SHAPE)
        + TRACE.format("[rank0]: ", "ConnectionResetError: [Errno 104] Connection reset by peer"),
        set(),
        "the first one is mostly the cause",
        f"nccl.log:3: the first exception is `{SHAPE}` (rank 3), the last one is "
        "`ConnectionResetError: [Errno 104] Connection reset by peer` (rank 0)",
    ),
    "of C++": Case(
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
        set(),
        "the text of what()",
        "the last exception is `what(): std::bad_alloc`",
    ),
    "that Ray hands on": Case(
        "ray.exceptions.RayTaskError(ValueError): ray::RankActor.train() (pid=123, ip=10.0.0.1)\n"
        + TRACE.format("", SHAPE),
        set(),
        "Ray's own exception only wraps it",
        f"the last exception is `{SHAPE}`. Correct this first",
    ),
    "without a message": Case(
        TRACE.format("2024-05-01 10:00:00,123 ", "AssertionError"),
        set(),
        "assert x",
        "the last exception is `AssertionError`",
    ),
    "after the first lines of NCCL": Case(
        info(*BEGIN, start(0, 2)) + TRACE.format("[rank0]: ", SHAPE),
        set(),
        "it may be why the start ends here: it comes before what the piece cannot show",
        f"not proven: nccl.log:7: the last exception is `{SHAPE}` (rank 0)\n\ntransport",
    ),
    "after a sound start": Case(
        Job("2.28.9").text() + TRACE.format("[rank0]: ", SHAPE),
        set(),
        "NCCL is not at fault: a note",
        f"the last exception is `{SHAPE}` (rank 0)",
    ),
    # Near misses: nothing is quoted.
    "in prose": Case(
        f"We saw a {SHAPE} last week, and no other Error: none\n",
        set(),
        "the words stand within a sentence",
        "expected lines such as",
    ),
    "counts": Case(
        "Errors: 0\nExceptions: 0\nValidationError=0.31\nTimeoutErrors: 4\n",
        set(),
        "a summary",
        "expected lines such as",
    ),
    "a warning": Case(
        "UserWarning: The given buffer is not writable\nDeprecationWarning: use x\n",
        set(),
        "Python goes on",
        "expected lines such as",
    ),
    "torchrun's own": Case(SUMMARY, set(), "another process ended first", "expected lines such as"),
    "a class": Case(
        "class ShapeError(ValueError):\n    raise ShapeError\n",
        set(),
        "source code",
        "expected lines such as",
    ),
    "with an error of NCCL": Case(
        caught(0, 7) + TRACE.format("[rank1]: ", "KeyboardInterrupt"),
        {"NCCL-ERROR"},
        "the finding says what to do",
        "rank 0 waits in ALLREDUCE #7",
    ),
}
HINTS = {
    "gloo without an error": Case(
        "init_process_group(backend='gloo')\nrank 3 of 4 is ready\n",
        set(),
        "NCCL_DEBUG shows nothing of gloo",
        "give the first error of each rank",
    ),
    "NCCL_DEBUG that is set": Case(
        "+ export NCCL_DEBUG=INFO\nstep 1 loss 2.3\n",
        set(),
        "the advice was followed already",
        "NCCL_DEBUG is set already",
    ),
    "NCCL_DEBUG in Ray's environment": Case(
        "runtime_env={'env_vars': {'NCCL_DEBUG': 'INFO'}}\n",
        set(),
        "as above",
        "NCCL_DEBUG is set already",
    ),
    # Near misses: there the advice helps.
    "NCCL_DEBUG of warnings": Case(
        "export NCCL_DEBUG=WARN\n",
        set(),
        "WARN writes nothing of a sound start",
        "run the job with NCCL_DEBUG=INFO",
    ),
    "advice of another program": Case(
        "If it fails, run with NCCL_DEBUG=INFO for details\n",
        set(),
        "nobody has set it",
        "run the job with NCCL_DEBUG=INFO",
    ),
    "a name with gloo in it": Case(
        "dataset igloos: 400 rows\n", set(), "no backend", "run the job with NCCL_DEBUG=INFO"
    ),
}
