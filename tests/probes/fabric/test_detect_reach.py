"""Pairs that do not reach each other, and MTUs that differ."""

from __future__ import annotations

from probes.fabric.detect import find_mtu_faults, find_unreachable
from probes.fabric.node_pairs import ReachabilityResult


def cut(mtu: dict[str, int], *narrow: tuple[str, str]) -> ReachabilityResult:
    return ReachabilityResult(sorted(mtu), [], {}, list(narrow), mtu)


def test_an_mtu_that_differs_is_named_and_so_is_a_hole() -> None:
    assert find_mtu_faults(cut({"a": 1500, "b": 1500, "c": 1500})) == []
    (odd,) = find_mtu_faults(cut({"a": 1500, "b": 9000, "c": 1500}))
    assert (odd.code, odd.suspects) == ("FAB-MTU", ["b"])
    (hole,) = find_mtu_faults(cut({"a": 1500, "b": 1500, "c": 1500}, ("a", "c"), ("b", "c")))
    assert hole.suspects == ["c"]
    (pair,) = find_mtu_faults(cut(dict.fromkeys("abcd", 1500), ("a", "c")))
    assert pair.suspects == ["a", "c"]


def test_unreachable_names_node_or_pair() -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    (found,) = find_unreachable(ReachabilityResult(nodes, [("n0", "n1")], {}))
    assert (found.code, found.suspects) == ("FAB-PAIR-BLOCKED", ["n0", "n1"])
    cut = [("n0", "n2"), ("n1", "n2"), ("n2", "n3")]
    (found,) = find_unreachable(ReachabilityResult(nodes, cut, {"n2": "fab0 is down"}))
    assert (found.code, found.suspects) == ("FAB-LINK-DOWN", ["n2"])
    assert "fab0 is down" in found.statement
    assert find_unreachable(ReachabilityResult(nodes, [], {})) == []
