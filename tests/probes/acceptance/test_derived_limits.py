"""Limits that follow from what the cluster says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import Contract, load, parse
from probes.contract.derived_limits import derive_contract, detect_fabric, size_contract
from reports.measurement import Measurement


def host(env: dict[str, str], state: str | None = None, ports: str = "lo ib0") -> dict[str, Any]:
    """A node's facts; of its interfaces those with a `-` at the end have no address."""
    rdma = [{"state": state, "rate": "400 Gb/sec", "device": "m", "port": "1"}] if state else []
    found = {
        name.rstrip("-"): {"address": None if "-" in name else "10.0.0.1"} for name in ports.split()
    }
    return {"environment": env, "rdma": rdma, "interfaces": found}


def test_the_fabric_is_derived_or_unknown() -> None:
    assert detect_fabric([host({}, "4: ACTIVE"), host({}, "4: ACTIVE")]) == "rdma"
    assert detect_fabric([host({}, "4: ACTIVE"), host({}, "1: DOWN")]) == "rdma"
    assert detect_fabric([host({"NCCL_SOCKET_IFNAME": "=ib0"})] * 2) == "ib0"
    assert detect_fabric([host({"GLOO_SOCKET_IFNAME": "ib0"}), host({})]) is None
    assert detect_fabric([]) is None
    assert detect_fabric([host({}, "1: DOWN")] * 2) is None, "nothing shows what it is worth"
    assert detect_fabric([host({}, "4: ACTIVE"), host({})]) is None


@pytest.mark.parametrize(
    ("told", "ports", "fabric"),
    [
        ("NCCL=eth", ["lo eth0", "lo eth0"], "eth0"),  # a prefix
        ("NCCL=eth", ["lo eth0 eth1", "lo eth0 eth1"], None),  # NCCL uses both
        ("NCCL=eth", ["lo eth0", "lo eth1"], None),
        ("NCCL==eth", ["lo eth0", "lo eth0"], None),
        ("NCCL=^lo,docker0", ["lo docker0 ens3", "lo ens3"], "ens3"),
        ("NCCL=^lo,docker0", ["lo docker0 ens3 virbr0", "lo ens3"], None),
        ("NCCL=^=lo", ["lo ens3 ens4-", "lo ens3 ens4-"], "ens3"),  # of a bond, say
        ("NCCL=ens", ["lo- ens3-", "lo- ens3-"], "ens3"),  # IPv6 alone
        ("NCCL==ib0,ib1", ["lo ib0", "lo ib0"], "ib0"),
        ("NCCL=gone", ["lo eth0", "lo eth0"], None),
        ("GLOO=eth0", ["lo eth0 eth01", "lo eth0 eth01"], "eth0"),
        ("GLOO=eth", ["lo eth0", "lo eth0"], None),  # torch takes whole names
    ],
)
def test_the_fabric_is_the_interface_that_the_environment_stands_for(
    told: str, ports: list[str], fabric: str | None
) -> None:
    library, _, value = told.partition("=")
    environment = {f"{library}_SOCKET_IFNAME": value}
    assert detect_fabric([host(environment, ports=one) for one in ports]) == fabric


NDR, BASE = "400 Gb/sec (4X NDR)", "10 Gb/sec (4X SDR)"


def port(number: int, state: str, rate: str = NDR, layer: str = "InfiniBand") -> dict[str, str]:
    device = f"mlx5_{number}"
    return {"device": device, "port": "1", "state": state, "rate": rate, "link_layer": layer}


def cluster(*ports: list[dict[str, str]], kind: str = "ray", told: str = "") -> Any:
    """A cluster with these RDMA ports on its nodes, whose jobs are told of an interface."""
    facts = [
        {**host({"NCCL_SOCKET_IFNAME": told} if told else {}, ports="lo eth0"), "rdma": rdma}
        | {"node": str(number), "host": f"n{number}"}
        for number, rdma in enumerate(ports)
    ]
    for fact in facts:
        fact["interfaces"]["eth0"]["speed"] = 25_000
    ask = SimpleNamespace(on_each_node=lambda function: {})
    return SimpleNamespace(facts=facts, kind=kind, emulated=kind == "local", **vars(ask))


ACTIVE = [port(number, "4: ACTIVE") for number in range(8)]
INIT = [port(number, "2: INIT") for number in range(8)]
DOWN = [port(number, "1: DOWN", BASE) for number in range(8)]
MANAGEMENT = port(8, "4: ACTIVE", "25 Gb/sec (1X EDR)", "Ethernet")


@pytest.mark.parametrize(
    "ports",
    [ACTIVE, [*INIT, MANAGEMENT], INIT, [*ACTIVE[:4], *INIT[4:]], [*ACTIVE[:4], *DOWN[4:]]],
    ids=["healthy", "no subnet manager, management port active", "no subnet manager",
         "half not configured", "half without a link"],
)  # fmt: skip
def test_the_state_that_the_rails_are_in_changes_no_derived_limit(
    ports: list[dict[str, str]],
) -> None:
    contract = derive_contract(cluster(ports, ports, told="eth0"))
    busbw, network = contract.limit("FABRIC", "busbw"), contract.limit("FABRIC", "network")
    assert busbw is not None
    assert busbw.low == pytest.approx(0.80 * 400)
    assert contract.cluster.fabric == "rdma"
    assert contract.cluster.rails == 8, "judge_rails asks for those that are there"
    assert network is not None
    assert network.one_of == ["rdma"]
    assert network.because == "no contract: every node has an RDMA port"
    assert {busbw.source, network.source} == {"derived"}
    assert contract.agreed is False


@pytest.mark.parametrize(
    "nodes",
    [[DOWN, DOWN], [[*DOWN, MANAGEMENT]] * 2, [ACTIVE, []]],
    ids=["all without a link", "and a management port", "a node without ports"],
)
def test_what_a_dead_fabric_does_not_say_has_no_limit(nodes: list[list[dict[str, str]]]) -> None:
    """The interface that jobs are told of is not taken for the fabric."""
    contract = derive_contract(cluster(*nodes, told="eth0"))
    assert contract.limit("FABRIC", "busbw") is None
    assert contract.cluster.fabric != "eth0"


def test_ports_that_nccl_may_not_use_count_for_nothing_and_are_named() -> None:
    """Each node's own NCCL_IB_HCA leaves half of its ports out."""
    half = "=" + ",".join(f"mlx5_{number}" for number in range(4))
    nodes = cluster(ACTIVE, ACTIVE)
    nodes.on_each_node = lambda function: {"0": half, "1": half}
    contract = derive_contract(nodes)
    busbw = contract.limit("FABRIC", "busbw")
    assert busbw is not None
    assert busbw.low == pytest.approx(0.80 * 200)
    assert contract.cluster.rails == 4
    unused = ", ".join(f"mlx5_{number}/1" for number in range(4, 8))
    assert f"(without {unused}, which NCCL_IB_HCA excludes)" in busbw.because
    everything = derive_contract(cluster(ACTIVE, ACTIVE)).limit("FABRIC", "busbw")
    assert everything is not None
    assert "leaves out" not in everything.because


def test_without_rdma_the_interface_is_the_fabric() -> None:
    contract = derive_contract(cluster([], [], told="eth0"))
    busbw = contract.limit("FABRIC", "busbw")
    assert contract.cluster.fabric == "eth0"
    assert contract.cluster.rails is None
    network = contract.limit("FABRIC", "network")
    assert network is not None
    names = "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME of every node names eth0"
    assert network.because == f"no contract: {names}"
    assert busbw is not None
    assert busbw.low == pytest.approx(0.80 * 25 / 8)


@pytest.mark.parametrize(
    ("efficiency", "verdict"),
    [(0.95, "PASS"), (0.9, "PASS"), (0.85, "MARGINAL"), (0.8, "MARGINAL"), (0.79, "FAIL")],
)
def test_a_cluster_without_a_contract_has_to_keep_most_of_its_speed(
    efficiency: float, verdict: str
) -> None:
    limit = derive_contract(cluster([], [])).limit("SCALING", "efficiency")
    assert Measurement(name="efficiency", value=efficiency, limit=limit).verdict == verdict


@pytest.mark.parametrize(
    ("kind", "accelerators", "gpus", "paced"),
    [("local", "emulated", 1, True), ("ray", "real", None, False), ("client", "real", None, False)],
)
def test_only_an_embedded_cluster_is_emulated(
    kind: str, accelerators: str, gpus: int | None, paced: bool
) -> None:
    contract = derive_contract(cluster([], [], kind=kind))
    terms = contract.cluster
    assert (terms.accelerators, terms.gpus_per_node) == (accelerators, gpus)
    assert terms.pace_seconds == (0.25 if paced else 0.0)
    assert contract.rehearsal is paced
    assert set(contract.optional) == ({"FABRIC", "SCALING"} if paced else set())


RDMA = (
    'schema = 1\ntier = "standard"\n[cluster]\nfabric = "rdma"\nrails = 8\nline_rate_gbps = 400\n'
)
FIGURE = "[FABRIC.alltoall_busbw]\nat_least = 25\nunit = 'GB/s'\nbecause = 'as agreed'\n"


def all_to_all(contract: Contract, nodes: int, gpus: int = 8) -> Any:
    return size_contract(contract, nodes, nodes * gpus).limit("FABRIC", "alltoall_busbw")


@pytest.mark.parametrize(
    ("nodes", "gpus", "low"),
    [(2, 8, 56.25), (4, 8, 38.75), (8, 8, 33.75), (16, 8, 31.75), (32, 8, 30.85), (2, 1, 240.0)],
)
def test_all_to_all_has_a_limit_by_the_number_of_nodes(nodes: int, gpus: int, low: float) -> None:
    """60 % of a GPU's 50 GB/s, and more on few nodes: a part of the data stays inside a node."""
    limit = all_to_all(parse(RDMA.encode(), "f"), nodes, gpus)
    assert limit.low == pytest.approx(low, abs=0.01)
    assert limit.derived
    assert f"on {nodes} nodes of {gpus} GPUs" in limit.because


def test_an_agreed_limit_of_all_to_all_stays() -> None:
    limit = all_to_all(parse((RDMA + FIGURE).encode(), "f"), 2)
    assert (limit.low, limit.because, limit.derived) == (25, "as agreed", False)


@pytest.mark.parametrize("name", ["ethernet", "lab", "local", "l40s-ethernet", "h100-one-node"])
def test_without_rdma_all_to_all_has_no_derived_limit(name: str) -> None:
    assert all_to_all(load(name), 4) is None


def test_one_node_sends_nothing_over_the_fabric() -> None:
    assert all_to_all(parse(RDMA.encode(), "f"), 1) is None


def test_without_a_contract_all_to_all_is_judged_too() -> None:
    contract = derive_contract(cluster(ACTIVE, ACTIVE))
    assert all_to_all(contract, 2).low == pytest.approx(
        0.75 * contract.limits["FABRIC"]["busbw"].low * 15 / 8 / 8, abs=0.01
    )


@pytest.mark.parametrize("ranks", [0, 4, 20])
def test_all_to_all_has_no_derived_limit_where_ranks_per_node_are_not_known(ranks: int) -> None:
    """A record may lack them; unequal nodes are not what was ordered."""
    contract = load("h100-ndr400")
    assert size_contract(contract, 8, ranks).limit("FABRIC", "alltoall_busbw") is None
