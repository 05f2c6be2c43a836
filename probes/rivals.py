"""Two competing jobs, and an observer that is neither of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from probes.cluster import Cluster

ANSWER_SECONDS = 60
PAUSE = 0.02  # between two samples: 20 Hz are owed, about 40 are taken


class RivalSilent(RuntimeError):
    """A job's driver did not answer in time, or died."""


class Rival:
    """One job: a driver process of its own, told what to do over a pipe."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name, self._keeper = name, cluster.keeper
        self.group = f"seatrial-{name}-{os.getpid()}"
        script = str(Path(__file__).with_name("gang_job.py"))
        self._child = subprocess.Popen(
            [sys.executable, script, cluster.address, cluster.resource, self.group],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._keeper.keep("process", str(self._child.pid))

    def tell(self, do: str, *arguments: Any) -> None:
        """Send a command without waiting for the answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
        self._child.stdin.flush()

    def answer(self) -> Any:
        """The next answer.  Raises RivalSilent after 60 s."""
        import select

        assert self._child.stdout is not None
        readable, _, _ = select.select([self._child.stdout], [], [], ANSWER_SECONDS)
        line = self._child.stdout.readline() if readable else ""
        if not line:
            raise RivalSilent(f"job {self.name} did not answer within {ANSWER_SECONDS} s")
        return json.loads(line)

    def ask(self, do: str, *arguments: Any) -> Any:
        """Send a command and wait for its answer."""
        self.tell(do, *arguments)
        return self.answer()

    def end(self) -> None:
        """Close its input, upon which it ends; kill it when it does not."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._keeper.forget("process", str(self._child.pid))


@contextmanager
def two_jobs(cluster: Cluster) -> Iterator[tuple[Rival, Rival]]:
    """Two jobs, started together and gone afterwards."""
    jobs = (Rival("A", cluster), Rival("B", cluster))
    try:
        for job in jobs:
            job.answer()
        yield jobs
    finally:
        for job in jobs:
            job.end()


def free(cluster: Cluster) -> int:
    """Accelerators that nobody holds now."""
    import ray

    return int(ray.available_resources().get(cluster.resource, 0))


def settled(cluster: Cluster, want: int, seconds: float) -> int:
    """Free accelerators, once they are `want` or `seconds` have passed: Ray's view lags."""
    deadline = time.monotonic() + seconds
    while (now := free(cluster)) < want and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


@dataclass
class Watch:
    """Samples of who held what: t (s since the start), held and state per job, free."""

    cluster: Cluster
    groups: dict[str, str]  # job -> name of its placement group
    samples: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def sample(self) -> dict[str, Any]:
        """Look once."""
        import ray

        table = {entry["name"]: entry for entry in ray.util.placement_group_table().values()}
        seen: dict[str, Any] = {"t": time.monotonic() - self.started, "held": {}, "state": {}}
        for job, group in self.groups.items():
            entry = table.get(group, {})
            seen["held"][job] = sum(
                bool(node) for node in entry.get("bundles_to_node_id", {}).values()
            )
            seen["state"][job] = entry.get("state", "UNKNOWN")
            if seen["state"][job] == "REMOVED":  # the table remembers where it once was
                seen["held"][job] = 0
        seen["free"] = free(self.cluster)
        self.samples.append(seen)
        return seen

    @property
    def longest_gap(self) -> float:
        """Seconds between the two samples that are farthest apart."""
        times = [sample["t"] for sample in self.samples]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def until(self, done: Callable[[dict[str, Any]], bool], seconds: float) -> float | None:
        """Sample until `done(sample)`; seconds it took, or None when it did not come."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            if done(self.sample()):
                return time.monotonic() - begun
            time.sleep(PAUSE)
        return None

    @property
    def rate(self) -> float:
        """Samples per second over the whole watch."""
        span = self.samples[-1]["t"] - self.samples[0]["t"] if len(self.samples) > 1 else 0.0
        return (len(self.samples) - 1) / span if span else 0.0


def half_held(held: dict[str, int], need: int) -> list[str]:
    """Jobs that hold something, but not their whole gang."""
    return [job for job, count in held.items() if 0 < count < need]
