"""The turns in which nodes try each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probes.fabric.node_pairs import turn_order


@given(st.integers(1, 60))
def test_each_turn_is_of_disjoint_pairs_and_all_meet(nodes: int) -> None:
    table = [turn_order(node, nodes) for node in range(nodes)]
    assert all(sorted(row) == list(range(nodes)) for row in table)
    for turn in range(nodes):
        met = [row[turn] for row in table]
        assert all(met[met[node]] == node for node in range(nodes))
