"""Simulates a cluster for HOSTS' probe of Ray's endpoints: what each does, and where it listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from probes.cluster.endpoints import (
    REFUSED,
    TAKEN,
    Endpoint,
    EndpointAnswers,
    ask_endpoints,
    ask_from_node,
    read_listeners,
)
from probes.contract.contract import ClusterTerms, Contract, load
from probes.hosts.endpoints import (
    RAN,
    StandInMissing,
    StrangerJob,
    make_server,
    submit_stranger_job,
)
from probes.hosts.test_hosts import test_endpoints_keep_to_the_authentication as probe
from reports.record import ProbeResult
from tests.support.controls import recorder
from tests.support.served import running
from tests.support.simulated_names import SimulatedNetwork, address_of

OPEN, GUARDED = EndpointAnswers(TAKEN), EndpointAnswers(REFUSED, REFUSED, TAKEN)
PORTS = {"raylet": 40000, "dashboard agent": 52365, "metrics": 44000}
DASHBOARD, GCS, INGRESS = "http://10.0.0.1:8265", "10.0.0.1:6379", "https://ray.example.org"


class SimulatedEndpoints(SimulatedNetwork):
    """Cluster whose endpoints all do as `usual`; a test changes single ones in `other`.

    `other` maps (kind, node) to answers.  `job` is what becomes of a job without a token.
    `listens` are the addresses on which each port listens; None stands for an unreadable table.
    """

    def __init__(self, usual: EndpointAnswers = OPEN, nodes: int = 3) -> None:
        super().__init__(nodes)
        self.usual, self.other = usual, dict[tuple[str, str], EndpointAnswers]()
        self.job = StrangerJob(RAN if usual == OPEN else REFUSED)
        self.own_dashboard, self.dashboard = DASHBOARD, DASHBOARD
        self.gcs, self.agents, self.stands_in = GCS, True, True
        self.listens: list[str] | None = ["0.0.0.0"]
        self.head_node_id, self.address = "id0", GCS
        self.kept: list[tuple[str, str]] = []
        self.cleanup = SimpleNamespace(
            register=lambda *item: self.kept.append(item),
            unregister=lambda *item: self.kept.remove(item),
        )

    def known_nodes(self) -> list[dict[str, Any]]:
        return [{**node, "ports": {**node["ports"], **PORTS}} for node in super().known_nodes()]

    def answers_of(self, endpoint: Endpoint) -> EndpointAnswers:
        return self.other.get((endpoint.kind, endpoint.node), self.usual)

    def on_each_node(self, function: Any, *arguments: Any, **more: Any) -> dict[str, Any]:  # type: ignore[override]
        if function is read_listeners:
            found = more["each"].items()
            return {
                id: None if self.listens is None else dict.fromkeys(ports, self.listens)
                for id, ports in found
            }
        assert [node["id"] for node in more["nodes"]] == [self.head_node_id]
        if self.head_node_id in self.silent:
            return {}
        if function is submit_stranger_job:
            url, _ = arguments
            assert self.kept, "a job is registered before it is submitted"
            is_stand_in = url != DASHBOARD
            return {self.head_node_id: submit_stranger_job(*arguments) if is_stand_in else self.job}
        assert function is ask_from_node
        (endpoints,) = arguments
        return {
            self.head_node_id: [
                asdict(
                    ask_endpoints([one], "its token")[0]
                    if "127.0.0.1" in one.address
                    else self.answers_of(one)
                )
                for one in endpoints
            ]
        }

    @contextmanager
    def stand_in(self, node: dict[str, Any], refuses: bool) -> Iterator[str]:
        assert node["id"] == self.nodes[-1]["id"]
        if not self.stands_in:
            raise StandInMissing("no worker starts")
        with running(make_server("127.0.0.1", refuses)) as address:
            yield address

    def ask_submit(self, endpoints: list[Endpoint], _: str) -> list[EndpointAnswers]:
        return [self.answers_of(one) for one in endpoints]


def agent_of(cluster: SimulatedEndpoints, node: str) -> str:
    """Return the address of a node's dashboard agent, as Ray's own table has it."""
    number = int(node.removeprefix("id"))
    return f"{address_of(number)}:{PORTS['dashboard agent']}" if cluster.agents else ""


def run_exposure(
    cluster: SimulatedEndpoints, contract: Contract | None = None, **terms: Any
) -> ProbeResult:
    """Run the probe, unchanged, over the simulated cluster."""
    plan = "probes.hosts.endpoints"
    replaced = {
        f"{plan}.read_gcs_address": lambda: cluster.gcs,
        f"{plan}.read_agent_address": lambda node: agent_of(cluster, node),
        "probes.cluster.endpoints.ask_endpoints": cluster.ask_submit,
        f"{plan}.open_stand_in": cluster.stand_in,
    }
    measure = recorder("HOSTS", contract or load("h100-ndr400"))
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(patch(name, value))
        probe(cast(Any, cluster), ClusterTerms(**terms), measure)
    assert not cluster.kept, "each job was unregistered"
    result = measure.finish("finished", 1.0)
    return result.model_copy(update={"coverage": "; ".join(measure._coverage)})
