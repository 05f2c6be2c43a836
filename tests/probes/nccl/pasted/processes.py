"""What ended a process of the job, as torchrun, DeepSpeed, JAX, Horovod and CUDA report it."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, warn
from tests.probes.nccl.pasted.watchdog import caught
from tests.recordings.generate.nccl_logs import Job

# torchrun's summary of one process.
SUMMARY = """
Root Cause (first observed failure):
[0]:
  time      : 2026-03-29_22:03:17
  host      : gpu07
  rank      : 12 (local_rank: 4)
  exitcode  : {code} (pid: 41)
  error_file: <N/A>
  traceback : {end}
"""
PROCESSES = {
    "a process that the kernel killed": Case(
        SUMMARY.format(code=-9, end="Signal 9 (SIGKILL) received by PID 41"),
        {"NCCL-ERROR"},
        "the summary names rank and host",
        "NCCL-ERROR [gpu07]: the job: rank 12 on gpu07 was ended by SIGKILL",
    ),
    "a process without shared memory": Case(
        SUMMARY.format(code=-7, end="Signal 7 (SIGBUS) received by PID 41"),
        {"INIT-SHM"},
        "a page of a full /dev/shm",
        "INIT-SHM [gpu07]: the job: rank 12 on gpu07 was ended by SIGBUS",
    ),
    "a process that read a wrong address": Case(
        SUMMARY.format(code=-11, end="Signal 11 (SIGSEGV) received by PID 41"),
        {"NCCL-ERROR"},
        "its stack is what to ask for",
        "PYTHONFAULTHANDLER=1",
    ),
    "a process that torchrun ended": Case(
        SUMMARY.format(code=-15, end="Signal 15 (SIGTERM) received by PID 41"),
        set(),
        "it follows from another end",
        "no line of NCCL's",
    ),
    "a process that ended with a code": Case(
        SUMMARY.format(code=1, end="To enable traceback see: elastic/errors.html"),
        set(),
        "the summary has no reason",
        "no line of NCCL's",
    ),
    "a process of DeepSpeed that was killed": Case(
        "[2026-01-19 10:14:05] [ERROR] [launch.py:321:sigkill_handler] ['python', '-u', 'main.py', "
        "'--local_rank=0'] exits with return code = -9\n",
        {"NCCL-ERROR"},
        "SIGKILL, mostly the kernel's",
        "a process of DeepSpeed's launcher was ended by SIGKILL",
    ),
    "a process of DeepSpeed that failed": Case(
        "[launch.py:321:sigkill_handler] ['python', 'main.py'] exits with return code = 1\n",
        set(),
        "its own error is elsewhere",
        "no line of NCCL's",
    ),
    "a rank without memory, and one that waits for it": Case(
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a "
        "total capacity of 79.10 GiB\n" + caught(0, 7),
        {"NCCL-ERROR"},
        "the cause, not the rank that waits",
        "NCCL-ERROR [rank 1]: rank 1: a GPU has no free memory (torch.OutOfMemoryError",
    ),
    "a rank without memory, and a link that it left": Case(
        info(*BEGIN)
        + warn(
            "transport/net_ib.cc:1295 NET/IB : Got completion from peer 10.1.0.2<4000> with status=12 "
            "opcode=0 len=0 vendor err 129"
        )
        + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n",
        {"NCCL-ERROR", "INIT-QP"},
        "the broken link follows: the end of the process comes first",
        "NCCL-ERROR [rank 1]: rank 1: a GPU has no free memory",
    ),
    "memory that is full, in a job that had started": Case(
        Job("2.28.9").text()
        + "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n",
        set(),
        "a search for a batch that fits goes on: it is no fault, and never fine",
        "a GPU has no free memory, and no line says whether the job went on",
    ),
    "a process that was killed, in a job that had started": Case(
        Job("2.28.9").text() + SUMMARY.format(code=-9, end="Signal 9 (SIGKILL) received by PID 41"),
        {"NCCL-ERROR"},
        "no program goes on after it",
        "NCCL-ERROR [gpu07]: the job: rank 12 on gpu07 was ended by SIGKILL",
    ),
    "a process that ended after another": Case(
        SUMMARY.format(code=-11, end="Signal 11 (SIGSEGV) received by PID 41").replace(
            "Root Cause (first observed failure)", "Failures"
        ),
        set(),
        "torchrun names another one as the first",
        "no line of NCCL's",
    ),
    "a program that speaks of memory": Case(
        "If you see CUDA out of memory, use a smaller batch. Tried to allocate: nothing\n",
        set(),
        "no exception",
        "no line of NCCL's",
    ),
    "an assertion of a kernel": Case(
        "[rank3]: RuntimeError: CUDA error: device-side assert triggered\n",
        {"NCCL-ERROR"},
        "a fault of the program",
        "NCCL-ERROR [rank 3]: rank 3: a kernel of the program stopped at an assertion",
    ),
    "an illegal address in XLA": Case(
        "E xla/cuda_driver.cc:772] failed to free device memory at 0x7f; result: "
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered\n",
        {"NCCL-ERROR"},
        "CUDA's own name of the error",
        "a call of CUDA failed (CUDA_ERROR_ILLEGAL_ADDRESS",
    ),
    "a name of CUDA's errors": Case(
        "static const char *CUDA_ERROR_NAMES[] = {}; // CUDA_ERROR_UNKNOWN and others\n",
        set(),
        "source code, and no such error",
        "no line of NCCL's",
    ),
    "an AMD GPU that hangs": Case(
        "HW Exception by GPU node-4 (Agent handle: 0x55d0c1) reason :GPU Hang\n" + caught(2, 9),
        {"NCCL-ERROR"},
        "the driver ended the process: the watchdogs of the others follow",
        "GPU node-4 of its host reports a fault (reason :GPU Hang)",
    ),
    "a task that JAX lost": Case(
        "F0926 client.h:77] absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped "
        "sending heartbeats):\n/job:jax_worker/replica:0/task:5\nThe tasks have crashed.\n",
        {"NCCL-ERROR"},
        "the task is named",
        "NCCL-ERROR [task:5]: the job: JAX lost contact with task:5",
    ),
    "a barrier of JAX": Case(
        "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: save.1.\n"
        "# of tasks that reached the barrier: 2/4.\nThe first task at the barrier: "
        "/job:jax_worker/replica:0/task:3. Some timed out task names:\n"
        "/job:jax_worker/replica:0/task:1\n/job:jax_worker/replica:0/task:0\n\nRPC: Barrier\n",
        {"NCCL-ERROR"},
        "who is missing is listed",
        "only 2 of 4 JAX tasks reached a barrier in time. timed out task names: "
        "/job:jax_worker/replica:0/task:1 /job:jax_worker/replica:0/task:0 (#",
    ),
    "a task of JAX that began again": Case(
        "ABORTED: /job:jax_worker/replica:0/task:2 unexpectedly tried to connect with a different "
        "incarnation. It has likely restarted.\n",
        {"NCCL-ERROR"},
        "it ended before",
        "NCCL-ERROR [task:2]: the job: JAX's task:2 joined a second time",
    ),
    "a process that JAX ended": Case(
        "F0212 client.h:77] Terminating process because the JAX distributed service\n"
        "detected fatal errors. This most likely indicates that another task died\n",
        {"NCCL-ERROR"},
        "another task began it",
        "JAX ended this process because another task failed",
    ),
    "a service of JAX that starts": Case(
        "I0212 distributed.py:106] Starting JAX distributed service on 10.0.0.1:1234\n"
        "I0212 distributed.py:119] Connecting to JAX distributed service on 10.0.0.1:1234\n",
        set(),
        "a sound start",
        "no line of NCCL's",
    ),
    "a stall that Horovod warns of": Case(
        "[W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced, "
        "gathered or broadcasted by subset of ranks\nMissing ranks:\n2: [HorovodAllreduce_grads_0]\n",
        set(),
        "a slow rank gives the same warning: it proves no fault",
        "Horovod waits for rank 2, which has not submitted a tensor",
    ),
    "Fabric Manager that does not run": Case(
        "gpu01: Test CUDA failure common.cu:1030 'system not yet initialized'\n",
        {"NCCL-ERROR"},
        "GPUs behind NVSwitches wait for it",
        "Start nvidia-fabricmanager",
    ),
    "NVLS in torch's own text": Case(
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled cuda error, "
        "NCCL version 2.29.7\nncclUnhandledCudaError: Call to CUDA function failed.\nFailed to bind "
        "NVLink SHARP (NVLS) Multicast memory of size 4194304 : CUDA error 2 'out of memory'.\n",
        {"INIT-NVLS"},
        "NCCL's text without `Last error:` before it",
        "Set NCCL_NVLS_ENABLE=0",
    ),
}
