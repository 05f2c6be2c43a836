"""What this fabric should give, from facts, with the reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

# Of the line rate, what a ring shows that nothing is wrong with: 12 of 12.5 GB/s by 100 Gbit/s, 192
# of 200 by 8 x 200, 48 of 50 by 400 (NVIDIA's own words in nccl-tests issues 119, 290 and 319, and
# nccl issue 812).
HEALTHY_RING_SHARE = 0.96
# What `link_layer` in sysfs means; EFA is neither (kernel: sysfs-class-infiniband, efa_verbs.c).
LINK_LAYERS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
RAIL_KINDS = ("InfiniBand", "EFA", "RoCE", "RDMA")  # the likelier rails first; RDMA: not known
EFA_GBPS = 100.0  # what older EFA drivers say of any device
MAX_NAMED_NODES = 8  # nodes that have less


class Rail(NamedTuple):
    """One port that carries gradients: `device/port`, Gbit/s, and of which kind it is."""

    name: str
    gbps: float
    layer: str  # one of RAIL_KINDS


@dataclass(frozen=True)
class LineRate:
    """What one node can send on the fabric, and because of which rails and rates, and whence."""

    gbytes_per_s: float
    because: str


def line_rate(facts: list[dict[str, Any]], fabric: str) -> LineRate | None:
    """Line rate of the best node, for what one has, all should have; None when any does not say it.

    Those that have less are named in `because`.  `facts` are node facts with `rdma` (sysfs ports:
    rate "400 Gb/sec (4X NDR)", state "4: ACTIVE", link_layer "InfiniBand") and `interfaces` (speed
    in Mbit/s, None for virtual devices).
    """
    rates = [
        _rdma_line_rate(f) if fabric == "rdma" else _interface_line_rate(f, fabric) for f in facts
    ]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    best = max(known, key=lambda rate: rate.gbytes_per_s)
    slower = [
        f["host"]
        for f, rate in zip(facts, known, strict=True)
        if rate.gbytes_per_s < best.gbytes_per_s
    ]
    overflow = f" and {len(slower) - MAX_NAMED_NODES} more" if len(slower) > MAX_NAMED_NODES else ""
    message = f"; less on {', '.join(slower[:MAX_NAMED_NODES])}{overflow}" if slower else ""
    return LineRate(best.gbytes_per_s, best.because + message)


def limit_reason(fraction: float, rate_text: str) -> str:
    """Why `fraction` of this line rate (in words) is the least that is asked of a ring."""
    return (
        f"{fraction:.0%} of {rate_text}; a sound ring shows {HEALTHY_RING_SHARE:.0%} of it "
        "(not a tree, which over two nodes may show more than the line carries)"
    )


def find_rails(ports: list[dict[str, str]]) -> list[Rail]:
    """The active ports of the highest rate, and of the kind that the node has most ports of.

    A slower port, or one of another kind, is for storage or management.  Of two kinds that are as
    many, the first of RAIL_KINDS.  `ports` are as in `line_rate`.
    """
    active = []
    for port in ports:
        match = re.match(r"([\d.]+) Gb/sec", port["rate"])
        if match and "ACTIVE" in port["state"]:
            name = f"{port['device']}/{port['port']}"
            active.append(Rail(name, float(match[1]), _port_kind(port)))
    fastest = max((rail.gbps for rail in active), default=0.0)
    active = [rail for rail in active if rail.gbps == fastest]
    port_counts = Counter(map(_port_kind, ports))  # also those that are down: one may be a rail
    kinds = {rail.layer for rail in active}
    main_kind = max(
        kinds, key=lambda kind: (port_counts[kind], -RAIL_KINDS.index(kind)), default=""
    )
    return [rail for rail in active if rail.layer == main_kind]


def _port_kind(port: dict[str, str]) -> str:
    """Of which kind a port is; EFA's devices are `efa_0`, or `rdmap16s27` where udev names them."""
    is_efa = port["device"].startswith(("efa", "rdmap"))
    return LINK_LAYERS.get(port["link_layer"], "EFA" if is_efa else "RDMA")


def _rdma_line_rate(fact: dict[str, Any]) -> LineRate | None:
    active = find_rails(fact["rdma"])
    if not active:
        return None
    _, gbps, layer = active[0]
    message = f"{len(active)} x {gbps:.0f} Gbit/s active {layer} ports in sysfs on {fact['host']}"
    if layer == "EFA" and gbps == EFA_GBPS:
        message += " (which older EFA drivers say of any: give line_rate_gbps if it has more)"
    return LineRate(len(active) * gbps / 8, message)


def _interface_line_rate(fact: dict[str, Any], interface: str) -> LineRate | None:
    speed = fact["interfaces"].get(interface, {}).get("speed")
    if not speed:
        return None
    return LineRate(speed / 8000, f"{speed / 1000:.0f} Gbit/s of {interface} on {fact['host']}")
