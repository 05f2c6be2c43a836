"""What FABRIC's judges make of speeds, shares and rails that were measured."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.contract.contract import Contract, parse
from probes.contract.derived_limits import derive_contract
from probes.fabric import judge
from probes.fabric.node_pairs import NodeGroupsResult
from probes.fabric.transport import TransportReport
from reports.measurement import Limit, Measurement, Verdict
from scaling.collectives.fault_search import FaultSearchResult, Link
from tests.support.controls import MemoryRecorder, recorder, with_limit
from tests.support.sweep_results import sweep_result

RDMA = parse(b'schema = 1\ntitle = "t"\n[cluster]\nfabric = "rdma"\n', "f")
EVEN = {"mlx5_0/1": 1000, "mlx5_1/1": 1000}


def measured(measure: MemoryRecorder, name: str) -> list[Measurement]:
    """Return what was recorded of one measure."""
    return [one for one in measure.result("finished", 1.0).measurements if one.name == name]


def search(speeds: dict[Link, float], typical: float = 0.1) -> FaultSearchResult:
    """Return a search that found nothing."""
    return FaultSearchResult(speeds, typical, {}, [], 1, 0, "")


# Rails.


def judge_rails(
    rails: dict[str, dict[str, Any]], rail_gbps: dict[str, float] | None = None, **more: Any
) -> MemoryRecorder:
    """Judge these rails of nodes; neither contract nor node says how many there should be."""
    measure = recorder("FABRIC", more.pop("contract", RDMA))
    run = sweep_result(100, "rdma", rails=rails, rail_gbps=rail_gbps or {})
    terms: Any = SimpleNamespace(
        fabric="rdma", rails=more.pop("ordered", None), line_rate_gbps=more.pop("rate", None)
    )
    judge.judge_rails(run, terms, measure, **more)
    return measure


def test_the_node_of_the_slower_rails_is_the_one_that_lacks_them() -> None:
    measure = judge_rails({"n0": EVEN, "n1": EVEN}, {"n0": 400.0, "n1": 200.0})
    assert [(one.subject, one.value) for one in measured(measure, "rails")] == [
        ("n0", 2),
        ("n1", 0),
    ]


@pytest.mark.parametrize(
    ("device", "trained", "counts", "whose"),
    [
        ("mlx5_0/1", 200.0, [0, 0], "as agreed"),
        pytest.param(
            "mlx5_0/1", 400.0, [1, 1], "as on the best node",
            marks=pytest.mark.near_miss("FABRIC.rails"),
        ),
        ("mlx5_0/1", 800.0, [1, 1], "as on the best node"),
        ("rdmap16s27/1", 100.0, [1, 1], "as on the best node"),  # an old driver of EFA says 100
    ],
)  # fmt: skip
def test_rails_that_all_trained_to_half_of_the_agreed_rate_are_not_as_ordered(
    device: str, trained: float, counts: list[int], whose: str
) -> None:
    rails = {"n0": {device: 1000}, "n1": {device: 1000}}
    measure = judge_rails(rails, dict.fromkeys(rails, trained), ordered=1, rate=400.0)
    found = measured(measure, "rails")
    assert [one.value for one in found] == counts
    assert found[0].limit
    assert found[0].limit.because.endswith(whose)
    said = [one.statement for one in measure.result("finished", 1.0).findings]
    slow = [
        f"{n}: each of its 1 rails runs at 200 Gbit/s. Expected: 400 Gbit/s, as agreed"
        for n in rails
    ]
    assert said == (slow if counts == [0, 0] else [])


def test_rails_of_an_unknown_rate_are_judged_by_their_number_alone() -> None:
    found = measured(judge_rails({"n0": EVEN, "n1": {}}), "rails")
    assert [one.value for one in found] == [2, 0]
    assert [one.verdict for one in found] == [Verdict.PASS, Verdict.FAIL]
    assert found[0].limit
    assert found[0].limit.because == "every node must have as many as the best node"


@pytest.mark.parametrize(
    ("contract", "ordered", "because"),
    [
        (derive_contract(None), 2, "every node must have as many as the best node"),
        (RDMA, None, "every node must have as many as the best node"),
        (RDMA, 2, "the contract says so"),
    ],
)
def test_only_a_number_that_is_in_a_contract_was_ordered(
    contract: Contract, ordered: int | None, because: str
) -> None:
    (found,) = measured(judge_rails({"n0": EVEN}, contract=contract, ordered=ordered), "rails")
    assert found.limit
    assert found.limit.because == because


def test_the_rail_that_carried_least_is_judged() -> None:
    measure = judge_rails({"n0": {"mlx5_0/1": 1500, "mlx5_1/1": 500}})
    (found,) = measured(measure, "slowest_rail")
    assert (found.subject, found.value, found.note) == ("n0 mlx5_1/1", 0.5, "")
    (finding,) = measure.result("finished", 1.0).findings
    assert finding.suspects == ["n0", "mlx5_1/1"]


@pytest.mark.parametrize(
    ("rails", "note"),
    [
        ({"mlx5_0/1": None}, "the bytes of its rails cannot be read"),
        ({}, "no rail is active"),
    ],
)
def test_why_no_share_of_a_rail_is_known_is_given(rails: dict[str, Any], note: str) -> None:
    (found,) = measured(judge_rails({"n0": rails}), "slowest_rail")
    assert (found.value, found.note, found.verdict) == (None, note, Verdict.UNPROVEN)


@pytest.mark.parametrize(("fabric", "share"), [("rdma", 0.5), ("eth1,eth2", None)])
def test_interfaces_whose_bytes_were_not_counted_have_no_share(
    fabric: str, share: float | None
) -> None:
    sent = sweep_result(100, "rdma", rails={"n0": {"eth1": 1500, "eth2": 500}})
    run = replace(sent, backend="nccl", sent={"n0": {"eth0": 0}})
    measure, terms = (
        recorder("FABRIC", RDMA),
        SimpleNamespace(fabric=fabric, rails=None, line_rate_gbps=None),
    )
    judge.judge_rails(run, cast(Any, terms), measure)
    (found,) = measured(measure, "slowest_rail")
    assert found.value == share


@pytest.mark.parametrize("most", [0.05, 2.0])
def test_without_a_least_share_no_rail_is_idle(most: float) -> None:
    limit = Limit(high=most, because="it names no least share")
    contract = with_limit(RDMA, "slowest_rail", limit)
    measure = judge_rails({"n0": {"mlx5_0/1": 1900, "mlx5_1/1": 100}}, contract=contract)
    assert measure.result("finished", 1.0).findings == []


def test_rdma_needs_one_rail_at_least() -> None:
    (found,) = measured(judge_rails({"n0": {}}), "rails")
    assert (found.value, found.verdict) == (0, Verdict.FAIL)
    assert found.limit
    assert (found.limit.low, found.limit.because) == (1, "RDMA needs at least one rail")


def test_the_rows_with_wrong_elements_are_returned() -> None:
    run = sweep_result(100)
    (row,) = run.rows
    wrong = {**row, "wrong": 2}
    measure = recorder("FABRIC")
    assert judge.judge_data(run, {"all_gather": [row, wrong]}, measure) == [wrong]
    assert [one.value for one in measured(measure, "wrong_elements")] == [2]
    assert judge.judge_data(run, {"all_gather": [row]}, recorder("FABRIC")) == []


def test_without_any_node_no_rails_are_judged() -> None:
    assert measured(judge_rails({}), "rails") == []


# Pairs and groups.


def test_of_two_nodes_there_is_no_slowest_pair() -> None:
    measure = recorder("FABRIC")
    judge.judge_slowest_pair(search({("a", "b"): 0.1, ("b", "a"): 0.01}), measure)
    assert measured(measure, "slowest_pair") == []


@pytest.mark.parametrize(("typical", "share"), [(0.1, 0.5), (0.0, 0.0)])
def test_the_slowest_pair_is_judged_as_a_share_of_the_typical_speed(
    typical: float, share: float
) -> None:
    """Where no pair has any speed, the slowest has no share of it."""
    measure = recorder("FABRIC")
    speeds = {("a", "b"): 0.1, ("b", "c"): 0.05, ("c", "a"): 0.1}
    judge.judge_slowest_pair(search(speeds, typical), measure)
    (found,) = measured(measure, "slowest_pair")
    assert (found.subject, found.value, found.verdict) == ("b -> c", share, Verdict.FAIL)


def test_slow_nodes_and_slow_groups_add_up_and_wrong_elements_are_judged() -> None:
    measure = recorder("FABRIC")
    groups = NodeGroupsResult(["n1"], [["n4", "n5"]], {"n2": 3, "n3": 4}, "")
    judge.judge_groups(groups, search({}), measure)
    (slow,), (wrong,) = measured(measure, "slow_groups"), measured(measure, "wrong_elements")
    assert (slow.value, slow.verdict) == (2, Verdict.FAIL)
    assert (wrong.subject, wrong.value, wrong.verdict) == ("groups of nodes", 7, Verdict.FAIL)


def test_a_slow_group_over_several_leaves_is_not_named_beside_its_slow_uplink() -> None:
    measure = recorder("FABRIC")
    groups = NodeGroupsResult([], [["n0", "n4"], ["n5", "n6"]], {}, "")
    leaves = [["n0", "n1", "n2", "n3"], ["n4", "n5", "n6", "n7"]]
    judge.judge_groups(groups, search({}), measure, leaves)
    assert [one.suspects for one in measure.findings] == [["n5", "n6"]]
    assert [one.value for one in measured(measure, "slow_groups")] == [2], "both are slow"


# Transport.


def test_sources_that_agree_are_two() -> None:
    measure = recorder("FABRIC")
    library = TransportReport("gloo's sockets", {f"n{at}": "fab0" for at in range(4)})
    judge.judge_transport(sweep_result(0.1, library=library), "fab0", measure)
    (found,) = measured(measure, "agreeing_sources")
    assert (found.value, found.verdict) == (2, Verdict.PASS)
    shares = [(one.value, one.note) for one in measured(measure, "fabric_share")]
    assert shares == [(1.0, "")] * 4


def test_without_an_agreed_fabric_no_share_of_it_is_judged() -> None:
    measure = recorder("FABRIC")
    judge.judge_transport(sweep_result(0.1), cast(Any, None), measure)
    for name in ("fabric_share", "share_on_other_networks"):
        notes = [(one.value, one.note) for one in measured(measure, name)]
        assert notes == [(None, "no fabric is known: set [cluster] fabric")] * 4


# Speed.


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_that_a_ring_does_not_show_all_of_nccl_is_said(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    said, measure = list[str](), recorder("FABRIC")
    monkeypatch.setattr(measure, "covered", said.append)
    judge.judge_speed(replace(sweep_result(0.1), backend=backend), measure)
    assert any("NVLS and SHARP" in one for one in said) is (backend == "nccl")


KINDS = {"n0": "NVIDIA H200", "n1": "NVIDIA H200", "n2": "NVIDIA A100", "n3": "NVIDIA A100"}


@pytest.mark.parametrize(
    ("models", "rate", "counts"),
    [
        ({}, 200.0, [2, 2, 0, 0]),
        pytest.param(KINDS, 200.0, [2, 2, 2, 2], marks=pytest.mark.near_miss("FABRIC.rails")),
        (KINDS, 100.0, [2, 2, 2, 0]),
    ],
)
def test_rails_are_compared_with_those_of_the_nodes_own_kind(
    models: dict[str, str], rate: float, counts: list[int]
) -> None:
    rates = {"n0": 400.0, "n1": 400.0, "n2": 200.0, "n3": rate}
    run = sweep_result(100, "rdma", rails=dict.fromkeys(rates, EVEN), rail_gbps=rates)
    measure, terms = recorder("FABRIC", RDMA), RDMA.cluster
    for kind in judge.split_kinds(run, models):
        judge.judge_rails(kind, terms, measure)
    assert [one.value for one in measured(measure, "rails")] == counts
