"""Finds slow or crowded uplinks: what pairs of nodes share on their way through the switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probes.fabric.rails.ranks import node_of, rail_of, suspects
from probes.findings import finding, join_names
from reports.numbers import quantity
from reports.record import Finding
from scaling.collectives.fault_search import FaultSearchResult, Link

MIN_CROWD = 2  # pairs that must be slow together before their common path is blamed


def find_leaves(found: FaultSearchResult) -> list[list[str]]:
    """Find groups of nodes that are fast inside, and slow in every measured link between them.

    Names are sorted, node2 before node10.  Empty if there are not two groups of two nodes or more:
    one node that is slow with all others has a slow link of its own.  If more than three quarters
    of all links are slow, the search takes them for normal.  Ports of several rails are not
    grouped.
    """
    nodes = sorted({node for link in found.speeds for node in link}, key=lambda n: (len(n), n))
    if any(map(rail_of, nodes)):
        return []
    group = {node: [node] for node in nodes}
    for (a, b), speed in found.speeds.items():
        if min(speed, found.speeds.get((b, a), speed)) >= found.limit and group[a] is not group[b]:
            group[a] += group[b]
            for node in group[b]:
                group[node] = group[a]
    groups = list({id(one): sorted(one, key=nodes.index) for one in group.values()}.values())
    large = [one for one in groups if len(one) > 1]
    return sorted(large, key=lambda one: nodes.index(one[0])) if len(large) > 1 else []


def links_between(leaves: Sequence[Sequence[str]], links: Sequence[Link]) -> list[Link]:
    """List the links from one group to another."""
    leaf_of = {node: number for number, leaf in enumerate(leaves) for node in leaf}
    return [(a, b) for a, b in links if a in leaf_of and b in leaf_of and leaf_of[a] != leaf_of[b]]


def without_links(found: FaultSearchResult, links: Sequence[Link]) -> FaultSearchResult:
    """Return the search without these slow links, and the nodes that only they made slow."""
    explained = {*links}
    ends = {node for link in links for node in link}
    return replace(
        found,
        slow_links=[link for link in found.slow_links if link not in explained],
        slow_nodes={node: way for node, way in found.slow_nodes.items() if node not in ends},
    )


def uplink_finding(
    found: FaultSearchResult,
    leaves: Sequence[Sequence[str]],
    members: Sequence[Sequence[str]] | None = None,
) -> Finding:
    """Name the groups of nodes between which every link is slow.

    The smaller groups are suspects: their uplinks are slow; groups of one size all are.  `members`
    are all nodes of each group, where only some met.
    """
    between = links_between(leaves, [*found.speeds])
    inside = [speed for link, speed in found.speeds.items() if link not in {*between}]
    fast = quantity(max(inside), "GB/s")
    slow = quantity(min(found.speeds[link] for link in between), "GB/s")
    whole = members or leaves
    names = "; ".join(join_names(leaf) for leaf in whole)
    message = f"links between groups of nodes are slow: {slow}. Inside a group: {fast}. "
    message += f"Groups: {names}"
    largest = max(map(len, whole))
    smaller = [leaf for leaf in whole if len(leaf) < largest] or whole
    return finding("FAB-SLOW-UPLINK", message, [node for leaf in smaller for node in leaf])


def crowded_links(found: FaultSearchResult, alone: Mapping[Link, float]) -> list[Link]:
    """List slow links that are fast when no other pair sends: what they share is full."""
    crowded = [link for link in found.slow_links if alone.get(link, 0.0) >= found.limit]
    pairs = {frozenset(link) for link in crowded}
    return crowded if len(pairs) >= MIN_CROWD else []


def crowd_finding(
    found: FaultSearchResult, alone: Mapping[Link, float], links: Sequence[Link]
) -> Finding:
    """Name the pairs of nodes that are slow together and fast alone."""
    pairs = list(dict.fromkeys(tuple(sorted(link)) for link in links))
    together = quantity(min(found.speeds[link] for link in links), "GB/s")
    single = quantity(min(alone[link] for link in links), "GB/s")
    names = join_names(f"{a} and {b}" for a, b in pairs)
    message = f"{len(pairs)} pairs of nodes are slow when they send at once: {together}. "
    message += f"One pair alone: {single}. Pairs: {names}"
    nodes = suspects(dict.fromkeys(node_of(node) for link in links for node in link))
    return finding("FAB-SLOW-UPLINK", message, nodes)
