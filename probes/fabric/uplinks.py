"""Finds slow or crowded uplinks: what pairs of nodes share on their way through the switches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from probes.fabric.rails.ranks import least_by_nodes, node_of
from probes.findings import finding, join_names
from reports.numbers import quantity
from reports.record import Finding
from scaling.collectives.fault_search import FaultSearchResult, Link

MIN_CROWD = 2  # pairs that must be slow together before their common path is blamed


def by_number(name: str) -> tuple[int, str]:
    """Sort names with numbers: node2 before node10."""
    return len(name), name


def find_leaves(found: FaultSearchResult) -> list[list[str]]:
    """Find groups of nodes that are fast inside, and slow in every link between them.

    On several rails the slowest counts.  Names are sorted, node2 before node10.  Empty unless every
    pair of nodes was measured, and there are two groups of two nodes or more: one node that is slow
    with all others has a slow link of its own.  If more than three quarters of all links are slow,
    the search takes them for normal.
    """
    speeds = least_by_nodes(found.speeds)
    nodes = sorted({node for link in speeds for node in link}, key=by_number)
    if len(speeds) < len(nodes) * (len(nodes) - 1):
        return []
    group = {node: [node] for node in nodes}
    for (a, b), speed in speeds.items():
        if min(speed, speeds[b, a]) >= found.limit and group[a] is not group[b]:
            group[a] += group[b]
            for node in group[b]:
                group[node] = group[a]
    groups = list({id(one): sorted(one, key=nodes.index) for one in group.values()}.values())
    large = [one for one in groups if len(one) > 1]
    return sorted(large, key=lambda one: nodes.index(one[0])) if len(large) > 1 else []


def links_between(leaves: Sequence[Sequence[str]], links: Iterable[Link]) -> list[Link]:
    """List the links from one group of nodes to another."""
    leaf_of = {node: number for number, leaf in enumerate(leaves) for node in leaf}
    ends = [(link, leaf_of.get(node_of(link[0])), leaf_of.get(node_of(link[1]))) for link in links]
    return [link for link, a, b in ends if a is not None and b is not None and a != b]


def without_links(found: FaultSearchResult, links: Sequence[Link]) -> FaultSearchResult:
    """Return the search without these slow links."""
    explained = {*links}
    rest = [link for link in found.slow_links if link not in explained]
    return replace(found, slow_links=rest)


def without_leaves(found: FaultSearchResult, leaves: Sequence[Sequence[str]]) -> FaultSearchResult:
    """Return the search without the links between leaves, and nodes that only these made slow.

    A node that is slow inside its leaf too is in none of them.
    """
    members = {node for leaf in leaves for node in leaf}
    rest = without_links(found, links_between(leaves, found.speeds))
    ways = {port: way for port, way in rest.slow_nodes.items() if node_of(port) not in members}
    return replace(rest, slow_nodes=ways)


def uplink_finding(
    found: FaultSearchResult,
    leaves: Sequence[Sequence[str]],
    members: Sequence[Sequence[str]] | None = None,
) -> Finding:
    """Name the groups of nodes between which every link is slow.

    The smaller groups are suspects: their uplinks are slow; groups of one size all are.  `members`
    are all nodes of each group, where only some met.
    """
    between = links_between(leaves, found.speeds)
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
    """List slow links that are fast when no other pair sends: what they share is full.

    Not all may have been measured alone.  If all that were are fast, the others count as crowded.
    """
    tried = [link for link in found.slow_links if link in alone]
    fast = [link for link in tried if alone[link] >= found.limit]
    crowded = found.slow_links if fast and len(fast) == len(tried) else fast
    pairs = {frozenset(link) for link in fast}
    return [*crowded] if len(pairs) >= MIN_CROWD else []


def crowd_finding(
    found: FaultSearchResult, alone: Mapping[Link, float], links: Sequence[Link]
) -> Finding:
    """Name the pairs of nodes that are slow together and fast alone."""
    pairs = list(dict.fromkeys(tuple(sorted(link)) for link in links))
    together = quantity(min(found.speeds[link] for link in links), "GB/s")
    single = quantity(min(alone[link] for link in links if link in alone), "GB/s")
    names = join_names(f"{a} and {b}" for a, b in pairs)
    message = f"{len(pairs)} pairs of nodes are slow when they send at once: {together}. "
    message += f"One pair alone: {single}. Pairs: {names}"
    nodes = {node_of(node) for link in links for node in link}
    return finding("FAB-SLOW-UPLINK", message, sorted(nodes, key=by_number))
