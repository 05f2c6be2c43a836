"""The first lines of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import load, parse
from probes.contract.derived_limits import list_slips
from probes.contract.terms import ClusterTerms
from probes.session.session import RunSession

LACKS = (
    "UNPROVEN  no run under this contract can be accepted: no limit for the speed of one node: "
    "none is published for NVIDIA A40. Add [SCALING.mfu] or [SCALING.tokens_per_s]"
)


def header(contract: Any, model: str, rehearsal: str = "", ordered: int | None = 2) -> list[str]:
    gpu = {"name": model}
    cluster = SimpleNamespace(
        rehearsal=rehearsal, facts=[{"gpus": [gpu]}], nodes=[1, 2], size=16, resource="GPU"
    )
    run: Any = SimpleNamespace(
        contract=contract,
        contract_arg="mine.toml",
        cluster=cluster,
        ordered=ordered,
        store=SimpleNamespace(path=Path("runs/r")),
        tier="standard",
        only=[],
        waited_s=0.0,
        held_s=0.0,
        held="",
        name="n",
    )
    return [line for line in RunSession.header(run) if line.startswith("UNPROVEN")]


@pytest.mark.parametrize(
    ("model", "rehearsal", "lines"),
    [
        ("NVIDIA A40", "", [LACKS]),
        ("NVIDIA H100 80GB HBM3", "", []),
        ("NVIDIA A40", "2 raylets embedded on one host", []),
    ],
)
def test_a_run_says_at_its_start_what_its_contract_lacks(
    model: str, rehearsal: str, lines: list[str]
) -> None:
    text = load("ethernet").text.decode()
    contract = parse(text.replace("[cluster]\n", "[cluster]\ngpus_per_node = 8\n").encode(), "m")
    assert header(contract, model, rehearsal) == lines


def test_a_run_without_a_number_of_nodes_says_so() -> None:
    contract = load("h100-ndr400")
    assert header(contract, "NVIDIA H100 80GB HBM3") == []
    (line,) = header(contract, "NVIDIA H100 80GB HBM3", ordered=None)
    assert "no number of nodes" in line


def test_a_run_has_the_limits_of_its_number_of_nodes() -> None:
    run: Any = SimpleNamespace(
        cluster=None,
        settings=SimpleNamespace(nodes=2),
        _describe_cluster=lambda: {"alive": 2, "ranks": 16},
    )
    RunSession._describe(run, load("h100-ndr400"))
    limit = run.contract.limit("FABRIC", "alltoall_busbw")
    assert (limit.low, limit.derived) == (56.25, True)
    run._describe_cluster = lambda: {"note": "could not be joined"}
    RunSession._describe(run, load("h100-ndr400"))
    assert run.contract.limit("FABRIC", "alltoall_busbw") is None


@pytest.mark.parametrize(
    ("agreed", "kind", "name"),
    [
        ("atlas", "ray", "atlas"),
        ("h100-ndr400", "ray", "pod-x7"),  # of a shipped contract, or a copy of it
        ("atlas", "local", "local"),
    ],
)
def test_a_contract_of_the_cluster_names_it_whatever_its_pods_are_called(
    agreed: str, kind: str, name: str
) -> None:
    run: Any = SimpleNamespace(
        cluster=SimpleNamespace(kind=kind, facts=[{"name": "pod-x7"}]),
        contract=SimpleNamespace(agreed=True, name=agreed),
    )
    assert RunSession.name.fget(run) == name


PORT = {
    "port": "1",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "state": "4: ACTIVE",
}
NODE = {"rdma": [{**PORT, "device": f"mlx5_{n}"} for n in range(8)]}


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"line_rate_gbps": 50.0}, ["line_rate_gbps = 50, but ports report 400 Gbit/s"]),
        ({"rails": 1}, ["rails = 1, but nodes have 8 ports of 400 Gbit/s"]),
        ({}, []),
        ({"line_rate_gbps": 800.0}, []),  # FABRIC.rails fails for it
    ],
)
def test_a_contract_that_orders_less_than_the_ports_have_is_said(
    terms: dict[str, Any], said: list[str]
) -> None:
    agreed = {"fabric": "rdma", "rails": 8, "line_rate_gbps": 400.0, **terms}
    found = list(list_slips(ClusterTerms(**agreed), [NODE, NODE]))
    assert [text.partition(". ")[0] for text in found] == said
    assert list(list_slips(ClusterTerms(fabric="eth0", line_rate_gbps=50.0), [NODE])) == []
