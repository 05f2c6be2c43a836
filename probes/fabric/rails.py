"""Whether all rails of a node carry their part: bytes sent per RDMA port, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.cluster.byte_counters import port_bytes
from probes.cluster.node_facts import RDMA_PORTS, rdma_ports
from probes.environment.rails import admitted, ib_hca
from probes.findings import finding
from reports.record import Finding
from scaling.collectives.line_rate import rails


def read_rails(root: str = RDMA_PORTS) -> dict[str, dict[str, Any]]:
    """Each of this node's rails as `device/port`: rate in Gbit/s and bytes sent since boot.

    Ports that NCCL is told not to use are none: they are for storage, however fast.
    """
    return {
        name: {"gbps": gbps, "sent": port_bytes(Path(root, name.replace("/", "/ports/")))}
        for name, gbps, _ in rails(admitted(rdma_ports(root), ib_hca()))
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


def missing_rails(
    counts: Mapping[str, int], wanted: int, rates: Mapping[str, float]
) -> list[Finding]:
    """One finding per node with fewer active rails than there should be, or with slower ones.

    `rates` are Gbit/s of each node's rails.
    """
    best = max(rates.values(), default=0.0)
    found = []
    for node, count in counts.items():
        if count and rates.get(node, best) < best:
            said = f"{node}: its {count} rails run at {rates[node]:g} Gbit/s, others at {best:g}"
        elif count < wanted:
            said = f"{node}: {count} of {wanted} rails are active, and admitted by NCCL_IB_HCA"
        else:
            continue
        found.append(finding("FAB-PARTIAL-RAILS", said, [node]))
    return found
