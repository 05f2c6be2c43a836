"""What this fabric should give, from facts, with the reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
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
    """One port for gradients: `device/port`, Gbit/s, of which kind it is, and whether it is active.

    A port that is down does not say its rate: it has that of its kind.
    """

    name: str
    gbps: float
    layer: str  # one of RAIL_KINDS
    active: bool


@dataclass(frozen=True)
class LineRate:
    """What one node can send on the fabric, and because of which rails and rates, and whence."""

    gbytes_per_s: float
    because: str


def line_rate(facts: list[dict[str, Any]], fabric: str) -> LineRate | None:
    """Line rate of the best node, for what one has, all should have; None when any does not say it.

    Of RDMA it is that of the ports that are there, in whatever state: a dead fabric is no slow one.
    Nodes that have less are named in `because`.  `facts` are node facts with `rdma` (sysfs ports:
    rate "400 Gb/sec (4X NDR)", state "4: ACTIVE", link_layer "InfiniBand") and `interfaces` (speed
    in Mbit/s, None for virtual devices).
    """
    if fabric == "rdma":
        rates = [
            _rdma_line_rate(fact["host"], rails)
            for fact, rails in zip(facts, installed_rails([f["rdma"] for f in facts]), strict=True)
        ]
    else:
        rates = [_interface_line_rate(fact, fabric) for fact in facts]
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


def installed_rails(nodes: Sequence[list[dict[str, str]]]) -> list[list[Rail] | None]:
    """The rails of each node, in whatever state: what limits and orders follow from.

    They are the ports of the kind that is fastest anywhere in the cluster; of kinds as fast, of
    which there are most, then the first of RAIL_KINDS.  A slower port, or one of another kind, is
    for storage or management.  A port that is down counts: nothing says that it is not a rail.
    None for all where the kind of most ports is down everywhere, for then nothing says its rate;
    None for a node without a port of the kind.  `nodes` are ports as in `line_rate`.
    """
    ports = [[(port, _port_kind(port)) for port in node] for node in nodes]
    counts = Counter(kind for node in ports for _, kind in node)
    rates: dict[str, float] = {}
    for port, kind in (pair for node in ports for pair in node):
        if not _is_down(port):
            rates[kind] = max(rates.get(kind, 0.0), _port_gbps(port))
    main_kind = max(rates, key=lambda k: (rates[k], counts[k], -RAIL_KINDS.index(k)), default="")
    if any(count > counts[main_kind] for kind, count in counts.items() if kind not in rates):
        return [None] * len(nodes)
    best = rates.get(main_kind, 0.0)
    return [
        [
            Rail(f"{port['device']}/{port['port']}", best, kind, "ACTIVE" in port["state"])
            for port, kind in node
            if kind == main_kind and (_is_down(port) or _port_gbps(port) == best)
        ]
        if any(kind == main_kind for _, kind in node)
        else None
        for node in ports
    ]


def active_rails(ports: list[dict[str, str]]) -> list[Rail]:
    """The rails of one node that are active now, which may be fewer than it has."""
    (rails,) = installed_rails([ports])
    return [rail for rail in rails or [] if rail.active]


def _is_down(port: dict[str, str]) -> bool:
    """Whether a port has no link: sysfs then shows a rate that is not the link's (10 Gb/sec)."""
    return "DOWN" in port["state"]


def _port_gbps(port: dict[str, str]) -> float:
    match = re.match(r"([\d.]+) Gb/sec", port["rate"])
    return float(match[1]) if match else 0.0


def _port_kind(port: dict[str, str]) -> str:
    """Of which kind a port is; EFA's devices are `efa_0`, or `rdmap16s27` where udev names them."""
    is_efa = port["device"].startswith(("efa", "rdmap"))
    return LINK_LAYERS.get(port["link_layer"], "EFA" if is_efa else "RDMA")


def _rdma_line_rate(host: str, rails: list[Rail] | None) -> LineRate | None:
    if rails is None:
        return None
    _, gbps, layer, _ = rails[0] if rails else Rail("", 0.0, RAIL_KINDS[-1], False)
    message = f"{len(rails)} x {gbps:.0f} Gbit/s {layer} ports in sysfs on {host}"
    if down := sum(not rail.active for rail in rails):
        message += f", {down} of them not active (NCCL_IB_HCA can leave out what is no rail)"
    if layer == "EFA" and gbps == EFA_GBPS:
        message += " (which older EFA drivers say of any: give line_rate_gbps if it has more)"
    return LineRate(len(rails) * gbps / 8, message)


def _interface_line_rate(fact: dict[str, Any], interface: str) -> LineRate | None:
    speed = fact["interfaces"].get(interface, {}).get("speed")
    if not speed:
        return None
    return LineRate(speed / 8000, f"{speed / 1000:.0f} Gbit/s of {interface} on {fact['host']}")
