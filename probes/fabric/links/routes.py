"""Reads the route from a node to an address, on the node itself, if traffic left the fabric."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping

from probes.cluster.node_facts import read_interfaces
from probes.fabric.rails.ranks import node_of, rail_of
from reference_trainer.launch.gang import Gang
from scaling.collectives.fault_search import Link

ROUTE_SECONDS = 10  # for `ip` to answer, which takes milliseconds


def read_route(address: str, source: str | None = None) -> str:
    """Ask `ip route get ADDRESS` on this node, from `source` if given; "" if it cannot be asked."""
    try:
        done = subprocess.run(
            ["ip", "-4", "route", "get", address, *(["from", source] if source else [])],
            capture_output=True,
            text=True,
            timeout=ROUTE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):  # many images have no `ip`
        return ""
    # As "10.77.0.3 via 10.78.0.3 dev eth0 src 10.77.0.2 uid 0"; the rest is not needed.
    return " ".join(done.stdout.partition(" uid ")[0].split())


def read_routes(
    gang: Gang,
    node_names: dict[str, str],
    links: Iterable[Link],
    interfaces: Mapping[Link, str],
) -> dict[Link, str]:
    """Ask each sender of these links how it reaches its receiver's address on its interface.

    Links whose receiver has no such address, as with RDMA, are left out.
    """
    links = list(links)
    if not links:
        return {}
    names = [node_names[place.node] for place in gang.places]
    ranks = {name: names.index(name) for name in dict.fromkeys(names)}
    ports = gang.run(read_interfaces, timeout=60)
    found = {}
    for sender, receiver in links:
        name, rank = interfaces[sender, receiver], ranks[node_of(sender)]
        address = ports[ranks[node_of(receiver)]].get(name, {}).get("address")
        own = ports[rank].get(name, {}).get("address") if rail_of(sender) else None
        if address:
            each: list[list[object]] = [[] for _ in gang.places]
            each[rank] = [address, own]
            call = gang.run(read_route, timeout=60, each=each, groups=[[rank]])
            found[sender, receiver] = str(call[0])
    return found
