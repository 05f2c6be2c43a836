"""The parts of a job as its NCCL log shows it: ranks, hosts, communicators, edges."""

from __future__ import annotations

from dataclasses import dataclass, field

from probes.nccl_lines import Writer

STAGES = (
    *("not-started", "bootstrap", "net-init", "topology", "graph"),
    *("connect", "nvls", "first-collective", "complete"),
)
Process = tuple[str, int]  # host, pid


def stage(name: str) -> int:
    """A stage's place in STAGES."""
    return STAGES.index(name)


@dataclass(frozen=True)
class Edge:
    """A connection between two ranks: kind rdma, tcp, intra or other; `nic` None within a host."""

    kind: str
    source: int
    target: int
    network: str = ""
    nic: int | None = None
    gdr: bool = False


@dataclass
class Communicator:
    """One communicator, by its id: how many ranks it should have, and which have written."""

    size: int
    ranks: set[int] = field(default_factory=set)
    processes: set[Process] = field(default_factory=set)
    complete: int = 0  # Init COMPLETE lines


@dataclass
class Rank:
    """What one process (and device) said of itself.

    `rank`, `ranks`, `nodes` and `local` are those of its largest communicator; `spans` is the
    largest number of nodes of any.  `open` are communicators that began and did not complete,
    with how far each came.
    """

    writer: Writer
    rank: int = -1
    ranks: int = 0
    nodes: int = 0
    local: int = 0
    spans: int = 0
    version: str = ""
    began: int = 0  # the stage before any communicator
    open: dict[str, int] = field(default_factory=dict)
    initialised: bool = False  # at least one communicator completed
    connecting: bool = False  # ring edges since the last `Connected`
    talked: bool = False  # connected, or sent without a ring

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


@dataclass
class Host:
    """What the ranks of one host said of its networks."""

    networks: dict[str, str] = field(default_factory=dict)  # name -> where it was said
    devices: list[str] | None = None  # RDMA devices; None when nothing was said of them
    sockets: list[tuple[str, str]] = field(default_factory=list)  # (interface, address)
    bootstrap: tuple[str, str] | None = None
    environment: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> value, where
    nics: set[int] = field(default_factory=set)  # RDMA devices that ring edges use
    edges: dict[str, str] = field(default_factory=dict)  # kind -> where first seen
    no_gdr: str = ""  # where RDMA without GPUDirect was seen


@dataclass(frozen=True)
class Sighting:
    """A phrase of PHRASES that a rank wrote: in whose words, and where."""

    rank: Rank
    detail: str
    at: str


def jobs(communicators: list[Communicator]) -> list[set[Process]]:
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
