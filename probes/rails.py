"""Whether all rails of a node carry their part: bytes sent per RDMA port, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
            words = _read(port / "counters" / "port_xmit_data")
            sent = 4 * int(words) if words else int(_read(port / "hw_counters" / "tx_bytes") or 0)
            name = f"{port.parts[-3]}/{port.name}"
            ports[name] = {"gbps": float(rate[1]), "sent": sent}
    fastest = max((port["gbps"] for port in ports.values()), default=0.0)
    return {name: port for name, port in ports.items() if port["gbps"] == fastest}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a counter this driver does not have, or a port that just went
        return ""


def shares(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """What each rail sent, as a ratio of an equal part; 0 for each where nothing was sent.

    A rail that was there before and is not after has sent nothing.
    """
    sent = {
        name: max(0, after[name]["sent"] - port["sent"]) if name in after else 0
        for name, port in before.items()
    }
    total = sum(sent.values())
    return {name: count * len(sent) / max(total, 1) for name, count in sent.items()}


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
