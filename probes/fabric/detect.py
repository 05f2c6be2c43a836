"""Finds causes of a slow or wrong sweep: links, rails, uplinks, networks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from probes.cluster.network_facts import UNKNOWN
from probes.environment.lint import Flag
from probes.fabric.addresses import RailRanks, least_by_nodes, node_of, suspects
from probes.fabric.node_pairs import NodeGroupsResult, PairSearch
from probes.fabric.sweep import Rows, SweepResult
from probes.findings import MAX_NAMES, describe_most, finding, join_names
from reports.groups import group_pairs
from reports.numbers import quantity
from reports.record import Finding
from scaling.collectives.fault_search import ALIKE, FaultSearchResult, Link, attribute_slow_links

WAY_TEXT = {"sends": "when it sends", "receives": "when it receives", "both": "both ways"}
MAX_WARN = 3  # doubtful settings listed in one sentence


def find_silent_ranks(silent: list[int], rank_nodes: list[str], error: str) -> list[Finding]:
    """Name the ranks whose processes do not answer after a time-out."""
    if not silent:
        return []
    places = ", ".join(f"rank {rank} on {rank_nodes[rank]}" for rank in silent)
    message = (
        f"{places}: the process does not answer at all (it hangs, is stopped or has ended), and "
        f"the other ranks wait for it. The test ended in: {error}"
    )
    names = {"rank": silent[0]}
    ends = _ranks_and_nodes(silent, rank_nodes)
    return [finding("INIT-MISSING-RANK", message, ends, names=names)]


def _ranks_and_nodes(ranks: list[int], rank_nodes: list[str]) -> list[str]:
    """List the ranks, and then their nodes, each once."""
    return [*(f"rank {rank}" for rank in ranks), *dict.fromkeys(rank_nodes[rank] for rank in ranks)]


def find_bad_settings(flags: list[Flag]) -> Iterator[Finding]:
    """Make one finding per harmful setting, and one for all doubtful settings."""
    for flag in (flag for flag in flags if flag.severity == "fail"):
        yield finding(flag.code, flag.statement, flag.nodes, names={"variable": flag.variable})
    warned = [flag for flag in flags if flag.severity == "warn"]
    if warned:
        nodes = list(dict.fromkeys(node for flag in warned for node in flag.nodes))
        message = "; ".join(flag.statement for flag in warned[:MAX_WARN])
        more = f"; {len(warned) - MAX_WARN} more in settings.json" if len(warned) > MAX_WARN else ""
        names = {"variable": warned[0].variable}
        yield finding("ENV-DOUBTFUL", message + more, nodes, names=names)


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
    message += f"; {quantity(more, 'more ranks')}" if more > 0 else ""
    if len({*rank_nodes} - {rank_nodes[rank] for rank in ranks}) == 0:
        message += ". All nodes received wrong data, so the node that made it is not known"
        return [finding("FAB-WRONG-DATA", message)]
    ends = _ranks_and_nodes(named, rank_nodes)
    return [finding("FAB-WRONG-DATA", message, ends, names={"rank": named[0]})]


def find_wrong_nodes(rows: Rows, search: FaultSearchResult, rank_nodes: list[str]) -> list[Finding]:
    """Name the nodes whose every all-reduce is wrong, else the pairs, else the receivers.

    `search` is that of all-reduces over two nodes at a time, with speed 0 where one was wrong.
    """
    if search.slow_nodes:
        return [
            finding("FAB-WRONG-DATA", f"all-reduces with {node} return wrong data", [node])
            for node in search.slow_nodes
        ]
    links = {(min(link), max(link)) for link in search.slow_links}
    if links:
        text = "an all-reduce between {} and {} returns wrong data"
        return [
            finding("FAB-WRONG-DATA", text.format(a, b), [a, b], names={"peer": b})
            for a, b in sorted(links)
        ]
    return wrong_data(rows, rank_nodes)


def find_wrong_links(wrong: dict[Link, int]) -> Iterator[Finding]:
    """Name the node that changes what it sends or receives, else the links that do."""
    bad = [link for link, count in wrong.items() if count]
    nodes = {node_of(port) for link in wrong for port in link}
    ends, more = attribute_slow_links(bad, wrong, len(nodes))
    for node, way in ends:
        links = [link for link in bad if node == link[way == "receives"]]
        message = f"data that {node} {way} arrives corrupted: {sum(wrong[link] for link in links)} "
        message += f"wrong elements over {len(links)} links"
        yield finding("FAB-WRONG-LINK", message, suspects([node]))
    for a, b in more:
        message = f"data from {a} to {b} is corrupted: {quantity(wrong[a, b], 'wrong elements')}"
        yield finding("FAB-WRONG-LINK", message, suspects([a, b]), names={"peer": node_of(b)})


def log_findings(findings: list[Finding], fabric: str | None) -> list[Finding]:
    """Select the findings of NCCL's log; where TCP is the agreed fabric, TCP is no fault."""
    prefixes = ("INIT-", "NCCL-", "FAB-ALONE", "FAB-LOOPBACK")
    return [item for item in findings if fabric == "rdma" or item.code.startswith(prefixes)]


def find_off_fabric(
    run: SweepResult, fabric: str | None, detours: Collection[str] = ()
) -> Iterator[Finding]:
    """Name nodes whose bytes took another device than the agreed fabric.

    Nodes with `detours` send to only some peers over another device: another finding reports them.
    """
    off_fabric = {
        node: device
        for node, device in run.main_devices.items()
        if device not in (fabric, UNKNOWN) and node not in detours
    }
    if fabric and off_fabric:
        devices = ", ".join(sorted(set(off_fabric.values())))
        message = f"gradient traffic of {', '.join(off_fabric)} used {devices}. Expected: {fabric}"
        names = {"interface": fabric}
        yield finding("FAB-WRONG-INTERFACE", message, list(off_fabric), names=names)


def find_slow_groups(result: NodeGroupsResult, pairs: FaultSearchResult) -> Iterator[Finding]:
    """Name nodes whose groups are slow but not their pairs, and groups that no node explains.

    Nodes that are slow in pairs have a finding already.
    """
    slow = [*pairs.slow_nodes, *(port for link in pairs.slow_links for port in link)]
    blamed = {*map(node_of, slow)}
    for node in (node for node in result.nodes if node not in blamed):
        message = f"every group of nodes with {node} is slow, though every pair with {node} is fast"
        yield finding("FAB-SLOW-GROUP", message, [node])
    for group in result.groups:
        if blamed.isdisjoint(group):
            message = f"{', '.join(group)} are slow in one group together, and fast in other groups"
            yield finding("FAB-SLOW-GROUP", message, group)
    wrong = {node: count for node, count in result.wrong.items() if count}
    if wrong:
        message = "all-reduce in groups of nodes returned "
        message += f"{quantity(sum(wrong.values()), 'wrong elements')}, on {join_names(wrong)}"
        yield finding("FAB-WRONG-DATA", message, list(wrong)[:MAX_NAMES])


def find_slow_links(pairs: FaultSearchResult, when: str = "") -> list[Finding]:
    """Name each node, port or link that is slow, and in which direction.

    If most are slow and no node is proven good, one finding names them all.  `when` is appended to
    the message.
    """
    slow, findings = pairs.slow_links, []
    best = max(pairs.speeds, key=lambda link: pairs.speeds[link], default=("", ""))
    is_fast = pairs.speeds.get(best, 0.0) >= pairs.limit > 0
    if is_fast and not pairs.slow_nodes and 2 * len(slow) > len(pairs.speeds):
        guilty, rest = attribute_slow_links(slow, pairs.speeds, len({*chain(*pairs.speeds)}))
        ends = [*(" ".join(end) for end in guilty), *map(" -> ".join, rest)]
        nodes = [node_of(port) for port, _ in [*guilty, *rest]]
        most = quantity(max(pairs.speeds[link] for link in slow), "GB/s")
        possible = quantity(pairs.speeds[best], "GB/s")
        part = f"{len(slow)} of {len(pairs.speeds)} links"
        text = describe_most(ends, part, most, " -> ".join(best), possible)
        message = f"links{when}: {text}"
        return [finding("FAB-SLOW-LINK", message, [*dict.fromkeys(nodes)][:MAX_NAMES])]
    for node, way in pairs.slow_nodes.items():
        links = {ends: gbs for ends, gbs in pairs.speeds.items() if node in _link_ends(ends, way)}
        least, typical = quantity(min(links.values()), "GB/s"), quantity(pairs.typical, "GB/s")
        message = f"the links of {node} are slow {WAY_TEXT[way]}{when}: {least}. Others: {typical}"
        findings.append(finding("FAB-SLOW-LINK", message, suspects([node])))
    for a, b in pairs.slow_links:
        if (b, a) in pairs.slow_links and (b, a) < (a, b):
            continue  # reported once, for both directions
        arrow = "<->" if (b, a) in pairs.slow_links else "->"
        slowest = min(pairs.speeds[link] for link in ((a, b), (b, a)) if link in pairs.slow_links)
        speeds = f"{quantity(slowest, 'GB/s')}. Others: {quantity(pairs.typical, 'GB/s')}"
        message = f"the link {a} {arrow} {b} is slow{when}: {speeds}"
        names = {"peer": node_of(b)}
        findings.append(finding("FAB-SLOW-LINK", message, suspects([a, b]), names=names))
    return findings


def slow_fabric_finding(run: SweepResult) -> Finding:
    """Report that the complete fabric is slow: neither pairs nor groups show where."""
    speed = quantity(run.plateau["busbw"], "GB/s")
    message = f"all-reduce over {len(run.sent)} nodes reaches only {speed}"
    return finding("FAB-SLOW", message, list(run.sent))


def _link_ends(link: Link, way: str) -> list[str]:
    """List the nodes that could make a link slow, given the direction in which they are slow."""
    return {"sends": [link[0]], "receives": [link[1]]}.get(way, list(link))


AT_ONCE = " with all rails at once"


def find_slow_ports(
    found: FaultSearchResult, rails: Sequence[RailRanks], when: str = ""
) -> list[Finding]:
    """Name each rail, node, port or link that is slow, and in which direction.

    A rail is named if every link of it is slow and some other rail is sound.  A node is named if
    all its ports are slow in the same direction.  `when` is appended to the message.
    """
    findings, rest = [], found
    blamed = {*found.slow_nodes, *(port for link in found.slow_links for port in link)}
    blamed_rails = [rail for rail in rails if not blamed.isdisjoint(rail.ports)]
    slow_rails = [rail for rail in blamed_rails if is_slow_everywhere(rail, found)]
    if len(slow_rails) < len(rails):
        for rail in slow_rails:
            links = [speed for (a, _), speed in found.speeds.items() if a in rail.ports]
            message = f"{rail.name} is slow on every node{when}: {quantity(min(links), 'GB/s')}"
            message += f". Other rails: {quantity(found.typical, 'GB/s')}"
            nodes, names = [*map(node_of, rail.ports)], {"interface": rail.name}
            findings.append(finding("FAB-SLOW-LINK", message, nodes, names=names))
            rest = without_ports(rest, rail.ports)
    for node, way in slow_nodes(rest, rails).items():
        # The node is one, and only it is slow.
        as_node = replace(rest, slow_nodes={node: way}, slow_links=[])
        findings += find_slow_links(replace(as_node, speeds=least_by_nodes(rest.speeds)), when)
        rest = without_ports(rest, [port for port in rest.slow_nodes if node_of(port) == node])
    return findings + find_slow_links(rest, when)


def find_shared_rails(at_once: FaultSearchResult, pairs: PairSearch) -> Finding:
    """Report that all rails are slow when they send at once: nodes share what feeds them."""
    message = f"{len(pairs.rails)} rails of each node send at once and reach "
    message += f"{quantity(at_once.typical, 'GB/s')} each. "
    message += f"One rail alone: {quantity(pairs.one_rail, 'GB/s')}"
    return finding("FAB-RAILS-SHARED", message, [*map(node_of, pairs.rails[0].ports)])


def is_slow_everywhere(rail: RailRanks, found: FaultSearchResult) -> bool:
    """Return whether every measured link of a rail is slow."""
    speeds = [speed for (sender, _), speed in found.speeds.items() if sender in rail.ports]
    return bool(speeds) and max(speeds) < found.limit


def slow_nodes(found: FaultSearchResult, rails: Sequence[RailRanks]) -> dict[str, str]:
    """Return the nodes whose ports are all slow in the same direction, with that direction."""
    by_node = group_pairs((node_of(port), way) for port, way in found.slow_nodes.items())
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


def only_at_once(at_once: FaultSearchResult, *others: FaultSearchResult) -> FaultSearchResult:
    """Return what is slow only when all rails send at once; what `others` name is left out.

    NCCL ends both directions of a pair together, so a link that is slow alone slows both.
    """
    for found in others:
        links = [*found.slow_links, *(link[::-1] for link in found.slow_links)]
        at_once = without_links(without_ports(at_once, found.slow_nodes), links)
    return at_once


MIN_CROWD = 2  # pairs that must be slow together before their common path is blamed
MOST_ALONE = 0.8  # of pairs tried alone: as many of a node's links are slow before it is blamed


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


def without_uplinks(
    lossy: FaultSearchResult, found: FaultSearchResult, alone: Mapping[Link, float]
) -> FaultSearchResult:
    """Return the search for lossy links without those over a slow or crowded uplink of `found`.

    The queues of such an uplink are full, so it loses packets as well.
    """
    between = links_between(find_leaves(found), lossy.slow_links)
    return without_links(lossy, [*between, *crowded_links(found, alone)])


def without_links(found: FaultSearchResult, links: Sequence[Link]) -> FaultSearchResult:
    """Return the search without these slow links."""
    explained = {*links}
    return replace(found, slow_links=[link for link in found.slow_links if link not in explained])


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


def find_crowd(
    found: FaultSearchResult, alone: Mapping[Link, float]
) -> tuple[list[Finding], FaultSearchResult]:
    """Name a crowded uplink, if there is one; return the search without the links it explains."""
    crowded = crowded_links(found, alone)
    findings = [crowd_finding(found, alone, crowded)] if crowded else []
    return findings, without_links(found, crowded)


def crowded_links(found: FaultSearchResult, alone: Mapping[Link, float]) -> list[Link]:
    """List slow links that are fast when no other pair sends: what they share is full.

    If most that were measured alone are fast, those that were not count as crowded, and so do those
    that were faster alone: one try may be slow by chance.
    """
    fast = {link for link in found.slow_links if alone.get(link, 0.0) >= found.limit}
    crowded, tried = fast, [link for link in found.slow_links if link in alone]
    if len(fast) >= MOST_ALONE * len(tried):
        as_slow = {link for link in tried if alone[link] * ALIKE <= found.speeds[link]}
        crowded = {*found.slow_links} - (as_slow - fast)
    pairs = {frozenset(map(node_of, link)) for link in fast}
    return [link for link in found.slow_links if link in crowded] if len(pairs) >= MIN_CROWD else []


def crowd_finding(
    found: FaultSearchResult, alone: Mapping[Link, float], links: Sequence[Link]
) -> Finding:
    """Name the pairs of nodes that are slow together and fast alone.

    If both ends of the pairs are nodes in a row, the two groups are named, as `n0 to n31`.
    """
    pairs = list(dict.fromkeys(tuple(sorted(map(node_of, link), key=by_number)) for link in links))
    together = quantity(min(found.speeds[link] for link in links), "GB/s")
    single = quantity(min(alone[link] for link in links if link in alone), "GB/s")
    message = f"{len(pairs)} pairs of nodes are slow when they send at once: {together}. "
    message += f"One pair alone: {single}. "
    everyone = sorted({*map(node_of, chain(*found.speeds))}, key=by_number)
    ends = [sorted({*end}, key=by_number) for end in zip(*pairs, strict=True)]
    groups = [name_runs(end, everyone) for end in ends]
    if len(pairs) > MAX_NAMES >= sum(map(len, groups)):
        message += "Groups, one at each end: " + "; ".join(map(", ".join, groups))
        return finding("FAB-SLOW-UPLINK", message, [*chain(*groups)], names={"node": ends[0][0]})
    message += f"Pairs: {join_names(f'{a} and {b}' for a, b in pairs)}"
    return finding("FAB-SLOW-UPLINK", message, sorted({*chain(*pairs)}, key=by_number))


def name_runs(nodes: Iterable[str], everyone: Sequence[str]) -> list[str]:
    """Name nodes, three in a row and more as `n0 to n31`; both are in order."""
    places = {node: place for place, node in enumerate(everyone)}
    runs = group_pairs((places[node] - at, node) for at, node in enumerate(nodes)).values()
    named = ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run for run in runs)
    return [*chain.from_iterable(named)]
