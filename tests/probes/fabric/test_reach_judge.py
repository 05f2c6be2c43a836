"""Pairs that cannot reach each other, and MTUs that differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.fabric.addresses import DuplicateAddress
from probes.fabric.reach import (
    ReachabilityResult,
    explain_duplicates,
    find_mtu_faults,
    find_odd_mtu,
    find_unreachable,
    judge_reach,
    reach_series,
)
from reports.measurement import Verdict


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


def test_a_hole_names_who_to_ping_from_where_with_which_size() -> None:
    narrow = cut({"a": 1500, "b": 1500, "c": 1500}, ("a", "c"), ("b", "c"))
    (hole,) = find_mtu_faults(dataclasses.replace(narrow, ports={"c": "fab0"}))
    expected = {"node": "c", "interface": "fab0", "peer": "a", "payload": "1472"}
    assert hole.names == expected
    odd = dataclasses.replace(cut({"a": 9000, "b": 1500, "c": 1500}), ports={"a": "fab0"})
    (found,) = find_mtu_faults(odd)
    assert found.names == {"node": "a", "interface": "fab0", "peer": "b", "payload": "8972"}


def test_a_hole_is_shown_by_a_peer_that_is_in_it() -> None:
    pairs = [("b", "c"), ("c", "e"), ("a", "c"), ("c", "f"), ("c", "d")]
    pairs += [("a", "d"), ("b", "d"), ("d", "e"), ("d", "f")]
    found = find_mtu_faults(cut(dict.fromkeys("abcdef", 1500), *pairs))
    assert {one.suspects[0]: one.names["peer"] for one in found} == {"c": "b", "d": "c"}


def test_a_node_is_never_told_to_ping_itself() -> None:
    pairs = ("a", "b"), ("a", "c"), ("a", "d")
    (found,) = find_mtu_faults(cut(dict.fromkeys("abcd", 1500), *pairs))
    assert (found.suspects, found.names["peer"]) == (["a"], "b")


def test_unreachable_names_node_or_pair() -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    dead = {"n0": "fab0 is down"}
    (found,) = find_unreachable(ReachabilityResult(nodes, [("n0", "n1")], dead))
    assert (found.code, found.suspects) == ("FAB-LINK-DOWN", ["n0"])
    (found,) = find_unreachable(ReachabilityResult(nodes, [("n0", "n1")], {}))
    assert (found.code, found.suspects) == ("FAB-PAIR-BLOCKED", ["n0", "n1"])
    cut = [("n0", "n2"), ("n1", "n2"), ("n2", "n3")]
    (found,) = find_unreachable(ReachabilityResult(nodes, cut, {"n2": "fab0 is down"}))
    assert (found.code, found.suspects) == ("FAB-LINK-DOWN", ["n2"])
    assert "fab0 is down" in found.statement
    assert find_unreachable(ReachabilityResult(nodes, [], {})) == []


def test_the_map_shows_a_blocked_pair_both_ways_and_measures_no_other() -> None:
    blocked = ReachabilityResult(["n0", "n1", "n2"], [("n2", "n0")], {})
    assert reach_series(blocked) == {
        "nodes": ["n0", "n1", "n2"],
        "cells": [(0, 2, 0.0), (2, 0, 0.0)],
    }


@pytest.mark.parametrize(
    ("mtu", "suspects", "said"),
    [
        ({"a": 1500, "b": 1500, "c": 9000}, ["c"], "MTU: c 9000; other nodes 1500"),
        ({"a": 1500, "b": 9000}, ["a", "b"], "MTU: a 1500; b 9000"),
        (
            {"a": 1500, "b": 9000, "c": 1500, "d": 9000},
            ["a", "b", "c", "d"],
            "MTU: a, c 1500; b, d 9000",
        ),
        (
            {"a": 9000, "b": 9000, "c": 1500, "d": 4200},
            ["c", "d"],
            "MTU: c 1500; d 4200; other nodes 9000",
        ),
    ],
)
def test_of_two_mtus_on_as_many_nodes_neither_is_the_odd_one(
    mtu: dict[str, int], suspects: list[str], said: str
) -> None:
    (found,) = find_mtu_faults(cut(mtu))
    assert found.suspects == suspects
    assert said in found.statement
    assert find_odd_mtu(cut(mtu)) == suspects


def test_what_a_shared_address_explains_is_told_once() -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    failing = [("n0", "n1"), ("n1", "n2"), ("n1", "n3"), ("n0", "n3")]
    shared = DuplicateAddress("10.0.0.1", ["n1", "n2"], "n1, n2 have the same address 10.0.0.1")
    ports = dict.fromkeys(nodes, "fab0")
    reach = ReachabilityResult(nodes, failing, {}, ports=ports, duplicates=[shared])
    (found,) = explain_duplicates(reach)
    assert (found.code, found.suspects) == ("FAB-DUPLICATE-ADDRESS", ["n1", "n2"])
    assert found.statement == "n1, n2 have the same address 10.0.0.1 on fab0"
    (other,) = find_unreachable(reach)  # n0 and n3 share nothing
    assert (other.code, other.suspects) == ("FAB-PAIR-BLOCKED", ["n0", "n3"])


def test_packets_that_a_shared_address_sends_elsewhere_accuse_no_other_node() -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    shared = DuplicateAddress("10.0.0.1", ["n1", "n2"], "n1, n2 have the same address 10.0.0.1")
    mtu = dict.fromkeys(nodes, 1500)
    reach = ReachabilityResult(nodes, [], {}, [("n2", "n3")], mtu, duplicates=[shared])
    assert find_mtu_faults(reach) == []
    reach = ReachabilityResult(
        nodes, [], {}, [("n2", "n3"), ("n0", "n3")], mtu, duplicates=[shared]
    )
    (other,) = find_mtu_faults(reach)
    assert (other.code, other.suspects) == ("FAB-MTU", ["n0", "n3"])


def test_who_reaches_none_but_where_an_address_is_shared_is_named_alone() -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    shared = DuplicateAddress("10.0.0.1", ["n1"], "another machine answers for n1")
    failing = [("n0", "n2"), ("n0", "n3")]
    (found,) = find_unreachable(ReachabilityResult(nodes, failing, {}, duplicates=[shared]))
    assert (found.code, found.suspects) == ("FAB-LINK-DOWN", ["n0"])


def judged(
    recorder: Callable[..., Recorder], **more: Any
) -> tuple[dict[str, tuple[Any, Verdict | None]], str]:
    """What is measured, and what is said to be covered."""
    measure, said = recorder(), list[str]()
    measure.covered = said.append  # type: ignore[method-assign]  (what it is told is all we ask)
    reach = ReachabilityResult(["a", "b"], [], {}, mtu={"a": 1500, "b": 1500}, **more)
    judge_reach(reach, measure)
    result = measure.finish("finished", 1.0)
    return {one.name: (one.value, one.verdict) for one in result.measurements}, "; ".join(said)


def test_a_sound_network_passes(recorder: Callable[..., Recorder]) -> None:
    found, coverage = judged(recorder)
    assert len(found) == 4
    assert {verdict for _, verdict in found.values()} == {Verdict.PASS}
    assert coverage == ""


def test_two_machines_with_one_address_fail(recorder: Callable[..., Recorder]) -> None:
    shared = DuplicateAddress("10.0.0.1", ["a"], "b answers for a")
    found, _ = judged(recorder, duplicates=[shared])
    assert found["duplicate_addresses"] == (1, Verdict.FAIL)


@pytest.mark.near_miss("FABRIC.unreachable_pairs")
def test_a_fabric_without_ip_has_no_packet_size_to_judge(recorder: Callable[..., Recorder]) -> None:
    why = "no RDMA port has an IP address on a"
    found, coverage = judged(recorder, has_ip=False, narrow=None, note=why)
    assert {"mtu_mismatches", "pairs_below_mtu"}.isdisjoint(found)
    assert coverage == f"packet sizes were not tested: {why}"


@pytest.mark.parametrize("note", ["", "no RDMA port has an IP address on a"])
def test_why_no_mtu_is_judged_is_always_given(recorder: Callable[..., Recorder], note: str) -> None:
    measure = recorder()
    judge_reach(ReachabilityResult(["a", "b"], [], {}, None, note=note), measure)
    result = measure.finish("finished", 1.0)
    (found,) = [one for one in result.measurements if one.name == "mtu_mismatches"]
    assert (found.verdict, found.note) == (
        Verdict.UNPROVEN,
        note or "the MTU of no node could be read",
    )


def test_neighbours_that_nobody_shows_are_told(recorder: Callable[..., Recorder]) -> None:
    assert "no node has a readable /proc/net/arp" in judged(recorder, saw_neighbours=False)[1]
