"""Chooses which interface of each node is the fabric's: the agreed one, a rail's, or Ray's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probes.cluster.node_facts import rdma_ports, read_interfaces
from probes.environment.rails import nccl_ports, read_ib_hca
from probes.findings import join_names
from scaling.collectives.line_rate import active_rails

DOCTORED_BYTES = 93  # a control's node reports an MTU larger by this: no network has two so near


@dataclass(frozen=True)
class DoctoredPort:
    """False report that a control plants on one node: `address` is not that of interface `name`."""

    name: str
    address: str | None


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
            dead[node] = f"has no interface {fabric}"
        elif not port["address"] or port["state"] == "down":
            dead[node] = f"{fabric} is {port['state']}, address {port['address'] or 'none'}"
    ports = {node: found.get(fabric) for node, found in interfaces.items()}
    return FabricPorts(dict.fromkeys(interfaces, fabric), ports, dead)
