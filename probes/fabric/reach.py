"""Who reaches whom on the fabric, in full-size packets, and who else has its addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probes.cluster.node_facts import rdma_ports, read_interfaces
from probes.environment.rails import nccl_ports, read_ib_hca
from probes.fabric.addresses import DuplicateAddress, find_duplicates, read_arp
from probes.findings import join_names
from reference_trainer.launch.gang import Gang
from scaling.collectives.fault_search import Pair
from scaling.collectives.line_rate import active_rails
from scaling.collectives.reachability import (
    check_tcp,
    check_udp,
    max_wait_s,
    start_tcp_listener,
    start_udp_echo,
)

SMALL_BYTES = 100  # bytes of a datagram that passes wherever datagrams pass at all
CALL_SECONDS = 60  # for all ranks to begin and end a call, on a busy cluster
BLINK_SECONDS = 2.5  # after which a port that is down is looked at again: it may flap


@dataclass(frozen=True)
class ReachabilityResult:
    """Pairs of nodes that do not reach each other, and nodes whose fabric port is not usable.

    `narrow` are pairs that small packets pass and full-size ones do not, None where that could
    not be tried, for the reason in `note`; `mtu` is that of each node's port.  `ports` names what
    was tried.  `has_ip` is whether the fabric has IP addresses, without which there is no packet
    size to try.  `saw_neighbours`: whether any node told who answers for the others' addresses.
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


def read_node_ports(fabric: str | None) -> dict[str, Any]:
    """Read this node's interfaces, and which of them each of its active rails is (RDMA)."""
    rails: dict[str, str] = {}
    if fabric == "rdma":
        ports = nccl_ports(rdma_ports(), read_ib_hca())
        netdevs = {f"{port['device']}/{port['port']}": port["netdev"] for port in ports}
        rails = {rail.name: netdevs[rail.name] for rail in active_rails(ports)}
    return {"interfaces": read_interfaces(), "rails": rails}


@dataclass(frozen=True)
class FabricPorts:
    """The interface of each node to try; `dead` says why one cannot be, by node.

    A port has address, mac, mtu and state; it is None where none has the address.
    """

    names: dict[str, str]
    ports: dict[str, dict[str, Any] | None]
    dead: dict[str, str]
    has_ip: bool = True
    note: str = ""


def choose_ports(
    readings: Mapping[str, Mapping[str, Any]], fabric: str | None, ray: Mapping[str, str]
) -> FabricPorts:
    """Choose what is tried: the agreed interface, a rail that has an address everywhere, or Ray's.

    `readings` are those of `read_node_ports` by node, `ray` each node's address in Ray.  Rails
    have networks of their own, so all nodes must use the same one.
    """
    if fabric and fabric != "rdma":
        return _agreed_ports({node: one["interfaces"] for node, one in readings.items()}, fabric)
    rails = {node: _rails_with_ip(one) for node, one in readings.items()}
    common = set.intersection(*map(set, rails.values())) if rails else set()
    if common:
        rail = min(common)
        names = {node: one[rail] for node, one in rails.items()}
        return FabricPorts(
            names, {node: readings[node]["interfaces"][name] for node, name in names.items()}, {}
        )
    names = {
        node: next((n for n, p in one["interfaces"].items() if p["address"] == ray[node]), "")
        for node, one in readings.items()
    }
    ports = {node: readings[node]["interfaces"].get(name) for node, name in names.items()}
    if fabric is None:
        return FabricPorts(names, ports, {})
    lacking = [node for node, one in rails.items() if not one]
    note = (
        f"no RDMA port has an IP address on {join_names(lacking)}"
        if lacking
        else "no RDMA port has an IP address on every node"
    )
    return FabricPorts(names, ports, {}, has_ip=any(rails.values()), note=note)


def _rails_with_ip(reading: Mapping[str, Any]) -> dict[str, str]:
    """Map the rails of a node whose interface is up and has an IPv4 address to that interface."""
    interfaces = reading["interfaces"]
    return {
        rail: netdev
        for rail, netdev in reading["rails"].items()
        if (port := interfaces.get(netdev)) and port["address"] and port["state"] != "down"
    }


def _agreed_ports(
    interfaces: Mapping[str, Mapping[str, dict[str, Any]]], fabric: str
) -> FabricPorts:
    dead = {}
    for node, found in interfaces.items():
        port = found.get(fabric)
        if not port:
            dead[node] = f"has no interface {fabric}"
        elif not port["address"] or port["state"] == "down":
            dead[node] = f"{fabric} is {port['state']}, address {port['address'] or 'none'}"
    ports = {node: found.get(fabric) for node, found in interfaces.items()}
    return FabricPorts(dict.fromkeys(interfaces, fabric), ports, dead)


def check_reach(gang: Gang, node_names: dict[str, str], fabric: str | None) -> ReachabilityResult:
    """Connect every pair of nodes by TCP on the fabric, and send a full-size datagram that must not
    be fragmented.

    On the agreed interface, or that of a rail; Ray's without one, or where rails have no address.
    """
    first_ranks = {place.node: rank for rank, place in reversed(list(enumerate(gang.places)))}
    ranks = sorted(first_ranks.values())
    nodes = [node_names[gang.places[rank].node] for rank in ranks]
    ray = {node: gang.places[rank].address for node, rank in zip(nodes, ranks, strict=True)}
    readings, chosen = _read_ports(gang, ranks, nodes, fabric, ray)
    if chosen.dead:
        time.sleep(BLINK_SECONDS)
        readings, chosen = _read_ports(gang, ranks, nodes, fabric, ray)
    addresses = [(chosen.ports[node] or {}).get("address") or ray[node] for node in nodes]
    mtu = {
        node: port["mtu"]
        for node, port in chosen.ports.items()
        if port and port["mtu"] and node not in chosen.dead and not chosen.note
    }
    tries = _ReachabilityRound(gang, ranks, nodes, addresses, chosen.dead)
    pairs = tries.failing_pairs(start_tcp_listener, check_tcp)
    seen = dict(zip(nodes, tries.on_each(read_arp), strict=True))
    macs = {
        node: [port["mac"] for port in one["interfaces"].values()] for node, one in readings.items()
    }
    known = {node: port for node, port in chosen.ports.items() if port}
    narrow, note = (None, chosen.note) if chosen.note else _find_narrow_pairs(tries, pairs, mtu)
    return ReachabilityResult(
        nodes,
        pairs,
        chosen.dead,
        narrow,
        mtu,
        note,
        chosen.names,
        find_duplicates(known, macs, seen),
        chosen.has_ip,
        any(one is not None for one in seen.values()),
    )


def _read_ports(
    gang: Gang, ranks: list[int], nodes: list[str], fabric: str | None, ray: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], FabricPorts]:
    """Read each node's interfaces now, and choose what to try."""
    groups = [[rank] for rank in ranks]
    found = gang.run(read_node_ports, fabric, timeout=CALL_SECONDS, groups=groups)
    readings = dict(zip(nodes, found, strict=True))
    return readings, choose_ports(readings, fabric, ray)


def _find_narrow_pairs(
    tries: _ReachabilityRound, unreachable: list[Pair], mtu: dict[str, int]
) -> tuple[list[Pair] | None, str]:
    """Find pairs that only small datagrams pass; None and why where no small one passes either."""
    usable = [node for node in tries.nodes if node not in tries.dead]
    if any(node not in mtu for node in usable):
        return None, "the MTU of the interface is not known on every node"
    small = dict.fromkeys(tries.nodes, SMALL_BYTES)
    full = {node: mtu.get(node, SMALL_BYTES) for node in tries.nodes}
    # Each pair is tried at the smaller MTU of its two: one odd node must not spare the others.
    sizes = [{peer: min(full[node], full[peer]) for peer in tries.nodes} for node in tries.nodes]
    no_small = tries.failing_pairs(start_udp_echo, check_udp, [small] * len(tries.nodes))
    if set(no_small) - set(unreachable):
        return None, "UDP is filtered between some nodes, so packet sizes could not be tried"
    no_full = tries.failing_pairs(start_udp_echo, check_udp, sizes)
    return [pair for pair in no_full if pair not in unreachable], ""


def turn_order(node: int, nodes: int) -> list[int]:
    """Order whom a node connects to, turn by turn, itself too: in turn r it is node r - i (mod n).

    Who connects to whom in a turn are disjoint pairs.
    """
    return [(turn - node) % nodes for turn in range(nodes)]


@dataclass(frozen=True)
class _ReachabilityRound:
    """Every node listens, and every node connects to all of them.

    In rounds of disjoint pairs, so they do not all connect to one node at once; but nobody waits
    for a round's end.
    """

    gang: Gang
    ranks: list[int]
    nodes: list[str]
    addresses: list[str]
    dead: dict[str, str]

    def failing_pairs(
        self,
        serve: Callable[[str, float], int],
        connect: Callable[..., dict[str, bool]],
        sizes: list[dict[str, int]] | None = None,
    ) -> list[Pair]:
        """List pairs of which one does not get through to the other; `sizes` are each node's."""
        groups = [[rank] for rank in self.ranks]
        arguments: list[list[object]] = [[] for _ in self.gang.places]
        timeout_s = CALL_SECONDS + max_wait_s(len(self.nodes), 4)
        servers = self._open_doors(serve, timeout_s)
        for index, (rank, address) in enumerate(zip(self.ranks, self.addresses, strict=True)):
            targets = dict(servers[peer] for peer in turn_order(index, len(servers)))
            arguments[rank] = [address, targets, *([sizes[index]] if sizes else [])]
        results = self.gang.run(connect, timeout=timeout_s, each=arguments, groups=groups)
        answered = dict(zip(self.nodes, results, strict=True))
        return [
            (a, b)
            for i, a in enumerate(self.nodes)
            for b in self.nodes[i + 1 :]
            if not (answered[a].get(b) and answered[b].get(a))
        ]

    def on_each(self, function: Callable[[], Any]) -> list[Any]:
        """Call a function on every node."""
        groups = [[rank] for rank in self.ranks]
        return self.gang.run(function, timeout=CALL_SECONDS, groups=groups)

    def _open_doors(
        self, serve: Callable[..., int], knock_s: float
    ) -> list[tuple[str, tuple[str, int] | None]]:
        """Open a door on each node, for all who knock within `knock_s` seconds; nodes and doors.

        A node whose fabric port is dead has none: it would be open on another network.
        """
        seconds = CALL_SECONDS + knock_s  # or a busy node would be taken for one out of reach
        rows = zip(self.ranks, self.nodes, self.addresses, strict=True)
        usable = [row for row in rows if row[1] not in self.dead]
        each: list[list[object]] = [[] for _ in self.gang.places]
        for rank, _, address in usable:
            each[rank] = [address, seconds]
        groups = [[rank] for rank, _, _ in usable]
        call: dict[str, Any] = {"timeout": CALL_SECONDS, "each": each, "groups": groups}
        ports = self.gang.run(serve, **call) if usable else []
        doors = {row[1]: (row[2], port) for row, port in zip(usable, ports, strict=True)}
        return [(name, doors.get(name)) for name in self.nodes]
