"""The parts of a job as its NCCL log shows it: ranks, hosts, communicators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from probes.nccl.edges import Links
from probes.nccl.lines import Writer

STAGES = (
    *("not-started", "bootstrap", "net-init", "topology", "graph"),
    *("connect", "nvls", "first-collective", "complete"),
)
Process = tuple[str, int]  # host, pid


def stage(name: str) -> int:
    """A stage's place in STAGES."""
    return STAGES.index(name)


@dataclass(slots=True)
class Communicator:
    """One communicator: how many ranks it should have, and which of them have written.

    One that was split off has no id of its own: its parent, the number of the split and the color
    stand for it.  `doubted` once processes of two hosts claim one rank of it.
    """

    size: int
    nodes: int = 0
    complete: int = 0  # Init COMPLETE lines
    doubted: bool = False
    seats: dict[int, Seat] = field(default_factory=dict)  # by rank

    @property
    def processes(self) -> set[Process]:
        """The processes of its ranks."""
        return {seat.rank.writer[:2] for seat in self.seats.values()}

    @property
    def shared_names(self) -> set[str]:
        """Names that do not tell hosts apart: more ranks write under one than a node has.

        So it is where NCCL_HOSTID makes nodes of the processes of one machine, and where all
        containers have one name.  Before 2.20 nobody says how many a node has; then a name is
        believed where there are at least two.
        """
        names = Counter(seat.rank.host.name for seat in self.seats.values())
        local: dict[str, int] = {}
        for seat in self.seats.values():
            name = seat.rank.host.name
            local[name] = max(local.get(name, 0), seat.local)
        if len(names) == 1 and not any(local.values()):
            return set(names)
        return {name for name, ranks in names.items() if not name or 0 < local[name] < ranks}


@dataclass(slots=True)
class Seat:
    """A rank's place in one communicator, whose address in that process is `pointer`."""

    group: Communicator
    rank: Rank
    number: int
    pointer: bytes
    local: int = 0  # ranks on its node, where a line tells


@dataclass(slots=True)
class Host:
    """What the ranks of one host said of its networks."""

    name: str
    networks: dict[str, str] = field(default_factory=dict)  # name -> where it was said
    devices: list[str] | None = None  # RDMA devices; None when nothing was said of them
    sockets: list[tuple[str, str]] = field(default_factory=list)  # (interface, address)
    bootstrap: tuple[str, str] | None = None
    environment: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> value, where
    nics: frozenset[int] = frozenset()  # RDMA devices that ring edges use, by number
    virtual: dict[int, str] = field(default_factory=dict)  # number -> devices in one: a+b
    edges: dict[str, str] = field(default_factory=dict)  # to other hosts: kind -> where first seen
    no_gdr: str = ""  # where an RDMA edge without GPUDirect was seen


@dataclass(slots=True, eq=False)
class Rank:
    """What one process (and device) said of itself.

    `rank`, `ranks`, `nodes` and `local` are those of its largest communicator; `spans` is the
    largest number of nodes of any.  `open` are communicators that began and did not complete,
    with how far each came.
    """

    writer: Writer
    host: Host
    rank: int = -1
    ranks: int = 0
    nodes: int = 0
    local: int = 0
    spans: int = 0
    version: str = ""
    began: int = 0  # the stage before any communicator
    open: dict[bytes, int] = field(default_factory=dict)
    seats: list[Seat] = field(default_factory=list)
    links: Links | None = None
    initialised: bool = False  # at least one communicator completed
    connecting: bool = False  # ring edges since the last `Connected`
    talked: bool = False  # connected, or sent without a ring
    timed: bool = False  # said how long its first communicator took
    tried: frozenset[str] = frozenset()  # what it tried again: phrases of which one is enough

    def at_least(self, name: str) -> None:
        """The rank has come this far, or further, with what it is doing now."""
        if self.open:
            newest = next(reversed(self.open))
            self.open[newest] = max(self.open[newest], stage(name))
        elif not self.initialised:
            self.began = max(self.began, stage(name))

    @property
    def stage(self) -> int:
        """How far it has come with what it did last."""
        if self.open:
            return min(self.open.values())
        if not self.initialised:
            return stage("complete") if self.talked else self.began
        # Since 2.22 ranks connect at their first collective; one that never had to is not behind.
        return stage("complete" if self.talked and not self.connecting else "first-collective")

    @property
    def stuck(self) -> bool:
        """Whether it began something that it did not end."""
        return bool(self.open) or self.connecting or not (self.initialised or self.talked)

    @property
    def name(self) -> str:
        """`rank 3 on node1`, or the process when its rank is not known."""
        who = f"rank {self.rank}" if self.rank >= 0 else f"process {self.writer.pid}"
        return f"{who} on {self.writer.host}" if self.writer.host else who


@dataclass(frozen=True, slots=True)
class Sighting:
    """A phrase of PHRASES that a rank wrote: in whose words, and where."""

    rank: Rank
    detail: str
    at: str


def jobs(communicators: Iterable[Communicator]) -> list[set[Process]]:
    """Processes that are joined by communicators, directly or through others: one set per job."""
    leader: dict[Process, Process] = {}

    def find(process: Process) -> Process:
        while (above := leader.setdefault(process, process)) != process:
            leader[process] = leader[above]
            process = above
        return process

    for communicator in communicators:
        members = iter(communicator.processes)
        first = next(members, None)
        if first is not None:
            find(first)
            for other in members:
                leader[find(other)] = find(first)
    found: dict[Process, set[Process]] = {}
    for process in list(leader):
        found.setdefault(find(process), set()).add(process)
    return list(found.values())


# Seconds.  A start that waits for nothing takes a few; for one connection NCCL waits 60 at most
# (NCCL_SOCKET_RETRY_CNT), and users take that for a hang.
LIMIT = 30.0


PER_RANK = 0.01  # further seconds: ranks are gathered one after another


class Start(NamedTuple):
    """How long a rank took to make its first communicator, in seconds."""

    rank: Rank
    ranks: int
    total: float
    phases: dict[str, float]

    @property
    def limit(self) -> float:
        """Seconds that a start of so many ranks may take."""
        return LIMIT + PER_RANK * self.ranks

    @property
    def phase(self) -> str:
        """The phase that took most."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def bootstrap(self) -> float:
        """Seconds in which it found the others, and waited for them."""
        return self.phases.get("bootstrap", 0.0)
