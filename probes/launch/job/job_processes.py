"""Finds what a job has on the nodes: its ranks, all that they started, and its accelerators."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probes.cluster.cluster import Cluster
from probes.faults.process_faults import descendant_pids, start_ticks

POLL_SECONDS = 0.5
GONE = -1  # start_ticks of a process that has ended
Processes = dict[int, int]  # pid -> when it started, in ticks since boot


@dataclass(frozen=True)
class JobState:
    """What a job has now: the processes on each node (by node id), and accelerators in use."""

    processes: Mapping[str, Processes]
    busy: int

    @property
    def count(self) -> int:
        """Number of processes."""
        return sum(map(len, self.processes.values()))

    @property
    def empty(self) -> bool:
        """Whether nothing is left."""
        return not self.count and not self.busy


def running_processes(pids: Sequence[int]) -> Processes:
    """Return those of a node's processes that run, with all that they have started (on a node)."""
    every = [each for pid in pids for each in (pid, *descendant_pids(pid))]
    return {pid: ticks for pid in every if (ticks := start_ticks(pid)) != GONE}


def still_running(processes: Processes) -> Processes:
    """Return those of the processes that run still; zombies do not (on a node)."""
    return {pid: ticks for pid, ticks in processes.items() if start_ticks(pid) == ticks}


def observe_job(cluster: Cluster, rows: Sequence[Mapping[str, str]]) -> JobState:
    """Return what a running job has, by what its ranks announced."""
    pids: dict[str, list[int]] = {}
    for row in rows:
        if row.get("pid", "").isdecimal():
            pids.setdefault(row.get("node", ""), []).append(int(row["pid"]))
    nodes = [node for node in cluster.nodes if node["id"] in pids]
    running = cluster.on_each_node(running_processes, each=pids, nodes=nodes)
    return JobState(running, busy_accelerators(cluster))


def what_is_left(cluster: Cluster, before: JobState) -> JobState:
    """Return what is left of a job.  A node that does not answer keeps what it had."""
    nodes = [node for node in cluster.nodes if before.processes.get(node["id"])]
    answers = cluster.on_each_node(still_running, each=dict(before.processes), nodes=nodes)
    left = {node["id"]: answers.get(node["id"], before.processes[node["id"]]) for node in nodes}
    return JobState(left, busy_accelerators(cluster))


def wait_until_gone(
    cluster: Cluster, before: JobState, seconds: float, clock: Callable[[], float] = time.monotonic
) -> tuple[JobState, float]:
    """Wait until nothing is left, or `seconds` have passed; return what is left, and the time."""
    started = clock()
    while True:
        left = what_is_left(cluster, before)
        elapsed = clock() - started
        if left.empty or elapsed > seconds:
            return left, elapsed
        time.sleep(POLL_SECONDS)


def busy_accelerators(cluster: Cluster) -> int:
    """Count the accelerators that Ray has given away."""
    import ray

    free: dict[str, Any] = ray.available_resources()
    return round(cluster.ray_gpu_count - float(free.get(cluster.resource, 0)))
