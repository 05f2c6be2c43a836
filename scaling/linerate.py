"""What this fabric should give, from facts, with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LineRate:
    """`gbytes`: GB/s that one node can send on the fabric; `because`: rails x rate, and whence."""

    gbytes: float
    because: str


def line_rate(facts: list[dict[str, Any]], fabric: str) -> LineRate | None:
    """Line rate of the slowest node; None when any node does not say it.

    `facts` are node facts with `rdma` (sysfs ports: rate "400 Gb/sec (4X NDR)", state
    "4: ACTIVE") and `interfaces` (speed in Mbit/s, None for virtual devices).
    """
    rates = [_rails(f) if fabric == "rdma" else _port(f, fabric) for f in facts]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    return min(known, key=lambda rate: rate.gbytes)


def rails(ports: list[dict[str, str]]) -> list[tuple[str, float]]:
    """(`device/port`, Gbit/s) of the active ports of the highest rate: the node's rails.

    A slower port is for storage or management.  `ports` are as in `line_rate`.
    """
    rates = []
    for port in ports:
        match = re.match(r"([\d.]+) Gb/sec", port["rate"])
        if match and "ACTIVE" in port["state"]:
            rates.append((f"{port['device']}/{port['port']}", float(match[1])))
    fastest = max((gbps for _, gbps in rates), default=0.0)
    return [(name, gbps) for name, gbps in rates if gbps == fastest]


def _rails(fact: dict[str, Any]) -> LineRate | None:
    found = rails(fact["rdma"])
    if not found:
        return None
    gbps = found[0][1]
    said = f"{len(found)} x {gbps:.0f} Gbit/s active RDMA ports in sysfs on {fact['host']}"
    return LineRate(len(found) * gbps / 8, said)


def _port(fact: dict[str, Any], interface: str) -> LineRate | None:
    speed = fact["interfaces"].get(interface, {}).get("speed")
    if not speed:
        return None
    return LineRate(speed / 8000, f"{speed / 1000:.0f} Gbit/s of {interface} on {fact['host']}")
