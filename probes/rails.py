"""Whether all rails of a node carry their part: bytes sent per RDMA port, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.counters import port_bytes
from probes.facts import RDMA_PORTS, rdma_ports
from probes.findings import finding
from reports.record import Finding
from scaling.linerate import rails


def read_rails(root: str = RDMA_PORTS) -> dict[str, dict[str, Any]]:
    """Each of this node's rails as `device/port`: rate in Gbit/s and bytes sent since boot."""
    return {
        name: {"gbps": gbps, "sent": port_bytes(Path(root, name.replace("/", "/ports/")))}
        for name, gbps, _ in rails(rdma_ports(root))
    }


def growth(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """Bytes that each rail sent in between; one that is there no more has sent nothing."""
    return {
        name: max(0, after[name]["sent"] - port["sent"]) if name in after else 0
        for name, port in before.items()
    }


def shares(sent: Mapping[str, int], count: int) -> dict[str, float]:
    """What each of the `count` busiest ports sent, as a ratio of an equal part.

    Ports beyond that number are as fast as rails, but were not ordered as such: storage.
    """
    busiest = sorted(sent, key=lambda name: -sent[name])[:count]
    total = sum(sent[name] for name in busiest)
    return {name: sent[name] * len(busiest) / max(total, 1) for name in busiest}


def idle_rails(nodes: Mapping[str, Mapping[str, float]], least: float) -> list[Finding]:
    """One finding per node with a rail that carried under `least` of its part."""
    found = []
    for node, parts in nodes.items():
        idle = {name: part for name, part in parts.items() if part < least}
        if idle:
            told = ", ".join(f"{name} {part:.0%}" for name, part in sorted(idle.items()))
            said = f"{node}: of an equal part of the bytes, its rails carried: {told}"
            found.append(finding("FAB-PARTIAL-RAILS", said, [node, *sorted(idle)]))
    return found


def missing_rails(counts: Mapping[str, int], wanted: int) -> list[Finding]:
    """One finding per node with fewer active rails than there should be."""
    return [
        finding("FAB-PARTIAL-RAILS", f"{node}: {count} of {wanted} rails are active", [node])
        for node, count in counts.items()
        if count < wanted
    ]
