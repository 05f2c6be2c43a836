"""What one job's NCCL log says, as a whole: ranks, hosts, communicators, edges, errors.

`parser` folds the lines into a Log; `report` says what it means.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from probes.nccl.host_edges import Crossings
from probes.nccl.job import (
    STAGES,
    Communicator,
    Host,
    Process,
    Rank,
    Sighting,
    Start,
    jobs,
)
from probes.nccl.lines import UNKNOWN, Writer

NOBODY = Rank(UNKNOWN, Host(""))
RUNTIME_CONNECT = (2, 22)  # since then ranks connect at the first collective, not at init


class Log:
    """Everything that the files of one job say, folded; `settled` once all of them are read."""

    def __init__(self) -> None:
        self.room = Room()
        self.files: list[str] = []  # names, in the order of reading
        self.ranks: dict[Writer, Rank] = {}
        self.hosts: dict[str, Host] = {}
        self.communicators: dict[bytes, Communicator] = {}  # by commId
        self.splits: dict[bytes, Communicator] = {}
        self.edges: dict[str, int] = dict.fromkeys(("rdma", "tcp", "intra", "other"), 0)
        self.silent: list[Rank] = []  # others are connected to them, they do not say so
        self.gdr: set[bool] = set()
        self.gdr_0 = ""  # where NCCL says that some rank, whichever, has an edge without GPUDirect
        self.other_networks: dict[str, str] = {}  # name -> where
        self.seen: dict[str, list[Sighting]] = defaultdict(list)
        self.slow: list[Start] = []  # of ranks over the limit
        self.quickest: dict[int, Start] = {}  # ranks of a communicator -> who waited least
        self.networked = False  # some line is about networks
        self.efa: list[tuple[str, int]] = []  # where, process: libfabric finds no EFA device
        self.corrupt: list[tuple[str, int]] = []  # where, wrong elements
        self.errors: list[tuple[str, str]] = []  # where, what torch said of NCCL
        self.repeated = 0
        self.unread: list[str] = []  # one sentence for each file that says nothing
        self.cut: list[str] = []  # names of files that end within a line
        self.unended = False  # a file could not be read to its end
        self.version_seen = ""

    def settle(self) -> Log:
        """All lines are read: find out which edges leave a host."""
        groups = [*self.communicators.values(), *self.splits.values()]
        crossings = Crossings(groups)
        crossings.survey(self.ranks.values(), self.where)
        for at, pid in self.efa:
            rank = next((r for r in self.ranks.values() if r.writer.pid == pid), NOBODY)
            self.seen["efa"].append(Sighting(rank, "libfabric finds no EFA device", at))
        self.edges, self.silent = dict(crossings.counts), crossings.silent
        if self.gdr_0 and self.gdr and not (self.edges["tcp"] or self.edges["other"]):
            self.gdr.add(False)  # an edge over TCP makes all ranks say so as well
        return self

    def where(self, place: int) -> str:
        """`file:line` of a place: the number of the file, and the line in 40 bits."""
        return f"{self.files[place >> 40]}:{place & (1 << 40) - 1}"

    @property
    def partial(self) -> bool:
        """Whether lines are known to be missing, so that nothing follows from what is not said."""
        return bool(self.cut) or self.unended or self.room.full

    @cached_property
    def members(self) -> list[Rank]:
        """Ranks that joined a communicator, and processes that joined none so far.

        Left out are those that had no need to: where one communicator is whole and complete,
        a process without any only made its id, or is of an earlier attempt.
        """
        joined = [rank for rank in self.ranks.values() if rank.ranks]
        if any(len(g.seats) == g.complete == g.size for g in self.communicators.values()):
            return joined
        processes = {rank.writer[:2] for rank in joined}
        waiting: dict[Process, Rank] = {}
        for rank in self.ranks.values():
            process = rank.writer[:2]
            if rank.writer.host and process not in processes:
                waiting[process] = rank
        # `NCCL version ...` has no prefix; a lost newline puts a word before the host's name.
        pids = {pid for _, pid in waiting}
        names: dict[int, set[str]] = defaultdict(set)
        for host, pid in processes:
            if pid in pids:
                names[pid].add(host)
        return [
            *joined,
            *(
                rank
                for (host, pid), rank in waiting.items()
                if not any(host.endswith(name) for name in names.get(pid, ()))
            ),
        ]

    def of(self, rank: Rank) -> Rank:
        """The rank of the same process that joined, when it is the only one; else itself.

        A thread without a CUDA device writes as device 0 of its process.
        """
        same = self._joined.get(rank.writer[:2], ())
        return same[0] if len(same) == 1 else rank

    @cached_property
    def _joined(self) -> dict[Process, list[Rank]]:
        found: dict[Process, list[Rank]] = {}
        for rank in self.ranks.values():
            if rank.ranks:
                found.setdefault(rank.writer[:2], []).append(rank)
        return found

    @cached_property
    def jobs(self) -> list[set[Process]]:
        """Sets of processes that communicators join."""
        return jobs(self.communicators.values())

    @cached_property
    def size(self) -> int:
        """Ranks of the largest communicator; 0 when no line tells."""
        return max((rank.ranks for rank in self.ranks.values()), default=0)

    @cached_property
    def nodes(self) -> int:
        """Nodes as NCCL counts them, in any communicator; 0 when no line tells."""
        return max((rank.spans for rank in self.ranks.values()), default=0)

    @cached_property
    def host_names(self) -> list[str]:
        """Hosts whose ranks joined a communicator, or all that wrote lines while none did."""
        joined = {rank.writer.host for rank in self.ranks.values() if rank.ranks}
        return sorted((joined or {rank.writer.host for rank in self.ranks.values()}) - {""})

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """NCCL versions, and the hosts that have them; those of ranks rather than of a banner."""
        found: dict[str, set[str]] = defaultdict(set)
        for rank in self.ranks.values():
            if rank.version:
                found[rank.version].add(rank.writer.host)
        told = {version: sorted(hosts - {""}) for version, hosts in found.items()}
        return {version: hosts for version, hosts in told.items() if hosts} or told

    @cached_property
    def single_host(self) -> bool:
        """Whether the log itself says that nothing had to leave the host (or NVLink's domain)."""
        if self.nodes > 1:
            return False
        if self.nodes == 1:
            return len(self.host_names) <= 1 or len(self.jobs) == 1
        crossing = self.edges["rdma"] or self.edges["tcp"] or self.edges["other"]
        everybody = len({rank.rank for rank in self.members}) == self.size > 0
        return len(self.host_names) <= 1 and everybody and not crossing  # before 2.20

    @cached_property
    def stage(self) -> str:
        """How far the rank that came least far has come."""
        return STAGES[min((rank.stage for rank in self.members), default=0)]

    def runtime_connect(self, rank: Rank) -> bool:
        """Whether this NCCL connects ranks at the first collective; only some ranks print it."""
        version = rank.version or self.version_seen
        return not version or tuple(map(int, version.split(".")[:2])) >= RUNTIME_CONNECT


ROOM = 200 << 20  # bytes: 100,000 ranks on 12,500 hosts, with two communicators and 20 edges each


class Room:
    """What is remembered is paid for; what cannot be paid is left out, and `full` says so."""

    def __init__(self, size: int = ROOM) -> None:
        self.left, self.full = size, False

    def take(self, price: int, *, given: bool = True) -> bool:
        """Whether there is room for it; `given` is a further condition that must hold."""
        if price > self.left or not given:
            self.full = True
            return False
        self.left -= price
        return True

    def give(self, price: int) -> None:
        """Something was forgotten again."""
        self.left += price


# Prices in bytes, above what CPython 3.11 takes: with short texts and the slots of dicts.
RANK, HOST, COMMUNICATOR, SEAT, LINK, FACT = 800, 800, 600, 330, 24, 200
