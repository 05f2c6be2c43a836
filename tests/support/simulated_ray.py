"""Simulates how Ray places gangs, on a clock that only waits move; each fault breaks one rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

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
