"""Ranks of runs that have ended whose processes still run: they may write, and hold a device.

Where a rank was is known from its gang's places and from its own journal; its node is asked whether
it still is there.  What is found is counted and then killed, for nobody else will.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from probes.cluster.cluster import TASK_SECONDS, Cluster
from probes.cluster.node_affinity import on_node
from probes.faults.process_faults import read_json_lines, start_ticks
from reference_trainer.launch.supervisor import Attempt

ProcessKey = tuple[str, int, int]  # host, process id, and when it started in clock ticks since boot
EXIT_SECONDS = 10  # a rank takes some 2 s to see that its raylet is gone


def rank_processes(folder: Path | None, attempts: Iterable[Attempt] = ()) -> dict[ProcessKey, int]:
    """The rank of every process that began a run in this folder or below it, or was to.

    Where there is no /proc a process cannot be told from a later one of its number: none.
    """
    processes: dict[ProcessKey, int] = {}
    for attempt in attempts:
        for rank, place in enumerate(attempt.places):
            if place.born is not None:
                processes[place.host, place.pid, place.born] = rank
    for journal in folder.rglob("metrics.rank*.jsonl") if folder else ():
        for line in read_json_lines(journal):
            if line["event"] == "start" and line["born"] is not None:
                processes[line["host"], line["pid"], line["born"]] = line["rank"]
    return processes


def kill_running(keys: list[ProcessKey], seconds: float) -> tuple[str, list[ProcessKey]]:
    """This host's name, and those of its processes that run after so long; they are killed then."""
    host, deadline = socket.gethostname(), time.monotonic() + seconds

    def find_running() -> list[ProcessKey]:
        return [key for key in keys if key[0] == host and start_ticks(key[1]) == key[2]]

    while (alive := find_running()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _, pid, _ in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return host, alive


def find_orphans(
    cluster: Cluster, processes: dict[ProcessKey, int], seconds: float = EXIT_SECONDS
) -> tuple[dict[ProcessKey, int], list[str]]:
    """(Those of the known ones that still ran, hosts that could not be asked)."""
    import ray

    keys = list(processes)
    answers = list(cluster.on_each_node(kill_running, keys, seconds).values())
    # Spare raylets live on the head, which may be no node that takes part.
    if cluster.head_node_id not in {node["id"] for node in cluster.nodes}:
        call = on_node(kill_running, cluster.head_node_id, max_retries=0).remote(keys, seconds)
        with suppress(ray.exceptions.RayError):  # then its host is one that could not be asked
            answers.append(ray.get(call, timeout=TASK_SECONDS))
    orphans = sorted({key for _, running in answers for key in running})
    hosts = {host for host, _ in answers}
    return {key: processes[key] for key in orphans}, sorted({key[0] for key in processes} - hosts)


def describe_orphans(running: dict[ProcessKey, int]) -> str:
    """`rank 1 on node1, process 4711; ...`."""
    return "; ".join(
        f"rank {rank} on {host}, process {pid}" for (host, pid, _), rank in running.items()
    )
