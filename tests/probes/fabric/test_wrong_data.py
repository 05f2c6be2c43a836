"""Wrong data in a collective: who changed it, and not who received it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.fabric.detect import find_wrong_nodes, wrong_data
from probes.fabric.judge import judge_pair_data
from probes.fabric.node_pairs import PairSearch, run_wrong_search
from probes.findings import MAX_NAMES
from reports.measurement import Verdict
from reports.record import ProbeResult
from scaling.collectives import node_groups
from scaling.collectives.fault_search import FaultSearchResult
from tests.support.controls import recorder
from tests.support.rank_parts import Each, groups_of

ROWS = [{"elements": 4096, "first_wrong": [(rank, 7) for rank in range(4)], "wrong": 4}]


def spoilt(*pairs: set[str], nodes: int = 4, first: int = 0) -> Any:
    """A gang, two ranks a node, whose all-reduces over any of these sets of nodes are wrong.

    The ranks before the `first` of each group receive what is right.
    """
    places = [SimpleNamespace(node=f"n{rank // 2}") for rank in range(2 * nodes)]

    def run(function: Any, *_: Any, each: Each, timeout: float) -> list[tuple[float, int]]:
        assert function is node_groups.group_sweep
        found = [(0.0, 0)] * len(places)
        for group in groups_of(each):
            members = {places[rank].node for rank in group}
            assert len(group) == 4  # both ranks of each
            for rank in group[first:]:
                found[rank] = (0.1, 5 * any(bad <= members for bad in pairs))
        return found

    return SimpleNamespace(places=places, size=len(places), run=run)


def named(gang: Any, nodes: int = 4) -> list[list[str]]:
    names = {f"n{number}": f"n{number}" for number in range(nodes)}
    search = run_wrong_search(gang, names)
    rank_nodes = [f"n{rank % nodes}" for rank in range(4)]
    findings = find_wrong_nodes(ROWS, search, rank_nodes)
    assert all(found.code == "FAB-WRONG-DATA" for found in findings)
    return [found.suspects for found in findings]


@pytest.mark.parametrize("bad", ["n0", "n2"])
@pytest.mark.parametrize("nodes", [3, 4, 9, 12])
def test_who_makes_each_of_its_all_reduces_wrong_is_named(bad: str, nodes: int) -> None:
    assert named(spoilt({bad}, nodes=nodes), nodes) == [[bad]]


def judged(wrong_pairs: dict[tuple[str, str], int]) -> ProbeResult:
    """What is said where n2 spoils each all-reduce, and pairs of nodes received this."""
    sound = FaultSearchResult({}, 0.0, {}, [], 1, 0, "")
    pairs = PairSearch(sound, sound, wrong_pairs, {}, {})
    names = {f"n{number}": f"n{number}" for number in range(4)}
    measure, gang = recorder("FABRIC"), spoilt({"n2"})
    rig: Any = SimpleNamespace(measure=measure, gang=gang, node_names=names)
    run = SimpleNamespace(rank_nodes=[f"n{rank % 4}" for rank in range(4)])
    judge_pair_data(rig, cast(Any, run), pairs, ROWS)
    return measure.result("finished", 1.0)


def test_where_pairs_received_all_right_the_all_reduces_are_searched() -> None:
    result = judged({("n0", "n1"): 0})
    assert [(one.code, one.suspects) for one in result.findings] == [("FAB-WRONG-DATA", ["n2"])]
    (wrong,) = result.measurements  # the collectives' own wrong elements are judged elsewhere
    assert (wrong.name, wrong.value) == ("wrong_elements", 0)


def test_where_a_pair_received_wrong_data_its_link_is_the_cause() -> None:
    result = judged({("n0", "n1"): 7, ("n1", "n0"): 0})
    assert [(one.code, one.suspects) for one in result.findings] == [
        ("FAB-WRONG-LINK", ["n0", "n1"])
    ]
    (wrong,) = result.measurements
    assert (wrong.value, wrong.verdict) == (7, Verdict.FAIL)


def test_two_bad_nodes_are_both_named() -> None:
    assert sorted(named(spoilt({"n1"}, {"n3"}, nodes=6), 6)) == [["n1"], ["n3"]]


def test_of_two_nodes_both_are_suspects() -> None:
    assert named(spoilt({"n0"}, nodes=2), 2) == [["n0", "n1"]]


def test_one_pair_that_is_wrong_is_named() -> None:
    assert named(spoilt({"n1", "n2"})) == [["n1", "n2"]]


def test_what_no_pair_shows_accuses_nobody() -> None:
    assert named(spoilt()) == [[]]


def test_one_rank_that_received_wrong_elements_makes_its_nodes_suspects() -> None:
    assert named(spoilt({"n2"}, first=3)) == [["n2"]]


def test_who_alone_received_wrong_elements_is_named() -> None:
    rows = [{"elements": 4096, "first_wrong": [(2, 7)], "wrong": 1}]
    (found,) = wrong_data(rows, ["n0", "n1", "n2", "n3"])
    assert found.suspects == ["rank 2", "n2"]
    assert "rank 2 on n2 received a wrong element 7 of 4096" in found.statement


def test_of_many_ranks_with_wrong_elements_the_others_are_counted() -> None:
    received = [(rank, 7) for rank in range(MAX_NAMES + 1)]
    nodes = [f"n{rank}" for rank in range(MAX_NAMES + 2)]
    rows = [{"elements": 4096, "first_wrong": received, "wrong": len(received)}]
    (found,) = wrong_data(rows, nodes)
    assert found.statement.endswith("; 1 more rank")
    (found,) = wrong_data([{**rows[0], "first_wrong": received[1:]}], nodes)
    assert "more rank" not in found.statement


def test_what_all_received_is_nobodys_by_that_alone() -> None:
    (found,) = wrong_data(ROWS, ["n0", "n1", "n2", "n3"])
    assert found.suspects == []
    assert "All nodes received wrong data, so the node that made it is not known" in found.statement
    assert wrong_data([], ["n0"]) == []
