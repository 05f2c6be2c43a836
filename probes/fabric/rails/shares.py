"""Measures whether all rails of a node carry their part: bytes per RDMA port, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.cluster.byte_counters import interfaces_of, port_bytes
from probes.cluster.cluster import Cluster
from probes.cluster.facts.system_files import RDMA_SYSFS
from probes.cluster.node_facts import rdma_ports
from probes.environment.rails import admitted_facts, count_rails, nccl_ports, read_ib_hca
from probes.findings import finding, name_port
from reports.numbers import percent
from reports.record import Finding
from scaling.collectives.line_rate import active_rails


def read_rails(root: str = RDMA_SYSFS) -> dict[str, dict[str, Any]]:
    """Read this node's active rails by `device/port`: rate in Gbit/s and bytes sent since boot.

    Ports that NCCL must not use are left out: they are for storage, however fast.
    """
    return {
        rail.name: {
            "gbps": rail.gbps,
            "sent": port_bytes(Path(root, rail.name.replace("/", "/ports/"))),
        }
        for rail in active_rails(nccl_ports(rdma_ports(root), read_ib_hca()))
    }


def count_installed(cluster: Cluster, fabric: str | None) -> int | None:
    """Count the rails that the best node has, active or not; None if there are none to count."""
    if fabric != "rdma":
        return None
    return count_rails(admitted_facts(cluster.facts, cluster.on_each_node(read_ib_hca)))


def bytes_by_interface(
    grown: Mapping[str, int | None], fabric: str | None
) -> dict[str, int | None]:
    """Select what each interface of a fabric sent; empty if the fabric has one."""
    names = interfaces_of(fabric)
    return {name: grown[name] for name in names if name in grown} if len(names) > 1 else {}


def rail_growth(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int | None]:
    """Count the bytes that each rail sent between two readings.

    A rail that is gone has sent nothing.  None if a counter cannot be read.
    """
    grown: dict[str, int | None] = {}
    for name, port in before.items():
        first, last = port["sent"], after[name]["sent"] if name in after else port["sent"]
        grown[name] = None if first is None or last is None else max(0, last - first)
    return grown


def rail_shares(sent: Mapping[str, int | None], count: int) -> dict[str, float]:
    """Compute what each of the `count` busiest ports sent, as a ratio of an equal part.

    Further ports are as fast as rails, but were not ordered as such: they are for storage.  Empty
    if a counter cannot be read, because that port may have sent the most.
    """
    known = {name: bytes_sent for name, bytes_sent in sent.items() if bytes_sent is not None}
    if len(known) < len(sent):
        return {}
    busiest = sorted(known, key=lambda name: -known[name])[:count]
    total = sum(known[name] for name in busiest)
    return {name: known[name] * len(busiest) / max(total, 1) for name in busiest}


def find_idle_rails(nodes: Mapping[str, Mapping[str, float]], min_share: float) -> list[Finding]:
    """Make one finding per node with a rail that carried under `min_share` of its part."""
    findings = []
    for node, shares in nodes.items():
        idle = {name: share for name, share in shares.items() if share < min_share}
        if idle:
            shares_text = ", ".join(
                f"{name} {percent(share)}" for name, share in sorted(idle.items())
            )
            message = f"{node}: uneven rails. Share of an equal part of the bytes: {shares_text}"
            names = name_port(min(idle, key=lambda name: idle[name]))
            suspects = [node, *sorted(idle)]
            findings.append(finding("FAB-PARTIAL-RAILS", message, suspects, names=names))
    return findings


def find_missing_rails(
    counts: Mapping[str, int], expected: int, rates: Mapping[str, float]
) -> list[Finding]:
    """Make one finding per node with fewer active rails than it should have, or slower ones.

    `rates` are in Gbit/s, of each node's rails.
    """
    best = max(rates.values(), default=0.0)
    findings = []
    for node, count in counts.items():
        if count and rates.get(node, best) < best:
            message = (
                f"{node}: its {count} rails run at {rates[node]:g} Gbit/s. Other nodes: {best:g} "
                "Gbit/s"
            )
        elif count < expected:
            message = f"{node}: {count} of {expected} rails are active, and admitted by NCCL_IB_HCA"
        else:
            continue
        findings.append(finding("FAB-PARTIAL-RAILS", message, [node]))
    return findings
