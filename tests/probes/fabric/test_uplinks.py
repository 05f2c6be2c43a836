"""Slow and crowded uplinks between groups of nodes are named as such, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from probes.fabric import judge, links, node_pairs
from probes.fabric.detect import (
    crowd_finding,
    crowded_links,
    find_leaves,
    uplink_finding,
    without_leaves,
    without_links,
)
from probes.fabric.node_pairs import NodeGroupsResult, PairSearch
from reference_trainer.launch.gang import GangError
from scaling.collectives.fault_search import (
    FaultSearchResult,
    Link,
    round_robin,
    search_faults,
    search_rails,
)
from tests.probes.fabric.links.test_judge import MAX_LOST, Gang, sweep
from tests.support.controls import recorder
from tests.support.simulated_links import Cluster


def search(cluster: Cluster) -> FaultSearchResult:
    return search_faults(cluster.nodes, cluster.meet, matrix=True)


def alone(cluster: Cluster, found: FaultSearchResult) -> dict[Link, float]:
    """Each slow link once more, with no other pair."""
    return {link: cluster.meet([[link]])[link] for link in found.slow_links}


def split(cluster: Cluster) -> list[list[str]]:
    return [
        [node for node in cluster.nodes if cluster.leaf(node) == leaf]
        for leaf in range(cluster.leaves)
    ]


@pytest.mark.parametrize(("size", "leaves"), [(4, 2), (8, 2), (12, 3), (16, 2), (24, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_leaves_behind_slow_uplinks_are_found_and_explain_every_slow_link(
    size: int, leaves: int, seed: int
) -> None:
    # An uplink that is slower than one node: every pair over it is slow, at any time.
    cluster = Cluster(size, seed, leaves=leaves, uplink=0.3 * leaves / size)
    found = search(cluster)
    groups = find_leaves(found)
    assert groups == split(cluster)
    rest = without_leaves(found, groups)
    assert (rest.slow_nodes, rest.slow_links) == ({}, [])
    told = uplink_finding(found, groups)
    assert told.code == "FAB-SLOW-UPLINK"
    assert told.suspects == cluster.nodes  # of one size: either uplink may be the slow one
    assert f"Groups: {', '.join(groups[0][:8])}" in told.statement


def test_the_one_leaf_whose_uplink_is_slow_is_the_suspect() -> None:
    cluster = Cluster(9)
    slow = cluster.nodes[6:]
    for a in slow:
        for b in cluster.nodes[:6]:
            cluster.links[a, b] = cluster.links[b, a] = 0.3
    found = search(cluster)
    told = uplink_finding(found, find_leaves(found))
    assert told.suspects == slow
    assert told.statement.startswith("links between groups of nodes are slow: ")


def test_an_uplink_that_is_slow_one_way_is_one() -> None:
    cluster = Cluster(8)
    leaves = [cluster.nodes[:4], cluster.nodes[4:]]
    cluster.links |= {(a, b): 0.3 for a in leaves[0] for b in leaves[1]}
    found = search(cluster)
    assert find_leaves(found) == leaves
    assert without_leaves(found, leaves).slow_links == []


def test_a_node_of_a_leaf_is_not_blamed_for_its_uplink() -> None:
    slow = {"n0": "both", "fab1 on n1": "sends", "n9": "both"}
    found = FaultSearchResult({}, 1.0, slow, [], 1, 0, "", 0.8)
    assert without_leaves(found, [["n0", "n1"], ["n2", "n3"]]).slow_nodes == {"n9": "both"}


@pytest.mark.parametrize("size", [3, 4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_sound_nodes_and_one_bad_node_are_no_leaves(size: int, seed: int) -> None:
    assert find_leaves(search(Cluster(size, seed))) == []
    bad = Cluster(size, seed, sends={"n1": 0.3}, receives={"n1": 0.3})
    assert find_leaves(search(bad)) == []


def test_two_bad_nodes_and_a_slow_pair_are_no_leaves() -> None:
    two = Cluster(8, sends={"n1": 0.3, "n4": 0.3}, receives={"n1": 0.3, "n4": 0.3})
    assert find_leaves(search(two)) == []
    pair = Cluster(8, links={("n1", "n4"): 0.3, ("n4", "n1"): 0.3})
    assert find_leaves(search(pair)) == []


@pytest.mark.parametrize("size", [9, 12, 16, 33])
def test_a_search_that_did_not_measure_every_pair_shows_no_leaves(size: int) -> None:
    sound = search_faults([f"n{at}" for at in range(size)], Cluster(size).meet)
    assert find_leaves(sound) == []
    a, b = next(round_robin(Cluster(size).nodes))[0]  # a pair that the first round tries
    cluster = Cluster(size, links={(a, b): 0.3, (b, a): 0.3})
    found = search_faults(cluster.nodes, cluster.meet)
    assert find_leaves(found) == []
    assert {*found.slow_links} == {*cluster.links}


def test_leaves_are_found_over_several_rails_too() -> None:
    cluster = Cluster(8, rails=4, leaves=2, uplink=0.02)
    found = search_rails(cluster.ports, cluster.meet, matrix=True)
    leaves = find_leaves(found)
    assert leaves == split(cluster)
    rest = without_leaves(found, leaves)
    assert (rest.slow_nodes, rest.slow_links) == ({}, [])
    assert uplink_finding(found, leaves).suspects == cluster.nodes


def test_a_port_that_is_slow_inside_its_leaf_too_keeps_its_finding() -> None:
    cluster = Cluster(8, leaves=2, uplink=0.05, sends={"n1": 0.2}, receives={"n1": 0.2})
    found = search(cluster)
    leaves = find_leaves(found)
    assert leaves == [["n0", "n2", "n3"], ["n4", "n5", "n6", "n7"]]
    assert [*without_leaves(found, leaves).slow_nodes] == ["n1"]


def test_crowded_links_that_were_not_tried_alone_follow_those_that_were() -> None:
    links = [(f"n{at}", f"n{at + 4}") for at in range(4)]
    speeds = dict.fromkeys(links, 0.5)
    found = FaultSearchResult(speeds, 1.0, {}, links, 1, 0, "", 0.8)
    assert crowded_links(found, dict.fromkeys(links[:2], 1.0)) == links
    told = crowd_finding(found, dict.fromkeys(links[:2], 1.0), links)
    assert "slow when they send at once: 0.5 GB/s. One pair alone: 1 GB/s." in told.statement
    assert crowded_links(found, {links[0]: 1.0, links[1]: 1.0, links[2]: 0.5}) == links[:2]


@pytest.mark.parametrize("seed", range(5))
def test_an_uplink_that_is_too_narrow_for_all_at_once_is_named_and_no_link(seed: int) -> None:
    cluster = Cluster(8, seed, leaves=2, uplink=0.5, dips=0)  # two to one
    found = search(cluster)
    assert found.slow_links, "the first round of pairs crosses the uplink four times"
    assert find_leaves(found) == []
    links = crowded_links(found, alone(cluster, found))
    assert {*links} == {*found.slow_links}
    assert without_links(found, links).slow_links == []
    told = crowd_finding(found, alone(cluster, found), links)
    assert told.code == "FAB-SLOW-UPLINK"
    assert " pairs of nodes are slow when they send at once: " in told.statement
    assert {*told.suspects} == {*cluster.nodes}


def test_links_that_are_slow_alone_too_are_links() -> None:
    cluster = Cluster(8, links={("n0", "n5"): 0.3, ("n1", "n6"): 0.3, ("n2", "n4"): 0.3})
    found = search(cluster)
    assert len(found.slow_links) == 3
    assert crowded_links(found, alone(cluster, found)) == []


def test_one_pair_that_is_fast_alone_crowds_nobody() -> None:
    link = "n0", "n1"
    found = FaultSearchResult({link: 0.5, link[::-1]: 0.5}, 1.0, {}, [link], 1, 0, "", 0.8)
    assert crowded_links(found, {link: 1.0}) == []
    assert crowded_links(found, {}) == []


# A cluster too large for every pair.


class Rig:
    """What is explained, and what is said of the search; ranks are not asked."""

    gang: Any = None
    node_names: dict[str, str] = {}

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.said: list[str] = []
        self.measure = self

    def explain(self, *findings: Any) -> None:
        self.told += [one for group in findings for one in group]

    def covered(self, statement: str) -> None:
        self.said.append(statement)


@pytest.mark.parametrize("slow", [True, False])
def test_of_a_large_cluster_one_node_of_each_fast_group_finds_the_leaves(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(36, leaves=2, uplink=0.01 if slow else 1.0)
    rows = [cluster.nodes[start : start + 6] for start in range(0, 36, 6)]
    columns = [cluster.nodes[start::6] for start in range(6)]

    def met(_: Any, __: Any, groups: list[list[str]]) -> PairSearch:
        found = search_faults([group[0] for group in groups], cluster.meet, matrix=True)
        return PairSearch(found, found, {}, {}, {})

    monkeypatch.setattr(node_pairs, "run_leaf_search", met)
    rig: Any = Rig()
    groups = NodeGroupsResult([], columns, {}, "", fast=rows)
    leaves = judge.search_leaves(rig, groups)
    if slow:
        assert leaves == split(cluster)
        (told,) = rig.told
        assert told.suspects == cluster.nodes
    else:
        assert (leaves, rig.told) == ([], [])


def test_groups_that_a_node_explains_and_too_few_fast_groups_start_no_search() -> None:
    rig: Any = Rig()
    rows = [[f"n{at}", f"m{at}"] for at in range(6)]
    for groups in (
        NodeGroupsResult(["n1"], [rows[0]], {}, "", fast=rows),
        NodeGroupsResult([], [], {}, "", fast=rows),
        NodeGroupsResult([], [rows[0]], {}, "", fast=rows[:3]),
    ):
        assert judge.search_leaves(rig, groups) == []
    assert rig.told == []


def test_a_search_for_leaves_that_fails_names_none_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slow groups are judged all the same: that the search failed ends nothing."""

    def fail(*_: Any) -> PairSearch:
        raise GangError("rank 3 on n3 died")

    monkeypatch.setattr(node_pairs, "run_leaf_search", fail)
    rig: Any = Rig()
    rows = [[f"n{at}", f"m{at}"] for at in range(6)]
    assert judge.search_leaves(rig, NodeGroupsResult([], [["n0", "n1"]], {}, "", fast=rows)) == []
    assert rig.told == []
    reason = "seatrial could not find groups of nodes that share a switch: rank 3 on n3 died"
    assert rig.said == [reason]


LEAF_OF = {f"n{node}": node // 3 for node in range(6)}


def codes_of(lossy: set[Link], uplink: float) -> set[str]:
    """Codes for two leaves whose links between them have this speed; some links lose packets."""
    speed = {(a, b): uplink for a in LEAF_OF for b in LEAF_OF if LEAF_OF[a] != LEAF_OF[b]}
    gang = Gang(6, lambda a, b: 0.03 if (a, b) in lossy else 0.0, speed=speed)
    measure, pairs = recorder("FABRIC"), gang.search()
    links.judge_loss(sweep(gang), pairs, MAX_LOST, [], measure)
    judge.explain_uplinks(measure, links.unexplained(pairs, {}), pairs.alone)
    return {one.code for one in measure.result("finished", 1.0).findings}


def test_packets_that_a_full_uplink_loses_accuse_no_link() -> None:
    over = {("n0", "n4"), ("n5", "n1")}
    assert codes_of(over, uplink=0.01) == {"FAB-SLOW-UPLINK"}
    assert codes_of({*over, ("n0", "n1")}, uplink=0.01) == {"FAB-SLOW-UPLINK", "FAB-LOSS"}
    assert codes_of(over, uplink=0.1) == {"FAB-LOSS"}
