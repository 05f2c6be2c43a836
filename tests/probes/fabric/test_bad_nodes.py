"""When groups of nodes are tried, and what is explained where pairs of nodes fail."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.contract.contract import load as contract
from probes.fabric import node_pairs
from probes.fabric.judge import FabricRig, find_bad_nodes, try_groups
from probes.fabric.node_pairs import PairSearch
from probes.fabric.sweep import SweepResult
from reference_trainer.launch.gang import GangError
from scaling.collectives.fault_search import FaultSearchResult
from scaling.collectives.node_groups import group_sweep
from tests.support.controls import MemoryRecorder, recorder
from tests.support.rank_parts import Each, groups_of
from tests.support.sweep_results import sweep_result

LAB = contract("lab")
SOUND = FaultSearchResult({}, 0.1, {}, [], 1, 0, "")
PAIRS = PairSearch(SOUND, SOUND, {}, {}, {})


class Gang:
    """One rank on each node; groups with a slow node are slow, and pairs do not answer."""

    def __init__(self, nodes: int, slow: int | None = None) -> None:
        self.places = [SimpleNamespace(node=f"n{number}") for number in range(nodes)]
        self.slow, self.size = slow, nodes

    def run(self, function: Any, *_: Any, each: Each, **__: Any) -> list[Any]:
        if function is not group_sweep:
            raise GangError("rank 2 does not answer")
        slow = {rank for group in groups_of(each) if self.slow in group for rank in group}
        return [(0.05 if rank in slow else 0.1, 0) for rank in range(len(self.places))]


def rig_of(gang: Gang, tier: str = "standard") -> tuple[FabricRig, MemoryRecorder]:
    """Return FABRIC's environment with these nodes, and its recorder."""
    measure, names = recorder("FABRIC"), {place.node: place.node for place in gang.places}
    return FabricRig(cast(Any, gang), names, LAB.cluster, tier, None, measure), measure


def run_over(nodes: int) -> SweepResult:
    """Return a sweep over so many nodes."""
    return replace(sweep_result(0.1), sent={f"n{at}": {"fab0": 1} for at in range(nodes)})


@pytest.mark.parametrize(
    ("nodes", "tier", "unlocated", "are_tried"),
    [
        (12, "standard", False, True),
        (12, "soak", False, True),
        (12, "quick", False, False),
        (12, "quick", True, True),
        (11, "standard", False, False),
        (4, "quick", True, True),
        (3, "standard", True, False),  # their groups are pairs
    ],
)
def test_groups_are_tried_on_many_nodes_or_where_all_is_slow(
    nodes: int, tier: str, unlocated: bool, are_tried: bool
) -> None:
    rig, measure = rig_of(Gang(nodes), tier)
    try_groups(rig, run_over(nodes), PAIRS, unlocated)
    result = measure.result("finished", 1.0)
    assert any(one.name == "slow_groups" for one in result.measurements) is are_tried
    coverage = "; ".join(measure._coverage)
    assert ("groups of nodes were not tested" in coverage) is not are_tried
    assert [one.code for one in result.findings] == ["FAB-SLOW"] * unlocated


def test_where_a_group_shows_who_is_slow_the_fabric_as_a_whole_is_not_blamed() -> None:
    rig, measure = rig_of(Gang(16, slow=5))
    try_groups(rig, run_over(16), PAIRS, unlocated=True)
    found = measure.result("finished", 1.0).findings
    assert [(one.code, one.suspects) for one in found] == [("FAB-SLOW-GROUP", ["n5"])]


def test_pairs_that_fail_leave_bytes_off_the_fabric_and_wrong_data_explained() -> None:
    rig, measure = rig_of(Gang(4))
    run = replace(sweep_result(0.1, "eth0"), rank_nodes=["n0", "n1", "n2", "n3"])
    wrong = [{"elements": 16, "first_wrong": [(2, 7)], "wrong": 1}]
    with pytest.raises(GangError):
        find_bad_nodes(rig, run, wrong)
    codes = [one.code for one in measure.result("finished", 1.0).findings]
    assert codes == ["FAB-WRONG-INTERFACE", "FAB-WRONG-DATA"]


@pytest.mark.parametrize(
    ("tier", "every_pair"), [("soak", True), ("standard", True), ("quick", False)]
)
def test_the_longer_tiers_try_every_pair(
    monkeypatch: pytest.MonkeyPatch, tier: str, every_pair: bool
) -> None:
    tried: list[bool] = []

    def search(*given: Any) -> PairSearch:
        tried.append(given[3])
        raise GangError("rank 2 does not answer")

    monkeypatch.setattr(node_pairs, "run_pair_search", search)
    rig, _ = rig_of(Gang(4), tier)
    with pytest.raises(GangError):
        find_bad_nodes(rig, replace(sweep_result(0.1), rank_nodes=["n0", "n1", "n2", "n3"]), [])
    assert tried == [every_pair]


def test_without_a_watch_no_node_is_unstable() -> None:
    rig, measure = rig_of(Gang(4))
    assert rig.judge_ports({"n0": "fab0"}) == []
    assert measure.result("finished", 1.0).measurements == []
