"""Observes gangs: who holds which accelerators, by Ray and by the GPUs themselves."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from probes.cluster.ask import ActorSet, on_node
from probes.cluster.cluster import Cluster
from probes.cluster.nvml import gpus_in_use, list_gpus, start_nvml
from probes.cluster.ray_internals import LiveActors, read_free_resources
from probes.cluster.room import LivePlacementGroups, live_drivers, other_jobs
from probes.gang.invariants import SILENCE, Sample
from reference_trainer.late import ray
from reports.groups import group_pairs

PAUSE = 0.2  # s between two samples: NVML needs some ms for each GPU
START_SECONDS = 60.0  # for NVML's first answer: 1 to 2 s per GPU without persistence mode
STALE = 2.0  # s after which a sample is outdated: NVML hangs if a GPU is lost
GpuProcesses = dict[str, list[int]]  # UUID of a GPU in use -> ids of its processes


class GpuMonitor:
    """Ray actor that samples the GPUs of one node in a background thread."""

    def __init__(self, ray_gpus: int) -> None:
        self._ray_gpus = ray_gpus  # that Ray counts on this node
        self._sampled_at, self._uses = time.monotonic(), dict[str, list[int]]()
        self._error = f"{SILENCE} yet"
        threading.Thread(target=self._poll, daemon=True).start()

    def uses(self) -> GpuProcesses | str:
        """Return the GPUs in use at the last sample, or a text if NVML has no data."""
        age_s = time.monotonic() - self._sampled_at
        return self._error or (f"{SILENCE} for {age_s:.0f} s" if age_s > STALE else self._uses)

    def _poll(self) -> None:
        start_nvml()  # otherwise, without persistence mode, each sample starts the driver
        mismatch: str | None = None
        while True:
            try:
                mismatch = self._count_mismatch(len(list_gpus())) if mismatch is None else mismatch
                self._uses, self._error = gpus_in_use(), mismatch
            except Exception as error:  # noqa: BLE001  (any error must reach the probe)
                self._error = f"NVML: {error}"
            self._sampled_at = time.monotonic()
            time.sleep(PAUSE)

    def _count_mismatch(self, nvml: int) -> str:
        """Return a text if NVML sees more GPUs than Ray: it is unknown which are Ray's."""
        if nvml <= self._ray_gpus:
            return ""
        count = f"NVML sees {nvml} GPUs, but Ray counts {self._ray_gpus}"
        return f"{count}, so seatrial does not know which of them Ray uses"


class UnregisteredGpuUser:
    """Ray actor that owns no GPU and uses one that it never asked Ray for. It needs torch."""

    def allocate(self, uuid: str) -> None:
        """Create a CUDA context and allocate 256 MiB on this GPU of the actor's node."""
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        import torch

        self._memory = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")


class GpuMonitors(ActorSet):
    """The monitors of all nodes that have GPUs, as the probe reads them."""

    def __init__(self, cluster: Cluster) -> None:
        self.actors = {
            node["name"]: on_node(GpuMonitor, node["id"]).remote(int(node["resources"]["GPU"]))
            for node in cluster.nodes
            if node["resources"].get("GPU")
        }
        self._pending: dict[Any, str] = {}
        self._latest: dict[str, GpuProcesses | str] = {}
        self._answered_at = dict.fromkeys(self.actors, time.monotonic())
        self._last_poll = 0.0

    def poll(self) -> dict[str, GpuProcesses | str] | None:
        """Return the last known use of each node's GPUs by node name, without waiting.

        None if the last call was less than PAUSE ago, or if no monitor has answered yet.
        """
        now = time.monotonic()
        if now < self._last_poll + PAUSE:
            return None
        self._last_poll = now
        for node in set(self.actors) - set(self._pending.values()):
            self._pending[self.actors[node].uses.remote()] = node
        done, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        for call in done:
            node = self._pending.pop(call)
            self._answered_at[node] = now
            try:
                self._latest[node] = ray.get(call)
            except ray.exceptions.RayError as error:
                self._latest[node] = f"seatrial's GPU observer died: {type(error).__name__}"
        if not self._latest:
            return None  # no monitor has answered yet
        silent = {node for node, last in self._answered_at.items() if now - last > STALE}
        text = f"seatrial's GPU observer did not answer for {STALE:g} s"
        known = {**self._latest, **dict.fromkeys(silent, text)}
        return {node: known[node] for node in self.actors if node in known}

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until each node has been sampled once, but at most `seconds`.

        For a node that has not answered by then, the samples give the reason.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            known = [use for use in (self.poll() or {}).values() if not isinstance(use, str)]
            if len(known) == len(self.actors):
                return
            time.sleep(PAUSE)


REQUIRED_RATE_HZ = 20.0  # samples a second that are required
SAMPLE_SECONDS = 0.02  # from one sample to the next: about 40 a second are taken
POLL_SECONDS = 0.05  # between two requests of the probe for new samples
ANSWER_SECONDS = 15  # for an answer from a busy head node: it usually takes some ms
DRIVERS_SECONDS = 1.0  # between two queries for the cluster's jobs
UNNAMED_PREFIX = "#"  # before the id of a group without a name, as Ray Train makes them
JOB_ID_DIGITS = 8  # hex digits: a group's id ends with its job's id
RANK_CLASSES = ("Holder", "RayTrainWorker")  # actors that are ranks of a gang


class ObserverActor:
    """Ray actor that samples in a background thread; `take` returns the new samples."""

    def __init__(self, prefix: str, resource: str) -> None:
        self._prefix, self._resource = prefix, resource
        self._samples: list[Sample] = []
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._error = ""
        self._drivers: dict[str, str] = {}
        self._jobs: list[str] = []
        self._drivers_read_at = self._away_until = 0.0
        _reset_niceness()
        threading.Thread(target=self._run, daemon=True).start()

    def now(self) -> float:
        """Return the seconds since the observer started."""
        return time.monotonic() - self._started

    def look_away(self, seconds: float) -> None:
        """Take no sample for `seconds`: the fault of a control."""
        self._away_until = self.now() + seconds

    def take(self, jobs: list[str]) -> list[Sample]:
        """Return the samples since the last call. Raises RuntimeError if sampling has failed.

        From now on they show the actors of these jobs, by id.
        """
        self._jobs = jobs
        if self._error:
            raise RuntimeError(self._error)
        with self._lock:
            samples, self._samples = self._samples, []
        return samples

    def drivers(self) -> dict[str, str]:
        """Return the jobs that were alive since the last call: {job id: entry point}."""
        drivers, self._drivers = self._drivers | live_drivers(), {}
        return drivers

    def _run(self) -> None:
        try:
            live_groups, live_actors = LivePlacementGroups(), LiveActors()
            while True:
                start = self.now()
                if start < self._away_until:
                    time.sleep(self._away_until - start)
                    continue
                if start - self._drivers_read_at > DRIVERS_SECONDS:
                    self._drivers, self._drivers_read_at = self._drivers | live_drivers(), start
                sample = take_sample(live_groups, self._prefix, self._resource)
                sample["actors"] = read_ranks(live_actors, self._jobs)
                with self._lock:
                    self._samples.append({"t": start, "took": self.now() - start, **sample})
                time.sleep(max(SAMPLE_SECONDS - (self.now() - start), 0.001))
        except Exception as error:  # noqa: BLE001  (any error must reach the probe)
            self._error = f"seatrial's observer of gangs failed: {error}"


def _reset_niceness() -> None:
    """Reset the niceness to 0 where allowed: Ray starts its workers with niceness 15.

    An observer that waits for a core behind the jobs it observes misses what they do.
    """
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def take_sample(live_groups: LivePlacementGroups, prefix: str, resource: str) -> Sample:
    """Take one sample: our groups by name, and free accelerators by node id."""
    groups = {}
    for entry in live_groups.snapshot():
        if entry.name.startswith(prefix) or not entry.name:
            nodes = [bundle.node_id.hex() for bundle in entry.bundles if bundle.node_id]
            spare = not any(resource in bundle.unit_resources for bundle in entry.bundles)
            name = entry.name or UNNAMED_PREFIX + entry.placement_group_id.hex()
            status = entry.PlacementGroupState.Name(entry.state)
            groups[name] = [status, len(entry.bundles), nodes, spare]
    free = {node: int(amounts.get(resource, 0)) for node, amounts in read_free_resources().items()}
    return {"groups": groups, "free": free}


def read_ranks(live_actors: LiveActors, jobs: list[str]) -> dict[str, list[str]]:
    """Read the nodes of the living actors that are ranks, by job id."""
    ranks = (actor for actor in live_actors.snapshot(jobs) if actor.class_name in RANK_CLASSES)
    return group_pairs((rank.job_id.hex(), rank.address.node_id.hex()) for rank in ranks)


def share_equal_parts(sample: Sample, last: Sample) -> Sample:
    """Return the sample with the parts of the last one where they are equal.

    Of 40 samples a second most say the same.  Whole ones of an hour's storm would take gigabytes.
    """
    gangs = share_equal(sample["gangs"], last.get("gangs", {}))
    return share_equal({**sample, "gangs": gangs}, last)


def share_equal(new: Sample, last: Sample) -> Sample:
    """Return `new` with the values of `last` that are equal, or `last` if all are."""
    same = {key: last[key] if (key, value) in last.items() else value for key, value in new.items()}
    return last if same == last else same


class ScenarioMark(NamedTuple):
    """An action, its time (s, the observer's clock), and whether it was a fault."""

    t: float
    message: str
    fault: bool = False


class Observer:
    """The observer as the probe uses it: samples, marks of actions, and bounded waits."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.prefix, self.node_names = prefix, cluster.node_names
        self._actor = on_node(ObserverActor, cluster.head_node_id).remote(prefix, cluster.resource)
        self.jobs: dict[str, str] = {}  # Ray's job id -> our name for the job
        self.single_actors: dict[str, int] = {}  # job -> size of its gang of single actors
        self.gang_sizes: dict[str, int] = {}  # gang of several groups -> its total size
        self._gpus = GpuMonitors(cluster) if cluster.on_gpu else None
        self.samples: list[Sample] = []
        self._in_use: Sample = {}  # that of the last sample which has one
        self.marks: list[ScenarioMark] = []
        if self._gpus:
            self._gpus.wait_ready()
        self.until(lambda sample: True, ANSWER_SECONDS)  # the first sample is slow on old clusters

    def now(self) -> float:
        """Return the time on the observer's clock (s)."""
        return float(ray.get(self._actor.now.remote(), timeout=ANSWER_SECONDS))

    def mark(self, message: str, fault: bool = False) -> float:
        """Mark what is done now; return its time on the observer's clock (s)."""
        t = self.now()
        self.marks.append(ScenarioMark(t, message, fault))
        return t

    def other_jobs(self) -> list[str]:
        """List the ids of jobs that are not ours and were alive since the last call.

        Ray's own dashboard does not count.
        """
        return other_jobs(ray.get(self._actor.drivers.remote(), timeout=ANSWER_SECONDS), self.jobs)

    def poll(self) -> list[Sample]:
        """Fetch the new samples."""
        before = len(self.samples)
        for raw in ray.get(self._actor.take.remote([*self.jobs]), timeout=ANSWER_SECONDS):
            last = self.samples[-1] if self.samples else {}
            self.samples.append(share_equal_parts(self._with_names(raw), last))
        if self._gpus and len(self.samples) > before and (in_use := self._gpus.poll()):
            self._in_use = share_equal({"in_use": in_use}, self._in_use)
            self.samples[-1] |= self._in_use
        return self.samples[before:]

    def _with_names(self, raw: Sample) -> Sample:
        """Translate one raw sample into the names of nodes, jobs and gangs."""
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
        """Find the gang of a group; a group without a name belongs to the job that its id names."""
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
        """Wait for a new sample that meets the condition; return its time (s), None if too late."""
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
        """Take samples for `seconds`."""
        self.until(lambda sample: False, seconds)

    def look_away(self, seconds: float) -> None:
        """Make the observer take no sample for `seconds`: the fault of a control."""
        ray.get(self._actor.look_away.remote(seconds), timeout=ANSWER_SECONDS)

    def close(self) -> None:
        """End the observer and the GPU monitors."""
        ray.kill(self._actor)
        if self._gpus:
            self._gpus.close()
