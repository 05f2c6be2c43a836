"""What this fabric should give, from facts, with the reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

# Of the line rate, what a ring shows that nothing is wrong with: 12 of 12.5 GB/s by 100 Gbit/s, 192
# of 200 by 8 x 200, 48 of 50 by 400 (NVIDIA's own words in nccl-tests issues 119, 290 and 319, and
# nccl issue 812).
PLATEAU = 0.96
# What `link_layer` in sysfs means; EFA is neither (kernel: sysfs-class-infiniband, efa_verbs.c).
LAYERS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
KINDS = ("InfiniBand", "EFA", "RoCE", "RDMA")  # the likelier rails first; RDMA: not known
EFA_GBPS = 100.0
SHOWN = 8  # nodes that have less


class Rail(NamedTuple):
    """One port that carries gradients: `device/port`, Gbit/s, and of which kind it is."""

    name: str
    gbps: float
    layer: str  # one of KINDS


@dataclass(frozen=True)
class LineRate:
    """`gbytes`: GB/s that one node can send on the fabric; `because`: rails x rate, and whence."""

    gbytes: float
    because: str


def line_rate(facts: list[dict[str, Any]], fabric: str) -> LineRate | None:
    """Line rate of the best node, for what one has, all should have; None when any does not say it.

    Those that have less are named in `because`.  `facts` are node facts with `rdma` (sysfs ports:
    rate "400 Gb/sec (4X NDR)", state "4: ACTIVE", link_layer "InfiniBand") and `interfaces` (speed
    in Mbit/s, None for virtual devices).
    """
    rates = [_rails(f) if fabric == "rdma" else _port(f, fabric) for f in facts]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    best = max(known, key=lambda rate: rate.gbytes)
    less = [f["host"] for f, rate in zip(facts, known, strict=True) if rate.gbytes < best.gbytes]
    more = f" and {len(less) - SHOWN} more" if len(less) > SHOWN else ""
    said = f"; less on {', '.join(less[:SHOWN])}{more}" if less else ""
    return LineRate(best.gbytes, best.because + said)


def reason(fraction: float, line: str) -> str:
    """Why `fraction` of this line rate (in words) is the least that is asked of a ring."""
    return (
        f"{fraction:.0%} of {line}; a sound ring shows {PLATEAU:.0%} of it "
        "(not a tree, which over two nodes may show more than the line carries)"
    )


def rails(ports: list[dict[str, str]]) -> list[Rail]:
    """The active ports of the highest rate, and of the kind that the node has most ports of.

    A slower port, or one of another kind, is for storage or management.  Of two kinds that are as
    many, the first of KINDS.  `ports` are as in `line_rate`.
    """
    found = []
    for port in ports:
        match = re.match(r"([\d.]+) Gb/sec", port["rate"])
        if match and "ACTIVE" in port["state"]:
            name = f"{port['device']}/{port['port']}"
            found.append(Rail(name, float(match[1]), _layer(port)))
    fastest = max((rail.gbps for rail in found), default=0.0)
    found = [rail for rail in found if rail.gbps == fastest]
    count = Counter(map(_layer, ports))  # also those that are down: one may be a rail
    kinds = {rail.layer for rail in found}
    most = max(kinds, key=lambda kind: (count[kind], -KINDS.index(kind)), default="")
    return [rail for rail in found if rail.layer == most]


def _layer(port: dict[str, str]) -> str:
    """Of which kind a port is; EFA's devices are `efa_0`, or `rdmap16s27` where udev names them."""
    elastic = port["device"].startswith(("efa", "rdmap"))
    return LAYERS.get(port["link_layer"], "EFA" if elastic else "RDMA")


def _rails(fact: dict[str, Any]) -> LineRate | None:
    found = rails(fact["rdma"])
    if not found:
        return None
    _, gbps, layer = found[0]
    said = f"{len(found)} x {gbps:.0f} Gbit/s active {layer} ports in sysfs on {fact['host']}"
    if layer == "EFA" and gbps == EFA_GBPS:
        said += " (which older EFA drivers say of any: give line_rate_gbps if it has more)"
    return LineRate(len(found) * gbps / 8, said)


def _port(fact: dict[str, Any], interface: str) -> LineRate | None:
    speed = fact["interfaces"].get(interface, {}).get("speed")
    if not speed:
        return None
    return LineRate(speed / 8000, f"{speed / 1000:.0f} Gbit/s of {interface} on {fact['host']}")
