"""Derives the line rate of the fabric from node facts, with its reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reports.numbers import percent

# Share of the line rate that a healthy ring reaches: 12 of 12.5 GB/s at 100 Gbit/s, 192 of 200 GB/s
# at 8 x 200 Gbit/s, 48 of 50 GB/s at 400 Gbit/s (NVIDIA in nccl-tests issues 119, 290 and 319, and
# in nccl issue 812).
HEALTHY_RING_SHARE = 0.96
# `link_layer` in sysfs -> kind; EFA has neither (kernel: sysfs-class-infiniband, efa_verbs.c).
LINK_LAYERS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
RAIL_KINDS = ("InfiniBand", "EFA", "RoCE", "RDMA")  # more likely rails first; RDMA: kind not known
EFA_GBPS = 100.0  # older EFA drivers report this rate for every device
MAX_NAMED_NODES = 8  # at most so many nodes with less are named in a message


class Rail(NamedTuple):
    """One port for gradients: name (`device/port`), Gbit/s, kind, and whether it is active.

    sysfs shows no valid rate for a port that is down: it gets the rate of its kind.
    """

    name: str
    gbps: float
    layer: str  # one of RAIL_KINDS
    active: bool


@dataclass(frozen=True)
class LineRate:
    """Line rate of one node on the fabric, in GB/s; `because` names the rails, rates and source."""

    gbytes_per_s: float
    because: str


def line_rate(facts: list[dict[str, Any]], fabric: str) -> LineRate | None:
    """Return the line rate of the best node, as all nodes should have it; None if any is unknown.

    For RDMA all ports count, in any state: a dead fabric must not look like a slow one.
    `because` names the nodes that have less. `facts` are node facts with `rdma` and
    `interfaces`. `rdma` are sysfs ports: rate "400 Gb/sec (4X NDR)", state "4: ACTIVE",
    link_layer "InfiniBand". `interfaces` have a speed in Mbit/s, None for virtual devices.
    """
    if fabric == "rdma":
        rates = [
            _rdma_line_rate(fact["host"], rails)
            for fact, rails in zip(facts, installed_rails([f["rdma"] for f in facts]), strict=True)
        ]
    else:
        rates = [_interfaces_line_rate(fact, fabric.split(",")) for fact in facts]
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
    """Explain why a ring must reach at least `fraction` of this line rate (`rate_text`)."""
    return (
        f"{percent(fraction)} of {rate_text}; a healthy ring reaches "
        f"{percent(HEALTHY_RING_SHARE)} of it "
        "(a tree over two nodes may show more than the line rate)"
    )


def installed_rails(nodes: Sequence[list[dict[str, str]]]) -> list[list[Rail] | None]:
    """Return the rails of each node, active or not; limits and orders are based on them.

    Rails are the ports of the fastest kind in the cluster. If kinds are equally fast, the kind
    with most ports counts, then the first of RAIL_KINDS. A slower port, or one of another kind,
    is for storage or management. A port that is down counts, because nothing shows that it is
    not a rail. All nodes get None if a kind with more ports is down everywhere: its rate is
    unknown. A node without a port of the kind gets None. `nodes` are ports as in `line_rate`.
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
    """Return the rails of one node that are active now; it may have more."""
    (rails,) = installed_rails([ports])
    return [rail for rail in rails or [] if rail.active]


def _is_down(port: dict[str, str]) -> bool:
    """Return whether a port has no link.

    sysfs then shows 10 Gb/sec, which is not the link's rate.
    """
    return "DOWN" in port["state"]


def _port_gbps(port: dict[str, str]) -> float:
    match = re.match(r"([\d.]+) Gb/sec", port["rate"])
    return float(match[1]) if match else 0.0


def _port_kind(port: dict[str, str]) -> str:
    """Classify a port by its link layer, or as EFA by its device name.

    EFA devices are named `efa_0`, or `rdmap16s27` if udev renames them.
    """
    is_efa = port["device"].startswith(("efa", "rdmap"))
    return LINK_LAYERS.get(port["link_layer"], "EFA" if is_efa else "RDMA")


def _rdma_line_rate(host: str, rails: list[Rail] | None) -> LineRate | None:
    if rails is None:
        return None
    if not rails:
        return LineRate(0.0, f"no port on {host} has the rate of the others' ports")
    _, gbps, layer, _ = rails[0]
    message = f"{len(rails)} x {gbps:.0f} Gbit/s {layer} ports in sysfs on {host}"
    if down := sum(not rail.active for rail in rails):
        message += f", {down} of them not active (NCCL_IB_HCA can exclude ports that are no rail)"
    if layer == "EFA" and gbps == EFA_GBPS:
        message += (
            " (older EFA drivers report this for any port: give line_rate_gbps if it is faster)"
        )
    return LineRate(len(rails) * gbps / 8, message)


def _interfaces_line_rate(fact: dict[str, Any], names: list[str]) -> LineRate | None:
    speeds = [fact["interfaces"].get(name, {}).get("speed") for name in names]
    if not all(speeds):
        return None
    text = f"{sum(speeds) / 1000:.0f} Gbit/s of {', '.join(names)} on {fact['host']}"
    return LineRate(sum(speeds) / 8000, text)
