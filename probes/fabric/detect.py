"""Finds the causes of a failed FABRIC: pure functions from measurements to findings."""

from __future__ import annotations

from collections.abc import Collection

from probes.cluster.byte_counters import UNKNOWN
from probes.environment.lint import Flag
from probes.fabric.node_pairs import NodeGroupsResult
from probes.fabric.rails.ranks import node_of, suspects
from probes.fabric.sweep import Rows, SweepResult
from probes.findings import MAX_NAMES, finding, join_names
from reports.numbers import quantity
from reports.record import Finding
from scaling.collectives.fault_search import FaultSearchResult, Link, attribute_slow_links

WAY_TEXT = {"sends": "when it sends", "receives": "when it receives", "both": "both ways"}
MAX_WARN = 3  # doubtful settings listed in one sentence


def find_silent_ranks(silent: list[int], rank_nodes: list[str], error: str) -> list[Finding]:
    """Name the ranks whose processes do not answer after a time-out."""
    if not silent:
        return []
    places = ", ".join(f"rank {rank} on {rank_nodes[rank]}" for rank in silent)
    message = f"{places}: the process does not answer, and the others wait for it ({error})"
    names = {"rank": silent[0]}
    ends = _ranks_and_nodes(silent, rank_nodes)
    return [finding("INIT-MISSING-RANK", message, ends, names=names)]


def _ranks_and_nodes(ranks: list[int], rank_nodes: list[str]) -> list[str]:
    """List the ranks, and then their nodes, each once."""
    return [*(f"rank {rank}" for rank in ranks), *dict.fromkeys(rank_nodes[rank] for rank in ranks)]


def find_bad_settings(flags: list[Flag]) -> list[Finding]:
    """Make one finding per harmful setting, and one for all doubtful settings."""
    findings = [
        finding(flag.code, flag.statement, flag.nodes, names={"variable": flag.variable})
        for flag in flags
        if flag.severity == "fail"
    ]
    warned = [flag for flag in flags if flag.severity == "warn"]
    if warned:
        nodes = list(dict.fromkeys(node for flag in warned for node in flag.nodes))
        message = "; ".join(flag.statement for flag in warned[:MAX_WARN])
        more = f"; {len(warned) - MAX_WARN} more in settings.json" if len(warned) > MAX_WARN else ""
        names = {"variable": warned[0].variable}
        findings.append(finding("ENV-DOUBTFUL", message + more, nodes, names=names))
    return findings


def wrong_data(rows: Rows, rank_nodes: list[str]) -> list[Finding]:
    """Report which ranks received wrong elements, and the first offsets.

    If all nodes received them, their source is not known and no node is a suspect.
    """
    offsets: dict[int, str] = {}
    for row in rows:
        for rank, offset in row["first_wrong"]:
            offsets.setdefault(rank, f"element {offset} of {row['elements']}")
    if not offsets:
        return []
    ranks = sorted(offsets)
    named, more = ranks[:MAX_NAMES], len(ranks) - MAX_NAMES
    message = "; ".join(
        f"rank {rank} on {rank_nodes[rank]} received a wrong {offsets[rank]}" for rank in named
    )
    message += f"; {more} more ranks" if more > 0 else ""
    if len({*rank_nodes} - {rank_nodes[rank] for rank in ranks}) == 0:
        message += ". The source is unknown: all nodes received it"
        return [finding("FAB-WRONG-DATA", message)]
    ends = _ranks_and_nodes(named, rank_nodes)
    return [finding("FAB-WRONG-DATA", message, ends, names={"rank": named[0]})]


def find_wrong_nodes(rows: Rows, search: FaultSearchResult, rank_nodes: list[str]) -> list[Finding]:
    """Name the nodes whose every all-reduce is wrong, else the pairs, else the receivers.

    `search` is that of all-reduces over two nodes at a time, with speed 0 where one was wrong.
    """
    if search.slow_nodes:
        return [
            finding("FAB-WRONG-DATA", f"every all-reduce with {node} is wrong", [node])
            for node in search.slow_nodes
        ]
    links = {(min(link), max(link)) for link in search.slow_links}
    if links:
        return [
            finding(
                "FAB-WRONG-DATA",
                f"an all-reduce between {a} and {b} is wrong",
                [a, b],
                names={"peer": b},
            )
            for a, b in sorted(links)
        ]
    return wrong_data(rows, rank_nodes)


def find_wrong_links(wrong: dict[Link, int]) -> list[Finding]:
    """Name the node that changes what it sends or receives, else the links that do."""
    bad = [link for link, count in wrong.items() if count]
    nodes = {node_of(port) for link in wrong for port in link}
    ends, more = attribute_slow_links(bad, wrong, len(nodes))
    findings = []
    for node, way in ends:
        links = [link for link in bad if node == link[way == "receives"]]
        message = f"data that {node} {way} arrives changed: {sum(wrong[link] for link in links)} "
        message += f"wrong elements over {len(links)} links"
        findings.append(finding("FAB-WRONG-LINK", message, suspects([node])))
    for a, b in more:
        message = f"data from {a} to {b} arrives changed: {wrong[a, b]} wrong elements"
        names = {"peer": node_of(b)}
        findings.append(finding("FAB-WRONG-LINK", message, suspects([a, b]), names=names))
    return findings


def log_findings(findings: list[Finding], fabric: str | None) -> list[Finding]:
    """Select the findings of NCCL's log; where TCP is the agreed fabric, TCP is no fault."""
    prefixes = ("INIT-", "NCCL-", "FAB-ALONE", "FAB-LOOPBACK")
    return [item for item in findings if fabric == "rdma" or item.code.startswith(prefixes)]


def find_off_fabric(
    run: SweepResult, fabric: str | None, detours: Collection[str] = ()
) -> list[Finding]:
    """Name nodes whose bytes took another device than the agreed fabric.

    Nodes with `detours` send to only some peers over another device: another finding reports them.
    """
    if fabric is None:
        return []
    off_fabric = {
        node: device
        for node, device in run.main_devices.items()
        if device not in (fabric, UNKNOWN) and node not in detours
    }
    if not off_fabric:
        return []
    devices = ", ".join(sorted(set(off_fabric.values())))
    message = f"gradient traffic of {', '.join(off_fabric)} used {devices}. Expected: {fabric}"
    names = {"interface": fabric}
    return [finding("FAB-WRONG-INTERFACE", message, list(off_fabric), names=names)]


def find_slow_groups(result: NodeGroupsResult, pairs: FaultSearchResult) -> list[Finding]:
    """Name nodes whose groups are slow but not their pairs, and groups that no node explains.

    Nodes that are slow in pairs have a finding already.
    """
    slow = [*pairs.slow_nodes, *(port for link in pairs.slow_links for port in link)]
    blamed = {*map(node_of, slow)}
    findings = []
    for node in (node for node in result.nodes if node not in blamed):
        message = f"every group with {node} is slow, and pairwise tests of {node} are normal"
        findings.append(finding("FAB-SLOW-GROUP", message, [node]))
    for group in result.groups:
        if blamed.isdisjoint(group):
            message = f"{', '.join(group)} are slow together, and normal in other groups"
            findings.append(finding("FAB-SLOW-GROUP", message, group))
    wrong = {node: count for node, count in result.wrong.items() if count}
    if wrong:
        message = (
            f"in groups of nodes {sum(wrong.values())} elements were wrong, on {join_names(wrong)}"
        )
        findings.append(finding("FAB-WRONG-DATA", message, list(wrong)[:MAX_NAMES]))
    return findings


def find_slow_links(pairs: FaultSearchResult, when: str = "") -> list[Finding]:
    """Name each node, port or link that is slow, and in which direction.

    `when` is appended to the message.
    """
    findings = []
    for node, way in pairs.slow_nodes.items():
        links = {ends: gbs for ends, gbs in pairs.speeds.items() if node in _link_ends(ends, way)}
        message = (
            f"every link of {node} is slow {WAY_TEXT[way]}{when}: "
            f"{quantity(min(links.values()), 'GB/s')}. "
            f"Others: {quantity(pairs.typical, 'GB/s')}"
        )
        findings.append(finding("FAB-SLOW-LINK", message, suspects([node])))
    for a, b in pairs.slow_links:
        if (b, a) in pairs.slow_links and (b, a) < (a, b):
            continue  # reported once, for both directions
        arrow = "<->" if (b, a) in pairs.slow_links else "->"
        slowest = min(pairs.speeds[link] for link in ((a, b), (b, a)) if link in pairs.slow_links)
        speeds = f"{quantity(slowest, 'GB/s')}. Others: {quantity(pairs.typical, 'GB/s')}"
        message = f"{a} {arrow} {b}{when}: {speeds}"
        names = {"peer": node_of(b)}
        findings.append(finding("FAB-SLOW-LINK", message, suspects([a, b]), names=names))
    return findings


def slow_fabric_finding(run: SweepResult) -> Finding:
    """Report that the complete fabric is slow: neither pairs nor groups show where."""
    speed = quantity(run.plateau["busbw"], "GB/s")
    message = f"all-reduce over {len(run.sent)} nodes gives {speed}"
    return finding("FAB-SLOW", message, list(run.sent))


def _link_ends(link: Link, way: str) -> list[str]:
    """List the nodes that could make a link slow, given the direction in which they are slow."""
    return {"sends": [link[0]], "receives": [link[1]]}.get(way, list(link))
