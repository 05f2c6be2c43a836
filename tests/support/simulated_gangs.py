"""Simulates a gang scheduler: jobs, groups and an observer on a clock that only waits move.

It does what Ray does, as far as a scenario can see it; each fault breaks one rule. The scenarios,
their judges and their controls run over it unchanged.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.cluster import SPARE_PREFIX
from probes.gang import scenario, scenario_checks
from probes.gang.invariants import Sample
from probes.gang.job_driver import COMPLETE
from probes.gang.observer import ScenarioMark
from probes.gang.scenario import Scenario
from probes.gang.scenario_checks import run_scenario
from tests.support.controls import MemoryRecorder, recorder
from tests.support.simulated_ray import (
    FAULTS,
    GONE_S,
    KILLED_S,
    NEAR_MISSES,
    STAFF_S,
    STEP,
    Group,
    SimulatedRay,
    Stream,
)


class SimulatedJob:
    """Driver of one job."""

    def __init__(self, name: str, ray: SimulatedRay, observer: SimulatedObserver) -> None:
        self.name, self.id, self.ray, self.observer = name, f"job-{name}", ray, observer
        self.alive, self.answers = True, list[Any]()
        self.outcome_at: tuple[float, str] = (0.0, "")

    def wait_ready(self) -> str:
        return self.id

    def end(self) -> None:
        self.alive = False

    def signal(self, signum: int) -> None:
        if signum == signal.SIGKILL:
            self.alive = False
            delay = {"frees late": 20.0, "frees a little late": 9.0}.get(self.ray.fault, KILLED_S)
            for group in self.ray.groups:
                if group.job == self.name and self.ray.fault != "keeps the dead":
                    group.gone = self.ray.t + delay

    def send(self, command: str, *arguments: Any) -> None:
        self.answers.append(getattr(self, f"do_{command}")(*arguments))

    def read_answer(self) -> Any:
        return self.answers.pop(0)

    def call(self, command: str, *arguments: Any) -> Any:
        self.send(command, *arguments)
        return self.read_answer()

    def _groups(self) -> list[Group]:
        return [group for group in self.ray.groups if group.job == self.name]

    def do_ask(self, name: str, size: int, strategy: str, staff: bool, resource: str) -> str:
        smaller = size - 1 if self.ray.fault == "places smaller" and size > 1 else size
        group = Group(name, self.name, smaller, strategy, staff, self.ray.t, resource=resource)
        if self.ray.fault == "disturbs":
            self.ray.disturbed = self.ray.t
        self.ray.groups.append(group)
        return name

    def do_naive(self, count: int) -> int:
        for _ in range(count):
            self.observer.until(lambda _: any(self.ray.free_on.values()), 1.0)
            if free := [node for node, left in self.ray.free_on.items() if left]:
                self.ray.naive[self.name].append(free[0])
        return len(self.ray.naive[self.name])

    def do_drop(self, name: str) -> str:
        for group in self._groups():
            if group.name == name:
                self.ray.let_go(group)
        return name

    def do_withdraw(self) -> int:
        return 0

    def do_release(self) -> bool:
        self.ray.naive[self.name] = []
        self.ray.streams = [one for one in self.ray.streams if one.job != self.name]
        for group in self._groups():
            if self.ray.fault not in ("keeps cancelled", "keeps running", "keeps the dead"):
                group.gone = self.ray.t + GONE_S
        return True

    def do_flow(self, prefix: str, sizes: list[int], width: int, hold: float, endless: bool) -> str:
        turns = cycle(sizes) if endless else iter(sizes)
        self.ray.streams.append(Stream(self.name, prefix, turns, width, hold))
        return prefix

    def do_finished(self) -> bool:
        mine = [stream for stream in self.ray.streams if stream.job == self.name]
        return all(stream.done and not stream.running for stream in mine)

    def do_calm(self) -> list[dict[str, Any]]:
        mine = [stream for stream in self.ray.streams if stream.job == self.name]
        self.ray.streams = [one for one in self.ray.streams if one.job != self.name]
        for stream in mine:
            for group in stream.running:
                self.ray.let_go(group)
        return [result for stream in mine for result in stream.results]

    def do_complete(self, gang: str, size: int, timeout_s: float) -> str:
        self.do_ask(f"{gang}.2", size, "PACK", False, "")
        self.outcome_at = self.ray.t + timeout_s, gang
        return gang

    def do_outcome(self, seconds: float = 10.0) -> str:
        end, gang = self.outcome_at
        while self.ray.t < end:
            self.observer.wait(STEP)
        second = [group for group in self._groups() if group.name == f"{gang}.2"]
        if second and second[0].placed is not None:
            return COMPLETE
        for part in (".2", ".1"):
            self.do_drop(f"{gang}{part}")
        return f"gave up after {seconds:g} s"


class SimulatedObserver:
    """Observer that takes a sample at every step of the time; its waits move the time."""

    def __init__(self, ray: SimulatedRay, prefix: str) -> None:
        self.ray, self.prefix = ray, prefix
        self.jobs: dict[str, str] = {}
        self.single_actors: dict[str, int] = {}
        self.gang_sizes: dict[str, int] = {}
        self.node_names: dict[str, str] = {}
        self.samples: list[Sample] = []
        self.marks: list[ScenarioMark] = []
        self.strangers: list[str] = []
        self.away_until = self.looked = 0.0
        self.blind_from = float("inf")
        self.poll()

    def mark(self, message: str, fault: bool = False) -> float:
        self.marks.append(ScenarioMark(self.ray.t, message, fault))
        return self.ray.t

    def other_jobs(self) -> list[str]:
        return list(self.strangers)

    def look_away(self, seconds: float) -> None:
        self.away_until = self.ray.t + seconds

    def poll(self) -> list[Sample]:
        """Move the time on by one step, and take a sample if one is due."""
        self.ray.step()
        every = {"looks rarely": 0.1, "looks just often enough": 0.045}.get(self.ray.fault, STEP)
        if self.ray.t > self.blind_from or self.ray.t < self.away_until:
            return []
        if self.ray.t - self.looked < every - 1e-9:
            return []
        self.looked = self.ray.t
        self.samples.append(self._sample())
        return self.samples[-1:]

    def _sample(self) -> Sample:
        gangs: dict[str, dict[str, Any]] = {}
        for group in self.ray.groups:
            gang = group.name.removeprefix(self.prefix).split(".")[0].split("@")[0]
            hurt = self._is_hurt(group) or self.ray.is_harmed(group)
            state = "RESCHEDULING" if hurt else ""
            placed = group.placed is not None
            self._add(gangs, gang, group.size, self._nodes(group), placed, state)
            gangs[gang]["spare"] = bool(group.resource)
        for job, need in self.single_actors.items():
            nodes: dict[str, int] = {}
            for node in self.ray.naive[job]:
                nodes[node] = nodes.get(node, 0) + 1
            if nodes:
                self._add(gangs, f"{job}-naive", need, nodes, False, "ACTORS")
        for gang, need in self.gang_sizes.items():
            if gang in gangs:
                gangs[gang]["size"] = need
        free = self.ray.shown_free_on
        actors = {job: count for job in "AB" if (count := self._actors(job))}
        seen = {"free": sum(free.values()), "free_on": free, "gangs": gangs, "actors": actors}
        return {"t": self.ray.t, "took": 0.002, **seen}

    def _nodes(self, group: Group) -> dict[str, int]:
        dead = self.ray.dead_nodes
        nodes = {node: n for node, n in group.nodes.items() if n and node not in dead}
        if self._is_hurt(group):
            nodes.pop(next(iter(nodes)))
        return nodes

    def _is_hurt(self, group: Group) -> bool:
        hurts = self.ray.fault == "disturbs" and 0 < self.ray.t - self.ray.disturbed < 0.2
        return hurts and group.placed is not None and group.placed <= self.ray.disturbed

    def _add(
        self,
        gangs: dict[str, dict[str, Any]],
        gang: str,
        size: int,
        nodes: dict[str, int],
        placed: bool,
        state: str = "",
    ) -> None:
        empty = {"size": 0, "placed": 0, "state": "", "nodes": {}, "spare": False}
        entry = gangs.setdefault(gang, {"job": gang.split("-")[0], **empty})
        entry["size"] += size
        entry["placed"] += sum(nodes.values())
        state = state or ("CREATED" if placed else "PENDING")
        entry["state"] = state if entry["state"] in ("", "CREATED") else entry["state"]
        for node, count in nodes.items():
            entry["nodes"][node] = entry["nodes"].get(node, 0) + count

    def _actors(self, job: str) -> int:
        count = len(self.ray.naive[job])
        for group in self.ray.groups:
            takes = 25.0 if self.ray.fault == "starts actors slowly" else STAFF_S
            runs = group.placed is not None and self.ray.t - group.placed >= takes
            if group.job == job and group.staff and runs and self.ray.fault != "starts no actors":
                count += group.size
        return count

    def until(self, condition: Callable[[Sample], bool], seconds: float) -> float | None:
        deadline = self.ray.t + seconds
        while self.ray.t < deadline:
            for sample in self.poll():
                if condition(sample):
                    return float(sample["t"])
        return None

    def wait(self, seconds: float) -> None:
        self.until(lambda sample: False, seconds)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SimulatedRig:
    """Rig of the scenarios over a simulated cluster."""

    prefix = "seatrial-"

    def __init__(self, fault: str = "", nodes: int = 4, each: int = 1) -> None:
        self.ray = SimulatedRay(fault, nodes, each)
        self.observer = SimulatedObserver(self.ray, self.prefix)
        self.jobs: dict[str, SimulatedJob] = {}
        self.gang_count = 0
        total = sum(self.ray.capacity.values())
        self.cluster = SimpleNamespace(
            resource="GPU",
            size=total,
            ray_gpu_count=total,
            on_gpu=False,
            gpus_by_node={},
            ray=self.ray,
            nodes=[{"id": name} for name in self.ray.capacity],
            kind="ray",
        )

    def ensure_started(self) -> SimulatedObserver:
        for name in ("A", "B"):
            if name not in self.jobs or not self.jobs[name].alive:
                self.jobs[name] = SimulatedJob(name, self.ray, self.observer)
        return self.observer

    def release(self) -> None:
        for job in self.jobs.values():
            if job.alive:
                job.call("release")


class SimulatedSpares:
    """Spare raylets: nodes of a resource of their own, which can be killed."""

    resource = f"{SPARE_PREFIX}1"

    def __init__(self, cluster: Any, count: int) -> None:
        self.ray: SimulatedRay = cluster.ray
        self.node_names = {f"id{at}": f"spare{at}" for at in range(1, count + 1)}
        self.ray.spares |= dict.fromkeys(self.node_names.values(), self.resource)

    def kill_nodes(self, *names: str, whole_nodes: bool = True) -> tuple[bool, float]:
        self.ray.killed |= dict.fromkeys(names, self.ray.t)
        return True, self.ray.t

    def close(self) -> None:
        self.ray.spares.clear()


class SimulatedScene:
    """Stand-in for `scene("title")` of the probes, with its recorder."""

    def __init__(self, rig: SimulatedRig, measure: MemoryRecorder) -> None:
        self.rig, self.measure = rig, measure

    def __call__(self, title: str, **options: Any) -> Any:
        rig: Any = self.rig
        return run_scenario(rig, title, self.measure, **options)


def simulate(
    monkeypatch: pytest.MonkeyPatch, fault: str = "", nodes: int = 4, each: int = 1
) -> SimulatedScene:
    """Make a scene on a cluster with this fault; time moves only while the observer polls."""
    rig = SimulatedRig(fault, nodes, each)
    monkeypatch.setattr(scenario_checks, "SpareNodes", SimulatedSpares)
    monkeypatch.setattr(scenario, "time", SimpleNamespace(monotonic=lambda: rig.ray.t))
    return SimulatedScene(rig, recorder("GANG"))


def failing(measure: MemoryRecorder) -> set[str]:
    """Return the measures that failed."""
    result = measure.result("finished", 1.0)
    return {one.name for one in result.measurements if one.severity == 3}


def names_of(items: Iterable[Any]) -> list[str]:
    return [item.name for item in items]


__all__ = ["FAULTS", "NEAR_MISSES", "Scenario", "SimulatedScene", "failing", "names_of", "simulate"]
