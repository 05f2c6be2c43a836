"""Judges which nodes reach each other: dead ports, blocked pairs, packet sizes, duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.fabric.rails.ranks import port_name, suspects
from probes.fabric.reach import ReachabilityResult
from probes.findings import finding, join_names
from reports.record import Finding
from scaling.collectives.fault_search import classify

PING_HEADERS = 28  # bytes of IPv4 (20) and ICMP (8): the MTU counts them, `ping -s` does not


def judge_reach(
    reach: ReachabilityResult, measure: Recorder, rail: str = "", explained: Sequence[str] = ()
) -> None:
    """Judge pairs that do not reach each other at all, or not with full-size packets.

    `rail` is the interface that was tested, where there are several.  Another finding explains why
    the nodes in `explained` are not reached.
    """
    on = rail or "cluster"
    measure("unreachable_pairs", len(reach.pairs), on=on)
    measure("duplicate_addresses", len(reach.duplicates), on=on)
    if not reach.saw_neighbours:
        measure.covered("duplicate addresses were not tested: no node shows /proc/net/arp")
    if reach.has_ip:
        odd_mtu = len(find_odd_mtu(reach)) if reach.mtu else None
        measure("mtu_mismatches", odd_mtu, on=on, note=reach.note or "no MTU is known")
        narrow = None if reach.narrow is None else len(reach.narrow)
        measure("pairs_below_mtu", narrow, on=on, note=reach.note or "-")
    else:
        measure.covered(f"packet sizes were not tried: {reach.note}")
    unreachable = find_unreachable(reach, rail, explained)
    measure.explain(find_duplicates(reach), unreachable, find_mtu_faults(reach))


def reach_series(reach: ReachabilityResult) -> dict[str, Any]:
    """Return the chart's map of pairs: 0 GB/s where a pair cannot connect, None elsewhere."""
    blocked = {frozenset(pair) for pair in reach.pairs}
    gbs = [[0.0 if {a, b} in blocked else None for b in reach.nodes] for a in reach.nodes]
    return {"nodes": reach.nodes, "gbs": gbs}


def find_duplicates(reach: ReachabilityResult) -> list[Finding]:
    """Name the nodes whose address another machine also has."""
    return [
        finding(
            "FAB-DUPLICATE-ADDRESS",
            one.message + _port_text(reach, one.nodes[0]),
            one.nodes,
            names={"address": one.address, "interface": reach.ports.get(one.nodes[0])},
        )
        for one in reach.duplicates
    ]


def _port_text(reach: ReachabilityResult, node: str) -> str:
    name = reach.ports.get(node)
    return f", on {name}" if name else ""


def find_unreachable(
    reach: ReachabilityResult, rail: str = "", explained: Sequence[str] = ()
) -> list[Finding]:
    """Name the nodes, else the pairs, that explain which pairs do not reach each other.

    With several rails, the port of `rail` is a suspect too.  Nodes in `explained` are left out.
    """
    bad_nodes, pairs = _classify_unexplained(reach, reach.pairs)
    findings = []
    for node in dict.fromkeys([*reach.dead, *bad_nodes]):
        if node in explained:
            continue
        reason = reach.dead.get(node, f"reaches no other node by TCP{_port_text(reach, node)}")
        names = {"interface": reach.ports.get(node)}
        ends = suspects([port_name(rail, node)])
        findings.append(finding("FAB-LINK-DOWN", f"{node}: {reason}", ends, names=names))
    for a, b in pairs:
        if {a, b}.isdisjoint({*reach.dead, *explained}):
            message = f"{a} and {b} cannot reach each other by TCP{_port_text(reach, a)}"
            names = {"interface": reach.ports.get(a), "peer": b}
            findings.append(finding("FAB-PAIR-BLOCKED", message, [a, b], names=names))
    return findings


def _classify_unexplained(
    reach: ReachabilityResult, failing: list[tuple[str, str]]
) -> tuple[list[str], list[tuple[str, str]]]:
    """List the bad nodes, and the bad pairs of the others.

    Nodes with an address that two machines have are left out: that explains their pairs.
    """
    shared = {node for one in reach.duplicates for node in one.nodes}
    failing = [pair for pair in failing if shared.isdisjoint(pair)]
    return classify(failing, [node for node in reach.nodes if node not in shared])


def find_mtu_faults(reach: ReachabilityResult) -> list[Finding]:
    """Name the nodes whose MTU differs, else the pairs that full-size packets do not pass."""
    odd = find_odd_mtu(reach)
    if odd:
        names = {mtu: [n for n in reach.mtu if reach.mtu[n] == mtu] for mtu in reach.mtu.values()}
        told = [f"{join_names(names[mtu])} {mtu}" for mtu in names if names[mtu][0] in odd]
        if usual := [mtu for mtu in names if names[mtu][0] not in odd]:
            told.append(f"the others {usual[0]}")
        message = f"MTU{_port_text(reach, odd[0])}: {'; '.join(told)}"
        peer = next((name for name in reach.mtu if name not in odd), "")
        known = _mtu_names(reach, odd[0], peer, max(reach.mtu.values()))
        return [finding("FAB-MTU", message, odd, names=known)]
    bad_nodes, pairs = _classify_unexplained(reach, reach.narrow or [])
    ends = [(f"{node} and others", [node]) for node in bad_nodes]
    ends += [(f"{a} and {b}", [a, b]) for a, b in pairs]
    packets = f"packets of {min(reach.mtu.values(), default=0)} bytes, unfragmented,"
    message = f"{packets} do not pass between"
    findings = []
    for text, named in ends:
        node, *others = named
        peers = [name for pair in reach.narrow or [] if node in pair for name in pair]
        peer = next((name for name in (*others, *peers) if name != node), "")
        known = _mtu_names(reach, node, peer, min(reach.mtu.values(), default=0))
        findings.append(finding("FAB-MTU", f"{message} {text}", named, names=known))
    return findings


def _mtu_names(reach: ReachabilityResult, node: str, peer: str, mtu: int) -> dict[str, object]:
    """Name the node's interface, and a ping of this MTU to a peer."""
    payload = mtu - PING_HEADERS if mtu > PING_HEADERS else ""
    return {"interface": reach.ports.get(node), "peer": peer, "payload": payload}


def find_odd_mtu(reach: ReachabilityResult) -> list[str]:
    """List nodes whose MTU is not that of most; all nodes if the two commonest MTUs tie."""
    counts = Counter(reach.mtu.values()).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return list(reach.mtu)
    return [node for node, mtu in reach.mtu.items() if mtu != counts[0][0]]
