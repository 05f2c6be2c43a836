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

from probes.cluster.cluster import ASK_SECONDS, Cluster
from probes.cluster.node_affinity import pinned
from probes.faults.process_faults import Hand, read_lines
from reference_trainer.launch.supervisor import Attempt

Mark = tuple[str, int, int]  # host, process id, and when it started in clock ticks since boot
SECONDS = 10  # a rank takes some 2 s to see that its raylet is gone


def marks(folder: Path | None, attempts: Iterable[Attempt] = ()) -> dict[Mark, int]:
    """The rank of every process that began a run in this folder or below it, or was to.

    Where there is no /proc a process cannot be told from a later one of its number: none.
    """
    found: dict[Mark, int] = {}
    for attempt in attempts:
        for rank, place in enumerate(attempt.places):
            if place.born is not None:
                found[place.host, place.pid, place.born] = rank
    for journal in folder.rglob("metrics.rank*.jsonl") if folder else ():
        for line in read_lines(journal):
            if line["event"] == "start" and line["born"] is not None:
                found[line["host"], line["pid"], line["born"]] = line["rank"]
    return found


def end_running(known: list[Mark], seconds: float) -> tuple[str, list[Mark]]:
    """This host's name, and those of its processes that run after so long; they are killed then."""
    hand, here = Hand(), socket.gethostname()
    deadline = time.monotonic() + seconds

    def running() -> list[Mark]:
        return [mark for mark in known if mark[0] == here and hand.aim(mark[1])[0] == mark[2]]

    while (mine := running()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _, pid, _ in mine:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return here, mine


def outlived(
    cluster: Cluster, known: dict[Mark, int], seconds: float = SECONDS
) -> tuple[dict[Mark, int], list[str]]:
    """(Those of the known ones that still ran, hosts that could not be asked)."""
    import ray

    asked = list(cluster.on_each_node(end_running, list(known), seconds).values())
    if cluster.home not in {node["id"] for node in cluster.nodes}:  # spare raylets live there
        call = pinned(end_running, cluster.home, max_retries=0).remote(list(known), seconds)
        with suppress(ray.exceptions.RayError):  # then its host is one that could not be asked
            asked.append(ray.get(call, timeout=ASK_SECONDS))
    found = sorted({mark for _, running in asked for mark in running})
    hosts = {host for host, _ in asked}
    return {mark: known[mark] for mark in found}, sorted({mark[0] for mark in known} - hosts)


def told(running: dict[Mark, int]) -> str:
    """`rank 1 on node1, process 4711; ...`."""
    return "; ".join(
        f"rank {rank} on {host}, process {pid}" for (host, pid, _), rank in running.items()
    )
