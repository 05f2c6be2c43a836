"""Finds what a job has on the nodes: its ranks, all that they started, and its accelerators."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.cluster import Cluster
from probes.faults.process_faults import descendant_pids, start_ticks

POLL_SECONDS = 0.5
GONE = -1  # start_ticks of a process that has ended
JOB_ID = b"RAY_JOB_ID="
ORPHAN_SECONDS = 60  # then it ends by itself
Processes = dict[int, int]  # pid -> when it started, in ticks since boot


@dataclass(frozen=True)
class JobState:
    """What a job has: its processes on each node (by node id), and accelerators in use.

    `unseen` are ranks whose process was not found, or whose node did not answer.
    """

    processes: Mapping[str, Processes]
    busy: int
    unseen: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of processes."""
        return sum(map(len, self.processes.values()))

    @property
    def empty(self) -> bool:
        """Whether nothing is left."""
        return not self.count and not self.busy

    def joined(self, other: JobState) -> JobState:
        """Return the processes of both."""
        ids = self.processes.keys() | other.processes.keys()
        processes = {
            id: {**self.processes.get(id, {}), **other.processes.get(id, {})} for id in ids
        }
        return JobState(processes, self.busy, (*self.unseen, *other.unseen))


def running_processes(pids: Sequence[int]) -> Processes:
    """Return those of a node's processes that run, with all that they have started (on a node).

    What a rank started has its job's id in the environment, also when its parent has ended since.
    """
    every = {each for pid in pids for each in (pid, *descendant_pids(pid))}
    jobs = {job_id_of(pid) for pid in pids} - {b""}
    own = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    every |= {pid for pid in own if jobs and job_id_of(pid) in jobs}
    return {pid: ticks for pid in sorted(every) if (ticks := start_ticks(pid)) != GONE}


def job_id_of(pid: int) -> bytes:
    """Read the id of the Ray job that a process belongs to; b"" if it has none, or cannot be read.

    Raylets start workers with it (ray, src/ray/raylet/worker_pool.cc), and children inherit it.
    """
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    return next((word for word in words if word.startswith(JOB_ID)), b"")


def still_running(processes: Processes) -> Processes:
    """Return those of the processes that run still; zombies do not (on a node)."""
    return {pid: ticks for pid, ticks in processes.items() if start_ticks(pid) == ticks}


def leave_orphan() -> Processes:
    """Start a process whose parent dies, and return it (on a node): the fault of a control."""
    parent = subprocess.Popen(
        ["sh", "-c", f"sleep {ORPHAN_SECONDS} & echo $!; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.stdout.close()
    seen = running_processes([parent.pid])
    parent.kill()
    parent.wait()
    return {child: seen[child]} if child in seen else {}


def observe_job(cluster: Cluster, rows: Sequence[Mapping[str, str]], idle: int = 0) -> JobState:
    """Return what a running job has, by what its ranks announced.

    `idle` is how many accelerators (CPUs where there are none) others had before.
    """
    pids: dict[str, list[int]] = {}
    for row in rows:
        if row.get("pid", "").isdecimal():
            pids.setdefault(row.get("node", ""), []).append(int(row["pid"]))
    nodes = [node for node in cluster.nodes if node["id"] in pids]
    running = cluster.on_each_node(running_processes, each=pids, nodes=nodes)
    unseen = [
        row.get("RANK", "?")
        for row in rows
        if row.get("pid", "") not in {str(pid) for pid in running.get(row.get("node", ""), {})}
    ]
    return JobState(running, busy_accelerators(cluster, idle), tuple(unseen))


def what_is_left(cluster: Cluster, before: JobState, idle: int = 0) -> JobState:
    """Return what is left of a job.  A node that does not answer keeps what it had."""
    nodes = [node for node in cluster.nodes if before.processes.get(node["id"])]
    answers = cluster.on_each_node(still_running, each=dict(before.processes), nodes=nodes)
    left = {
        id: answers.get(id, processes) for id, processes in before.processes.items() if processes
    }
    return JobState(left, busy_accelerators(cluster, idle))


def wait_until_gone(
    cluster: Cluster,
    before: JobState,
    seconds: float,
    idle: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> JobState:
    """Wait until nothing is left, or `seconds` have passed; return what is left."""
    deadline = clock() + seconds
    while True:
        left = what_is_left(cluster, before, idle)
        if left.empty or clock() > deadline:
            return left
        time.sleep(POLL_SECONDS)


def wait_until_free(cluster: Cluster, idle: int, seconds: float) -> int:
    """Wait until no more accelerators are busy than `idle`; return how many still are."""
    return wait_until_gone(cluster, JobState({}, 0), seconds, idle).busy


def busy_accelerators(cluster: Cluster, idle: int = 0) -> int:
    """Count the accelerators that Ray has given away, but for `idle`."""
    import ray

    free: dict[str, Any] = ray.available_resources()
    busy = round(cluster.ray_gpu_count - float(free.get(cluster.resource, 0)))
    return max(0, busy - idle)
