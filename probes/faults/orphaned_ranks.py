"""Finds rank processes that still run after their run has ended, counts them and kills them.

Such a process may still write and hold a device. The location of each rank comes from its gang's
places and from its own journal. The rank's node is asked whether the process still runs. The probe
kills these processes because nothing else would.
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

ProcessKey = tuple[str, int, int]  # host, process id, start time in clock ticks since boot
EXIT_SECONDS = 10  # a rank needs about 2 s to notice that its raylet is gone


def rank_processes(folder: Path | None, attempts: Iterable[Attempt] = ()) -> dict[ProcessKey, int]:
    """Map the process of each rank in `attempts`, and in the journals below `folder`, to its rank.

    A process without a start time (no /proc) is left out, because a later process may have its pid.
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
    """Wait up to `seconds` for these processes of this host to exit, then SIGKILL the others.

    Returns this host's name and the keys of the processes that were killed.
    """
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
    """Find the known processes that still run after `seconds` more seconds, and kill them.

    Returns ({process: rank}, hosts that could not be asked).
    """
    import ray

    keys = list(processes)
    answers = list(cluster.on_each_node(kill_running, keys, seconds).values())
    # Spare raylets run on the head node, which may not be among the participating nodes.
    if cluster.head_node_id not in {node["id"] for node in cluster.nodes}:
        call = on_node(kill_running, cluster.head_node_id, max_retries=0).remote(keys, seconds)
        with suppress(ray.exceptions.RayError):  # then its host counts as not asked
            answers.append(ray.get(call, timeout=TASK_SECONDS))
    orphans = sorted({key for _, running in answers for key in running})
    hosts = {host for host, _ in answers}
    return {key: processes[key] for key in orphans}, sorted({key[0] for key in processes} - hosts)


def describe_orphans(running: dict[ProcessKey, int]) -> str:
    """Format processes as `rank 1 on node1, process 4711; ...`."""
    return "; ".join(
        f"rank {rank} on {host}, process {pid}" for (host, pid, _), rank in running.items()
    )
