"""Which edges leave a host: settled once all lines are read, as ranks are told of in any order.

With P2P and shared memory off, ranks of one host meet by the network too; and the host of an
edge's other end may be learnt from a file that is read last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from probes.nccl.edges import KINDS, Edge, Links
from probes.nccl.job import Communicator, Host, Rank

MANY = 200  # communicators in which a rank has one number


class Crossings:
    """The edges of a job, by the hosts of their ends.

    `counts` has the edges between hosts by kind, and as "intra" those within one.  An edge whose
    other end is on no known host is one between hosts: nobody has seen that it stays.  `silent`
    are ranks that others are connected to over the network, and that wrote nothing of it.
    """

    def __init__(self, communicators: Iterable[Communicator]) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.silent: list[Rank] = []
        self._first: dict[str, tuple[Host, dict[str, int]]] = {}
        self._loose: Counter[tuple[str, bool]] = Counter()
        self._shared = {
            id(group): names for group in communicators if (names := group.shared_names)
        }

    def survey(self, ranks: Iterable[Rank], where: Callable[[int], str]) -> None:
        """Count the edges of all ranks; each host learns which kinds lead out of it, and where."""
        for rank in ranks:
            groups: dict[int, list[Communicator]] = {}
            for seat in rank.seats if rank.links else ():
                groups.setdefault(seat.number, []).append(seat.group)
            for edge, place in rank.links or ():
                self._count(rank, edge, place, groups.get(edge.own, []))
        for kind in KINDS:
            # Of these nobody knows which are told of twice, by who sends and by who receives.
            self.counts[kind] += max(self._loose[kind, True], self._loose[kind, False])
        for host, places in self._first.values():
            host.edges = {kind: where(place) for kind, place in places.items()}

    def _count(self, rank: Rank, edge: Edge, place: int, groups: list[Communicator]) -> None:
        if edge.kind == "intra":
            self.counts["intra"] += 1
            return
        group, leaves = self._way(rank, edge, groups)
        if leaves:
            _, places = self._first.setdefault(rank.host.name, (rank.host, {}))
            places[edge.kind] = min(place, places.get(edge.kind, place))
        if group is None:
            self._loose[edge.kind, edge.receives] += 1
            return
        if not (edge.receives and _told_by_sender(group, edge)):
            self.counts[edge.kind if leaves else "intra"] += 1
        seat = group.seats.get(edge.peer)
        if seat and seat.rank.links is None and not seat.rank.talked:
            seat.rank.links = Links()  # so that it is named once
            self.silent.append(seat.rank)

    def _way(
        self, rank: Rank, edge: Edge, groups: list[Communicator]
    ) -> tuple[Communicator | None, bool]:
        """The communicator that the edge is of, and whether it leaves the host.

        The line does not name it.  Where the rank has one number in several `groups`, it is that
        in which the edge leaves; in very many, nobody knows.
        """
        if len(groups) > MANY:
            return None, True
        possible = [group for group in groups if edge.peer < group.size]
        for group in possible:
            if self._apart(group, rank, edge.peer):
                return group, True
        return (possible[0], False) if possible else (None, True)

    def _apart(self, group: Communicator, rank: Rank, peer: int) -> bool:
        """Whether the peer is on another host, or may be."""
        seat = group.seats.get(peer)
        if seat is None or group.doubted:
            return group.nodes != 1
        shared = self._shared.get(id(group), ())
        return seat.rank.host is not rank.host or rank.host.name in shared


def _told_by_sender(group: Communicator, edge: Edge) -> bool:
    """Whether the edge's other end wrote of it as well."""
    seat = group.seats.get(edge.peer)
    links = seat.rank.links if seat else None
    sent = edge._replace(own=edge.peer, peer=edge.own, receives=False)
    return links is not None and sent.key in links
