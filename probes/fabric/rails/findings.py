"""Names the ports, nodes and rails that are slow, by the search over all rails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probes.fabric.detect import find_slow_links
from probes.fabric.node_pairs import PairSearch
from probes.fabric.rails.ranks import RailRanks, least_by_nodes, node_of
from probes.findings import finding
from reports.numbers import quantity
from reports.record import Finding
from scaling.collectives.fault_search import FaultSearchResult, Link

AT_ONCE = " when all rails send at once"


def find_slow_ports(
    found: FaultSearchResult, rails: Sequence[RailRanks], when: str = ""
) -> list[Finding]:
    """Name each rail, node, port or link that is slow, and in which direction.

    A rail is named if every link of it is slow and some other rail is sound.  A node is named if
    all its ports are slow in the same direction.  `when` is appended to the message.
    """
    findings, rest = [], found
    blamed = {*found.slow_nodes, *(port for link in found.slow_links for port in link)}
    slow_rails = [
        rail
        for rail in rails
        if is_slow_everywhere(rail, found) and not blamed.isdisjoint(rail.ports)
    ]
    if len(slow_rails) < len(rails):
        for rail in slow_rails:
            links = [speed for (a, _), speed in found.speeds.items() if a in rail.ports]
            message = f"{rail.name} is slow on every node{when}: {quantity(min(links), 'GB/s')}"
            message += f". Other rails: {quantity(found.typical, 'GB/s')}"
            nodes = [*map(node_of, rail.ports)]
            names = {"interface": rail.name}
            findings.append(finding("FAB-SLOW-LINK", message, nodes, names=names))
            rest = without_ports(rest, rail.ports)
    if len(rails) > 1:
        for node, way in slow_nodes(rest, rails).items():
            findings += find_slow_links(_as_node(rest, node, way), when)
            rest = without_ports(rest, [port for port in rest.slow_nodes if node_of(port) == node])
    return findings + find_slow_links(rest, when)


def find_shared_rails(at_once: FaultSearchResult, pairs: PairSearch) -> Finding:
    """Report that all rails are slow when they send at once: nodes share what feeds them."""
    message = f"all {len(pairs.rails)} rails of a node at once: {quantity(at_once.typical, 'GB/s')}"
    message += f" each. One rail alone: {quantity(pairs.speed.typical, 'GB/s')}"
    nodes = [*map(node_of, pairs.rails[0].ports)]
    return finding("FAB-RAILS-SHARED", message, nodes)


def is_slow_everywhere(rail: RailRanks, found: FaultSearchResult) -> bool:
    """Return whether every measured link of a rail is slow."""
    speeds = [speed for (sender, _), speed in found.speeds.items() if sender in rail.ports]
    return bool(speeds) and max(speeds) < found.limit


def slow_nodes(found: FaultSearchResult, rails: Sequence[RailRanks]) -> dict[str, str]:
    """Return the nodes whose ports are all slow in the same direction, with that direction."""
    by_node: dict[str, list[str]] = {}
    for port, way in found.slow_nodes.items():
        by_node.setdefault(node_of(port), []).append(way)
    return {
        node: ways[0]
        for node, ways in by_node.items()
        if len(ways) == len(rails) and len(set(ways)) == 1
    }


def without_ports(found: FaultSearchResult, ports: Iterable[str]) -> FaultSearchResult:
    """Return the search without what it says of these ports."""
    left_out = {*ports}
    return replace(
        found,
        slow_nodes={port: way for port, way in found.slow_nodes.items() if port not in left_out},
        slow_links=[link for link in found.slow_links if left_out.isdisjoint(link)],
    )


def only_at_once(at_once: FaultSearchResult, one_by_one: FaultSearchResult) -> FaultSearchResult:
    """Return what is slow only when all rails send at once."""
    known = without_ports(at_once, [*one_by_one.slow_nodes])
    links: set[Link] = {*one_by_one.slow_links}
    return replace(known, slow_links=[link for link in known.slow_links if link not in links])


def _as_node(found: FaultSearchResult, node: str, way: str) -> FaultSearchResult:
    """Return a search in which the ports of a node are one, and only it is slow."""
    speeds = least_by_nodes(found.speeds)
    return replace(found, speeds=speeds, slow_nodes={node: way}, slow_links=[])
