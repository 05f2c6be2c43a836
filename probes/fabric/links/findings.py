"""Findings about links: which node, which port, which direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probes.fabric.links.watch import LinkGrowth
from probes.fabric.node_pairs import PairSearch
from probes.fabric.rails.ranks import node_of, rail_of, suspects
from probes.fabric.sweep import Stall
from probes.findings import finding, join_names, name_port
from reports.numbers import percent, quantity
from reports.record import Finding
from scaling.collectives.fault_search import FaultSearchResult, Link

# Share of packets that sound data centre networks lose (Guo et al., Pingmesh, 2015).
SOUND_LOSS = 1e-4


def find_unstable(grown: Mapping[str, LinkGrowth | None]) -> list[Finding]:
    """Make one finding per port whose link went away while the fabric was tested."""
    findings = []
    for node, one in grown.items():
        for port, count in (one.unstable if one else {}).items():
            message = (
                f"{port} of {node} changed its carrier {count} times during the test. Expected: "
                "0 (a healthy link stays up)"
            )
            findings.append(finding("FAB-LINK-FLAPS", message, [node], names=name_port(port)))
    return findings


def find_port_errors(grown: Mapping[str, LinkGrowth | None], max_share: float) -> list[Finding]:
    """Make one finding per node whose ports count more errors per packet than is allowed.

    A node whose link went away is left out: its errors come from that.
    """
    findings = []
    for node, one in grown.items():
        worst = one.errors if one else None
        if one and worst and worst.enough and worst.share > max_share and not one.unstable:
            message = (
                f"{worst.port} of {node} counts errors when it {worst.way}: {worst.errors} in "
                f"{worst.packets} packets"
            )
            findings.append(
                finding("FAB-LINK-ERRORS", message, [node], names=name_port(worst.port))
            )
    return findings


def find_loss(
    lossy: FaultSearchResult,
    lost: Mapping[Link, float | None],
    in_sweep: Mapping[str, float],
    max_lost: float,
    unstable: list[str],
) -> list[Finding]:
    """Name the nodes, else the links, that lose packets, and in which direction.

    `in_sweep` is each node's share when all nodes send at once.  It is reported only if no link
    loses as much, and no link went away meanwhile (`unstable` nodes).
    """
    bad = {link: share for link, share in lost.items() if share is not None and share > max_lost}
    if bad and len(bad) == len(lost) > 2:
        message = f"every link loses packets: {_range(bad.values())} of them"
        return [finding("FAB-LOSS", message, list(dict.fromkeys(node_of(a) for a, _ in bad)))]
    findings = []
    for node, way in lossy.slow_nodes.items():
        ends = {"sends": (0,), "receives": (1,), "both": (0, 1)}[way]
        shares = [share for link, share in bad.items() if any(link[end] == node for end in ends)]
        ways = "sends and receives" if way == "both" else way
        message = f"{node} loses {_range(shares)} of the packets that it {ways}, with every peer"
        findings.append(finding("FAB-LOSS", message, suspects([node])))
    for a, b in lossy.slow_links:
        message = f"{a} -> {b}: {_range([bad.get((a, b), 0.0)])} of the packets are lost"
        names = {"peer": node_of(b)}
        findings.append(finding("FAB-LOSS", message, suspects([a, b]), names=names))
    if not bad and not unstable:
        nodes = {node: share for node, share in in_sweep.items() if share > max_lost}
        if nodes:
            message = (
                f"{join_names(nodes)}: {_range(nodes.values())} of the packets sent are lost "
                "when all nodes send at once, and fewer when two nodes test alone"
            )
            findings.append(finding("FAB-LOSS", message, list(nodes)))
    return findings


def _range(shares: Iterable[float]) -> str:
    """Format one share, or the smallest and the largest."""
    values = [percent(share) for share in sorted(shares)]
    ends = list(dict.fromkeys((values[0], values[-1]))) if values else ["some"]
    return " to ".join(ends)


def stall_finding(stall: Stall, in_sweep: Mapping[str, float | None]) -> Finding:
    """Make the finding of a call that took far longer than others of its size.

    All ranks wait in it, so the suspects are only those that lost packets meanwhile.  `in_sweep` is
    each node's share of lost packets.
    """
    message = (
        f"an all-reduce of {stall.size} bytes took {quantity(stall.call_s, 's')} on "
        f"rank {stall.rank}. "
        f"Median: {quantity(stall.median_s, 's')}"
    )
    suspects = [node for node, share in in_sweep.items() if share and share > SOUND_LOSS]
    if suspects:
        message += f"; meanwhile packets of {join_names(suspects)} were lost"
    return finding("FAB-STALLS", message, suspects, names={"rank": stall.rank})


def find_detours(
    pairs: PairSearch,
    off: Mapping[Link, str],
    expected: Mapping[Link, str],
    routes: Mapping[Link, str],
) -> list[Finding]:
    """Name each node, or port, that sends to some others over another network.

    A node that sends nothing over the fabric is bound to another interface: another finding reports
    it.  A port that sends nothing over its own rail lacks a route.
    """
    findings = []
    for node in dict.fromkeys(sender for sender, _ in off):
        links = [link for link in pairs.sent if link[0] == node]
        bad = [link for link in links if link in off]
        if len(bad) == len(links) > 1 and not rail_of(node):
            continue
        peers, devices = (
            join_names(peer for _, peer in bad),
            join_names({off[link] for link in bad}),
        )
        message = (
            f"traffic of {node} to {peers} leaves over {devices}. Expected: {expected[bad[0]]}"
        )
        told = {routes[link] for link in bad if routes.get(link)}
        message += f". Route: {join_names(told)}" if told else ""
        names = {"peer": node_of(bad[0][1]), "interface": expected[bad[0]]}
        findings.append(finding("FAB-DETOUR", message, suspects([node]), names=names))
    return findings
