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


def _rails(fact: dict[str, Any]) -> LineRate | None:
    gbps = []
    for port in fact["rdma"]:
        match = re.match(r"([\d.]+) Gb/sec", port["rate"])
        if match and "ACTIVE" in port["state"]:
            gbps.append(float(match[1]))
    if not gbps:
        return None
    # The rails are the fastest ports: a slower one is for storage or management.
    fastest = max(gbps)
    rails = gbps.count(fastest)
    said = f"{rails} x {fastest:.0f} Gbit/s active RDMA ports in sysfs on {fact['host']}"
    return LineRate(rails * fastest / 8, said)


def _port(fact: dict[str, Any], interface: str) -> LineRate | None:
    speed = fact["interfaces"].get(interface, {}).get("speed")
    if not speed:
        return None
    return LineRate(speed / 8000, f"{speed / 1000:.0f} Gbit/s of {interface} on {fact['host']}")
