"""Watches what the links of all nodes count while the fabric is tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probes.cluster.byte_counters import RDMA, interfaces_of
from probes.cluster.cluster import Cluster
from probes.fabric.links.counters import read_ports, read_tcp_counters
from probes.fabric.links.growth import WAYS, counter_difference

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
    ports = read_ports()
    for port in ports.values() if doctored else ():
        if port["changes"] is not None:
            port["changes"] += 2
        for way, count in port["errors"].items():
            if count is not None:
                port["errors"][way] = count + 1 + (port["packets"][way] or 0) // 100
    return {"ports": ports, "tcp": read_tcp_counters()}


def node_growth(
    before: Mapping[str, Any], after: Mapping[str, Any], fabric: str
) -> LinkGrowth | None:
    """Compute what the ports of a node's fabric counted between two readings; None without one."""
    names = fabric_ports(before["ports"], fabric)
    if not names:
        return None
    grown = counter_difference(before["ports"], after["ports"])
    ports = {name: grown.get(name) or {} for name in names}
    changes = {name: port.get("changes") for name, port in ports.items()}
    for name in names:  # RoCE: its interface counts changes that such a port does not count
        below = before["ports"][name]["lower"]
        if changes[name] is None and any(changes.get(port) is not None for port in below):
            del changes[name]
    return LinkGrowth(
        changes,
        worst_errors(ports),
        {"ports": ports, "tcp": counter_difference(before["tcp"], after["tcp"])},
    )


def fabric_ports(ports: Ports, fabric: str) -> list[str]:
    """List the ports of a fabric: its interfaces, or all of RDMA, and the interfaces below."""
    rdma = [name for name in ports if "/" in name] if fabric == RDMA else []
    queue = [*rdma, *interfaces_of(fabric)]
    found: dict[str, None] = {}
    while queue:
        name = queue.pop(0)
        if name in ports and name not in found:
            found[name] = None
            queue += ports[name]["lower"]
    return list(found)


def worst_errors(ports: Ports) -> PortErrors | None:
    """Find the direction with the largest share of errors; None if no port counts any.

    EFA counts no errors of what it sends: it counts lost packets as resent.
    """
    found = []
    for way in WAYS:
        errors = {name: (port.get("errors") or {}).get(way) for name, port in ports.items()}
        packets = [(port.get("packets") or {}).get(way) for port in ports.values()]
        known = {name: count for name, count in errors.items() if count is not None}
        if known and any(count is not None for count in packets):
            worst = max(known, key=lambda name: known[name])
            total = sum(count for count in packets if count is not None)
            found.append(PortErrors(way, worst, sum(known.values()), total))
    return max(found, key=lambda one: one.share, default=None)
