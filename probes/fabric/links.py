"""Watches the links while they carry data, judges errors, and explains them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from probes.check.judging import judge_or_explain
from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import RDMA, UNKNOWN, interfaces_of, main_device
from probes.fabric import criterion as check
from probes.fabric import detect
from probes.fabric import link_counters as counters
from probes.fabric.addresses import node_of, rail_of, suspects
from probes.fabric.node_pairs import PairSearch
from probes.fabric.sweep import SweepResult, highest
from probes.findings import MAX_NAMES, finding, join_names, name_port
from reports.measurement import title_of
from reports.numbers import percent, quantity
from reports.record import Finding
from scaling.collectives.fault_search import FaultSearchResult, Link

MIN_PACKETS = 10_000  # with so many, one error is a share of 1e-4, the shipped limit
Ports = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class PortErrors:
    """Errors and packets of one direction of a node's fabric ports; `port` is the worst."""

    way: str
    port: str
    errors: int
    packets: int

    @property
    def enough(self) -> bool:
        """Whether so many packets were seen that one error alone does not break the limit."""
        return max(self.packets, self.errors) >= MIN_PACKETS

    @property
    def share(self) -> float:
        """Errors per packet; 0 if neither was counted."""
        return self.errors / max(self.packets, self.errors, 1)


@dataclass(frozen=True)
class LinkGrowth:
    """Counts of one node's fabric ports between two readings.

    `changes` is by port, None if a port does not count them.  `errors` is the worst direction, None
    if no port counts them.  `evidence` is all that was read.
    """

    changes: dict[str, int | None]
    errors: PortErrors | None
    evidence: dict[str, Any]

    @property
    def unstable(self) -> dict[str, int]:
        """Ports whose link went away, and how often it changed."""
        return {port: count for port, count in self.changes.items() if count}


class LinkWatch:
    """Counters of the links of all nodes since this was made.

    A node that does not answer is unknown.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.before = self._read()

    def _read(self, doctored: str = "") -> dict[str, dict[str, Any]]:
        names = self.cluster.node_names
        each = {id: name == doctored for id, name in names.items()}
        found = self.cluster.on_each_node(read_all, each=each)
        return {names[id]: one for id, one in found.items()}

    def growth(self, fabric: Mapping[str, str], doctored: str = "") -> dict[str, LinkGrowth | None]:
        """Compute what each node's links counted since; None for a node that did not answer.

        `fabric` names each node's fabric, an interface or `rdma`.  The node named `doctored` (for a
        control) reports more than its links counted.
        """
        after = self._read(doctored)
        return {
            node: node_growth(self.before[node], after[node], device)
            if node in self.before and node in after
            else None
            for node, device in fabric.items()
        }


def read_all(doctored: bool = False) -> dict[str, Any]:
    """Read the counters of this node's ports, and TCP's.

    If `doctored`, each port reports two more carrier changes, and errors in 1 % of all packets.
    """
    ports = counters.read_ports()
    for port in ports.values() if doctored else ():
        if port["changes"] is not None:
            port["changes"] += 2
        for way, count in port["errors"].items():
            if count is not None:
                port["errors"][way] = count + 1 + (port["packets"][way] or 0) // 100
    return {"ports": ports, "tcp": counters.read_tcp_counters()}


def node_growth(
    before: Mapping[str, Any], after: Mapping[str, Any], fabric: str
) -> LinkGrowth | None:
    """Compute what the ports of a node's fabric counted between two readings; None without one."""
    names = fabric_ports(before["ports"], fabric)
    if not names:
        return None
    grown = counters.counter_difference(before["ports"], after["ports"])
    ports = {name: grown.get(name) or {} for name in names}
    changes = {name: port.get("changes") for name, port in ports.items()}
    for name in names:  # RoCE: its interface counts changes that such a port does not count
        below = before["ports"][name]["lower"]
        if changes[name] is None and any(changes.get(port) is not None for port in below):
            del changes[name]
    evidence = {"ports": ports, "tcp": counters.counter_difference(before["tcp"], after["tcp"])}
    # An interface below RDMA counts the errors of RDMA's packets, but not these packets.
    rdma = [name for name in names if "/" in name]
    groups = [_with_lower(before["ports"], [one]) for one in rdma] or [[name] for name in names]
    each = [{name: ports[name] for name in group} for group in groups]
    return LinkGrowth(changes, worst_errors(ports, each), evidence)


def fabric_ports(ports: Ports, fabric: str) -> list[str]:
    """List the ports of a fabric: its interfaces, or all of RDMA, and the interfaces below."""
    rdma = [name for name in ports if "/" in name] if fabric == RDMA else []
    return _with_lower(ports, [*rdma, *interfaces_of(fabric)])


def _with_lower(ports: Ports, queue: list[str]) -> list[str]:
    """List ports and the interfaces below them."""
    found: dict[str, None] = {}
    while queue:
        name = queue.pop(0)
        if name in ports and name not in found:
            found[name] = None
            queue += ports[name]["lower"]
    return list(found)


def worst_errors(ports: Ports, each: Sequence[Ports] = ()) -> PortErrors | None:
    """Find the port and direction with the largest share of errors; None if no port counts any.

    Ports of `each` that carried enough are judged by themselves; all together count as well.
    """
    alone = [found for one in each for found in _count_errors(one) if found.enough]
    return max([*_count_errors(ports), *alone], key=lambda one: one.share, default=None)


def _count_errors(ports: Ports) -> Iterator[PortErrors]:
    """Add up the errors of ports by direction.

    EFA counts no errors of what it sends: it counts lost packets as resent.
    """
    for way in counters.WAYS:
        errors = {name: (port.get("errors") or {}).get(way) for name, port in ports.items()}
        packets = [(port.get("packets") or {}).get(way) for port in ports.values()]
        known = {name: count for name, count in errors.items() if count is not None}
        if known and any(count is not None for count in packets):
            worst = max(known, key=lambda name: known[name])
            total = sum(count for count in packets if count is not None)
            yield PortErrors(way, worst, sum(known.values()), total)


UNCOUNTED = "no counter shows how many packets were lost"
# EFA: retrans_pkts and unresponsive_remote_events came with efa 2.17.0 (amzn-drivers, release
# notes) and Linux 6.17.  Kernel, drivers/infiniband/core/sysfs.c: a device that another network
# namespace shares has neither counters/ nor hw_counters/.
COUNTED_BY = (
    ". EFA counts them from driver 2.17.0 on, other RDMA ports in hw_counters/ and counters/. A "
    "virtual function may have neither: they are on its physical function, on the host. A pod with "
    "its own network sees neither, unless the host has `rdma system set netns exclusive`. If "
    "nothing can count them here, agree on that for the next run: [FABRIC.{}] not_countable"
)


def find_unstable(grown: Mapping[str, LinkGrowth | None]) -> Iterator[Finding]:
    """Make one finding per port whose link went away while the fabric was tested."""
    for node, one in grown.items():
        for port, count in (one.unstable if one else {}).items():
            message = f"{port} of {node} went down or up {quantity(count, 'times')} during "
            message += "the test. Expected: 0 (a healthy link stays up)"
            yield finding("FAB-LINK-FLAPS", message, [node], names=name_port(port))


def find_port_errors(grown: Mapping[str, LinkGrowth | None], max_share: float) -> Iterator[Finding]:
    """Make one finding per node whose ports count more errors per packet than is allowed.

    A node whose link went away is left out: its errors come from that.
    """
    for node, one in grown.items():
        worst = one.errors if one else None
        if one and worst and worst.enough and worst.share > max_share and not one.unstable:
            message = f"{worst.port} of {node} counts errors when it {worst.way}: "
            message += f"{worst.errors} in {worst.packets} packets"
            yield finding("FAB-LINK-ERRORS", message, [node], names=name_port(worst.port))


def find_loss(
    lossy: FaultSearchResult,
    lost: Mapping[Link, float | None],
    in_sweep: Mapping[str, float | None],
    max_lost: float,
    unstable: list[str],
) -> list[Finding]:
    """Name the nodes, else the links, that lose packets, and in which direction.

    `in_sweep` is each node's share when all nodes send at once.  It is reported only if no link
    loses as much, and no link went away meanwhile (`unstable` nodes).
    """
    bad = {link: share for link, share in lost.items() if share is not None and share > max_lost}
    if bad and len(bad) == len(lost) > 2:
        message = f"packets lost on every link: {_range(bad.values())}. Expected: at most "
        return [finding("FAB-LOSS-ALL", f"{message}{100 * max_lost:g} %")]
    findings = []
    for node, way in lossy.slow_nodes.items():
        ends = {"sends": (0,), "receives": (1,), "both": (0, 1)}[way]
        shares = [share for link, share in bad.items() if any(link[end] == node for end in ends)]
        ways = "sends and receives" if way == "both" else way
        message = f"{node} loses {_range(shares)} of the packets that it {ways}"
        findings.append(finding("FAB-LOSS", message, suspects([node])))
    if len(lossy.slow_links) > MAX_NAMES:
        message = f"{len(lossy.slow_links)} links between nodes lose {_range(bad.values())} of the "
        message += f"packets: {join_names(map(' -> '.join, lossy.slow_links))}"
        named = suspects(map(node_of, chain(*lossy.slow_links)))
        return [*findings, finding("FAB-LOSS", message, named[:MAX_NAMES])]
    for a, b in lossy.slow_links:
        message = f"{a} -> {b}: {_range([bad.get((a, b), 0.0)])} of the packets are lost"
        names = {"peer": node_of(b)}
        findings.append(finding("FAB-LOSS", message, suspects([a, b]), names=names))
    if not bad and not unstable:
        nodes = {node: share for node, share in in_sweep.items() if share and share > max_lost}
        if nodes:
            everywhere = len(nodes) == len(in_sweep) > 2
            where = "every node" if everywhere else join_names(nodes)
            message = f"{where}: {_range(nodes.values())} of the sent packets are lost "
            message += "while all nodes send at once, but fewer while only two nodes send"
            code, named = ("FAB-LOSS-ALL", []) if everywhere else ("FAB-LOSS", [*nodes])
            findings.append(finding(code, message, named))
    return findings


def _range(shares: Iterable[float]) -> str:
    """Format one share, or the smallest and the largest."""
    values = [percent(share) for share in sorted(shares)]
    ends = list(dict.fromkeys((values[0], values[-1]))) if values else ["some"]
    return " to ".join(ends)


def find_detours(
    pairs: PairSearch,
    off: Mapping[Link, str],
    expected: Mapping[Link, str],
    routes: Mapping[Link, str],
) -> Iterator[Finding]:
    """Name each node, or port, that sends to some others over another network.

    A node that sends nothing over the fabric is bound to another interface: another finding reports
    it.  A port that sends nothing over its own rail lacks a route.
    """
    for node in dict.fromkeys(sender for sender, _ in off):
        links = [link for link in pairs.sent if link[0] == node]
        bad = [link for link in links if link in off]
        if len(bad) == len(links) > 1 and not rail_of(node):
            continue
        peers, device = join_names(peer for _, peer in bad), expected[bad[0]]
        message = f"traffic of {node} to {peers} leaves over "
        message += f"{join_names({off[link] for link in bad})}. Expected: {device}"
        used = {routes[link] for link in bad if routes.get(link)}
        message += f". Route: {join_names(used)}" if used else ""
        names = {"peer": node_of(bad[0][1]), "interface": device}
        yield finding("FAB-DETOUR", message, suspects([node]), names=names)


def judge_ports(
    grown: Mapping[str, LinkGrowth | None], fabric: Mapping[str, str], measure: Recorder
) -> list[str]:
    """Judge what each node's fabric ports counted; return the nodes whose link went away."""
    evidence = {node: one.evidence if one else None for node, one in grown.items()}
    caption = "counters of each node's links and of its TCP during the test"
    measure.keep("links.json", evidence, caption=caption)
    _judge_changes(grown, fabric, measure)
    _judge_errors(grown, fabric, measure)
    max_errors = highest(measure, check.INTERFACE_ERRORS)
    measure.explain(find_unstable(grown), find_port_errors(grown, max_errors))
    return [node for node, one in grown.items() if one and one.unstable]


def is_left_out(measure: Recorder, name: str) -> bool:
    """Return whether the contract says that nothing counts a measure, and nothing did so far."""
    agreed = f"{measure.criterion}.{name}" in measure.contract.not_countable
    return agreed and not measure.has_measured(name)


def leave_out(measure: Recorder, name: str, values: Mapping[str, float | None]) -> bool:
    """Return the same, by what each place counts; if one does, say that it is judged."""
    if not is_left_out(measure, name):
        return False
    counted = next((where for where, value in values.items() if value is not None), "")
    if counted:
        text = f"the contract says that nothing counts {title_of(name)}. But {counted} counts them"
        measure.covered(f"{text}, so all were judged. Remove not_countable from the contract")
    return not counted


def record_worst(
    measure: Recorder, name: str, values: Mapping[str, float | None], unknown_note: str
) -> None:
    """Record the first place without a value, and the largest of the known values.

    `unknown_note` may hold {} for the number of places without a value.
    """
    unknown = [where for where, value in values.items() if value is None]
    if unknown:
        measure(name, None, on=unknown[0], note=unknown_note.format(len(unknown)))
    known = {where: value for where, value in values.items() if value is not None}
    if known:
        worst, value = max(known.items(), key=lambda item: item[1])
        measure(name, value, on=worst, samples=len(known))


def _judge_changes(
    grown: Mapping[str, LinkGrowth | None], fabric: Mapping[str, str], measure: Recorder
) -> None:
    counts: dict[str, int | None] = {}
    for node, one in grown.items():
        changes = one.changes if one else {fabric[node]: None}
        counts |= {f"{node} {port}": count for port, count in changes.items()}
    note = "ports without a count of link changes: {}"
    if RDMA in fabric.values():
        note += COUNTED_BY.format(check.LINK_CHANGES)
    if not leave_out(measure, check.LINK_CHANGES, counts):
        record_worst(measure, check.LINK_CHANGES, counts, note)


def _judge_errors(
    grown: Mapping[str, LinkGrowth | None], fabric: Mapping[str, str], measure: Recorder
) -> None:
    known = {node: one.errors for node, one in grown.items() if one and one.errors}
    unknown = [f"{node} {fabric[node]}" for node in grown if node not in known]
    if unknown:
        measure(check.INTERFACE_ERRORS, None, on=unknown[0], note="its error counts are unknown")
    for enough in (True, False):
        some = {node: one for node, one in known.items() if one.enough is enough}
        if not some:
            continue
        node, worst = max(some.items(), key=lambda item: item[1].share)
        on = f"{node} {worst.port}, when it {worst.way}"
        errors = quantity(worst.errors, "errors")
        few = f"{errors} in {worst.packets} packets: a rate needs {MIN_PACKETS} packets"
        value, note = (worst.share, "") if enough else (None, few)
        measure(check.INTERFACE_ERRORS, value, on=on, samples=len(some), note=note)


def judge_loss(
    run: SweepResult, pairs: PairSearch, max_lost: float, unstable: list[str], measure: Recorder
) -> None:
    """Judge the packets lost between two nodes, and by each node in the all-reduce.

    A link that went away (`unstable` nodes) also loses packets: its own finding reports that.
    """
    in_sweep = run.lost_shares
    shares = {f"{node} in the all-reduce": share for node, share in in_sweep.items()}
    links = name_links(pairs.lost)
    if not leave_out(measure, check.LOST_PACKETS, {**links, **shares}):
        note = UNCOUNTED
        if RDMA in run.main_devices.values():
            note += COUNTED_BY.format(check.LOST_PACKETS)
        record_worst(measure, check.LOST_PACKETS, links, note)
        record_worst(measure, check.LOST_PACKETS, shares, note)
    measure.explain(find_loss(lossy_alone(pairs), pairs.lost, in_sweep, max_lost, unstable))


def lossy_alone(pairs: PairSearch) -> FaultSearchResult:
    """Return the search for lossy links without those that an uplink explains."""
    return detect.without_uplinks(pairs.lossy, pairs.speed, pairs.alone)


def name_links(lost: Mapping[Link, float | None]) -> dict[str, float | None]:
    """Return the shares lost by the names of their links; nothing is known if none was tested."""
    return {" -> ".join(link): share for link, share in lost.items()} or {"pairs of nodes": None}


def judge_link_stalls(stalls: Mapping[Link, float], explained: bool, measure: Recorder) -> None:
    """Judge the longest stall that two transfers of a link had; as `judge_stalls`."""
    if not stalls:
        return
    (a, b), seconds = max(stalls.items(), key=lambda item: item[1])
    message = f"{a} -> {b}: two or more transfers stalled for {quantity(seconds, 's')}"
    cause = finding("FAB-STALLS", message, suspects([a, b]))
    failed = measure.would_fail(check.LONGEST_STALL, seconds) and not explained
    noted: dict[str, Any] = {"on": f"{a} -> {b}", "samples": len(stalls)}
    judge_or_explain(measure, check.LONGEST_STALL, seconds, cause, failed, **noted)


def judge_stalls(run: SweepResult, explained: bool, measure: Recorder) -> None:
    """Judge the worst call against the median of its size.

    If the stall is `explained` by a located fault, it gets no finding of its own.  All ranks wait
    in the call, so the suspects are only nodes that lost packets meanwhile.
    """
    stall, lost = run.longest_stall, run.lost_shares
    message = f"an all-reduce of {stall.size} bytes took {quantity(stall.call_s, 's')} on "
    message += f"rank {stall.rank}. Median: {quantity(stall.median_s, 's')}"
    if named := [node for node, share in lost.items() if share and share > counters.SOUND_LOSS]:
        message += f". Meanwhile, packets of {join_names(named)} were lost"
    cause = finding("FAB-STALLS", message, named, names={"rank": stall.rank})
    failed = measure.would_fail(check.LONGEST_STALL, stall.seconds) and not explained
    on = f"rank {stall.rank} on {run.rank_nodes[stall.rank]}, {stall.size} bytes"
    noted: dict[str, Any] = {"on": on, "samples": sum(row["samples"] for row in run.rows)}
    judge_or_explain(measure, check.LONGEST_STALL, stall.seconds, cause, failed, **noted)


def judge_networks(
    pairs: PairSearch, expected: Mapping[Link, str], routes: Mapping[Link, str], measure: Recorder
) -> None:
    """Judge which network each pair used; `routes` are those of the links that left it.

    `expected` is the device that each link must use.
    """
    unknown = [link for link, device in networks(pairs).items() if device in ("none", UNKNOWN)]
    if unknown:
        note = "the sender's byte counters did not grow, or cannot be read"
        measure(check.LINKS_ON_OTHER_NETWORKS, None, on=" -> ".join(unknown[0]), note=note)
    off = links_off(pairs, expected)
    measure(check.LINKS_ON_OTHER_NETWORKS, len(off), samples=len(pairs.sent))
    measure.explain(find_detours(pairs, off, expected, routes))


def networks(pairs: PairSearch) -> dict[Link, str]:
    """Name the device that carried most bytes of each link; `none` if nothing was counted."""
    return {link: main_device(sent) for link, sent in pairs.sent.items()}


def links_off(pairs: PairSearch, expected: Mapping[Link, str]) -> dict[Link, str]:
    """Map each link whose bytes left by another device than `expected` to that device."""
    return {
        link: device
        for link, device in networks(pairs).items()
        if device not in (expected[link], "none", UNKNOWN)
    }


def unexplained(pairs: PairSearch, off: Mapping[Link, str]) -> FaultSearchResult:
    """Return the search for slow links without those that lose packets or take a detour.

    These have findings of their own.
    """
    rest = detect.without_ports(pairs.speed, pairs.lossy.slow_nodes)
    return detect.without_links(rest, [*lossy_alone(pairs).slow_links, *off])
