"""Simulates a cluster for HOSTS' probe of names and ports: what each node has, and what is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from unittest.mock import patch

from probes.cluster.network_facts import GRPC, NO_PROOF, OTHER_ANSWER, TriedPort
from probes.contract.contract import ClusterTerms, load
from probes.hosts.names import LOCALHOST, read_loopback_names
from probes.hosts.port_round import PortRound
from probes.hosts.test_hosts import test_nodes_reach_each_other_by_name_and_port as names_probe
from reports.record import ProbeResult
from tests.support.controls import recorder

LOOPBACK_ANSWER = {"addresses": ["127.0.0.1"], "bindable": "127.0.0.1", "error": ""}
REFUSED, DROPPED = "Connection refused", "no answer in time: packets may be dropped"
PORTS = {"raylet": 40000, "object manager": 41000, "worker": 10002, "job": 33000, "GCS": 6379}


def address_of(index: int) -> str:
    """Return a node's address in Ray."""
    return f"10.0.{index // 250}.{index % 250 + 1}"


def healthy_names(index: int, **changes: Any) -> dict[str, Any]:
    """Return what `read_names` reads on a healthy node."""
    here = address_of(index)
    return {
        "host": f"n{index}",
        "ray_address": here,
        "gloo_interface": "fab0",
        "nccl_interfaces": "",
        "own": {"addresses": [here], "bindable": here, "error": ""},
        "interfaces": {
            "lo": {"up": True, "addresses": ["127.0.0.1", "::1"]},
            "eth0": {"up": True, "addresses": [here, "fe80::1"]},
            "fab0": {"up": True, "addresses": [f"10.77.0.{index + 1}"]},
        },
        **changes,
    }


class SimulatedNetwork:
    """Cluster whose nodes connect by what a test left open.

    `blocked` maps (kind, source, target) to a problem; None stands for every node.  `silent` nodes
    have no worker that answers.  `lookups` maps (node that asks, name) to an answer of `look_up`.
    """

    kind = "ray"

    def __init__(self, nodes: int = 3, bystanders: int = 0) -> None:
        count = nodes + bystanders
        self.facts = [self._fact(i) for i in range(nodes)]
        self.others = [self._fact(i) for i in range(nodes, count)]
        self.known = [self._node(i) for i in range(count)]
        self.members = {f"id{i}" for i in range(nodes)}
        self.blocked: dict[tuple[str, str | None, str | None], str] = {}
        self.silent: set[str] = set()
        self.errors: dict[str, str] = {}
        self.closed_to_listen: dict[str, str] = {}
        self.lookups: dict[tuple[str, str], dict[str, Any] | None] = {}
        self.tokens = {node["id"]: f"token-{node['id']}" for node in self.known}
        self.tls = False
        self.worker_port: int | None = PORTS["worker"]
        self.closed: list[str] = []  # ids of nodes whose actors were ended
        self.tried = 0

    @staticmethod
    def _fact(index: int) -> dict[str, Any]:
        return {"node": f"id{index}", "name": f"n{index}", "names": healthy_names(index)}

    @staticmethod
    def _node(index: int) -> dict[str, Any]:
        return {
            "id": f"id{index}",
            "name": f"n{index}",
            "host": f"n{index}",
            "address": address_of(index),
            "ports": {key: PORTS[key] for key in ("raylet", "object manager")},
            "head": index == 0,
            "alive": True,
        }

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.known if node["id"] in self.members]

    @property
    def bystanders(self) -> list[dict[str, Any]]:
        return [node for node in self.known if node["id"] not in self.members]

    @property
    def node_names(self) -> dict[str, str]:
        return {node["id"]: node["name"] for node in self.known}

    def known_nodes(self) -> list[dict[str, Any]]:
        return [*self.known, {**self._node(999), "alive": False}]

    def read_facts(self, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ids = {node["id"] for node in nodes}
        return [fact for fact in self.others if fact["node"] in ids]

    def on_each_node(self, function: Any, nodes: list[dict[str, Any]]) -> dict[str, Any]:
        """Read the names of one node with the control's fault."""
        assert function is read_loopback_names
        planted = {"ray_address": "127.0.0.1", "own": LOOPBACK_ANSWER, "gloo_interface": ""}
        planted |= {"nccl_interfaces": "=lo"}
        names = {fact["node"]: fact.get("names") for fact in self.facts}
        return {
            node["id"]: {**(names[node["id"]] or {}), **planted}
            for node in nodes
            if node["id"] not in self.silent
        }

    # What the actors do.

    def open_ports(self, id: str, address: str) -> dict[str, Any]:
        assert address == next(node["address"] for node in self.known if node["id"] == id)
        error = self.closed_to_listen.get(id, "")
        return {
            "gcs": f"{address_of(0)}:{PORTS['GCS']}",
            "worker": self.worker_port,
            "tls": self.tls,
            "token": self.tokens[id],
            "job": None if error else PORTS["job"],
            "error": error,
        }

    def plant_fault(self, id: str, _: str) -> int:
        self.tokens[id] = "another"
        return 1

    def try_ports(self, id: str, endpoints: list[TriedPort]) -> list[str]:
        self.tried += len(endpoints)
        return [self._try_port(id, one) for one in endpoints]

    def _try_port(self, source: str, one: TriedPort) -> str:
        for (kind, a, b), problem in self.blocked.items():
            if kind == one.kind and a in (None, source) and b in (None, one.node):
                return problem
        if one.port not in (*PORTS.values(), 8265):
            return REFUSED
        if one.kind == "job":
            return "" if one.proof == self.tokens[one.node] else OTHER_ANSWER
        assert one.proof == (NO_PROOF if self.tls or not one.kind else GRPC)
        return ""

    def look_up_names(self, id: str, names: list[str]) -> Mapping[str, Any]:
        hosts = {node["host"]: node["address"] for node in self.known}
        answers: dict[str, Any] = {}
        for name in names:
            here = [hosts[name]] if name in hosts else []
            usual = {"addresses": here, "bindable": "", "error": "" if here else "unknown"}
            answers[name] = self.lookups.get((id, name), usual)
            if name == LOCALHOST:
                answers[name] = LOOPBACK_ANSWER
        return answers


class SimulatedRound(PortRound):
    """Round whose actors are the simulated network."""

    network: SimulatedNetwork

    def call_each(
        self, method: str, each: Mapping[str, tuple[Any, ...]], seconds: float = 0
    ) -> dict[str, Any]:
        silent = {id for id in each if id in self.network.silent}
        self.errors |= dict.fromkeys(silent, "no answer within 90 s")
        return {
            id: getattr(self.network, method)(id, *values)
            for id, values in each.items()
            if id not in silent
        }

    def close(self) -> None:
        self.network.closed += list(self.nodes)


def start_round(cluster: SimulatedNetwork) -> SimulatedRound:
    """Start a round over the simulated network, as `PortRound.start` does."""
    nodes = sorted((n for n in cluster.known_nodes() if n["alive"]), key=lambda n: n["id"])
    started = SimulatedRound({node["id"]: node for node in nodes})
    started.network = cluster
    each = {id: (node["address"],) for id, node in started.nodes.items()}
    started.opened = started.call_each("open_ports", each)
    return started


def run_names(
    cluster: SimulatedNetwork, contract: str = "h100-ndr400", **terms: Any
) -> ProbeResult:
    """Run the probe, unchanged, over the simulated network."""
    measure = recorder("HOSTS", load(contract))
    with patch.object(PortRound, "start", staticmethod(start_round)):
        names_probe(cast(Any, cluster), ClusterTerms(**terms), measure)
    result = measure.finish("finished", 1.0)
    return result.model_copy(update={"coverage": "; ".join(measure._coverage)})
