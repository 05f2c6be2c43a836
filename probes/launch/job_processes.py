"""Finds the processes of a job, and the nodes that it holds."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.cluster import Cluster
from probes.cluster.room import busy_accelerators
from probes.faults.process_faults import descendant_pids, start_ticks
from reference_trainer.rank_environment import JOB_VARIABLE
from reports.groups import group_pairs
from reports.numbers import quantity

POLL_SECONDS = 0.5
GONE = -1  # start_ticks of a process that has ended
JOB_WORD = f"{JOB_VARIABLE}=".encode()
EXEC_SECONDS = 0.05  # within which the kernel has set up a program's environment
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


def running_processes(names: Sequence[str], pids: Sequence[int]) -> Processes:
    """Return those of a node's processes that run, with all they have started (on a node).

    What a rank of these jobs started has the job's name in its environment, also when its parent
    has ended since.  (Ray's own id of the job is not in that of a worker that was started before.)
    """
    every = {each for pid in pids for each in (pid, *descendant_pids(pid))}
    found = {int(one.name): job_name_of(int(one.name)) for one in Path("/proc").glob("[0-9]*")}
    if unread := [pid for pid, name in found.items() if name is None]:
        time.sleep(EXEC_SECONDS)  # who starts a program this moment has its environment then
        found |= {pid: job_name_of(pid) for pid in unread}
    every |= {pid for pid, name in found.items() if name in set(names) - {""}}
    return {pid: ticks for pid in sorted(every) if (ticks := start_ticks(pid)) != GONE}


def job_name_of(pid: int) -> str | None:
    """Read the name of the job whose rank started a process; "" for none, or if it is unreadable.

    A rank itself, whose environment was changed after its start, has none.  None is for no
    environment at all: the process starts a program this moment, or it has none, as a thread of the
    kernel.
    """
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    if words == [b""]:
        return None
    found = (word for word in words if word.startswith(JOB_WORD))
    return next(found, b"").removeprefix(JOB_WORD).decode("utf-8", "replace")


def still_running(processes: Processes) -> Processes:
    """Return those of the processes that run still; zombies do not (on a node)."""
    return {pid: ticks for pid, ticks in processes.items() if start_ticks(pid) == ticks}


def leave_orphan(name: str) -> Processes:
    """Start a process of this job whose parent ends, and return it (on a node), for a control."""
    script, env = f"sleep {ORPHAN_SECONDS} >&2 & echo $!", {**os.environ, JOB_VARIABLE: name}
    parent = ["sh", "-c", script]
    child = int(subprocess.check_output(parent, env=env, start_new_session=True, text=True))
    return still_running({child: start_ticks(child)})


def observe_job(cluster: Cluster, rows: Sequence[Mapping[str, str]], idle: int = 0) -> JobState:
    """Return what a running job has, by what its ranks announced.

    `idle` is how many accelerators (CPUs where there are none) others had before.
    """
    pids = pids_by_node(rows)
    nodes, names = [node for node in cluster.nodes if node["id"] in pids], names_of(rows)
    running = cluster.on_each_node(running_processes, names, each=pids, nodes=nodes)
    found = {id: {*map(str, processes)} for id, processes in running.items()}
    lost = [row for row in rows if row.get("pid", "") not in found.get(row.get("node", ""), ())]
    unseen = tuple(row.get("RANK", "?") for row in lost)
    return JobState(running, busy_accelerators(cluster, idle), unseen)


def pids_by_node(rows: Sequence[Mapping[str, str]]) -> dict[str, list[int]]:
    """Group the process ids that ranks announced by node id."""
    known = [row for row in rows if row.get("pid", "").isdecimal()]
    return group_pairs((row.get("node", ""), int(row["pid"])) for row in known)


def names_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """List the names of the jobs whose ranks these are."""
    return sorted({row[JOB_VARIABLE] for row in rows if row.get(JOB_VARIABLE)})


def what_is_left(cluster: Cluster, before: JobState, idle: int = 0) -> JobState:
    """Return what is left of a job.  A node that does not answer keeps what it had."""
    nodes = [node for node in cluster.nodes if before.processes.get(node["id"])]
    answers = cluster.on_each_node(still_running, each=dict(before.processes), nodes=nodes)
    left = {id: answers.get(id, had) for id, had in before.processes.items() if had}
    return JobState(left, busy_accelerators(cluster, idle))


def left_of_jobs(
    cluster: Cluster, nodes: list[dict[str, Any]], rows: Sequence[Mapping[str, str]], idle: int = 0
) -> JobState | None:
    """Return what is left of jobs that have ended; None unless each of `nodes` answered."""
    announced = pids_by_node(rows)
    pids = {str(node["id"]): announced.get(node["id"], []) for node in nodes}
    answers = cluster.on_each_node(running_processes, names_of(rows), each=pids, nodes=nodes)
    if pids.keys() - answers.keys():
        return None
    found = {id: processes for id, processes in answers.items() if processes}
    return JobState(found, busy_accelerators(cluster, idle))


def wait_until_gone(look: Callable[[], JobState | None], seconds: float) -> JobState | None:
    """Look until nothing is left, or `seconds` have passed; return what was seen last."""
    deadline = time.monotonic() + seconds
    while True:
        left = look()
        if (left and left.empty) or time.monotonic() > deadline:
            return left
        time.sleep(POLL_SECONDS)


def wait_until_free(cluster: Cluster, idle: int, seconds: float) -> int:
    """Wait until no more accelerators are busy than `idle`; return how many still are."""
    left = wait_until_gone(lambda: JobState({}, busy_accelerators(cluster, idle)), seconds)
    return left.busy if left else 0


HOLD_SECONDS = 60  # for accelerators that no other job has


class NodeNotFree(RuntimeError):
    """Raised when a node's accelerators cannot be held: another job has them."""


class NodeHolder:
    """Holds what its actor was given."""

    def ready(self) -> bool:
        """Answer, once the actor runs."""
        return True


@contextmanager
def hold_node(cluster: Cluster, node: Mapping[str, Any]) -> Iterator[int]:
    """Hold a node's accelerators and yield how many ranks have no room there meanwhile.

    Without GPUs a rank takes a CPU, one on each node: all CPUs are held.  Raises NodeNotFree.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    resource = cluster.resource
    count = int(node["resources"].get(resource, 0))
    wanted = {"num_cpus": 0, "num_gpus": count} if resource == "GPU" else {"num_cpus": count}
    here = NodeAffinitySchedulingStrategy(node["id"], soft=False)
    holder = ray.remote(NodeHolder).options(scheduling_strategy=here, **wanted).remote()
    try:
        try:
            ray.get(holder.ready.remote(), timeout=HOLD_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise NodeNotFree(
                f"seatrial could not hold {quantity(count, resource + 's')} of {node['name']} in "
                f"{HOLD_SECONDS} s. If another job uses some, run LAUNCH again after that job"
            ) from None
        except ray.exceptions.RayError as error:
            raise NodeNotFree(f"no process could start on {node['name']}: {error}") from None
        yield count if resource == "GPU" else 1
    finally:
        ray.kill(holder)
