"""What this fabric should give, from facts, with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# Of the line rate, what a ring shows that nothing is wrong with: 12 of 12.5 GB/s by 100 Gbit/s, 192
# of 200 by 8 x 200, 48 of 50 by 400 (NVIDIA's own words in nccl-tests issues 119, 290 and 319, and
# nccl issue 812).
PLATEAU = 0.96


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


def reason(fraction: float, line: str) -> str:
    """Why `fraction` of this line rate (in words) is the least that is asked of a ring."""
    return (
        f"{fraction:.0%} of {line}; a sound ring shows {PLATEAU:.0%} of it "
        "(not a tree, which over two nodes may show more than the line carries)"
    )


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
