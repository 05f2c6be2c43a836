"""Parses lines about edges, stores those of each rank in few bytes, and finds which leave a host.

Ranks appear in the log in any order. So the host of an edge's other end may come from the last
file. With P2P and shared memory off, ranks of one host connect over the network too.
Formats: src/transport/net.cc, p2p.cc and shm.cc of NCCL 2.18 to 2.30.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from probes.nccl.job import Communicator, Host, Rank

# Networks that carry data by RDMA (or its equal); Socket is TCP; any other proves nothing.
RDMA_NETWORKS = re.compile(
    r"IB|IBext\w*|NCCL RDMA Plugin(?: v\d+)?|gIB|AWS Libfabric|Libfabric|OFI|FasTrak|UCX-RMA|RDMA"
    r"|GPUDirectTCPX\w*|Slingshot\w*",
    re.IGNORECASE,
)
EDGE_KINDS = ("intra", "rdma", "tcp", "other")
MAX_RANKS = 100_000  # of one job: about three times the largest known jobs
MAX_EDGES = 1 << 16  # edges kept of one rank: to and from 32,768 others
MAX_CANDIDATES = 200  # communicators in which a rank has one number

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


class HostEdges:
    """Edges of a job, counted by the hosts of their ends.

    `counts` has the edges between hosts by kind, and as "intra" those within one host. An edge to
    an unknown host counts as one between hosts, because nothing shows that it stays. `silent_ranks`
    are ranks that others connect to over the network, but that logged no connection.
    """

    def __init__(self, comms: Iterable[Communicator]) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(EDGE_KINDS, 0))
        self.silent_ranks: list[Rank] = []
        self._first_seen: dict[str, tuple[Host, dict[str, int]]] = {}
        self._unplaced: Counter[tuple[str, bool]] = Counter()
        self._ambiguous = {id(comm): names for comm in comms if (names := comm.ambiguous_hosts)}

    def count_edges(self, ranks: Iterable[Rank], location_of: Callable[[int], str]) -> None:
        """Count the edges of all ranks; set for each host the kinds that leave it, and where."""
        for rank in ranks:
            comms: dict[int, list[Communicator]] = {}
            for member in rank.comms if rank.edges else ():
                comms.setdefault(member.number, []).append(member.comm)
            for edge, position in rank.edges or ():
                self._count_edge(rank, edge, position, comms.get(edge.rank, []))
        for kind in EDGE_KINDS:
            # Sender and receiver may both have logged an edge here: take the larger count.
            self.counts[kind] += max(self._unplaced[kind, True], self._unplaced[kind, False])
        for host, positions in self._first_seen.values():
            host.edges = {kind: location_of(position) for kind, position in positions.items()}

    def _count_edge(self, rank: Rank, edge: Edge, position: int, comms: list[Communicator]) -> None:
        if edge.kind == "intra":
            self.counts["intra"] += 1
            return
        comm, leaves = self._find_comm(rank, edge, comms)
        if leaves:
            _, positions = self._first_seen.setdefault(rank.host.name, (rank.host, {}))
            positions[edge.kind] = min(position, positions.get(edge.kind, position))
        if comm is None:
            self._unplaced[edge.kind, edge.receives] += 1
            return
        if not (edge.receives and _reported_by_sender(comm, edge)):
            self.counts[edge.kind if leaves else "intra"] += 1
        member = comm.members.get(edge.peer)
        if member and member.rank.edges is None and not member.rank.connected:
            member.rank.edges = EdgeSet()  # so that it is named once
            self.silent_ranks.append(member.rank)

    def _find_comm(
        self, rank: Rank, edge: Edge, comms: list[Communicator]
    ) -> tuple[Communicator | None, bool]:
        """Find the communicator of the edge, and whether the edge leaves the host.

        The line does not name the communicator. If the rank has the same number in several `comms`,
        choose one in which the edge leaves. With more than MAX_CANDIDATES it is unknown: (None,
        True).
        """
        if len(comms) > MAX_CANDIDATES:
            return None, True
        candidates = [comm for comm in comms if edge.peer < comm.size]
        for comm in candidates:
            if self._may_leave_host(comm, rank, edge.peer):
                return comm, True
        return (candidates[0], False) if candidates else (None, True)

    def _may_leave_host(self, comm: Communicator, rank: Rank, peer: int) -> bool:
        """Return whether the peer is, or may be, on another host."""
        member = comm.members.get(peer)
        if member is None or comm.rank_conflict:
            return comm.nodes != 1
        ambiguous = self._ambiguous.get(id(comm), ())
        return member.rank.host is not rank.host or rank.host.name in ambiguous


def _reported_by_sender(comm: Communicator, edge: Edge) -> bool:
    """Return whether the edge's other end logged it as well."""
    member = comm.members.get(edge.peer)
    edges = member.rank.edges if member else None
    sent = edge._replace(rank=edge.peer, peer=edge.rank, receives=False)
    return edges is not None and sent.packed in edges
