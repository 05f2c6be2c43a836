"""Finds the ranks of each rail: the same local rank of all nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from probes.cluster.byte_counters import RDMA, interfaces_of


@dataclass(frozen=True)
class RailRanks:
    """One network that a rank of each node uses.

    `ports` maps each port to its rank.  A port is named `fab1 on node0`, or as its node where the
    node has one rail.  `fabric` is the device that must carry its bytes, None if none is agreed.
    """

    name: str  # "" where the node has one rail
    ports: dict[str, int]
    fabric: str | None


def find_rails(rank_nodes: Sequence[str], fabric: str | None, backend: str) -> list[RailRanks]:
    """List the rails that ranks can test; `rank_nodes` lists the node of each rank.

    By RDMA each rank uses the port close to its GPU, as NCCL does with several interfaces, so each
    local rank is taken for one rail.  With gloo each local rank binds one interface of the fabric.
    Local ranks that some node lacks are left out.
    """
    local = ranks_by_node(rank_nodes)
    fewest = min(map(len, local.values()), default=0)
    interfaces = interfaces_of(fabric)
    by_gpu = fabric == RDMA or (backend == "nccl" and len(interfaces) > 1)
    if by_gpu and fewest > 1:
        names = [f"rail {rank}" for rank in range(fewest)]
        devices: list[str | None] = [fabric] * fewest
    elif backend == "gloo" and min(len(interfaces), fewest) > 1:
        names, devices = interfaces[:fewest], [*interfaces[:fewest]]
    else:
        return [RailRanks("", {node: ranks[0] for node, ranks in local.items()}, fabric)]
    return [
        RailRanks(
            name, {port_name(name, node): ranks[index] for node, ranks in local.items()}, device
        )
        for index, (name, device) in enumerate(zip(names, devices, strict=True))
    ]


def ranks_by_node(rank_nodes: Sequence[str]) -> dict[str, list[int]]:
    """List the ranks of each node, in order."""
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(rank_nodes):
        ranks.setdefault(node, []).append(rank)
    return ranks


def port_name(rail: str, node: str) -> str:
    """Return the name of a node's port: `fab1 on node0`, or the node where it has one rail."""
    return f"{rail} on {node}" if rail else node


def node_of(port: str) -> str:
    """Return the node of a port: of `fab1 on node0`, node0."""
    return port.rpartition(" on ")[2]


def rail_of(port: str) -> str:
    """Return the rail of a port: of `fab1 on node0`, fab1; "" where the node has one rail."""
    return port.rpartition(" on ")[0]


def suspects(ports: Iterable[str]) -> list[str]:
    """List the nodes of these ports, each once, and then the ports that are not whole nodes."""
    ports = list(ports)
    return list(dict.fromkeys([*map(node_of, ports), *ports]))


def least_by_nodes(speeds: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Return the least speed between two nodes over all rails, by (sender, receiver)."""
    least: dict[tuple[str, str], float] = {}
    for (a, b), speed in speeds.items():
        link = node_of(a), node_of(b)
        least[link] = min(speed, least.get(link, speed))
    return least
