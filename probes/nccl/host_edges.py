"""Which edges leave a host: settled once all lines are read, as ranks are told of in any order.

With P2P and shared memory off, ranks of one host meet by the network too; and the host of an
edge's other end may be learnt from a file that is read last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from probes.nccl.edges import EDGE_KINDS, Edge, EdgeSet
from probes.nccl.job import Communicator, Host, Rank

MAX_CANDIDATES = 200  # communicators in which a rank has one number


class HostEdges:
    """The edges of a job, by the hosts of their ends.

    `counts` has the edges between hosts by kind, and as "intra" those within one.  An edge whose
    other end is on no known host is one between hosts: nobody has seen that it stays.
    `silent_ranks` are those that others are connected to over the network, and that wrote nothing
    of it.
    """

    def __init__(self, comms: Iterable[Communicator]) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(EDGE_KINDS, 0))
        self.silent_ranks: list[Rank] = []
        self._first_seen: dict[str, tuple[Host, dict[str, int]]] = {}
        self._unplaced: Counter[tuple[str, bool]] = Counter()
        self._ambiguous = {id(comm): names for comm in comms if (names := comm.ambiguous_hosts)}

    def count_edges(self, ranks: Iterable[Rank], location_of: Callable[[int], str]) -> None:
        """Count the edges of all ranks; each host learns which kinds lead out of it, and where."""
        for rank in ranks:
            comms: dict[int, list[Communicator]] = {}
            for member in rank.comms if rank.edges else ():
                comms.setdefault(member.number, []).append(member.comm)
            for edge, position in rank.edges or ():
                self._count_edge(rank, edge, position, comms.get(edge.rank, []))
        for kind in EDGE_KINDS:
            # Of these nobody knows which are told of twice, by who sends and by who receives.
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
        """Find the communicator that the edge is of, and whether it leaves the host.

        The line does not name it.  Where the rank has one number in several `comms`, it is that
        in which the edge leaves; in very many, nobody knows.
        """
        if len(comms) > MAX_CANDIDATES:
            return None, True
        candidates = [comm for comm in comms if edge.peer < comm.size]
        for comm in candidates:
            if self._may_leave_host(comm, rank, edge.peer):
                return comm, True
        return (candidates[0], False) if candidates else (None, True)

    def _may_leave_host(self, comm: Communicator, rank: Rank, peer: int) -> bool:
        """Tell whether the peer is on another host, or may be."""
        member = comm.members.get(peer)
        if member is None or comm.rank_conflict:
            return comm.nodes != 1
        ambiguous = self._ambiguous.get(id(comm), ())
        return member.rank.host is not rank.host or rank.host.name in ambiguous


def _reported_by_sender(comm: Communicator, edge: Edge) -> bool:
    """Tell whether the edge's other end wrote of it as well."""
    member = comm.members.get(edge.peer)
    edges = member.rank.edges if member else None
    sent = edge._replace(rank=edge.peer, peer=edge.rank, receives=False)
    return edges is not None and sent.key in edges
