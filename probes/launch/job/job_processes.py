"""Finds what a job has on the nodes: its ranks, all that they started, and its accelerators."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from probes.cluster.cluster import Cluster
from probes.cluster.room.free_room import busy_accelerators
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


def running_processes(pids: Sequence[int]) -> Processes:
    """Return those of a node's processes that run, with all that they have started (on a node).

    What a rank started has its job's id in the environment, also when its parent has ended since.
    """
    every = {each for pid in pids for each in (pid, *descendant_pids(pid))}
    jobs = {job_id_of(pid) for pid in pids} - {b""}
    own = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    every |= {pid for pid in own if jobs and job_id_of(pid) in jobs}
    return {pid: ticks for pid in sorted(every) if (ticks := start_ticks(pid)) != GONE}


def processes_of_jobs(ids: Sequence[str]) -> Processes:
    """Return the processes of these Ray jobs that run, with all they have started (on a node)."""
    wanted = {JOB_ID + id.encode() for id in ids}
    own = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    found = {pid: start_ticks(pid) for pid in own if job_id_of(pid) in wanted}
    return {pid: ticks for pid, ticks in sorted(found.items()) if ticks != GONE}


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


def left_of_jobs(cluster: Cluster, ids: Sequence[str], idle: int = 0) -> JobState | None:
    """Return what is left of these Ray jobs on all nodes; None unless each node answered."""
    answers = cluster.on_each_node(processes_of_jobs, list(ids))
    if any(node["id"] not in answers for node in cluster.nodes):
        return None
    found = {id: processes for id, processes in answers.items() if processes}
    return JobState(found, busy_accelerators(cluster, idle))


def wait_until_gone(
    look: Callable[[], JobState | None],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> JobState | None:
    """Look until nothing is left, or `seconds` have passed; return what was seen last."""
    deadline = clock() + seconds
    while True:
        left = look()
        if (left and left.empty) or clock() > deadline:
            return left
        time.sleep(POLL_SECONDS)


def wait_until_free(cluster: Cluster, idle: int, seconds: float) -> int:
    """Wait until no more accelerators are busy than `idle`; return how many still are."""
    left = wait_until_gone(lambda: JobState({}, busy_accelerators(cluster, idle)), seconds)
    return left.busy if left else 0
