"""Determines which edges leave a host, once all lines are read.

Ranks appear in the log in any order. So the host of an edge's other end may come from the last
file. With P2P and shared memory off, ranks of one host connect over the network too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from probes.nccl.edges import EDGE_KINDS, Edge, EdgeSet
from probes.nccl.job import Communicator, Host, Rank

MAX_CANDIDATES = 200  # communicators in which a rank has one number


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
