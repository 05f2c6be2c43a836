"""Parses log lines about edges, and stores the edges of each rank in few bytes.

Formats: src/transport/net.cc, p2p.cc and shm.cc of NCCL 2.18 to 2.30.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

# Networks that carry data by RDMA (or its equal); Socket is TCP; any other proves nothing.
RDMA_NETWORKS = re.compile(
    r"IB|IBext\w*|NCCL RDMA Plugin(?: v\d+)?|gIB|AWS Libfabric|Libfabric|OFI|FasTrak|UCX-RMA|RDMA"
    r"|GPUDirectTCPX\w*|Slingshot\w*",
    re.IGNORECASE,
)
EDGE_KINDS = ("intra", "rdma", "tcp", "other")
MAX_RANKS = 100_000  # of one job: about three times the largest known jobs
MAX_EDGES = 1 << 16  # edges kept of one rank: to and from 32,768 others

EDGE_LINE = re.compile(
    rb"(\d{1,9})(?:\[[0-9a-fA-F]+\])? -> (\d{1,9})(?:\[[0-9a-fA-F]+\])?"
    rb"(?: +\[(?:send|(receive))\])? +via "
    rb"(?:NET/([^/]{1,64})/(\d{1,4})(?:\(\d+\))?((?:/GDRDMA|\(PCI\)|/Shared|/\w+)*)"
    rb"|(P2P|SHM|DIRECT|direct shared memory)\b.*?)(?: comm 0x\w+ nRanks \d{1,9})?$"
)
TAIL_SIZE = re.compile(rb" nRanks (\d{1,6})$")  # ranks of the edge's communicator


class Edge(NamedTuple):
    """Connection between two ranks; `rank` wrote the line, `peer` is the other end.

    `kind` is one of EDGE_KINDS. Whether the edge leaves the host is determined later.
    """

    kind: str
    rank: int
    peer: int
    receives: bool = False
    network: str = ""
    nic: int | None = None  # None within a host
    gdr: bool = False

    @property
    def packed(self) -> int:
        """Kind, direction and both ends in one number under 2 ** 40."""
        kind = EDGE_KINDS.index(self.kind) << 1 | self.receives
        return (kind << 17 | self.rank) << 17 | self.peer


def parse_edge(text: bytes, ofi_over_tcp: bool) -> Edge | None:
    """Parse an edge from `0[0] -> 8[0] [send] via NET/IB/0/GDRDMA`; None for a partial line."""
    match = EDGE_LINE.match(text)
    if not match:
        return None
    source, target = int(match[1]), int(match[2])
    if max(source, target) >= MAX_RANKS:
        return None
    if match[7]:
        return Edge("intra", source, target)
    network = sys.intern(match[4].decode("utf-8", "backslashreplace").strip())
    kind = "tcp" if network == "Socket" else "other"
    if RDMA_NETWORKS.fullmatch(network):
        kind = "tcp" if ofi_over_tcp and "ibfabric" in network else "rdma"
    rank, peer = (target, source) if match[3] else (source, target)
    return Edge(kind, rank, peer, bool(match[3]), network, int(match[5]), b"/GDRDMA" in match[6])


class EdgeSet:
    """Edges that one rank logged, each once, with the place of the first line about it.

    Two parallel arrays, sorted by key, take 16 bytes per edge; a set of tuples takes 200.
    """

    __slots__ = ("keys", "positions")

    def __init__(self) -> None:
        self.keys, self.positions = array("Q"), array("Q")

    def __contains__(self, key: int) -> bool:
        index = bisect_left(self.keys, key)
        return index < len(self.keys) and self.keys[index] == key

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: int, position: int) -> None:
        """Add an edge that is not in the set yet."""
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.positions.insert(index, position)

    def __iter__(self) -> Iterator[tuple[Edge, int]]:
        for key, position in zip(self.keys, self.positions, strict=True):
            kind_bits = key >> 34
            rank, peer = key >> 17 & 0x1FFFF, key & 0x1FFFF
            yield Edge(EDGE_KINDS[kind_bits >> 1], rank, peer, bool(kind_bits & 1)), position
