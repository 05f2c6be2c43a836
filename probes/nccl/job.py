"""Models the parts of a job as its NCCL log shows them: ranks, hosts, communicators, edges.

Ranks appear in the log in any order. So which edges leave a host is only known at the end. With P2P
and shared memory off, ranks of one host connect over the network too.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from probes.nccl.lines import LogWriter
from probes.nccl.patterns import LINE, TEXT
from probes.nccl.rows import Origin
from reports.groups import group_pairs

EDGE_KINDS = ("rdma", "tcp", "intra", "other")
MAX_RANKS = 100_000  # of one job: about three times the largest known jobs
MAX_CACHED_EDGES = 30_000  # texts about edges
MAX_EDGES = 1 << 16  # edges kept of one rank: to and from 32,768 others


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


@lru_cache(MAX_CACHED_EDGES)
def parse_edge(text: bytes, ofi_over_tcp: bool) -> Edge | None:
    """Parse an edge from `0[0] -> 8[0] [send] via NET/IB/0/GDRDMA`; None for a partial line."""
    match = LINE["edge"].match(text)
    if not match or max(source := int(match[1]), target := int(match[2])) >= MAX_RANKS:
        return None
    if match[7]:
        return Edge("intra", source, target)
    network = sys.intern(match[4].decode("utf-8", "backslashreplace").strip())
    kind = "tcp" if network == "Socket" else "other"
    if TEXT["rdma"].fullmatch(network):
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


STAGES = (
    "not-started", "bootstrap", "net-init", "topology", "graph",
    "connect", "nvls", "first-collective", "complete",
)  # fmt: skip
Process = tuple[str, int]  # host, pid
MAX_CANDIDATES = 200  # communicators in which a rank has one number


@dataclass(slots=True)
class Communicator:
    """One communicator: its number of ranks, and those of them that have logged.

    A communicator from a split has no id of its own. Its parent, the number of the split, the color
    and its size identify it. `rank_conflict` is set once processes of two hosts claim the same
    rank.
    """

    size: int
    nodes: int = 0
    completed: int = 0  # Init COMPLETE lines
    rank_conflict: bool = False
    members: dict[int, CommunicatorMember] = field(default_factory=dict)  # by rank

    @property
    def ambiguous_hosts(self) -> set[str]:
        """Host names that do not separate hosts: more ranks have the name than a node has ranks.

        The cause is NCCL_HOSTID, which splits one machine into nodes, or containers that all have
        one name. NCCL before 2.20 does not log the ranks per node. Then host names are trusted if
        there are two or more.
        """
        local = group_pairs((m.rank.host.name, m.local_ranks) for m in self.members.values())
        if len(local) == 1 and not any(map(any, local.values())):
            return set(local)
        return {name for name, ranks in local.items() if not name or 0 < max(ranks) < len(ranks)}


@dataclass(slots=True)
class CommunicatorMember:
    """A rank's place in one communicator, which has the address `pointer` in that process."""

    comm: Communicator
    rank: Rank
    number: int
    pointer: bytes
    local_ranks: int = 0  # ranks on its node; 0 if no line gives it


@dataclass(slots=True)
class Host:
    """Network facts that the ranks of one host logged."""

    name: str
    networks: dict[str, str] = field(default_factory=dict)  # name -> place of its first line
    devices: list[str] | None = None  # RDMA devices; None if no line is about them
    sockets: list[tuple[str, str]] = field(default_factory=list)  # (interface, address)
    bootstrap: tuple[str, str] | None = None
    environment: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> (value, place)
    link_types: dict[str, str] = field(default_factory=dict)  # RDMA device -> IB or RoCE
    nics: frozenset[int] = frozenset()  # RDMA devices that ring edges use, by number
    merged_nics: dict[int, str] = field(default_factory=dict)  # number -> devices in one: a+b
    edges: dict[str, str] = field(default_factory=dict)  # to other hosts: kind -> where first seen
    # (receives, has GPUDirect) -> place of the first such RDMA edge
    gdr: dict[tuple[bool, bool], str] = field(default_factory=dict)
    gpus: Sequence[str] = ()  # models, one for each GPU; none if the caller does not know them

    @property
    def addresses(self) -> list[str]:
        """The addresses of its interfaces, that of the start first."""
        return [one[1] for one in (self.bootstrap, *self.sockets) if one]

    @property
    def staged_send(self) -> str:
        """Place of a send that NCCL stages, if it stages all of them and receives with GPUDirect.

        Without NVLink it chooses so (NCCL_NET_GDR_READ).
        """
        by_choice = (True, True) in self.gdr and (False, True) not in self.gdr
        return self.gdr.get((False, False), "") if by_choice else ""

    @property
    def no_gdr(self) -> str:
        """Place of an RDMA edge without GPUDirect, but for sends that NCCL stages by choice."""
        send = "" if self.staged_send else self.gdr.get((False, False), "")
        return self.gdr.get((True, False), send)


@dataclass(slots=True, eq=False)
class Rank:
    """Facts that one process (and device) logged about itself.

    `number`, `size` and `local_ranks` are those of its largest communicator, `nodes` the most of
    any communicator. `open_comms` has the communicators that began and did not complete, with the
    stage that each reached.
    """

    writer: LogWriter
    host: Host
    task: str = ""  # rank or task by its launcher's prefix
    number: int = -1
    size: int = 0
    local_ranks: int = 0
    nodes: int = 0
    version: str = ""
    start_stage: int = 0  # the stage before any communicator
    open_comms: dict[bytes, int] = field(default_factory=dict)
    comms: list[CommunicatorMember] = field(default_factory=list)
    edges: EdgeSet | None = None
    initialised: bool = False  # at least one communicator completed
    connecting: bool = False  # ring edges since the last `Connected`
    connected: bool = False  # connected, or sent without a ring
    timing: InitTiming | None = None  # of its first communicator
    gathered: bool = False  # logged that it heard from every rank
    has_beginning: bool = False  # logged what NCCL writes before any communicator
    last_line: int = 0  # lines of NCCL in its file up to its last one
    retried: frozenset[str] = frozenset()  # phrases about retries that are already recorded

    @property
    def process(self) -> Process:
        """Host and number of its process."""
        return self.writer[:2]

    def find_member(self, pointer: bytes) -> CommunicatorMember | None:
        """Find its place in the newest communicator of this address."""
        return next((one for one in reversed(self.comms) if one.pointer == pointer), None)

    def advance_to(self, stage_name: str, *, begins: bool = False) -> None:
        """Record that the rank has reached this stage, or a later one, in its current work.

        `begins`: NCCL writes such a line before any communicator.
        """
        self.has_beginning |= begins
        if self.open_comms:
            newest = next(reversed(self.open_comms))
            self.open_comms[newest] = max(self.open_comms[newest], STAGES.index(stage_name))
        elif not self.initialised:
            self.start_stage = max(self.start_stage, STAGES.index(stage_name))

    @property
    def stage(self) -> int:
        """Stage (index in STAGES) of what the rank did last."""
        if self.open_comms:
            return min(self.open_comms.values())
        if not self.initialised:
            return STAGES.index("complete") if self.connected else self.start_stage
        # Since 2.22 ranks connect at their first collective; one that never had to is not behind.
        done = self.connected and not self.connecting
        return STAGES.index("complete" if done else "first-collective")

    @property
    def stuck(self) -> bool:
        """Whether the rank began something that it did not finish."""
        return bool(self.open_comms) or self.connecting or not (self.initialised or self.connected)

    @property
    def name(self) -> str:
        """Name such as `rank 3 on node1`, or the process if the rank is not known."""
        process = self.task or f"process {self.writer.pid}"
        label = f"rank {self.number}" if self.number >= 0 else process
        return f"{label} on {self.writer.host}" if self.writer.host else label


CommPlace = tuple["Communicator | None", bool]  # of an edge, and whether it leaves the host


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
            comms = group_pairs((one.number, one.comm) for one in rank.comms if rank.edges)
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
        peer = comm.members[edge.peer].rank if edge.peer in comm.members else None
        sent = edge._replace(rank=edge.peer, peer=edge.rank, receives=False).packed
        if not (edge.receives and peer and peer.edges and sent in peer.edges):  # logged by both
            self.counts[edge.kind if leaves else "intra"] += 1
        if peer and peer.edges is None and not peer.connected:
            peer.edges = EdgeSet()  # so that it is named once
            self.silent_ranks.append(peer)

    def _find_comm(self, rank: Rank, edge: Edge, comms: list[Communicator]) -> CommPlace:
        """Find the communicator of the edge, and whether the edge leaves the host.

        The line does not name the communicator. If the rank has the same number in several `comms`,
        choose one in which the edge leaves. With more than MAX_CANDIDATES it is unknown: (None,
        True).
        """
        if len(comms) > MAX_CANDIDATES:
            return None, True
        candidates = [comm for comm in comms if edge.peer < comm.size]
        leaving = (comm for comm in candidates if self._may_leave_host(comm, rank, edge.peer))
        if comm := next(leaving, None):
            return comm, True
        return (candidates[0], False) if candidates else (None, True)

    def _may_leave_host(self, comm: Communicator, rank: Rank, peer: int) -> bool:
        """Return whether the peer is, or may be, on another host."""
        member = comm.members.get(peer)
        if member is None or comm.rank_conflict:
            return comm.nodes != 1
        ambiguous = self._ambiguous.get(id(comm), ())
        return member.rank.host is not rank.host or rank.host.name in ambiguous


@dataclass(frozen=True, slots=True)
class MatchedMessage:
    """Message of a rank that matches a phrase of PATTERNS: its text and its place."""

    rank: Rank
    detail: str
    line: str
    warned: bool  # a warning of NCCL, or an error that others report
    place: Origin  # by what launchers put before the line

    @property
    def host(self) -> Host:
        """The host of the rank."""
        return self.rank.host


# Seconds.  A start without waiting takes a few; for one connection NCCL waits 60 at most
# (NCCL_SOCKET_RETRY_CNT), which users mistake for a hang.
INIT_LIMIT_S = 30.0
PER_RANK_S = 0.01  # further seconds: ranks are gathered one after another


class InitTiming(NamedTuple):
    """Time in seconds that a rank took to make its first communicator, and its longest `phase`."""

    ranks: int
    total: float
    bootstrap: float  # in which the rank found the other ranks and waited for them
    phase: str
    longest: float

    @property
    def limit(self) -> float:
        """Seconds that a start of this many ranks may take."""
        return INIT_LIMIT_S + PER_RANK_S * self.ranks


def parse_init_timing(text: bytes) -> InitTiming | None:
    """Parse an `Init timings` line; None for any other line."""
    match = LINE["timings"].match(text)
    phases = dict(LINE["phase"].findall(match[3])) if match else {}
    if not (match and phases):
        return None
    longest = max(phases, key=lambda name: float(phases[name]))
    bootstrap, seconds = (float(phases.get(name, 0)) for name in (b"bootstrap", longest))
    name = sys.intern(longest.decode())
    return InitTiming(int(match[1]), float(match[2]), bootstrap, name, seconds)
