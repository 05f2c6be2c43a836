"""Who wrote a line that failed: by what launchers and log collectors put before it."""

from __future__ import annotations

from tests.probes.nccl.pasted.lines import Case, warn
from tests.recordings.generate.nccl_logs import Job

FULL = "Cuda failure 2 'out of memory'"
NO_MEMORY = warn(f"enqueue.cc:9 {FULL}")
ASSERTION = "RuntimeError: CUDA error: device-side assert triggered\n"
PLACES = {
    "torchrun, before a line of NCCL": Case(
        f"[rank3]: {NO_MEMORY}",
        {"NCCL-ERROR"},
        "NCCL's prefix has the host, torchrun's the rank",
        "NCCL-ERROR [gpu01]: gpu01 (rank 3): a GPU has no free memory",
    ),
    "torchrun, which counts on one node": Case(
        f"[default3]:[0] NCCL WARN {FULL}\n",
        {"NCCL-ERROR"},
        "3 is no rank of the job: each node has one",
        "NCCL-ERROR [local rank 3]: local rank 3: a GPU has no free memory",
    ),
    "what torch quotes": Case(
        f"[rank3]: ncclUnhandledCudaError: Call failed.\n[rank3]: Last error:\n[rank3]: {FULL}\n",
        {"NCCL-ERROR"},
        "the quoted line has the prefix again",
        "rank 3: a GPU has no free memory",
    ),
    "Ray": Case(
        f"\x1b[36m(RankActor pid=123, ip=10.0.0.1)\x1b[0m {ASSERTION}",
        {"NCCL-ERROR"},
        "process and address",
        "NCCL-ERROR [process 123 on 10.0.0.1]: process 123 on 10.0.0.1: a kernel of the program",
    ),
    "Ray, with NCCL's own line": Case(
        f"(RankActor pid=123, ip=10.0.0.1) {NO_MEMORY}",
        {"NCCL-ERROR"},
        "the host is named as NCCL does: an address would count as a second one",
        "gpu01 (process 123): a GPU has no free memory",
    ),
    "a pod": Case(
        f"[pod/train-worker-0/pytorch] {ASSERTION}",
        {"NCCL-ERROR"},
        "kubectl logs --prefix",
        "train-worker-0: a kernel of the program",
    ),
    "mpirun": Case(
        f"[1,3]<stderr>:{ASSERTION}",
        {"NCCL-ERROR"},
        "mpirun --tag-output",
        "rank 3: a kernel of the program",
    ),
    "srun, behind the time": Case(
        f"2024-05-01 10:00:00,123  3: {NO_MEMORY}",
        {"NCCL-ERROR"},
        "srun --label: what it started may be a torchrun, so it is no rank",
        "gpu01 (task 3): a GPU has no free memory",
    ),
    "torchrun within srun": Case(
        f"3: [rank24]: {ASSERTION}",
        {"NCCL-ERROR"},
        "the rank of the job is the one to look at",
        "rank 24: a kernel of the program",
    ),
    "pdsh": Case(
        f"gpu07: {ASSERTION}",
        {"NCCL-ERROR"},
        "DeepSpeed's launcher",
        "gpu07: a kernel of the program",
    ),
    "a time before a text without host": Case(
        f"2024-05-01 10:00:00 [0] NCCL WARN {FULL}\n",
        {"NCCL-ERROR"},
        "10:00:00 is no host with process and thread",
        "NCCL-ERROR: the job: a GPU has no free memory",
    ),
    "a text without NCCL's prefix": Case(
        "[rank3]: socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused\n",
        {"INIT-BOOTSTRAP"},
        "torchrun's prefix stands in its place",
        "rank 3: cannot connect to 10.0.0.2 by TCP (refused)",
    ),
    # Near misses.
    "a sentence behind a prefix": Case(
        "[rank3]: I saw socketStartConnect: Connect to 10.0.0.2<4000> failed : Connection refused\n",
        set(),
        "the text is no line of its own",
        "expected lines such as",
    ),
    "a host whose name is a number": Case(
        f"10:4001:4061 [0] NCCL WARN {FULL}\n",
        {"NCCL-ERROR"},
        "no minute is 4001",
        "NCCL-ERROR [10]: 10: a GPU has no free memory",
    ),
    "all lines by one tag": Case(
        "".join(f"[1,0]<stdout>:{line}\n" for line in Job("2.28.9").text().splitlines()),
        set(),
        "a launcher's tag makes no rank of a sound job",
        "ranks      4 ranks, 2 hosts",
        "rdma",
    ),
    "times before all lines": Case(
        "".join(f"[10:00:0{n % 9}] {line}\n" for n, line in enumerate(Job().text().splitlines())),
        set(),
        "no time makes a host",
        "ranks      4 ranks, 2 hosts",
        "rdma",
    ),
    "processes in prose": Case(
        f"the actor with pid=123, ip=10.0.0.1 wrote: {ASSERTION}",
        {"NCCL-ERROR"},
        "no prefix of Ray",
        "NCCL-ERROR: the job: a kernel of the program",
    ),
    "numbered lines": Case(
        "1: step 1 loss 2.3\n2: step 2 loss 2.2\n",
        set(),
        "a prefix alone is no failure",
        "expected lines such as",
    ),
    "a rank that prints": Case(
        "[rank3]: step 1 loss 2.3\n(RankActor pid=123, ip=10.0.0.1) step 1\n",
        set(),
        "as above",
        "expected lines such as",
    ),
    "a library before the text": Case(
        "mlx5: node3: got completion with error:\n",
        {"INIT-QP"},
        "libmlx5 names the host, and is none",
        "INIT-QP [node3]: the job: an RDMA connection of node3 broke",
    ),
    "an error code before the text": Case(
        f"ERROR: {ASSERTION}",
        {"NCCL-ERROR"},
        "a word with a colon is no host",
        "NCCL-ERROR: the job: a kernel of the program",
    ),
}
