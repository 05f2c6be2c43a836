"""The observer: a process that is none of the jobs, and looks at least 20 times a second.

`ObserverActor` runs as an actor on the head node and writes down what Ray says; `Observer`
is the probe's end of it, which turns what was seen into samples:

    {t, took, free, gangs {A-1: {job, size, placed, state, nodes {name: n}, spare}}, actors {A: n}}

t is when the look began and took how long it was (s, the observer's clock): so old is what it saw
of groups and actors.  `free` is accelerators that nobody holds as Ray's nodes report it, up to
invariants.FREE_LAG late.  placed counts bundles that have a node, spare marks gangs of another
resource.  A gang may be of several groups (A-1.1, A-1.2): it is one entry.  On real GPUs some
samples have in_use {node: {UUID: process ids}} too, as gpu_monitor last saw it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import on_node
from probes.cluster.placement_groups import LivePlacementGroups, live_drivers, other_jobs
from probes.gang.gpu_monitor import GpuMonitors
from probes.gang.invariants import Sample

REQUIRED_RATE_HZ = 20.0  # samples a second that are owed
SAMPLE_SECONDS = 0.02  # from one sample to the next: about 40 are taken
POLL_SECONDS = 0.05  # how often the probe asks for what is new
ANSWER_SECONDS = 15  # of the observer, on a head node that is busy: it usually takes some ms
DRIVERS_SECONDS = 1.0  # from one question for the cluster's jobs to the next
UNNAMED_PREFIX = "#"  # before the id of a group without a name, such as Ray Train makes
JOB_ID_DIGITS = 8  # a group's id ends with that of its job
RANK_CLASSES = ("Holder", "RayTrainWorker")  # actors that are ranks of a gang


class ObserverActor:
    """Looks on in a thread of its own; `take` hands out what was seen since the last time."""

    def __init__(self, prefix: str, resource: str) -> None:
        self._prefix, self._resource = prefix, resource
        self._samples: list[Sample] = []
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._error = ""
        self._drivers: dict[str, str] = {}
        self._drivers_read_at = self._away_until = 0.0
        _reset_niceness()
        threading.Thread(target=self._run, daemon=True).start()

    def now(self) -> float:
        """Tell the seconds since it began to look."""
        return time.monotonic() - self._started

    def look_away(self, seconds: float) -> None:
        """Take no sample for so long: a control's fault."""
        self._away_until = self.now() + seconds

    def take(self) -> list[Sample]:
        """What was seen since the last call.  Raises RuntimeError when looking has failed."""
        if self._error:
            raise RuntimeError(self._error)
        with self._lock:
            samples, self._samples = self._samples, []
        return samples

    def drivers(self) -> dict[str, str]:
        """Jobs that lived here at any look since the last call: id, how it was started."""
        drivers, self._drivers = self._drivers | live_drivers(), {}
        return drivers

    def _run(self) -> None:
        try:
            live_groups = LivePlacementGroups()
            while True:
                start = self.now()
                if start < self._away_until:
                    time.sleep(self._away_until - start)
                    continue
                if start - self._drivers_read_at > DRIVERS_SECONDS:
                    self._drivers, self._drivers_read_at = self._drivers | live_drivers(), start
                sample = take_sample(live_groups, self._prefix, self._resource)
                with self._lock:
                    self._samples.append({"t": start, "took": self.now() - start, **sample})
                time.sleep(max(SAMPLE_SECONDS - (self.now() - start), 0.001))
        except Exception as error:  # noqa: BLE001  (whatever it is, the probe must be told)
            self._error = f"the observer failed: {error}"


def _reset_niceness() -> None:
    """Where that is allowed, be scheduled as others are: Ray starts its workers with niceness 15.

    An observer that waits for a core behind the jobs it watches misses what they do.
    """
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def take_sample(live_groups: LivePlacementGroups, prefix: str, resource: str) -> Sample:
    """One look: living groups of ours by name, free accelerators per node id, actors per job id."""
    from ray._private.state import state

    groups = {}
    for entry in live_groups.snapshot():
        if entry.name.startswith(prefix) or not entry.name:
            nodes = [bundle.node_id.hex() for bundle in entry.bundles if bundle.node_id]
            spare = not any(resource in bundle.unit_resources for bundle in entry.bundles)
            name = entry.name or UNNAMED_PREFIX + entry.placement_group_id.hex()
            status = entry.PlacementGroupState.Name(entry.state)
            groups[name] = [status, len(entry.bundles), nodes, spare]
    available = state.available_resources_per_node()
    free = {node: int(amounts.get(resource, 0)) for node, amounts in available.items()}
    actors: dict[str, list[str]] = {}
    for actor in state.actor_table(None, None, "ALIVE").values():
        if actor["ActorClassName"] in RANK_CLASSES:
            actors.setdefault(actor["JobID"], []).append(actor["Address"]["NodeID"])
    return {"groups": groups, "free": free, "actors": actors}


class ScenarioMark(NamedTuple):
    """What was done at a moment (s, the observer's clock), and whether it was a fault."""

    t: float
    message: str
    fault: bool = False


class Observer:
    """The probe's end: samples as they come, marks of what was done, and bounded waits."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.prefix, self.node_names = prefix, cluster.node_names
        self._actor = on_node(ObserverActor, cluster.head_node_id).remote(prefix, cluster.resource)
        self.jobs: dict[str, str] = {}  # Ray's id of a job -> the name we gave it
        self.single_actors: dict[str, int] = {}  # job -> how many single actors are its gang
        self.gang_sizes: dict[str, int] = {}  # gang of several groups -> its whole size
        self._gpus = GpuMonitors(cluster) if cluster.on_gpu else None
        self.samples: list[Sample] = []
        self.marks: list[ScenarioMark] = []
        if self._gpus:
            self._gpus.wait_ready()
        self.until(lambda sample: True, ANSWER_SECONDS)  # the first look is long where Ray is old

    def now(self) -> float:
        """Tell the time on the observer's clock, s."""
        import ray

        return float(ray.get(self._actor.now.remote(), timeout=ANSWER_SECONDS))

    def mark(self, message: str, fault: bool = False) -> float:
        """Note what is done now; its time on the observer's clock."""
        t = self.now()
        self.marks.append(ScenarioMark(t, message, fault))
        return t

    def other_jobs(self) -> list[str]:
        """Jobs that lived on the cluster since the last call and are not ours, by Ray's id.

        Ray's own dashboard is none.
        """
        import ray

        drivers = ray.get(self._actor.drivers.remote(), timeout=ANSWER_SECONDS)
        return other_jobs(drivers, self.jobs)

    def poll(self) -> list[Sample]:
        """The samples that are new."""
        import ray

        raw = ray.get(self._actor.take.remote(), timeout=ANSWER_SECONDS)
        new = [self._with_names(sample) for sample in raw]
        if self._gpus and new and (in_use := self._gpus.poll()):
            new[-1]["in_use"] = in_use
        self.samples += new
        return new

    def _with_names(self, raw: Sample) -> Sample:
        """Translate one look into the names of nodes, jobs and gangs."""
        gangs: dict[str, dict[str, Any]] = {}
        for name, (state, size, nodes, spare) in sorted(raw["groups"].items()):
            if gang := self._gang_of(name):
                self._add_group(gangs, gang, size, state, nodes)
                gangs[gang]["spare"] = spare
        actors = {}
        for id, nodes in raw["actors"].items():
            if job := self.jobs.get(id):
                actors[job] = len(nodes)
                if job in self.single_actors:
                    self._add_group(gangs, f"{job}-naive", self.single_actors[job], "ACTORS", nodes)
        for gang, need in self.gang_sizes.items():
            if gang in gangs:
                gangs[gang]["size"] = need
        free = {self.node_names.get(node, node[:8]): count for node, count in raw["free"].items()}
        seen = {"free": sum(free.values()), "free_on": free, "gangs": gangs, "actors": actors}
        return {"t": raw["t"], "took": raw["took"], **seen}

    def _gang_of(self, name: str) -> str:
        """The gang that a group belongs to; a group without a name is its job's by its id."""
        if not name.startswith(UNNAMED_PREFIX):
            return name.removeprefix(self.prefix).split(".")[0]
        job = self.jobs.get(name[-JOB_ID_DIGITS:], "")
        return f"{job}-{name[len(UNNAMED_PREFIX) :][:6]}" if job else ""

    def _add_group(
        self, gangs: dict[str, dict[str, Any]], gang: str, size: int, state: str, nodes: list[str]
    ) -> None:
        empty = {"size": 0, "placed": 0, "state": "", "nodes": {}, "spare": False}
        entry = gangs.setdefault(gang, {"job": gang.split("-")[0], **empty})
        entry["size"] += size
        entry["placed"] += len(nodes)
        entry["state"] = state if entry["state"] in ("", "CREATED") else entry["state"]
        for node in nodes:
            name = self.node_names.get(node, node[:8])
            entry["nodes"][name] = entry["nodes"].get(name, 0) + 1

    def until(self, condition: Callable[[Sample], bool], seconds: float) -> float | None:
        """Tell when a sample taken from now on first met the condition; None: not in time."""
        since = self.now()
        deadline = time.monotonic() + seconds
        while True:
            expired = time.monotonic() >= deadline
            for sample in self.poll():
                if sample["t"] >= since and condition(sample):
                    return float(sample["t"])
            if expired:
                return None
            time.sleep(POLL_SECONDS)

    def wait(self, seconds: float) -> None:
        """Only look, for so long."""
        self.until(lambda sample: False, seconds)

    def look_away(self, seconds: float) -> None:
        """Have the observer take no sample for so long: a control's fault."""
        import ray

        ray.get(self._actor.look_away.remote(seconds), timeout=ANSWER_SECONDS)

    def close(self) -> None:
        """End the observer, and what looks at GPUs."""
        import ray

        ray.kill(self._actor)
        if self._gpus:
            self._gpus.close()
