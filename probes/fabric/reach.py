"""Tests which nodes reach each other over the fabric, and judges it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from probes.check.recorder import Recorder
from probes.cluster.network_facts import MOST_ALL_PAIRS, RDMA, describe_peers, list_pairs, map_peers
from probes.fabric import addresses as ports_of
from probes.fabric import criterion as check
from probes.fabric.addresses import DoctoredPort, DuplicateAddress, FabricPorts, port_name, suspects
from probes.findings import finding, join_names
from reference_trainer.launch.gang import Gang
from reports.record import Finding
from scaling.collectives import reachability
from scaling.collectives.fault_search import Pair, classify

SMALL_BYTES = 100  # bytes of a datagram that passes wherever any datagram passes
MAX_IP_BYTES = 65_535  # of an IPv4 packet (RFC 791): the loopback's MTU is a byte more
CALL_SECONDS = 60  # for all ranks to begin and end a call, on a busy cluster
BLINK_SECONDS = 2.5  # pause before a port that is down is read again: it may flap


@dataclass(frozen=True)
class ReachabilityResult:
    """Pairs of nodes that do not reach each other, and nodes whose fabric port is not usable.

    `narrow` are pairs that pass small packets and not full-size ones.  It is None if that could not
    be tested, for the reason in `note`.  `mtu` is the MTU (bytes) of each node's port, `ports` its
    interface.  `has_ip` is whether the fabric has IP addresses; without them no packet size is
    tested.  `saw_neighbours` is whether any node shows who answers for the others' addresses.
    """

    nodes: list[str]
    pairs: list[Pair]
    dead: dict[str, str]  # node -> why
    narrow: list[Pair] | None = field(default_factory=list)
    mtu: dict[str, int] = field(default_factory=dict)
    note: str = ""
    ports: dict[str, str] = field(default_factory=dict)
    duplicates: list[DuplicateAddress] = field(default_factory=list)
    has_ip: bool = True
    saw_neighbours: bool = True


def check_reach(gang: Gang, node_names: dict[str, str], fabric: str | None) -> ReachabilityResult:
    """Connect nodes by TCP on the fabric, and send full-size datagrams unfragmented.

    Each node tries all others, or on a large cluster some of them (see `choose_peers`).
    The interface is the agreed one, or that of a rail.  Without either, or if rails have no
    address, it is Ray's.
    """
    nodes = FabricNodes.read(gang, node_names, fabric)
    pairs, seen, chosen = nodes.unreachable_pairs(), nodes.read_neighbours(), nodes.chosen
    narrow, note = nodes.narrow_pairs(pairs)
    tested = nodes.names, pairs, chosen.dead, narrow, nodes.mtu, note, chosen.names
    saw_neighbours = any(one is not None for one in seen.values())
    return ReachabilityResult(*tested, nodes.duplicates(seen), chosen.has_ip, saw_neighbours)


@dataclass(frozen=True)
class FabricNodes:
    """The first rank of each node, and the port of it that is tested.

    In each test every node listens, and every node connects to all others, or on a large cluster
    to some (see `choose_peers`).
    """

    gang: Gang
    ranks: dict[str, int]  # by node
    fabric: str | None
    readings: dict[str, dict[str, Any]]  # by node, see `read_node_ports`
    chosen: FabricPorts

    @classmethod
    def read(cls, gang: Gang, node_names: dict[str, str], fabric: str | None) -> FabricNodes:
        """Read each node's interfaces, twice if a port is down, and choose which to test."""
        ranks = ports_of.first_ranks(gang, node_names)
        nodes = cls(gang, ranks, fabric, {}, FabricPorts({}, {}, {}))._read_again()
        if nodes.chosen.dead:
            time.sleep(BLINK_SECONDS)
            nodes = nodes._read_again()
        return nodes

    def _read_again(self) -> FabricNodes:
        readings = self._read_ports({})
        chosen = ports_of.choose_ports(readings, self.fabric, self.ray_addresses)
        return replace(self, readings=readings, chosen=chosen)

    def doctored(self, doctored: Mapping[str, DoctoredPort]) -> FabricNodes:
        """Read the ports once more, with false values of some nodes (for a control)."""
        readings = self._read_ports(doctored)
        ports = {
            node: one["interfaces"].get(self.chosen.names[node]) for node, one in readings.items()
        }
        return replace(self, readings=readings, chosen=replace(self.chosen, ports=ports))

    def _read_ports(self, doctored: Mapping[str, DoctoredPort]) -> dict[str, dict[str, Any]]:
        each = {name: [doctored.get(name)] for name in self.names}
        return self._on_each(ports_of.read_node_ports, self.fabric, each=each)

    def read_neighbours(self) -> dict[str, dict[str, str] | None]:
        """Read who answers for the others' addresses, by node (see `read_arp`)."""
        return self._on_each(ports_of.read_arp)

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return [*self.ranks]

    @property
    def ray_addresses(self) -> dict[str, str]:
        """Address of each node in Ray, by node name."""
        return {name: self.gang.places[rank].address for name, rank in self.ranks.items()}

    @property
    def addresses(self) -> dict[str, str]:
        """Address of each node that is tested."""
        known = {name: port.get("address") for name, port in self.chosen.ports.items() if port}
        return {name: known.get(name) or ray for name, ray in self.ray_addresses.items()}

    @property
    def mtu(self) -> dict[str, int]:
        """Bytes of the largest packet of each node's port, if it is usable and the fabric's."""
        return {
            node: min(port["mtu"], MAX_IP_BYTES)
            for node, port in self.chosen.ports.items()
            if port and port["mtu"] and node not in self.chosen.dead and not self.chosen.note
        }

    def duplicates(self, seen: Mapping[str, Mapping[str, str] | None]) -> list[DuplicateAddress]:
        """Find addresses that two machines have; `seen` is from `read_neighbours`."""
        macs = {
            node: [port["mac"] for port in one["interfaces"].values()]
            for node, one in self.readings.items()
        }
        known = {node: port for node, port in self.chosen.ports.items() if port}
        return ports_of.find_duplicates(known, macs, seen)

    def unreachable_pairs(self, closed: Container[str] = ()) -> list[Pair]:
        """List pairs that do not connect.  `closed` nodes do not listen (for a control)."""
        return self._failing_pairs(
            reachability.start_tcp_listener, reachability.check_tcp, closed=closed
        )

    def narrow_pairs(
        self, unreachable: Sequence[Pair], extra_bytes: int = 0, seconds: float = 4
    ) -> tuple[list[Pair] | None, str]:
        """Find pairs that pass only small datagrams.

        Returns (None, reason) if that cannot be tested, as when no small datagram passes either.
        `extra_bytes` makes the full-size datagrams larger than the MTU (for a control).  `seconds`
        is how long to wait for an answer.
        """
        mtu = self.mtu
        if self.chosen.note:
            return None, self.chosen.note
        if unknown := [name for name in self.names if name not in {*mtu, *self.chosen.dead}]:
            return None, f"the MTU of the fabric's interface is unknown on {join_names(unknown)}"
        peers = map_peers(self.names)
        full = {name: mtu.get(name, SMALL_BYTES) + extra_bytes for name in self.names}
        # Each pair is tested at the smaller of its two MTUs: one odd node must not hide others.
        sizes = {n: {peer: min(full[n], full[peer]) for peer in peers[n]} for n in self.names}
        each = {name: [dict.fromkeys(peers[name], SMALL_BYTES), seconds] for name in self.names}
        no_small = self._failing_pairs(reachability.start_udp_echo, reachability.check_udp, each)
        if lost := [pair for pair in no_small if pair not in unreachable]:
            return None, f"no UDP packets pass between {join_names(map(' and '.join, lost))}"
        each = {name: [sizes[name], seconds] for name in self.names}
        no_full = self._failing_pairs(reachability.start_udp_echo, reachability.check_udp, each)
        return [pair for pair in no_full if pair not in unreachable], ""

    def _failing_pairs(
        self,
        serve: Callable[..., int],
        connect: Callable[..., dict[str, bool]],
        each: Mapping[str, Sequence[object]] | None = None,
        closed: Container[str] = (),
    ) -> list[Pair]:
        """List pairs with a direction that fails; `each` holds further arguments by node."""
        peers = map_peers(self.names)
        timeout_s = CALL_SECONDS + reachability.max_wait_s(len(peers[self.names[0]]), 4)
        doors, arguments = self._open_doors(serve, timeout_s, closed), dict[str, list[object]]()
        for name, address in self.addresses.items():
            targets = {peer: doors.get(peer) for peer in peers[name]}
            arguments[name] = [address, targets, *(each[name] if each else [])]
        answered = self._on_each(connect, each=arguments, timeout=timeout_s)
        pairs = list_pairs(self.names)
        return [(a, b) for a, b in pairs if not (answered[a].get(b) and answered[b].get(a))]

    def _on_each(
        self, function: Callable[..., Any], *arguments: Any, **more: Any
    ) -> dict[str, Any]:
        """Call a function on every node, as `ask_first_ranks`."""
        within = {"timeout": CALL_SECONDS, **more}
        return ports_of.ask_first_ranks(self.gang, self.ranks, function, *arguments, **within)

    def _open_doors(
        self, serve: Callable[..., int], knock_s: float, closed: Container[str]
    ) -> dict[str, tuple[str, int]]:
        """Open a listener on each node for connections within `knock_s` seconds.

        Returns the (address, port) of each node.  A node whose fabric port is dead has none: it
        would listen on another network.
        """
        seconds = CALL_SECONDS + knock_s  # otherwise a busy node would look unreachable
        usable = {n: at for n, at in self.addresses.items() if n not in self.chosen.dead}
        each = {n: [at, seconds, *([False] if n in closed else [])] for n, at in usable.items()}
        ports = self._on_each(serve, each=each)
        return {name: (usable[name], port) for name, port in ports.items()}


def fails_by_tcp_alone(reach: Mapping[str | None, ReachabilityResult]) -> bool:
    """Return whether only TCP fails on ports of RDMA: a cloud may carry nothing but RDMA there.

    It then fails between all nodes.  Where some connect, the others have a fault: an all-reduce
    sends between neighbours alone, so it does not show that RDMA passes between them.
    """
    one = reach.get(RDMA)
    # With a note, Ray's network was tested: these ports have no addresses.
    if one is None or one.note or one.narrow or one.duplicates or one.dead:
        return False
    return bool(one.pairs) and len(one.pairs) == len(list_pairs(one.nodes))


PING_HEADERS = 28  # bytes of IPv4 (20) and ICMP (8): the MTU counts them, `ping -s` does not


def judge_reach(
    reach: ReachabilityResult, measure: Recorder, rail: str = "", explained: Sequence[str] = ()
) -> None:
    """Judge pairs that do not reach each other at all, or not with full-size packets.

    `rail` is the interface that was tested, where there are several.  Another finding explains why
    the nodes in `explained` are not reached.
    """
    on = rail or "cluster"
    measure(check.UNREACHABLE_PAIRS, len(reach.pairs), on=on)
    measure(check.DUPLICATE_ADDRESSES, len(reach.duplicates), on=on)
    if (count := len(reach.nodes)) > MOST_ALL_PAIRS:
        where = f" on {rail}" if rail else ""
        measure.covered(f"each of {count} nodes connected{where} to {describe_peers(count)}")
    if not reach.saw_neighbours:
        why = "no node has a readable /proc/net/arp"
        measure.covered(f"only the nodes' own addresses were compared: {why}")
    if reach.has_ip:
        odd_mtu = len(find_odd_mtu(reach)) if reach.mtu else None
        why = reach.note or "the MTU of no node could be read"
        measure(check.MTU_MISMATCHES, odd_mtu, on=on, note=why)
        narrow = None if reach.narrow is None else len(reach.narrow)
        measure(check.PAIRS_BELOW_MTU, narrow, on=on, note=reach.note or "-")
    else:
        measure.covered(f"packet sizes were not tested: {reach.note}")
    unreachable = find_unreachable(reach, rail, explained)
    measure.explain(explain_duplicates(reach), unreachable, find_mtu_faults(reach))


def reach_series(reach: ReachabilityResult) -> dict[str, Any]:
    """Return the chart's map of pairs: 0 GB/s where a pair cannot connect, and nothing else."""
    places = {node: place for place, node in enumerate(reach.nodes)}
    blocked = {(places[a], places[b]) for pair in reach.pairs for a, b in (pair, pair[::-1])}
    return {"nodes": reach.nodes, "cells": [(*pair, 0.0) for pair in sorted(blocked)]}


def explain_duplicates(reach: ReachabilityResult) -> Iterator[Finding]:
    """Name the nodes whose address another machine also has."""
    for one in reach.duplicates:
        names = {"address": one.address, "interface": reach.ports.get(one.nodes[0])}
        message = one.message + _port_text(reach, one.nodes[0])
        yield finding("FAB-DUPLICATE-ADDRESS", message, one.nodes, names=names)


def _port_text(reach: ReachabilityResult, node: str) -> str:
    name = reach.ports.get(node)
    return f" on {name}" if name else ""


def find_unreachable(
    reach: ReachabilityResult, rail: str = "", explained: Sequence[str] = ()
) -> list[Finding]:
    """Name the nodes, else the pairs, that explain which pairs do not reach each other.

    With several rails, the port of `rail` is a suspect too.  Nodes in `explained` are left out.
    """
    bad_nodes, pairs = _classify_unexplained(reach, reach.pairs)
    findings, is_large = [], len(reach.nodes) > MOST_ALL_PAIRS
    for node in dict.fromkeys([*reach.dead, *bad_nodes]):
        if node in explained:
            continue
        tried = "none of the nodes that it tried" if is_large else "no other node"
        reason = reach.dead.get(node, f"it reaches {tried} by TCP{_port_text(reach, node)}")
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
    failing, tried = (
        [pair for pair in pairs if shared.isdisjoint(pair)]
        for pairs in (failing, list_pairs(reach.nodes))
    )
    return classify(failing, [node for node in reach.nodes if node not in shared], tried)


def find_mtu_faults(reach: ReachabilityResult) -> list[Finding]:
    """Name the nodes whose MTU differs, else the pairs that full-size packets do not pass."""
    odd = find_odd_mtu(reach)
    if odd:
        names = {mtu: [n for n in reach.mtu if reach.mtu[n] == mtu] for mtu in reach.mtu.values()}
        parts = [f"{join_names(names[mtu])} {mtu}" for mtu in names if names[mtu][0] in odd]
        if usual := [mtu for mtu in names if names[mtu][0] not in odd]:
            parts.append(f"other nodes {usual[0]}")
        message = f"MTU{_port_text(reach, odd[0])}: {'; '.join(parts)}"
        peer = next((name for name in reach.mtu if name not in odd), "")
        known = _mtu_names(reach, odd[0], peer, max(reach.mtu.values()))
        return [finding("FAB-MTU", message, odd, names=known)]
    bad_nodes, pairs = _classify_unexplained(reach, reach.narrow or [])
    ends = [(f"{node} and the other nodes", [node]) for node in bad_nodes]
    ends += [(f"{a} and {b}", [a, b]) for a, b in pairs]
    packets = f"packets of {min(reach.mtu.values(), default=0)} bytes without fragmentation"
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
