"""Lets every node connect to the ports of the others, by one actor on each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from probes.cluster import network_facts
from probes.cluster.ask import REACH_SECONDS, ActorSet, on_node
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import GRPC, NO_PROOF, NodePorts, TriedPort

START_SECONDS = 90.0  # for an actor on each node: the first worker there unpacks our packages
GCS, RAYLET, OBJECTS, WORKER = "GCS", "raylet", "object manager", "worker"
RAY_PORTS = (GCS, RAYLET, OBJECTS, WORKER)
JOB = "job"  # a port that the kernel picks, as torch does for rank 0
DEFAULT_PORTS = {"dashboard": 8265, "ray_client": 10001}  # of `ray start`; these only inform


@dataclass(frozen=True)
class Connection:
    """A port of `target` that `source` tried (node ids).

    `problem` is "" if it connects.  It is None if nothing is known, for the reason in `unknown`.
    """

    kind: str
    source: str
    target: str
    port: int | None
    problem: str | None
    unknown: str = ""

    @property
    def link(self) -> tuple[str, str]:
        """Its ends: source and target."""
        return self.source, self.target


@dataclass(frozen=True)
class NameLookup:
    """What the host name of `target` leads to on `source` (node ids).

    `answer` is as in `look_up`.  It is None if there was no answer.
    """

    source: str
    target: str
    name: str
    answer: dict[str, Any] | None

    @property
    def link(self) -> tuple[str, str]:
        """Its ends: source and target."""
        return self.source, self.target


Change = Callable[[Connection, TriedPort], TriedPort]


@dataclass
class PortRound(ActorSet):
    """One actor on each node, and what the nodes answered when they opened their ports.

    `nodes` are entries of `Cluster.known_nodes`, by id in the order of addresses.  `opened` holds
    the answers of `open_ports`.  `errors` holds why a node did not answer.
    """

    nodes: dict[str, dict[str, Any]]
    actors: dict[str, Any] = field(default_factory=dict)
    opened: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(cls, cluster: Cluster) -> PortRound:
        """Start an actor on each live node, and open its listener."""
        alive = [node for node in cluster.known_nodes() if node["alive"]]
        nodes = sorted(alive, key=lambda node: (node["address"], node["id"]))
        actors = {node["id"]: on_node(NodePorts, node["id"]).remote() for node in nodes}
        started = cls({node["id"]: node for node in nodes}, actors)
        each = {id: (node["address"],) for id, node in started.nodes.items()}
        started.opened = started.call_each("open_ports", each, START_SECONDS)
        return started

    def peers(self) -> dict[str, list[str]]:
        """Map each node to the nodes that it connects to."""
        return network_facts.map_peers(list(self.nodes))

    @property
    def head(self) -> str:
        """Id of the head's node; "" if it is not known."""
        return next((id for id, node in self.nodes.items() if node["head"]), "")

    def plan(self) -> list[Connection]:
        """List every connection that must be tried, without a result."""
        planned = [
            Connection(kind, source, target, None, None)
            for source, targets in self.peers().items()
            for target in targets
            for kind in (RAYLET, OBJECTS, WORKER, JOB)
        ]
        to_head = [Connection(GCS, id, self.head, None, None) for id in self.nodes]
        is_alone = len(self.nodes) == 1
        return planned + [one for one in to_head if is_alone or one.source != self.head]

    def endpoint(self, one: Connection) -> TriedPort | str:
        """Find address and port of a planned connection, or why they are not known."""
        ends = (one.source,) if one.kind == GCS else (one.source, one.target)
        for id in ends:
            if id not in self.opened:
                return self._silence(id)
        node, opened = self.nodes.get(one.target, {}), self.opened[ends[-1]]
        proof = NO_PROOF if opened["tls"] else GRPC
        if one.kind == GCS:
            host, _, number = str(opened["gcs"]).rpartition(":")
            if not (host and number.isdecimal()):
                return "the address of the GCS is not known"
            return TriedPort(GCS, one.target, host.strip("[]"), int(number), proof)
        if one.kind == JOB:
            if opened["job"] is None:
                host, address = node["name"], node["address"]
                return f"{host} cannot listen on its address {address}: {opened['error']}"
            return TriedPort(JOB, one.target, node["address"], opened["job"], opened["token"])
        port = opened["worker"] if one.kind == WORKER else node["ports"][one.kind]
        if not port:
            return f"{node['name']} reports no {one.kind} port"
        return TriedPort(one.kind, one.target, node["address"], port, proof)

    def _silence(self, id: str) -> str:
        return f"{self.name(id)} does not answer: {self.errors.get(id, 'no reason is known')}"

    def connect(
        self, planned: Iterable[Connection], change: Change | None = None
    ) -> list[Connection]:
        """Try the planned connections, all sources at once; return them with their results.

        `change` is for a control: it replaces the endpoint of a connection.
        """
        results: list[Connection] = []
        tried: dict[str, list[tuple[Connection, TriedPort]]] = {}
        for one in planned:
            endpoint = self.endpoint(one)
            if isinstance(endpoint, str):
                results.append(replace(one, unknown=endpoint))
            else:
                endpoint = change(one, endpoint) if change else endpoint
                tried.setdefault(one.source, []).append((one, endpoint))
        each = {id: ([endpoint for _, endpoint in rows],) for id, rows in tried.items()}
        problems = self.try_each(each, max(map(len, tried.values()), default=0))
        for source, rows in tried.items():
            answers = problems.get(source) or [None] * len(rows)
            for (one, end), problem in zip(rows, answers, strict=True):
                unknown = self._silence(source) if problem is None else ""
                results.append(replace(one, port=end.port, problem=problem, unknown=unknown))
        return results

    def try_each(self, each: Mapping[str, tuple[list[TriedPort]]], most: int) -> dict[str, Any]:
        """Try endpoints on each node, `most` on one; return the problems by node."""
        seconds = REACH_SECONDS + network_facts.max_try_seconds(most)
        return self.call_each("try_ports", each, seconds)

    def name(self, id: str) -> str:
        """Name a node in messages."""
        return str(self.nodes[id]["name"]) if id in self.nodes else "Ray's head"

    def look_up_names(
        self, pairs: Mapping[str, Sequence[str]], instead: str = ""
    ) -> list[NameLookup]:
        """Resolve on each node the host names of these others; `instead` is for a control."""
        hosts = {id: str(node["host"]) for id, node in self.nodes.items()}
        asked = {id: {other: instead or hosts[other] for other in pairs[id]} for id in pairs}
        unique = {id: list(dict.fromkeys(asked[id].values())) for id in asked if id in self.opened}
        each = {id: (names,) for id, names in unique.items()}
        seconds = REACH_SECONDS + network_facts.LOOKUP_SECONDS
        answers = self.call_each("look_up_names", each, seconds)
        return [
            NameLookup(source, target, name, answers.get(source, {}).get(name))
            for source, names in asked.items()
            for target, name in names.items()
        ]

    def count_reaching(self, ports: Sequence[int]) -> list[int | None]:
        """Count the nodes that connect to each of these ports of the head; None if none answers."""
        if not self.head:
            return [None] * len(ports)
        address = self.nodes[self.head]["address"]
        endpoints = [TriedPort("", self.head, address, port) for port in ports]
        others = {id: (endpoints,) for id in self.opened if id != self.head}
        answers = self.try_each(others, len(ports))
        columns = [[row[at] for row in answers.values()] for at in range(len(ports))]
        return [column.count("") if column else None for column in columns]

    def coverage(self) -> str:
        """Describe which nodes connected to which."""
        count = len(self.nodes)
        if count == 1:
            return "one node: it tried its own ports"
        return f"each of {count} nodes tried the ports of {network_facts.describe_peers(count)}"
