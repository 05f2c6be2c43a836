"""Whether all rails of a node carry their part: bytes sent per RDMA port, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.counters import port_bytes
from probes.findings import finding
from reports.record import Finding

SYSFS = "/sys/class/infiniband"


def read_rails(root: str = SYSFS) -> dict[str, dict[str, Any]]:
    """Each active RDMA port as `device/port`: rate in Gbit/s and bytes sent since boot.

    Counters: see `counters.read_counters`.  A node's rails are its active ports of the highest
    rate: a slower one is for storage or management.
    """
    ports: dict[str, dict[str, Any]] = {}
    for port in sorted(Path(root).glob("*/ports/*")):
        rate = re.match(r"([\d.]+) Gb/sec", _read(port / "rate"))
        if rate and "ACTIVE" in _read(port / "state"):
            name = f"{port.parts[-3]}/{port.name}"
            ports[name] = {"gbps": float(rate[1]), "sent": port_bytes(port)}
    fastest = max((port["gbps"] for port in ports.values()), default=0.0)
    return {name: port for name, port in ports.items() if port["gbps"] == fastest}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a counter this driver does not have, or a port that just went
        return ""


def growth(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """Bytes that each rail sent in between; one that is there no more has sent nothing."""
    return {
        name: max(0, after[name]["sent"] - port["sent"]) if name in after else 0
        for name, port in before.items()
    }


def shares(sent: Mapping[str, int], rails: int) -> dict[str, float]:
    """What each of the `rails` busiest ports sent, as a ratio of an equal part.

    Ports beyond that number are as fast as rails, but were not ordered as such: storage.
    """
    busiest = sorted(sent, key=lambda name: -sent[name])[:rails]
    total = sum(sent[name] for name in busiest)
    return {name: sent[name] * len(busiest) / max(total, 1) for name in busiest}


def idle_rails(rails: Mapping[str, Mapping[str, float]], least: float) -> list[Finding]:
    """One finding per node with a rail that carried under `least` of its part."""
    found = []
    for node, parts in rails.items():
        idle = {name: part for name, part in parts.items() if part < least}
        if idle:
            told = ", ".join(f"{name} {part:.0%}" for name, part in sorted(idle.items()))
            said = f"{node}: of an equal part of the bytes, its rails carried: {told}"
            found.append(finding("FAB-PARTIAL-RAILS", said, [node, *sorted(idle)]))
    return found
