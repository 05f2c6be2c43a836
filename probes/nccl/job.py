"""The parts of a job as its NCCL log shows it: ranks, hosts, communicators."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from probes.nccl.edges import EdgeSet
from probes.nccl.lines import LogWriter

STAGES = (
    *("not-started", "bootstrap", "net-init", "topology", "graph"),
    *("connect", "nvls", "first-collective", "complete"),
)
Process = tuple[str, int]  # host, pid


@dataclass(slots=True)
class Communicator:
    """One communicator: how many ranks it should have, and which of them have written.

    One that was split off has no id of its own: its parent, the number of the split and the color
    stand for it.  `rank_conflict` once processes of two hosts claim one rank of it.
    """

    size: int
    nodes: int = 0
    completed: int = 0  # Init COMPLETE lines
    rank_conflict: bool = False
    members: dict[int, CommunicatorMember] = field(default_factory=dict)  # by rank

    @property
    def ambiguous_hosts(self) -> set[str]:
        """Names that do not tell hosts apart: more ranks write under one than a node has.

        So it is where NCCL_HOSTID makes nodes of the processes of one machine, and where all
        containers have one name.  Before 2.20 nobody says how many a node has; then a name is
        believed where there are at least two.
        """
        local: dict[str, list[int]] = defaultdict(list)  # of each rank that has the name
        for member in self.members.values():
            local[member.rank.host.name].append(member.local_ranks)
        if len(local) == 1 and not any(map(any, local.values())):
            return set(local)
        return {name for name, ranks in local.items() if not name or 0 < max(ranks) < len(ranks)}


@dataclass(slots=True)
class CommunicatorMember:
    """A rank's place in one communicator, whose address in that process is `pointer`."""

    comm: Communicator
    rank: Rank
    number: int
    pointer: bytes
    local_ranks: int = 0  # ranks on its node, where a line tells


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
    merged_nics: dict[int, str] = field(default_factory=dict)  # number -> devices in one: a+b
    edges: dict[str, str] = field(default_factory=dict)  # to other hosts: kind -> where first seen
    no_gdr: str = ""  # where an RDMA edge without GPUDirect was seen


@dataclass(slots=True, eq=False)
class Rank:
    """What one process (and device) said of itself.

    `number`, `size`, `nodes` and `local_ranks` are those of its largest communicator; `max_nodes`
    is the largest number of nodes of any.  `open_comms` are communicators that began and did not
    complete, with how far each came.
    """

    writer: LogWriter
    host: Host
    number: int = -1
    size: int = 0
    nodes: int = 0
    local_ranks: int = 0
    max_nodes: int = 0
    version: str = ""
    start_stage: int = 0  # the stage before any communicator
    open_comms: dict[bytes, int] = field(default_factory=dict)
    comms: list[CommunicatorMember] = field(default_factory=list)
    edges: EdgeSet | None = None
    initialised: bool = False  # at least one communicator completed
    connecting: bool = False  # ring edges since the last `Connected`
    connected: bool = False  # connected, or sent without a ring
    init_timed: bool = False  # said how long its first communicator took
    retried: frozenset[str] = frozenset()  # what it tried again: phrases of which one is enough

    def advance_to(self, stage_name: str) -> None:
        """Note that the rank has come this far, or further, with what it is doing now."""
        if self.open_comms:
            newest = next(reversed(self.open_comms))
            self.open_comms[newest] = max(self.open_comms[newest], STAGES.index(stage_name))
        elif not self.initialised:
            self.start_stage = max(self.start_stage, STAGES.index(stage_name))

    @property
    def stage(self) -> int:
        """How far it has come with what it did last."""
        if self.open_comms:
            return min(self.open_comms.values())
        if not self.initialised:
            return STAGES.index("complete") if self.connected else self.start_stage
        # Since 2.22 ranks connect at their first collective; one that never had to is not behind.
        done = self.connected and not self.connecting
        return STAGES.index("complete" if done else "first-collective")

    @property
    def stuck(self) -> bool:
        """Whether it began something that it did not end."""
        return bool(self.open_comms) or self.connecting or not (self.initialised or self.connected)

    @property
    def name(self) -> str:
        """`rank 3 on node1`, or the process when its rank is not known."""
        label = f"rank {self.number}" if self.number >= 0 else f"process {self.writer.pid}"
        return f"{label} on {self.writer.host}" if self.writer.host else label


@dataclass(frozen=True, slots=True)
class MatchedMessage:
    """A phrase of PATTERNS that a rank wrote: in whose words, and where."""

    rank: Rank
    detail: str
    line: str

    @property
    def host(self) -> Host:
        """The host of the rank."""
        return self.rank.host


# Seconds.  A start that waits for nothing takes a few; for one connection NCCL waits 60 at most
# (NCCL_SOCKET_RETRY_CNT), and users take that for a hang.
INIT_LIMIT_S = 30.0
PER_RANK_S = 0.01  # further seconds: ranks are gathered one after another


class InitTiming(NamedTuple):
    """How long a rank took to make its first communicator, in seconds."""

    rank: Rank
    ranks: int
    total: float
    phases: dict[str, float]

    @property
    def limit(self) -> float:
        """Seconds that a start of so many ranks may take."""
        return INIT_LIMIT_S + PER_RANK_S * self.ranks

    @property
    def longest_phase(self) -> str:
        """The phase that took most."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def bootstrap(self) -> float:
        """Seconds in which it found the others, and waited for them."""
        return self.phases.get("bootstrap", 0.0)
