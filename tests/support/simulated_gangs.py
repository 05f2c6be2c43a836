"""Simulates a gang scheduler: jobs, groups and an observer on a clock that only waits move.

It does what Ray does, as far as a scenario can see it; each fault breaks one rule. The scenarios,
their judges and their controls run over it unchanged.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from probes.gang import node_loss, scenario
from probes.gang.invariants import Sample
from probes.gang.job_driver import COMPLETE
from probes.gang.observer import ScenarioMark
from probes.gang.scenario import Scenario
from probes.gang.scenario_checks import run_scenario
from tests.support.controls import MemoryRecorder, recorder

STEP = 0.025  # s from one sample to the next
PLACE_S, STAFF_S, GONE_S, KILLED_S = 0.05, 0.1, 0.05, 0.2  # seconds that Ray takes
FAULTS = {
    "takes parts": "a gang takes what is free, bundle by bundle, while it waits",
    "places late": "a gang that has room is placed after 9 s",
    "never places": "no gang that had to wait is ever placed",
    "places both": "a gang is placed though another holds what it needs",
    "keeps cancelled": "a gang that is given back while it waits stays",
    "keeps running": "a gang that is given back while it runs stays",
    "keeps the dead": "a killed driver's gangs stay",
    "frees late": "a killed driver's gangs go after 20 s",
    "disturbs": "a running gang loses one accelerator for 0.2 s when another is asked for",
    "loses one": "an accelerator that was given back stays lost",
    "starts no actors": "a placed gang's actors do not start",
    "blocks": "who asks behind a gang that does not fit waits for it",
    "packs anywhere": "STRICT_PACK is placed on several nodes",
    "places smaller": "a gang is made of one accelerator less than was asked for",
    "looks rarely": "the observer looks ten times a second",
    "misses a loss": "Ray counts a node that was killed as alive for ever",
}
# Behaviour just within the limits, which a healthy scheduler may show.
NEAR_MISSES = {
    "places a little late": "a gang that has room is placed after 4.5 s, of 5 s that are allowed",
    "withdraws slowly": "a gang that is given back while it waits goes after 9 s, of 10 s",
    "frees a little late": "a killed driver's gangs go after 9 s, of 10 s",
    "shows free late": "what is given back is shown as free 1.9 s later, of 2 s",
    "shows held late": "what a gang holds is shown as free for 1.9 s, of 2 s",
    "starts actors slowly": "a placed gang's actors run after 25 s, of 30 s",
    "looks just often enough": "the observer looks 22 times a second, of 20",
    "hands over at once": "who waits is placed in the moment in which the other goes",
    "sees a loss late": "Ray notices that a node is lost after 80 s, of 90 s",
    "places beside a harmed gang": "a gang that lost a node is in nobody's way",
}
DELAYS = {  # s, by fault or near miss
    "places late": 9.0,
    "places a little late": 4.5,
    "hands over at once": 0.0,
}
LAG_S = 1.9  # s by which the shown free accelerators are late


@dataclass
class Group:
    """Placement group that waits, or is placed on nodes."""

    name: str
    job: str
    size: int
    strategy: str
    staff: bool
    asked: float
    nodes: dict[str, int] = field(default_factory=dict)
    placed: float | None = None
    gone: float | None = None  # when it is removed
    resource: str = ""
    had_to_wait: bool = False

    @property
    def held(self) -> int:
        return sum(self.nodes.values())


@dataclass
class Stream:
    """Gangs that a job requests one after the other."""

    job: str
    prefix: str
    sizes: Iterator[int]
    width: int
    hold: float
    count: int = 0
    running: list[Group] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False


class SimulatedRay:
    """Nodes with accelerators, groups on them, and the time."""

    def __init__(self, fault: str = "", nodes: int = 4, each: int = 1) -> None:
        assert not fault or fault in FAULTS or fault in NEAR_MISSES
        self.fault, self.t = fault, 0.0
        self.returned: list[tuple[float, dict[str, int]]] = []  # when, and what on which node
        self.capacity = {f"node{i}": each for i in range(nodes)}
        self.lost: dict[str, int] = {}
        self.groups: list[Group] = []
        self.naive: dict[str, list[str]] = {"A": [], "B": []}
        self.disturbed = 0.0
        self.streams: list[Stream] = []
        self.spares: dict[str, str] = {}  # spare node -> its resource, one unit each
        self.killed: dict[str, float] = {}  # spare node -> when
        self.dead_nodes: set[str] = set()  # dead nodes that Ray has noticed

    @property
    def free_on(self) -> dict[str, int]:
        """Free accelerators, by node; spare nodes have none."""
        return self._free_accelerators() | {
            node: 0 for node in self.spares if node not in self.dead_nodes
        }

    def free_of(self, resource: str) -> dict[str, int]:
        """Return what is free of accelerators (""), or of a spare node's resource, by node."""
        if not resource:
            return self._free_accelerators()
        taken = {node for group in self.groups for node in group.nodes}
        alive = {node for node, has in self.spares.items() if has == resource}
        return dict.fromkeys(sorted(alive - taken - self.dead_nodes), 1)

    def is_harmed(self, group: Group) -> bool:
        """Return whether a group that was placed has lost a node."""
        return group.placed is not None and bool(group.nodes.keys() & self.dead_nodes)

    def _free_accelerators(self) -> dict[str, int]:
        used = {node: self.lost.get(node, 0) for node in self.capacity}
        for group in self.groups:
            for node, count in group.nodes.items():
                if not group.resource:
                    used[node] += count
        for nodes in self.naive.values():
            for node in nodes:
                used[node] += 1
        return {node: max(count - used[node], 0) for node, count in self.capacity.items()}

    @property
    def shown_free_on(self) -> dict[str, int]:
        """Free accelerators as Ray's nodes report them, which may come late."""
        shown = self.free_on
        late = [nodes for t, nodes in self.returned if self.t - t < LAG_S]
        if self.fault == "shows free late":
            for nodes in late:
                for node, count in nodes.items():
                    shown[node] = max(shown[node] - count, 0)
        if self.fault == "shows held late":
            for group in self.groups:
                if group.placed is not None and self.t - group.placed < LAG_S:
                    for node, count in group.nodes.items():
                        shown[node] = min(shown[node] + count, self.capacity[node])
        return shown

    def choose(self, group: Group) -> dict[str, int] | None:
        """Choose nodes for a complete group by its strategy; None if it does not fit."""
        free = {node: count for node, count in self.free_of(group.resource).items() if count}
        strict = group.strategy == "STRICT_PACK" and self.fault != "packs anywhere"
        if strict:
            free = {node: count for node, count in free.items() if count >= group.size}
        if group.strategy in ("SPREAD", "STRICT_SPREAD"):
            if len(free) >= group.size:
                return dict.fromkeys(list(free)[: group.size], 1)
            if group.strategy == "STRICT_SPREAD":
                return None
        fitting = [node for node, count in free.items() if count >= group.size]
        order = fitting[:1] or sorted(free, key=lambda node: -free[node])
        chosen: dict[str, int] = {}
        for node in order:
            chosen[node] = min(free[node], group.size - sum(chosen.values()))
            if sum(chosen.values()) == group.size:
                return chosen
        return None

    def step(self) -> None:
        """Move the time on by one sample, and let Ray do what is due."""
        self.t += STEP
        for group in [one for one in self.groups if one.gone is not None and one.gone <= self.t]:
            self._remove(group)
        self._run_streams()
        self._notice_losses()
        blocked = False
        # While a gang that lost a node exists, Ray places no other gang.
        harmed = any(map(self.is_harmed, self.groups))
        for group in [one for one in self.groups if one.placed is None]:
            if harmed and self.fault != "places beside a harmed gang":
                group.had_to_wait, group.asked = True, self.t
                continue
            if blocked and self.fault == "blocks":
                continue
            self._try(group)
            blocked = blocked or group.placed is None

    def _notice_losses(self) -> None:
        after = {"misses a loss": float("inf"), "sees a loss late": 80.0}.get(self.fault, 3.0)
        self.dead_nodes = {node for node, t in self.killed.items() if self.t - t >= after}

    def _remove(self, group: Group) -> None:
        self.groups.remove(group)
        self.returned.append((self.t, group.nodes))
        if self.fault == "loses one" and group.placed is not None and not self.lost:
            self.lost = {next(iter(group.nodes)): 1}

    def _try(self, group: Group) -> None:
        if self.fault == "places both" and group.size <= sum(self.capacity.values()):
            group.nodes = self._anywhere(group.size)
            group.placed = self.t
            return
        delay = DELAYS.get(self.fault, PLACE_S)
        chosen = self.choose(group)
        group.had_to_wait = group.had_to_wait or chosen is None
        if chosen is None or (self.fault == "never places" and group.had_to_wait):
            if self.fault == "takes parts":
                self._take_part(group)
            group.asked = max(group.asked, self.t)  # room counts from now on
            return
        if self.t - group.asked >= delay:
            group.nodes, group.placed = chosen, self.t

    def _take_part(self, group: Group) -> None:
        for node, count in self.free_on.items():
            if count and group.held < group.size - 1:
                group.nodes[node] = group.nodes.get(node, 0) + 1

    def _anywhere(self, size: int) -> dict[str, int]:
        nodes: dict[str, int] = {}
        for node in cycle(self.capacity):
            if sum(nodes.values()) == size:
                return nodes
            nodes[node] = nodes.get(node, 0) + 1
        raise AssertionError

    def _run_streams(self) -> None:
        for stream in self.streams:
            for group in list(stream.running):
                if group.placed is not None and self.t - group.placed >= stream.hold:
                    waited = group.placed - float(group.name.rpartition("@")[2])
                    stream.results.append({"size": group.size, "waited": waited})
                    stream.running.remove(group)
                    self.let_go(group)
            while not stream.done and len(stream.running) < stream.width:
                size = next(stream.sizes, None)
                if size is None:
                    stream.done = True
                    break
                stream.count += 1
                name = f"{stream.prefix}{stream.count}@{self.t}"
                group = Group(name, stream.job, size, "PACK", False, self.t)
                self.groups.append(group)
                stream.running.append(group)

    def let_go(self, group: Group) -> None:
        waits = group.placed is None
        if self.fault != ("keeps cancelled" if waits else "keeps running"):
            slow = waits and self.fault == "withdraws slowly"
            group.gone = self.t + (9.0 if slow else GONE_S)


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

    resource = "seatrial_berth_1"

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
    monkeypatch.setattr(node_loss, "SpareNodes", SimulatedSpares)
    monkeypatch.setattr(scenario, "time", SimpleNamespace(monotonic=lambda: rig.ray.t))
    return SimulatedScene(rig, recorder("GANG"))


def failing(measure: MemoryRecorder) -> set[str]:
    """Return the measures that failed."""
    result = measure.result("finished", 1.0)
    return {one.name for one in result.measurements if one.severity == 3}


def names_of(items: Iterable[Any]) -> list[str]:
    return [item.name for item in items]


__all__ = ["FAULTS", "NEAR_MISSES", "Scenario", "SimulatedScene", "failing", "names_of", "simulate"]
