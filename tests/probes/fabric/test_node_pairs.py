"""The turns in which nodes try each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from probes.fabric.node_pairs import CALL_SECONDS, _ReachabilityRound, turn_order
from scaling.collectives.reachability import check_tcp, max_wait_s, start_tcp_listener


@given(st.integers(1, 60))
def test_each_turn_is_of_disjoint_pairs_and_all_meet(nodes: int) -> None:
    table = [turn_order(node, nodes) for node in range(nodes)]
    assert all(sorted(row) == list(range(nodes)) for row in table)
    for turn in range(nodes):
        met = [row[turn] for row in table]
        assert all(met[met[node]] == node for node in range(nodes))


class LocalGang:
    """Three ranks in this process, and what they were called with."""

    places = [SimpleNamespace()] * 3

    def __init__(self) -> None:
        self.calls: list[tuple[Any, list[Any], float]] = []

    def run(self, function: Any, timeout: float, each: Any, groups: list[list[int]]) -> list[Any]:
        self.calls += [(function, each[rank], timeout) for (rank,) in groups]
        return [function(*each[rank]) for (rank,) in groups]


def test_a_node_whose_fabric_port_is_dead_opens_no_door() -> None:
    gang: Any = LocalGang()
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    tries = _ReachabilityRound(gang, [0, 1, 2], ["a", "b", "c"], addresses, {"b": "fab0 is down"})
    assert tries.failing_pairs(start_tcp_listener, check_tcp) == [("a", "b"), ("b", "c")]
    opened = [arguments for function, arguments, _ in gang.calls if function is start_tcp_listener]
    assert [address for address, _ in opened] == ["127.0.0.1", "127.0.0.3"]


def test_a_door_outlasts_all_who_may_knock() -> None:
    gang: Any = LocalGang()
    tries = _ReachabilityRound(gang, [0, 1, 2], ["a", "b", "c"], ["127.0.0.1"] * 3, {})
    assert tries.failing_pairs(start_tcp_listener, check_tcp) == []
    open_s = {arguments[1] for function, arguments, _ in gang.calls[:3]}
    limits = {timeout for _, _, timeout in (gang.calls[0], gang.calls[-1])}
    assert open_s == {sum(limits)} == {2 * CALL_SECONDS + max_wait_s(3, 4)}


def test_no_usable_node_opens_no_door() -> None:
    gang: Any = LocalGang()
    tries = _ReachabilityRound(gang, [0, 1], ["a", "b"], ["127.0.0.1"] * 2, {"a": "-", "b": "-"})
    assert tries.failing_pairs(start_tcp_listener, check_tcp) == [("a", "b")]
    assert all(function is check_tcp for function, _, _ in gang.calls)
