"""What stands in the way on the cluster."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from probes import doctor
from probes.check.registry import run_order
from probes.cluster.address import ClusterUnreachable
from probes.contract.contract import load, parse
from probes.contract.terms import ClusterTerms
from probes.doctor import (
    FAIL,
    OK,
    UNPROVEN,
    ask_accelerators,
    ask_cluster,
    ask_contract,
    ask_dashboard,
    ask_nodes,
    ask_nvml,
    ask_rdma,
    ask_shared,
    ask_silence,
    ask_software,
)

VERSIONS = {"python": "3.11", "ray": "2.60", "torch": "2.13", "driver": "", "cuda": ""}


def cluster_of(count: int = 2, gpus: int = 8, **more: Any) -> Any:
    nodes = [
        {"id": f"id{i}", "name": f"n{i}", "resources": {"GPU": float(gpus)}} for i in range(count)
    ]
    facts = [
        {"node": f"id{i}", "name": f"n{i}", "software": dict(VERSIONS),
         "nvml": {"error": None}, "rdma_access": {"mlx5_0": ""}} for i in range(count)
    ]  # fmt: skip
    given = {
        "nodes": nodes, "facts": facts, "size": count * gpus, "resource": "GPU", "kind": "ray",
        "emulated": False, "errors": {}, "dashboard": "", "describe_holders": lambda: "",
        "node_names": {node["id"]: node["name"] for node in nodes},
    }  # fmt: skip
    return SimpleNamespace(**{**given, **more})


NO_GPUS = cluster_of(2, 8, resource="CPU")
for node in NO_GPUS.nodes:
    node["resources"] = {"CPU": 8.0}
LACKING = ("HOSTS", "FABRIC", "SCALING", "RESTART", "GANG", "LAUNCH")


@pytest.mark.parametrize(
    ("cluster", "terms", "state", "criteria", "found"),
    [
        (cluster_of(2), {"nodes": 2, "gpus_per_node": 8}, OK, (), "2 nodes, 16 GPUs"),
        (cluster_of(2), {}, OK, (), "2 nodes, 16 GPUs"),
        (cluster_of(2), {"nodes": 3}, FAIL, ("HOSTS",), "2 nodes, 16 GPUs; 3 nodes were ordered"),
        (cluster_of(2, 7), {"gpus_per_node": 8}, FAIL, ("HOSTS",), "n0 has 7, n1 has 7"),
        (cluster_of(1), {}, UNPROVEN, ("FABRIC", "SCALING"), "too few"),
        # Ray was started without GPUs: its CPUs are no accelerators, however many there are.
        (NO_GPUS, {"gpus_per_node": 8}, FAIL, LACKING, "2 nodes, and Ray counts no GPU"),
        (NO_GPUS, {"gpus_per_node": 8, "accelerators": "emulated"}, FAIL, ("HOSTS",), "n0 has 0"),
        (NO_GPUS, {}, OK, (), "2 nodes, 16 CPUs"),
        (cluster_of(1, 1), {}, UNPROVEN, ("FABRIC", "SCALING", "GANG"), "1 node, 1 GPU"),
        (cluster_of(1), {"nodes": 1}, OK, (), "1 node, 8 GPUs"),
        (cluster_of(1, 1), {"nodes": 1}, UNPROVEN, ("FABRIC", "SCALING", "GANG"), "too few"),
        (cluster_of(3), {"nodes": 2, "nodes_at_most": 3}, OK, (), "3 nodes, 24 GPUs"),
        (
            *(cluster_of(4), {"nodes": 2, "nodes_at_most": 3}, FAIL, ("HOSTS",)),
            "4 nodes, 32 GPUs; 2 to 3 nodes were ordered",
        ),
        (cluster_of(1), {"nodes": 8}, FAIL, ("HOSTS",), "1 node, 8 GPUs; 8 nodes were ordered"),
        (cluster_of(1, kind="local"), {"nodes": 1}, UNPROVEN, ("FABRIC", "SCALING"), "too few"),
    ],
)
def test_nodes(
    cluster: Any, terms: dict[str, Any], state: str, criteria: tuple[str, ...], found: str
) -> None:
    answer = ask_nodes(cluster, ClusterTerms(**terms))
    assert (answer.state, answer.criteria) == (state, criteria)
    assert found in answer.found


def test_a_node_that_runs_no_task_is_named() -> None:
    cluster = cluster_of(3, errors={"id1": "no answer within 90 s"})
    assert ask_silence(cluster).state == OK
    del cluster.facts[1]
    answer = ask_silence(cluster)
    assert (answer.state, answer.criteria) == (FAIL, run_order())
    assert answer.found == "no task of Ray runs on n1 (no answer within 90 s)"


def test_software_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "software_versions", lambda: VERSIONS)
    cluster = cluster_of(3)
    assert ask_software(cluster).state == OK
    cluster.facts[2]["software"]["torch"] = "2.12"
    answer = ask_software(cluster)
    assert (answer.state, answer.criteria) == (FAIL, ("HOSTS",))
    assert "2.12 on n2" in answer.found


def test_what_holds_accelerators_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "busy_accelerators", lambda cluster: 0)
    assert ask_accelerators(cluster_of()).found == "all free: 16 GPUs"
    monkeypatch.setattr(doctor, "busy_accelerators", lambda cluster: 3)
    assert ask_accelerators(cluster_of()).found == "not free: 3 GPUs"
    answer = ask_accelerators(cluster_of(describe_holders=lambda: "1 GPU on n0 is held by a task"))
    assert answer.found == "1 GPU on n0 is held by a task"
    assert answer.state == UNPROVEN
    assert set(answer.criteria) == {*run_order()} - {"HOSTS"}, "it needs no free accelerator"


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/version" else 404)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Refusing(Answering):
    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()


class Speaking(http.server.BaseHTTPRequestHandler):
    """Something else than HTTP."""

    def handle(self) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH\r\n")


@pytest.fixture
def dashboard(request: pytest.FixtureRequest) -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), request.param) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("dashboard", "state", "found"),
    [
        (Answering, OK, "answers"),
        (Refusing, UNPROVEN, "refuses the request (HTTP 401)"),
        (Speaking, UNPROVEN, "does not answer"),
    ],
    indirect=["dashboard"],
)
def test_a_dashboard_that_refuses_is_named(dashboard: str, state: str, found: str) -> None:
    answer = ask_dashboard(cluster_of(dashboard=dashboard))
    assert answer.state == state
    assert found in answer.found


def test_a_dashboard_that_is_not_there_is_named() -> None:
    assert ask_dashboard(cluster_of()).found == "the cluster has no dashboard"
    answer = ask_dashboard(cluster_of(dashboard="http://127.0.0.1:1"))
    assert "http://127.0.0.1:1 does not answer" in answer.found
    assert answer.criteria == ("LAUNCH",)


def test_an_nvml_that_cannot_be_read_is_named_with_its_nodes() -> None:
    cluster = cluster_of(3)
    assert ask_nvml(cluster).state == OK
    for fact in cluster.facts[1:]:
        fact["nvml"]["error"] = {"code": 4, "text": "Insufficient Permissions"}
    answer = ask_nvml(cluster)
    assert answer.found == "Insufficient Permissions on n1, n2"
    assert answer.state == UNPROVEN


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ({"mlx5_0": ""}, "workers can open the RDMA devices of each node"),
        ({}, "no RDMA device on n1"),
        (
            {"mlx5_0": "", "mlx5_1": "uverbs1: Permission denied"},
            "uverbs1: Permission denied on n1",
        ),
    ],
)
def test_rdma_devices_that_are_closed_are_named(devices: dict[str, str], found: str) -> None:
    cluster = cluster_of()
    cluster.facts[1]["rdma_access"] = devices
    assert ask_rdma(cluster).found == found


def test_a_folder_that_is_not_shared_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_folder_problem", lambda *_: ("n1 do not see /x", ["n1"]))
    answer = ask_shared(cluster_of(), ClusterTerms())
    assert (answer.state, answer.criteria) == (UNPROVEN, ("RESTART",))
    answer = ask_shared(cluster_of(), ClusterTerms(shared="/x"))
    assert (answer.state, answer.found) == (FAIL, "n1 do not see /x")
    assert answer.criteria == ("HOSTS", "RESTART"), "those that keep files in it"
    assert ask_shared(cluster_of(kind="local"), ClusterTerms()).state == OK
    monkeypatch.setattr(doctor, "find_folder_problem", lambda *_: ("no node can write to /x", []))
    assert ask_shared(cluster_of(), ClusterTerms(shared="/x")).state == UNPROVEN, "as in a run"
    monkeypatch.setattr(doctor, "find_folder_problem", lambda *_: ("", []))
    assert ask_shared(cluster_of(), ClusterTerms()).state == OK, "the run folder is shared"
    assert ask_shared(cluster_of(), ClusterTerms(shared="/x")).found == "all nodes share /x"


@pytest.mark.parametrize(
    ("emulated", "fabric", "asked"),
    [(False, "rdma", {"NVML", "RDMA"}), (False, "eth1", {"NVML"}), (True, None, set())],
)
def test_what_is_asked_follows_from_the_cluster(
    emulated: bool, fabric: str | None, asked: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "busy_accelerators", lambda cluster: 0)
    monkeypatch.setattr(doctor, "find_folder_problem", lambda *_: ("", []))
    answers = ask_cluster(cluster_of(emulated=emulated), ClusterTerms(fabric=fabric))
    assert {one.question for one in answers} & {"NVML", "RDMA"} == asked


def test_amds_gpus_are_refused_before_any_question() -> None:
    cluster = cluster_of()
    for fact in cluster.facts:
        fact |= {"amd_driver": True, "gpus": [], "nvml": {"library": False, "error": None}}
    with pytest.raises(ClusterUnreachable, match="the GPUs of n0, n1 are AMD's"):
        next(ask_cluster(cluster, ClusterTerms()))


def test_a_contract_that_lacks_a_limit_for_the_gpus_of_the_cluster_is_named() -> None:
    text = load("ethernet").text.decode().replace("[cluster]\n", "[cluster]\ngpus_per_node = 8\n")
    contract = parse(text.encode(), "mine.toml")
    found = {}
    for model in ("NVIDIA L40S", "NVIDIA H100 80GB HBM3"):
        gpus = [{"name": model}, {"error": {"code": 15, "text": "lost"}}]
        cluster = cluster_of(rehearsal="")
        for fact in cluster.facts:
            fact["gpus"] = gpus
        found[model] = list(ask_contract(contract, 2, cluster))
    assert found["NVIDIA H100 80GB HBM3"] == []
    (answer,) = found["NVIDIA L40S"]
    assert (answer.state, answer.criteria) == (UNPROVEN, ("SCALING",))
    assert answer.found == (
        "no run under this contract can be accepted: no limit for the speed of one node: none is "
        "published for NVIDIA L40S. Add [SCALING.mfu] or [SCALING.tokens_per_s]"
    )
    assert list(ask_contract(contract, None, cluster_of(rehearsal="embedded"))) == []
    (nodes,) = ask_contract(contract, None, cluster)
    assert "no number of nodes" in nodes.found
