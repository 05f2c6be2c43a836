"""Faults that only show in groups: which node makes its groups slow, and which group is slow."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.collectives.fault_search import search_faults
from scaling.collectives.node_groups import grid_groups, search_groups
from tests.support.simulated_links import Cluster, planted


@given(st.integers(1, 300))
def test_two_nodes_share_one_group_at_most(count: int) -> None:
    nodes = [f"n{at}" for at in range(count)]
    partings = grid_groups(nodes)
    for parting in partings:
        assert sorted(node for group in parting for node in group) == sorted(nodes)
        sizes = [len(group) for group in parting]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= math.sqrt(count) + 1
        assert min(sizes) >= 2 or count in (1, 2, 3, 5)
    across, down = partings
    assert all(len(set(row) & set(column)) <= 1 for row in across for column in down)


class Crowd:
    """Nodes whose fault shows only in groups: a group is as fast as its slowest member."""

    def __init__(self, size: int, slow: dict[str, float], clash: str = "") -> None:
        self.nodes = [f"n{at}" for at in range(size)]
        self.slow, self.clash = slow, set(clash.split())  # those who clash are slow together
        self.spoilt: set[int] = set()  # numbers of group trials that went wrong, once
        self.trials = 0
        self.sizes: list[int] = []  # of the groups, in the order of their trials
        self.cluster = Cluster(size, seed=size)

    def trial(self, parting: list[list[str]]) -> list[float]:
        """GB/s of each group."""
        busy = [node for group in parting for node in group]
        assert len(set(busy)) == len(busy)
        assert all(len(group) > 1 for group in parting), "a node alone sends nothing"
        self.sizes += map(len, parting)
        return [self.speed(group) for group in parting]

    def speed(self, group: list[str]) -> float:
        """GB/s of one; a pair is too small to show the fault."""
        self.trials += 1
        able = min(self.slow.get(node, 1.0) for node in group) if len(group) > 2 else 1.0
        clash = 0.5 if self.clash and self.clash <= set(group) else 1.0
        passing = 0.4 if self.trials in self.spoilt else 1.0
        return min(able, clash, passing) * self.cluster.speed("x", "y")


def test_groups_find_what_pairs_do_not() -> None:
    crowd = Crowd(16, {"n5": 0.5})
    pairs = search_faults(crowd.nodes, lambda table: {
        link: crowd.speed(list(link)) for pairs in table for a, b in pairs
        for link in ((a, b), (b, a))
    }, matrix=True)  # fmt: skip
    assert (pairs.slow_nodes, pairs.slow_links) == ({}, [])
    assert search_groups(crowd.nodes, crowd.trial) == (["n5"], [])


def test_a_suspect_is_measured_in_a_group_as_large_as_those_that_were_slow() -> None:
    crowd = Crowd(16, {"n5": 0.5})
    search_groups(crowd.nodes, crowd.trial)
    assert set(crowd.sizes) == {4}


@given(st.integers(12, 200), st.integers(0, 10**6))
def test_grouped_finds_any_few_nodes(size: int, seed: int) -> None:
    bad = list(planted(size, max(1, math.isqrt(size) // 3), seed).guilty())
    crowd = Crowd(size, dict.fromkeys(bad, 0.5))
    guilty, left = search_groups(crowd.nodes, crowd.trial)
    assert (sorted(guilty), left) == (sorted(bad), [])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9, 16, 50])
def test_healthy_groups_are_clean(size: int) -> None:
    crowd = Crowd(size, {})
    assert search_groups(crowd.nodes, crowd.trial) == ([], [])


def test_a_slow_group_that_no_node_explains_is_told() -> None:
    crowd = Crowd(16, {}, clash="n4 n6")
    assert search_groups(crowd.nodes, crowd.trial) == ([], [["n4", "n5", "n6", "n7"]])
    crowd = Crowd(16, {"n9": 0.5}, clash="n4 n6")
    assert search_groups(crowd.nodes, crowd.trial) == (["n9"], [["n4", "n5", "n6", "n7"]])


def test_where_a_clash_crosses_a_bad_node_only_the_node_is_blamed() -> None:
    crowd = Crowd(16, {"n9": 0.5}, clash="n4 n6")  # n5's groups are slow, and not by its fault
    guilty, _ = search_groups(crowd.nodes, crowd.trial)
    assert guilty == ["n9"]


def test_a_trial_that_went_wrong_is_nobodys_fault() -> None:
    for number in range(1, 17):
        crowd = Crowd(16, {})
        crowd.spoilt = {number, number + 5}
        assert search_groups(crowd.nodes, crowd.trial) == ([], []), f"trial {number}"


def test_a_node_is_not_blamed_for_the_groups_it_was_in_if_it_does_well_in_another() -> None:
    crowd = Crowd(16, {})
    crowd.spoilt = {1, 5, 9, 13}  # n0's row and column, twice each
    rows, columns = grid_groups(crowd.nodes)
    assert search_groups(crowd.nodes, crowd.trial) == ([], [rows[0], columns[0]])


def test_groups_that_are_all_slow_blame_nobody() -> None:
    crowd = Crowd(16, dict.fromkeys((f"n{at}" for at in range(16)), 0.0))
    guilty, left = search_groups(crowd.nodes, crowd.trial)
    assert guilty == []
    assert len(left) == 8
