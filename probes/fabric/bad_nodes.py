"""Finds nodes that are slow, lose packets, take a detour or change data: by pairs and groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Recorder
from probes.cluster.byte_counters import RDMA, interfaces_of
from probes.fabric import judge
from probes.fabric.detect import (
    find_off_fabric,
    find_wrong_links,
    find_wrong_nodes,
    slow_fabric_finding,
    wrong_data,
)
from probes.fabric.links.judge import (
    judge_loss,
    judge_networks,
    judge_ports,
    judge_stalls,
    links_off,
    unexplained,
)
from probes.fabric.links.routes import read_routes
from probes.fabric.links.watch import LinkWatch
from probes.fabric.node_pairs import (
    NodeGroupsResult,
    PairSearch,
    run_group_search,
    run_leaf_search,
    run_pair_search,
    run_wrong_search,
)
from probes.fabric.rails.ranks import RailRanks, find_rails, node_of
from probes.fabric.speeds.inside import InsideSpeeds, judge_inside, measure_inside
from probes.fabric.sweep import Rows, SweepResult
from probes.fabric.uplinks import (
    crowd_finding,
    crowded_links,
    find_leaves,
    uplink_finding,
    without_leaves,
    without_links,
)
from reference_trainer.launch.gang import Gang, GangError
from reports.measurement import Limit
from scaling.collectives.fault_search import FaultSearchResult, Link

# Numbers of nodes.  Groups are tried from LARGE on: with fewer, groups are hardly more than pairs.
# MIN_NODES is the least from which groups can identify a node: there they are tried if all is slow
# and pairs do not show why.
MIN_NODES, LARGE = 4, 12
# Findings that explain a slow fabric and locate the cause.
LOCATED = {"FAB-LOSS", "FAB-LINK-FLAPS", "FAB-DETOUR"}
LOCATED |= {"FAB-SLOW-LINK", "FAB-SLOW-INSIDE", "FAB-SLOW-UPLINK"}


@dataclass(frozen=True)
class FabricRig:
    """Environment of FABRIC: ranks, agreed terms, limits, link counters, and the recorder.

    `watch` is None on an embedded cluster: its raylets share one host, and no link.
    """

    gang: Gang
    node_names: dict[str, str]
    terms: ClusterTerms
    tier: str
    limits: Callable[[str], Limit | None]
    watch: LinkWatch | None
    measure: Recorder

    def judge_ports(self, fabric: dict[str, str]) -> list[str]:
        """Judge each node's fabric (an interface, or rdma) by its counts; return unstable nodes."""
        if self.watch is None:
            return []
        return judge_ports(self.watch.growth(fabric), fabric, self.limits, self.measure)

    def judge_agreed_ports(self) -> None:
        """Judge the ports of the agreed fabric, if there is one.  Used when nothing was sent."""
        if self.terms.fabric:
            self.judge_ports(dict.fromkeys(self.node_names.values(), self.terms.fabric))


def find_bad_nodes(
    rig: FabricRig, run: SweepResult, wrong: Rows
) -> tuple[PairSearch, InsideSpeeds | None]:
    """Find slow, lossy or wrong nodes: by pairs, inside each node, and by groups if need be.

    `wrong` are the rows of collectives with wrong elements.  Raises GangError when the pairs fail.
    """
    measure, limit = rig.measure, rig.limits("lost_packets")
    measure.progress("fabric: every pair of nodes")
    max_lost = limit.high if limit and limit.high is not None else math.inf
    try:
        rails = find_rails(run.rank_nodes, rig.terms.fabric, run.backend)
        full = rig.tier == "soak"
        at_once = has_port_for_each(rails, run, rig.terms)
        pairs = run_pair_search(rig.gang, rig.node_names, max_lost, full, rails, at_once)
    except GangError:
        explain_without_pairs(rig, run, wrong)
        raise
    unstable = rig.judge_ports(fabric_devices(rig, run))
    judge_loss(run, pairs, max_lost, unstable, measure)
    judge_stalls(run, bool(measure.finding_codes & LOCATED), measure)
    off = judge_pair_networks(rig, run, pairs)
    slow = explain_uplinks(rig, unexplained(pairs, off), pairs.alone)
    judge.judge_pairs(pairs, slow, run, measure)
    judge_pair_data(rig, run, pairs, wrong)
    measure.progress("fabric: all-reduce inside nodes")
    inside = try_inside(rig, run)
    is_slow = measure.would_fail("busbw", run.plateau["busbw"])
    is_located = measure.finding_codes & LOCATED
    try_groups(rig, run, pairs, unlocated=is_slow and not is_located)
    return pairs, inside


def try_inside(rig: FabricRig, run: SweepResult) -> InsideSpeeds | None:
    """Measure and judge the all-reduce inside nodes; None if the ranks failed in it."""
    try:
        inside = measure_inside(rig.gang, run.rank_nodes)
    except GangError as error:
        rig.measure("all_reduce_inside_node_against_others", None, note=str(error))
        return None
    judge_inside(inside, rig.limits, rig.measure)
    return inside


def has_port_for_each(rails: Sequence[RailRanks], run: SweepResult, terms: ClusterTerms) -> bool:
    """Return whether no two rails share a port, so that all at once must be as fast as one.

    Of RDMA, ports that cannot be counted do not show it.
    """
    ports = min((len(found) for found in run.rails.values()), default=0)
    return len(interfaces_of(terms.fabric) if terms.fabric != RDMA else range(ports)) >= len(rails)


def fabric_devices(rig: FabricRig, run: SweepResult) -> dict[str, str]:
    """Name the fabric of each node: the agreed one, else the device that carried most bytes."""
    return {node: rig.terms.fabric or device for node, device in run.main_devices.items()}


def explain_without_pairs(rig: FabricRig, run: SweepResult, wrong: Rows) -> None:
    """Report bytes off the fabric and wrong data, as far as the sweep alone shows them."""
    rig.measure.explain(find_off_fabric(run, rig.terms.fabric), wrong_data(wrong, run.rank_nodes))


def judge_pair_networks(
    rig: FabricRig, run: SweepResult, pairs: PairSearch
) -> dict[tuple[str, str], str]:
    """Judge which network each pair used.

    Returns the links that left the fabric, each with the device that it used.
    """
    usual = rig.terms.fabric or run.main_device
    expected = {
        (port, peer): rail.fabric or usual
        for rail in pairs.rails
        for port, peer in permutations(rail.ports, 2)
    }
    off = links_off(pairs, expected)
    routes = read_routes(rig.gang, rig.node_names, off, expected)
    judge_networks(pairs, expected, routes, rig.measure)
    on_fabric = {node_of(sender) for sender, _ in pairs.sent.keys() - off.keys()}
    detours = {node_of(sender) for sender, _ in off} & on_fabric
    rig.measure.explain(find_off_fabric(run, rig.terms.fabric, detours))
    return off


def judge_pair_data(rig: FabricRig, run: SweepResult, pairs: PairSearch, wrong: Rows) -> None:
    """Judge what the pairs received, and find which node made collectives wrong."""
    rig.measure("wrong_elements", sum(pairs.wrong.values()), on="pairs of nodes")
    if any(pairs.wrong.values()):
        rig.measure.explain(find_wrong_links(pairs.wrong))
    elif wrong:
        search = run_wrong_search(rig.gang, rig.node_names)
        rig.measure.explain(find_wrong_nodes(wrong, search, run.rank_nodes))


def search_leaves(rig: FabricRig, groups: NodeGroupsResult) -> list[list[str]]:
    """Find and name the leaves behind slow uplinks, where only some groups are fast; else []."""
    if groups.nodes or not groups.groups or len(groups.fast) < MIN_NODES:
        return []
    try:
        found = run_leaf_search(rig.gang, rig.node_names, groups.fast).speed
    except GangError as error:
        rig.measure.covered(f"which groups are near each other is not known: {error}")
        return []
    members = {group[0]: group for group in groups.fast}
    leaves = find_leaves(found)
    whole = [[node for first in leaf for node in members[first]] for leaf in leaves]
    rig.measure.explain([uplink_finding(found, leaves, whole)] if leaves else [])
    return whole


def explain_uplinks(
    rig: FabricRig, slow: FaultSearchResult, alone: Mapping[Link, float]
) -> FaultSearchResult:
    """Name slow and crowded uplinks; return the search without the links that they explain."""
    if leaves := find_leaves(slow):
        rig.measure.explain([uplink_finding(slow, leaves)])
        slow = without_leaves(slow, leaves)
    if crowded := crowded_links(slow, alone):
        rig.measure.explain([crowd_finding(slow, alone, crowded)])
        slow = without_links(slow, crowded)
    return slow


def try_groups(rig: FabricRig, run: SweepResult, pairs: PairSearch, unlocated: bool) -> None:
    """Try groups of nodes on a large cluster, or if all is slow and no pair shows why."""
    measure, nodes = rig.measure, len(run.sent)
    if nodes >= MIN_NODES and (unlocated or (nodes >= LARGE and rig.tier != "quick")):
        measure.progress("fabric: groups of nodes")
        groups = run_group_search(rig.gang, rig.node_names)
        leaves = search_leaves(rig, groups)
        judge.judge_groups(groups, pairs.speed, measure, leaves)
        unlocated = unlocated and not (groups.nodes or groups.groups)
    else:
        when = (
            f"(requires {LARGE} nodes and --tier standard, or a slow all-reduce that no pair "
            "explains)"
        )
        measure.covered(f"groups of nodes were not tested {when}")
    if unlocated:
        measure.explain(slow_fabric_finding(run))
