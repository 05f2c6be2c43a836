"""Which road NCCL took, from its own log: ranks, edges, networks, and how far init came.

`read(paths)` folds the lines of one job's files into a Log.  It only says what was seen;
`nccl_findings` says what it means.  Behaviour by version: NCCL 2.18 to 2.30, src/init.cc,
src/transport/net.cc, src/transport/net_ib.cc, src/bootstrap.cc.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from probes.nccl_lines import Lines, UnreadableLog, Writer
from probes.nccl_phrases import PHRASES, TELLING

STAGES = (
    *("not-started", "bootstrap", "net-init", "topology", "graph"),
    *("connect", "nvls", "first-collective", "complete"),
)
# Networks whose payload goes by RDMA (or its equal); Socket is TCP; any other proves nothing.
RDMA_NETWORKS = re.compile(
    r"IB|IBext\w*|gIB|AWS Libfabric|Libfabric|OFI|FasTrak|UCX-RMA|RDMA|Slingshot\w*", re.IGNORECASE
)
RUNTIME_CONNECT = (2, 22)  # since then ranks connect at the first collective, not at init
KEPT = 200  # sightings kept per phrase

EDGE = re.compile(
    rb"(\d+)(?:\[[0-9a-fA-F]+\])? -> (\d+)(?:\[[0-9a-fA-F]+\])?(?: +\[(?:send|receive)\])? +via "
    rb"(?:NET/([^/]+)/(\d+)(?:\(\d+\))?((?:/GDRDMA|\(PCI\)|/Shared|/\w+)*)|(P2P|SHM|DIRECT)\b.*?)"
    rb"(?: comm 0x\w+ nRanks \d+)?$"
)
SHAPE = re.compile(rb"comm \S+ rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+)")
INIT = re.compile(
    rb"comm \S+ rank (\d+) n[rR]anks (\d+) .*?(?:commId (0x\w+))?[ -]*Init (START|COMPLETE)"
)
USING_ITEM = re.compile(rb"(?:\[\d+\])?([\w.\-@]+):([\da-fA-F.:%\w\[\]]+)<\d+>")
# `[0]mlx5_0:1/IB`; merged ports, 2.20 to 2.23: `[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}`.
DEVICE_ITEM = re.compile(rb"\[\d+\](?:=\{[^}]*\}|([\w.\-+]+):\d+/\w+)")
ENVIRONMENT = re.compile(rb"(NCCL_\w+) set (?:by environment )?to (.*?)\.?$")
VERSION = re.compile(rb"(?:NCCL version )?(\d+\.\d+\.\d+)(?:[+.\s]|$)")
NETWORK = re.compile(rb"Using network (.+)$|Assigned NET plugin (.+?) to comm")


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
class Rank:
    """What one process (and device) said of itself, of its largest communicator."""

    writer: Writer
    rank: int = -1
    ranks: int = 0
    nodes: int = 0
    local: int = 0
    stage: int = 0
    version: str = ""
    initialised: bool = False
    connected: bool = False

    def at_least(self, stage: str) -> None:
        """The rank has come this far, or further."""
        self.stage = max(self.stage, STAGES.index(stage))

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
    nics: set[int] = field(default_factory=set)  # RDMA devices that edges use
    edges: dict[str, str] = field(default_factory=dict)  # kind -> where first seen
    no_gdr: str = ""  # where an RDMA edge without GPUDirect was seen


@dataclass(frozen=True)
class Sighting:
    """A phrase of PHRASES that a rank wrote: in whose words, and where."""

    rank: Rank
    detail: str
    at: str


class Log:
    """Everything that one job's NCCL log says, folded."""

    def __init__(self) -> None:
        self.ranks: dict[Writer, Rank] = {}
        self.hosts: dict[str, Host] = defaultdict(Host)
        self.edges: dict[str, set[tuple[int, int, str]]] = defaultdict(set)
        self.gdr: set[bool] = set()
        self.other_networks: dict[str, str] = {}
        self.seen: dict[str, list[Sighting]] = defaultdict(list)
        self.corrupt: list[tuple[str, int]] = []  # where, wrong elements
        self.groups: dict[str, set[str]] = defaultdict(set)  # communicator id -> hosts
        self.repeated = 0
        self.unread: list[str] = []  # one sentence for each file that says nothing
        self._version_seen = ""
        self._edge_of: dict[bytes, Edge | None] = {}
        self._known: set[tuple[str, bytes]] = set()
        self._where: Callable[[], str] = lambda: ""

    def add(self, path: Path) -> None:
        """Fold one file in.  A file without NCCL's lines is said in `unread`, not raised."""
        lines, before = Lines(path), len(self.ranks)
        self._where = lambda: f"{path.name}:{lines.number}"
        found = 0
        try:
            for writer, kind, text in lines:
                found += 1
                self._line(writer, kind, text)
        except (UnreadableLog, OSError) as error:
            self.unread.append(str(error))
        self.repeated += lines.repeated
        self.corrupt += [(f"{path.name}:{number}", wrong) for number, wrong in lines.wrong]
        if not found and not lines.wrong and len(self.ranks) == before:
            self.unread.append(_says_nothing(lines))

    def _line(self, writer: Writer, kind: bytes, text: bytes) -> None:
        rank = self.ranks.get(writer)
        if rank is None:
            rank = self.ranks[writer] = Rank(writer)
        if text.startswith((b"Channel ", b"Ring ", b"CollNet ")):
            self._edge(rank, text)
            return
        if kind == b"version":
            self._version(rank, text)
            return
        word = text.split(b" ", 1)[0].rstrip(b":")
        if (reader := READERS.get(word)) is not None:
            reader(self, rank, text)
        elif text.startswith(b"NCCL_"):
            self._environment(rank, text)
        elif b"Init " in text and (match := INIT.search(text)):
            self._init(rank, match)
        if any(told in text for told in TELLING):
            self._phrases(rank, text)

    def _edge(self, rank: Rank, text: bytes) -> None:
        head, _, key = text.partition(b" : ")
        if not rank.initialised:
            rank.at_least("connect")
        elif head.endswith(b"/1"):  # a send/recv edge: no line says when it is connected
            rank.at_least("complete")
        if (rank.writer.host, key) in self._known:
            return
        if len(self._known) > 1_000_000:
            self._known.clear()
            self._edge_of.clear()
        self._known.add((rank.writer.host, key))
        if key not in self._edge_of:
            self._edge_of[key] = _edge(key, bool(self.seen.get("ofi-tcp")))
        if edge := self._edge_of[key]:
            self._take(rank, edge)

    def _take(self, rank: Rank, edge: Edge) -> None:
        host = self.hosts[rank.writer.host]
        place = rank.writer.host if edge.kind == "intra" else ""
        self.edges[edge.kind].add((edge.source, edge.target, place))
        where = self._where()
        host.edges.setdefault(edge.kind, where)
        if edge.kind == "other":
            self.other_networks.setdefault(edge.network, where)
        if edge.kind == "rdma" and edge.nic is not None:
            host.nics.add(edge.nic)
            self.gdr.add(edge.gdr)
            if not edge.gdr:
                host.no_gdr = host.no_gdr or where
        if edge.network:
            host.networks.setdefault(edge.network, where)

    def _version(self, rank: Rank, text: bytes) -> None:
        if match := VERSION.search(text):
            rank.version = self._version_seen = match[1].decode()
            rank.at_least("bootstrap")

    def _bootstrap(self, rank: Rank, text: bytes) -> None:
        rank.at_least("bootstrap")
        if match := USING_ITEM.search(text):
            self.hosts[rank.writer.host].bootstrap = _words(match[1]), _words(match[2])

    def _ib(self, rank: Rank, text: bytes) -> None:
        rank.at_least("net-init")
        host = self.hosts[rank.writer.host]
        if b"No device found" in text:
            host.devices = host.devices or []
            self._note("no-device", rank, text)
        elif b": Using" in text:
            # Since 2.24 `Using ; OOB` follows `No device found`: no item, no device.
            items = text.partition(b"; OOB")[0]
            found = [_words(m[1] or m[0]) for m in DEVICE_ITEM.finditer(items)]
            host.devices = list(dict.fromkeys([*(host.devices or []), *found]))

    def _socket(self, rank: Rank, text: bytes) -> None:
        rank.at_least("net-init")
        found = [(_words(m[1]), _words(m[2])) for m in USING_ITEM.finditer(text)]
        host = self.hosts[rank.writer.host]
        host.sockets = list(dict.fromkeys([*host.sockets, *found]))

    def _network(self, rank: Rank, text: bytes) -> None:
        if match := NETWORK.match(text):
            rank.at_least("net-init")
            name = _words(match[1] or match[2])
            self.hosts[rank.writer.host].networks.setdefault(name, self._where())

    def _comm(self, rank: Rank, text: bytes) -> None:
        if match := SHAPE.match(text):
            number, ranks, nodes, local = map(int, match.groups())
            if ranks >= rank.ranks:
                rank.rank, rank.ranks, rank.nodes, rank.local = number, ranks, nodes, local
            rank.at_least("graph")
        elif match := INIT.search(text):
            self._init(rank, match)

    def _init(self, rank: Rank, match: re.Match[bytes]) -> None:
        number, ranks = int(match[1]), int(match[2])
        if ranks >= rank.ranks:
            rank.rank, rank.ranks = number, ranks
        if match[3] and len(self.groups) < 100_000:
            self.groups[match[3].decode()].add(rank.writer.host)
        if match[4] == b"START":
            rank.stage, rank.initialised, rank.connected = STAGES.index("topology"), False, False
            return
        rank.initialised = True
        late = self.runtime_connect(rank) and not rank.connected and ranks > 1
        rank.at_least("first-collective" if late else "complete")

    def _connected(self, rank: Rank, text: bytes) -> None:
        rank.connected = True
        rank.at_least("complete" if rank.initialised else "connect")

    def _nvls(self, rank: Rank, text: bytes) -> None:
        if b"Bind" in text and not rank.initialised:
            rank.at_least("nvls")

    def _environment(self, rank: Rank, text: bytes) -> None:
        if match := ENVIRONMENT.match(text):
            rank.at_least("bootstrap")
            said = _words(match[2]), self._where()
            self.hosts[rank.writer.host].environment.setdefault(_words(match[1]), said)

    def _phrases(self, rank: Rank, text: bytes) -> None:
        for kind, pattern in PHRASES.items():
            if pattern.search(text):
                self._note(kind, rank, text)

    def _note(self, kind: str, rank: Rank, text: bytes) -> None:
        if len(self.seen[kind]) < KEPT:
            self.seen[kind].append(Sighting(rank, _words(text[:300]), self._where()))

    # What the log as a whole says.

    @property
    def members(self) -> list[Rank]:
        """Ranks that joined a communicator, and processes that joined none so far."""
        joined = [rank for rank in self.ranks.values() if rank.ranks]
        processes = {(rank.writer.host, rank.writer.pid) for rank in joined}
        waiting = {
            process: rank
            for rank in self.ranks.values()
            if (process := (rank.writer.host, rank.writer.pid)) not in processes
            if rank.writer.host  # `NCCL version ...` is written without a prefix
        }
        return [*joined, *waiting.values()]

    @property
    def size(self) -> int:
        """Ranks of the largest communicator; 0 when no line tells."""
        return max((rank.ranks for rank in self.ranks.values()), default=0)

    @property
    def nodes(self) -> int:
        """Nodes as NCCL counts them, in the largest communicator; 0 when no line tells."""
        return max((rank.nodes for rank in self.ranks.values()), default=0)

    @property
    def host_names(self) -> list[str]:
        """Hosts that wrote lines."""
        return sorted({rank.writer.host for rank in self.ranks.values() if rank.writer.host})

    @property
    def versions(self) -> dict[str, list[str]]:
        """NCCL versions, and the hosts that have them."""
        found: dict[str, set[str]] = defaultdict(set)
        for rank in self.ranks.values():
            if rank.version:
                found[rank.version].add(rank.writer.host)
        return {version: sorted(hosts) for version, hosts in found.items()}

    @property
    def single_host(self) -> bool:
        """Whether the log itself says that nothing had to leave the host."""
        if len(self.host_names) > 1 or self.nodes > 1:
            return False
        crossing = self.edges["rdma"] or self.edges["tcp"] or self.edges["other"]
        everybody = len({rank.rank for rank in self.members}) == self.size > 0
        return self.nodes == 1 or (everybody and not crossing)  # before 2.20 no line counts nodes

    @property
    def stage(self) -> str:
        """How far the rank that came least far has come."""
        return STAGES[min((rank.stage for rank in self.members), default=0)]

    def runtime_connect(self, rank: Rank) -> bool:
        """Whether this NCCL connects ranks at the first collective; only some ranks print it."""
        version = rank.version or self._version_seen
        return not version or tuple(map(int, version.split(".")[:2])) >= RUNTIME_CONNECT


READERS: dict[bytes, Callable[[Log, Rank, bytes], None]] = {
    b"NCCL": Log._version,
    b"Bootstrap": Log._bootstrap,
    b"NET/IB": Log._ib,
    b"NET/Socket": Log._socket,
    b"Using": Log._network,
    b"Assigned": Log._network,
    b"comm": Log._comm,
    b"Connected": Log._connected,
    b"NVLS": Log._nvls,
}


def read(paths: Iterable[Path]) -> Log:
    """Fold the files of one job, in any order; lines of all ranks may be in one or many."""
    log = Log()
    for path in paths:
        log.add(path)
    return log


def _edge(text: bytes, ofi_over_tcp: bool) -> Edge | None:
    match = EDGE.match(text)
    if not match:
        return None  # a ring map, or half a line
    source, target = int(match[1]), int(match[2])
    if match[6]:
        return Edge("intra", source, target)
    network = _words(match[3])
    kind = "tcp" if network == "Socket" else "other"
    if RDMA_NETWORKS.fullmatch(network):
        kind = "tcp" if ofi_over_tcp and "ibfabric" in network else "rdma"
    return Edge(kind, source, target, network, int(match[4]), b"/GDRDMA" in match[5])


def _says_nothing(lines: Lines) -> str:
    path = lines.path
    if not lines.bytes:
        return f"{path}: expected NCCL's log, found an empty file"
    what = "binary data" if lines.binary else "no line of NCCL's"
    return (
        f"{path}: expected lines such as `host:pid:tid [0] NCCL INFO ...`, found {what} in "
        f"{lines.bytes} bytes; run the job with NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_FILE=/some/folder/nccl.%h.%p.log"
    )


def _words(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace").strip()
