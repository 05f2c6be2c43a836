"""Finds the fabric's addresses and ports, and the rails that ranks use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.network_facts import RDMA, interfaces_of
from probes.cluster.node_facts import rdma_ports, read_interfaces
from probes.environment.checks import nccl_ports, read_ib_hca
from probes.findings import join_names
from reference_trainer.launch.gang import Gang
from reference_trainer.process_group import joins_no_group
from reports.groups import group_pairs
from scaling.collectives.line_rate import active_rails

COMPLETE, ETHERNET = 0x2, 0x1  # include/uapi/linux/if_arp.h: ATF_COM, ARPHRD_ETHER
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
NO_MAC = "00:00:00:00:00:00"


@dataclass(frozen=True)
class DuplicateAddress:
    """An address that a second machine also has.

    `nodes` are the nodes of the cluster that have it.
    """

    address: str
    nodes: list[str]
    message: str


@joins_no_group
def read_arp(path: str = "/proc/net/arp") -> dict[str, str] | None:
    """Read the hardware address that answered for each neighbour's address; None if unreadable."""
    try:
        return parse_arp(Path(path).read_text())
    except OSError:
        return None


def parse_arp(text: str) -> dict[str, str]:
    """Parse /proc/net/arp (proc(5)): complete entries of Ethernet, by IPv4 address.

    InfiniBand's entries are left out: the file cuts their 20-byte addresses.
    """
    rows = [line.split() for line in text.splitlines()[1:]]
    return {
        row[0]: row[3].lower()
        for row in rows
        if len(row) >= 4
        and int(row[1], 16) == ETHERNET
        and int(row[2], 16) & COMPLETE
        and MAC.fullmatch(row[3].lower())
        and row[3] != NO_MAC
    }


def find_duplicates(
    ports: Mapping[str, Mapping[str, Any]],
    macs: Mapping[str, Sequence[str]],
    seen: Mapping[str, Mapping[str, str] | None],
) -> list[DuplicateAddress]:
    """Find addresses that two machines have.

    All arguments are by node.  `ports` holds the `address` and `mac` of its fabric port.  `macs`
    holds those of all its interfaces.  `seen` holds its neighbours (see `read_arp`).
    """
    found = [*_by_inventory(ports)]
    known = {one.address for one in found}
    more = _by_neighbours(ports, macs, seen)
    return [*found, *(one for one in more if one.address not in known)]


def _by_inventory(ports: Mapping[str, Mapping[str, Any]]) -> Iterator[DuplicateAddress]:
    """Find nodes that report the same address; raylets of one machine share one port."""
    owners: dict[str, dict[str, list[str]]] = {}
    for node, port in ports.items():
        if port["address"] and port["mac"]:
            owners.setdefault(port["address"], {}).setdefault(port["mac"], []).append(node)
    for address, by_mac in owners.items():
        if len(by_mac) > 1:
            nodes = [node for names in by_mac.values() for node in names]
            message = f"{join_names(nodes)} have the same address {address}"
            yield DuplicateAddress(address, nodes, message)


def _by_neighbours(
    ports: Mapping[str, Mapping[str, Any]],
    macs: Mapping[str, Sequence[str]],
    seen: Mapping[str, Mapping[str, str] | None],
) -> Iterator[DuplicateAddress]:
    """Find addresses that another machine answers for.

    Any port of the node may answer for its address (Linux does by default).  A router that answers
    for other machines answers for many addresses: on such a network the result is empty.
    """
    owner = {port["address"]: node for node, port in ports.items() if port["address"]}
    foreign: dict[str, dict[str, list[str]]] = {}  # hardware address -> address -> observers
    right = wrong = 0
    for observer, neighbours in seen.items():
        for address, mac in (neighbours or {}).items():
            node = owner.get(address)
            if node is None or node == observer:
                continue
            if mac in macs[node]:
                right += 1
            else:
                wrong += 1
                foreign.setdefault(mac, {}).setdefault(address, []).append(observer)
    if wrong > right:
        return
    for mac, addresses in foreign.items():
        others = [node for node, known in macs.items() if mac in known]
        if len(addresses) > 1 and not others:
            continue
        for address, observers in addresses.items():
            who = join_names(others) or "a machine that is not in this cluster"
            message = (
                f"{who} ({mac}) answers ARP requests of {join_names(observers)} for {address}, "
                f"the address of {owner[address]}"
            )
            yield DuplicateAddress(address, [owner[address], *others], message)


DOCTORED_BYTES = 93  # a control's node reports an MTU larger by this: no network has two so near


@dataclass(frozen=True)
class DoctoredPort:
    """False report that a control plants on one node: `address` is not that of interface `name`."""

    name: str
    address: str | None


@joins_no_group
def read_node_ports(fabric: str | None, doctored: DoctoredPort | None = None) -> dict[str, Any]:
    """Read this node's interfaces, and the interface of each active rail (RDMA).

    `doctored` is for a control: that interface then reports another address, and another MTU.
    """
    rails: dict[str, str] = {}
    if fabric == "rdma":
        ports = nccl_ports(rdma_ports(), read_ib_hca())
        netdevs = {f"{port['device']}/{port['port']}": port["netdev"] for port in ports}
        rails = {rail.name: netdevs[rail.name] for rail in active_rails(ports)}
    interfaces = read_interfaces()
    if doctored is not None and doctored.name in interfaces:
        port = interfaces[doctored.name]
        changes = {"address": doctored.address, "mtu": port["mtu"] + DOCTORED_BYTES}
        interfaces[doctored.name] = {**port, **changes}
    return {"interfaces": interfaces, "rails": rails}


@dataclass(frozen=True)
class FabricPorts:
    """The interface to test on each node.  `dead` maps a node to why it cannot be tested.

    A port has address, mac, mtu and state.  It is None if no interface has the address.  `has_ip`
    is False if no RDMA port has an IP address.  `note` is why Ray's interface stands for the
    fabric.
    """

    names: dict[str, str]
    ports: dict[str, dict[str, Any] | None]
    dead: dict[str, str]
    has_ip: bool = True
    note: str = ""


def choose_ports(
    readings: Mapping[str, Mapping[str, Any]], fabric: str | None, ray: Mapping[str, str]
) -> FabricPorts:
    """Choose the interface to test: the agreed one, a rail with addresses everywhere, or Ray's.

    `readings` are those of `read_node_ports` by node, `ray` is each node's address in Ray.  Each
    rail is a network of its own, so all nodes must use the same rail.
    """
    if fabric and fabric != "rdma":
        return _agreed_ports({node: one["interfaces"] for node, one in readings.items()}, fabric)
    rails = {node: _rails_with_ip(one) for node, one in readings.items()}
    common = set.intersection(*map(set, rails.values())) if rails else set()
    if common:
        names = {node: one[min(common)] for node, one in rails.items()}
    else:
        names = {
            node: next((n for n, p in one["interfaces"].items() if p["address"] == ray[node]), "")
            for node, one in readings.items()
        }
    ports = {node: readings[node]["interfaces"].get(name) for node, name in names.items()}
    if common or fabric is None:
        return FabricPorts(names, ports, {})
    lacking = join_names(node for node, one in rails.items() if not one)
    note = f"no RDMA port has an IP address on {lacking or 'every node'}"
    return FabricPorts(names, ports, {}, has_ip=any(rails.values()), note=note)


def _rails_with_ip(reading: Mapping[str, Any]) -> dict[str, str]:
    """Map each rail whose interface is up and has an IPv4 address to that interface."""
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
            dead[node] = f"the node has no interface {fabric}"
        elif not port["address"] or port["state"] == "down":
            dead[node] = f"{fabric} is {port['state']} and has {port['address'] or 'no address'}"
    ports = {node: found.get(fabric) for node, found in interfaces.items()}
    return FabricPorts(dict.fromkeys(interfaces, fabric), ports, dead)


@dataclass(frozen=True)
class RailRanks:
    """One network that a rank of each node uses.

    `ports` maps each port to its rank.  A port is named `fab1 on node0`, or as its node where the
    node has one rail.  `fabric` is the device that must carry its bytes, None if none is agreed.
    """

    name: str  # "" where the node has one rail
    ports: dict[str, int]
    fabric: str | None


def find_rails(rank_nodes: Sequence[str], fabric: str | None, backend: str) -> list[RailRanks]:
    """List the rails that ranks can test; `rank_nodes` lists the node of each rank.

    By RDMA each rank uses the port close to its GPU, as NCCL does with several interfaces, so each
    local rank is taken for one rail.  With gloo each local rank binds one interface of the fabric.
    Local ranks that some node lacks are left out.
    """
    local = ranks_by_node(rank_nodes)
    fewest = min(map(len, local.values()), default=0)
    interfaces = interfaces_of(fabric)
    by_gpu = fabric == RDMA or (backend == "nccl" and len(interfaces) > 1)
    devices: dict[str, str | None] = {"": fabric}
    if by_gpu and fewest > 1:
        devices = {f"rail {rank}": fabric for rank in range(fewest)}
    elif backend == "gloo" and min(len(interfaces), fewest) > 1:
        devices = {name: name for name in interfaces[:fewest]}
    return [
        RailRanks(name, {port_name(name, node): ranks[at] for node, ranks in local.items()}, device)
        for at, (name, device) in enumerate(devices.items())
    ]


def ranks_by_node(rank_nodes: Sequence[str]) -> dict[str, list[int]]:
    """List the ranks of each node, in order."""
    return group_pairs((node, rank) for rank, node in enumerate(rank_nodes))


def first_ranks(gang: Gang, node_names: Mapping[str, str]) -> dict[str, int]:
    """Return the first rank of each node, by the node's name."""
    nodes = [node_names[place.node] for place in gang.places]
    return {node: ranks[0] for node, ranks in ranks_by_node(nodes).items()}


def ask_first_ranks(
    gang: Gang,
    ranks: Mapping[str, int],
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float,
    each: Mapping[str, Sequence[object]] | None = None,
) -> dict[str, Any]:
    """Call a function on these ranks, by node, or on those that `each` has more arguments for."""
    asked = {name: rank for name, rank in ranks.items() if each is None or name in each}
    if not asked:
        return {}
    more = {rank: each[name] for name, rank in asked.items()} if each else {}
    by_rank = [more.get(rank, ()) for rank in range(len(gang.places))]
    groups = [[rank] for rank in asked.values()]
    results = gang.run(function, *arguments, timeout=timeout, each=by_rank, groups=groups)
    return dict(zip(asked, results, strict=True))


def port_name(rail: str, node: str) -> str:
    """Return the name of a node's port: `fab1 on node0`, or the node where it has one rail."""
    return f"{rail} on {node}" if rail else node


def node_of(port: str) -> str:
    """Return the node of a port: of `fab1 on node0`, node0."""
    return port.rpartition(" on ")[2]


def rail_of(port: str) -> str:
    """Return the rail of a port: of `fab1 on node0`, fab1; "" where the node has one rail."""
    return port.rpartition(" on ")[0]


def suspects(ports: Iterable[str]) -> list[str]:
    """List the nodes of these ports, each once, and then the ports that are not whole nodes."""
    ports = list(ports)
    return list(dict.fromkeys([*map(node_of, ports), *ports]))


def least_by_nodes(speeds: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Return the least speed between two nodes over all rails, by (sender, receiver)."""
    found = group_pairs(((node_of(a), node_of(b)), speed) for (a, b), speed in speeds.items())
    return {link: min(of_rails) for link, of_rails in found.items()}
