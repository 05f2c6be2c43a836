"""Failures of NCCL as other programs report them: by the texts of ncclGetErrorString."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import Case, warn

XLA = (
    "INTERNAL: a/b/nccl_errors.cc:9: NCCL operation ncclCommInitRank(&c, n, id, r) failed: unhandled "
    "cuda error (run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be "
    "unrelated) '{}'.\n"
)
PROGRAMS = {
    "XLA, out of memory": Case(
        XLA.format("Cuda failure 2 'out of memory'"),
        {"NCCL-ERROR"},
        "XLA quotes NCCL's last warning, and says that it may be another's",
        "a GPU has no free memory (Cuda failure 2 'out of memory', which may be unrelated)",
    ),
    "XLA, a refused connection": Case(
        XLA.format("socketStartConnect: Connect to 10.1.0.2<45763> failed : Connection refused"),
        {"INIT-BOOTSTRAP"},
        "the same warning as torch's Last error",
        "cannot connect to 10.1.0.2 by TCP (refused)",
    ),
    "XLA, without a last warning": Case(
        XLA.format(""),
        {"NCCL-ERROR"},
        "the call is named",
        "the job reports: ncclCommInitRank(&c, n, id, r) failed: unhandled cuda error",
    ),
    "Horovod": Case(
        "tensorflow.python.framework.errors_impl.UnknownError: ncclAllReduce failed: unhandled system "
        "error\n",
        {"NCCL-ERROR"},
        "TensorFlow's own error",
        "the job reports: ncclAllReduce failed: unhandled system error",
    ),
    "XGBoost": Case(
        "  what():  NCCL failure: unhandled cuda error in bench.cu at line: 8 rank: 0\n",
        {"NCCL-ERROR"},
        "the macro of DeepBench and XGBoost",
        "NCCL failure: unhandled cuda error",
    ),
    "Paddle": Case(
        "ExternalError: NCCL error(5), invalid usage (at /paddle/collective.cc:77)\n",
        {"NCCL-ERROR"},
        "a number in brackets",
        "NCCL error(5), invalid usage",
    ),
    "CuPy": Case(
        "acme.errors.NcclError: NCCL_ERROR_UNHANDLED_SYSTEM_ERROR: unhandled system error\n",
        {"NCCL-ERROR"},
        "names in capitals",
        "NCCL_ERROR_UNHANDLED_SYSTEM_ERROR",
    ),
    "torch, without the second line": Case(
        "RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:784, internal error, NCCL "
        "version 2.7.8\n",
        {"NCCL-ERROR"},
        "older versions name no ncclInternalError",
        "internal error",
    ),
    "a result that has no text": Case(
        "terminate called: NCCL error 7 'unknown result code'\n",
        {"NCCL-ERROR"},
        "the eighth text of ncclGetErrorString",
        "unknown result code",
    ),
    "a socket that its own process closed": Case(
        warn("misc/socket.cc:420 socketTryAccept: Accept failed: Bad file descriptor"),
        {"NCCL-ERROR"},
        "NCCL was aborting: no port or route is at fault",
        "the error began earlier, on this host or at another rank",
    ),
    "a call of CUDA, by nccl-tests": Case(
        "gpu01: Test CUDA failure common.cu:253 'an illegal memory access was encountered'\n",
        {"NCCL-ERROR"},
        "mostly the program's own fault",
        "CUDA_LAUNCH_BLOCKING=1",
    ),
    # Near misses.
    "a call that goes on": Case(
        "ncclCommInitRankConfig returned: NCCL operation in progress\n",
        set(),
        "ncclInProgress is no error",
        "no line of NCCL's",
    ),
    "settings with the word error": Case(
        "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1 NCCL_ERROR_LOG=/tmp/x\n"
        "NCCL error handling is enabled: set NCCL_DEBUG=INFO for details\n",
        set(),
        "a launcher prints its environment",
        "no line of NCCL's",
    ),
    "an internal error of another library": Case(
        "E0101 curl: HTTP 500 internal error; cublasCreate failed: invalid argument\n",
        set(),
        "the texts alone are no errors of NCCL",
        "no line of NCCL's",
    ),
    "a call without an error": Case(
        "NCCL_ERROR_SUCCESS: no error\nncclGroupEnd returned no error\n",
        set(),
        "success has a text, too",
        "no line of NCCL's",
    ),
    "a table of texts": Case(
        "| ncclInternalErr | internal error | please report |\n| 1 | unhandled cuda error |\n",
        set(),
        "a page of a manual",
        "no line of NCCL's",
    ),
}
