"""Which road NCCL took, from its own log: ranks, edges, networks, and how far init came.

`read(paths)` folds the lines of one job's files into a Log.  It only says what was seen;
`nccl_report` says what it means.  Behaviour by version: NCCL 2.18 to 2.30, src/init.cc,
src/transport/net.cc, src/transport/net_ib.cc, src/bootstrap.cc.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from probes.nccl_job import (
    STAGES,
    Communicator,
    Edge,
    Host,
    Process,
    Rank,
    Sighting,
    jobs,
    stage,
)
from probes.nccl_lines import Lines, UnreadableLog, Writer
from probes.nccl_phrases import PHRASES, TELLING

# Networks whose payload goes by RDMA (or its equal); Socket is TCP; any other proves nothing.
RDMA_NETWORKS = re.compile(
    r"IB|IBext\w*|gIB|AWS Libfabric|Libfabric|OFI|FasTrak|UCX-RMA|RDMA|Slingshot\w*", re.IGNORECASE
)
RUNTIME_CONNECT = (2, 22)  # since then ranks connect at the first collective, not at init
KEPT = 200  # sightings kept per phrase
LONGEST = 1024  # bytes of a text in which phrases are looked for
MOST_RANKS = 1 << 20  # what claims to have more is no NCCL line

EDGE = re.compile(
    rb"(\d{1,9})(?:\[[0-9a-fA-F]+\])? -> (\d{1,9})(?:\[[0-9a-fA-F]+\])?(?: +\[(?:send|receive)\])?"
    rb" +via (?:NET/([^/]{1,64})/(\d{1,4})(?:\(\d+\))?((?:/GDRDMA|\(PCI\)|/Shared|/\w+)*)"
    rb"|(P2P|SHM|DIRECT)\b.*?)(?: comm 0x\w+ nRanks \d+)?$"
)
SHAPE = re.compile(
    rb"comm (\S+) rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9})"
)
INIT = re.compile(
    rb"comm (\S+) rank (\d{1,9}) n[rR]anks (\d{1,9}) "
    rb".*?(?:commId (\w+))?[ -]*Init (START|COMPLETE)"
)
USING_ITEM = re.compile(rb"(?:\[\d+\])?([\w.\-@]+):([\da-fA-F.:%\w\[\]]+)<\d+>")
# `[0]mlx5_0:1/IB`; merged ports, 2.20 to 2.23: `[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}`.
DEVICE_ITEM = re.compile(rb"\[\d+\](?:=\{[^}]*\}|([\w.\-+]+):\d+/\w+)")
ENVIRONMENT = re.compile(rb"(NCCL_\w+) set (?:by environment )?to (.*?)\.?$")
VERSION = re.compile(rb"(?:NCCL version )?(\d+\.\d+\.\d+)(?:[+.\s]|$)")
NETWORK = re.compile(rb"Using network (.+)$|Assigned NET plugin (.+?) to comm")


class Log:
    """Everything that one job's NCCL log says, folded."""

    def __init__(self) -> None:
        self.ranks: dict[Writer, Rank] = {}
        self.hosts: dict[str, Host] = defaultdict(Host)
        self.communicators: dict[str, Communicator] = {}
        self.edges: dict[str, set[tuple[int, int, str]]] = defaultdict(set)
        self.gdr: set[bool] = set()
        self.other_networks: dict[str, str] = {}
        self.seen: dict[str, list[Sighting]] = defaultdict(list)
        self.corrupt: list[tuple[str, int]] = []  # where, wrong elements
        self.errors: list[tuple[str, str]] = []  # where, what torch said of NCCL
        self.repeated = 0
        self.unread: list[str] = []  # one sentence for each file that says nothing
        self._version_seen = ""
        self._edge_of: dict[bytes, Edge | None] = {}
        self._known: set[tuple[str, bytes]] = set()
        self._where: Callable[[], str] = lambda: ""

    def add(self, path: Path) -> None:
        """Fold one file in.  A file without NCCL's lines is said in `unread`, not raised."""
        lines, found = Lines(path), 0
        self._where = lambda: f"{path.name}:{lines.number}"
        try:
            for writer, kind, text in lines:
                found += 1
                self._line(writer, kind, text)
        except (UnreadableLog, OSError) as error:
            self.unread.append(str(error))
        self.repeated += lines.repeated
        self.corrupt += [(f"{path.name}:{number}", wrong) for number, wrong in lines.wrong]
        self.errors += [(f"{path.name}:{number}", said) for number, said in lines.errors]
        if not (found or lines.table or lines.errors):
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
            return
        elif b"Init " in text and (match := INIT.search(text)):
            self._init(rank, match)
            return
        warning = kind == b"WARN"
        if warning or (word not in PLAIN and any(told in text for told in TELLING)):
            self._phrases(rank, text[:LONGEST], warning)

    def _edge(self, rank: Rank, text: bytes) -> None:
        head, _, key = text.partition(b" : ")
        ring = head.endswith(b"/0") or head.startswith(b"Ring")
        if b" via " not in key:
            rank.at_least("graph")  # a ring map
        else:
            rank.at_least("connect")
            if ring:
                late = rank.initialised and not rank.open
                rank.connecting = late and self.runtime_connect(rank)
            elif rank.initialised:  # send and receive, or shared memory: no line says `Connected`
                rank.talked = True
        if (rank.writer.host, key) in self._known:
            return
        if len(self._known) > 1_000_000:
            self._known.clear()
            self._edge_of.clear()
        self._known.add((rank.writer.host, key))
        if key not in self._edge_of:
            self._edge_of[key] = _edge(key, bool(self.seen.get("ofi-tcp")))
        if edge := self._edge_of[key]:
            self._take(rank, edge, ring)

    def _take(self, rank: Rank, edge: Edge, ring: bool) -> None:
        host, where = self.hosts[rank.writer.host], self._where()
        place = rank.writer.host if edge.kind == "intra" else ""
        self.edges[edge.kind].add((edge.source, edge.target, place))
        host.edges.setdefault(edge.kind, where)
        if edge.kind == "other":
            self.other_networks.setdefault(edge.network, where)
        if edge.kind == "rdma" and edge.nic is not None:
            if ring:
                host.nics.add(edge.nic)
            self.gdr.add(edge.gdr)
            if not edge.gdr:
                host.no_gdr = host.no_gdr or where
        if edge.network:
            host.networks.setdefault(edge.network, where)

    def _version(self, rank: Rank, text: bytes) -> None:
        if match := VERSION.search(text):
            rank.version = match[1].decode()
            self._version_seen = self._version_seen or rank.version
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
            number, ranks, nodes, local = map(int, match.groups()[1:])
            if ranks > MOST_RANKS:
                return
            rank.spans = max(rank.spans, nodes)
            if ranks > rank.ranks or (ranks == rank.ranks and not rank.nodes):
                rank.rank, rank.ranks, rank.nodes, rank.local = number, ranks, nodes, local
            rank.at_least("graph")
        elif match := INIT.search(text):
            self._init(rank, match)

    def _init(self, rank: Rank, match: re.Match[bytes]) -> None:
        pointer, number, ranks = match[1].decode("ascii", "replace"), int(match[2]), int(match[3])
        if ranks > MOST_RANKS:
            return
        if ranks > rank.ranks:
            rank.rank, rank.ranks, rank.nodes, rank.local = number, ranks, 0, 0
        complete = match[5] == b"COMPLETE"
        if match[4] and len(self.communicators) < MOST_RANKS:
            key = match[4].decode()
            group = self.communicators.setdefault(key, Communicator(ranks))
            group.ranks.add(number)
            group.processes.add(rank.writer[:2])
            group.complete += complete
        if not complete:
            rank.open[pointer] = stage("topology")
            return
        rank.open.pop(pointer, None)
        rank.initialised = True
        rank.talked = rank.talked or ranks == 1 or not self.runtime_connect(rank)

    def _connected(self, rank: Rank, text: bytes) -> None:
        rank.talked, rank.connecting = True, False
        rank.at_least("connect")
        host = self.hosts[rank.writer.host]
        if b" GDR 0" in text and "rdma" in host.edges:
            host.no_gdr = host.no_gdr or self._where()
            self.gdr.add(False)

    def _nvls(self, rank: Rank, text: bytes) -> None:
        if b"Bind" in text and rank.open:
            rank.at_least("nvls")
        elif b"headRank" in text and rank.initialised:
            rank.talked = True

    def _environment(self, rank: Rank, text: bytes) -> None:
        if match := ENVIRONMENT.match(text):
            rank.at_least("bootstrap")
            said = _words(match[2]), self._where()
            self.hosts[rank.writer.host].environment.setdefault(_words(match[1]), said)

    def _phrases(self, rank: Rank, text: bytes, warning: bool) -> None:
        kinds = [kind for kind, pattern in PHRASES.items() if pattern.search(text)]
        for kind in kinds or (["unknown"] if warning else []):
            self._note(kind, rank, text)

    def _note(self, kind: str, rank: Rank, text: bytes) -> None:
        if len(self.seen[kind]) < KEPT:
            self.seen[kind].append(Sighting(rank, _words(text[:300]), self._where()))

    # What the log as a whole says.

    @property
    def members(self) -> list[Rank]:
        """Ranks that joined a communicator, and processes that joined none so far.

        Left out are those that had no need to: where one communicator is whole and complete,
        a process without any only made its id, or is of an earlier attempt.
        """
        joined = [rank for rank in self.ranks.values() if rank.ranks]
        processes = {rank.writer[:2] for rank in joined}
        known: dict[int, set[str]] = defaultdict(set)
        for host, pid in processes:
            known[pid].add(host)
        whole = any(len(g.ranks) == g.complete == g.size for g in self.communicators.values())
        waiting: dict[Process, Rank] = {}
        for rank in self.ranks.values():
            host, pid = process = rank.writer[:2]
            # `NCCL version ...` has no prefix; a lost newline puts a word before the host's name.
            glued = any(host.endswith(name) for name in known[pid])
            if host and not whole and process not in processes and not glued:
                waiting[process] = rank
        return [*joined, *waiting.values()]

    def of(self, rank: Rank) -> Rank:
        """The rank of the same process that joined, when it is the only one; else itself.

        A thread without a CUDA device writes as device 0 of its process.
        """
        same = [
            one for one in self.ranks.values() if one.ranks and one.writer[:2] == rank.writer[:2]
        ]
        return same[0] if len(same) == 1 else rank

    @property
    def jobs(self) -> list[set[Process]]:
        """Sets of processes that communicators join."""
        return jobs(list(self.communicators.values()))

    @property
    def size(self) -> int:
        """Ranks of the largest communicator; 0 when no line tells."""
        return max((rank.ranks for rank in self.ranks.values()), default=0)

    @property
    def nodes(self) -> int:
        """Nodes as NCCL counts them, in any communicator; 0 when no line tells."""
        return max((rank.spans for rank in self.ranks.values()), default=0)

    @property
    def host_names(self) -> list[str]:
        """Hosts whose ranks joined a communicator, or all that wrote lines while none did."""
        joined = {rank.writer.host for rank in self.ranks.values() if rank.ranks}
        return sorted((joined or {rank.writer.host for rank in self.ranks.values()}) - {""})

    @property
    def versions(self) -> dict[str, list[str]]:
        """NCCL versions, and the hosts that have them; those of ranks rather than of a banner."""
        found: dict[str, set[str]] = defaultdict(set)
        for rank in self.ranks.values():
            if rank.version:
                found[rank.version].add(rank.writer.host)
        told = {version: sorted(hosts - {""}) for version, hosts in found.items()}
        return {version: hosts for version, hosts in told.items() if hosts} or told

    @property
    def single_host(self) -> bool:
        """Whether the log itself says that nothing had to leave the host (or NVLink's domain)."""
        if self.nodes > 1:
            return False
        if self.nodes == 1:
            return len(self.host_names) <= 1 or len(self.jobs) == 1
        crossing = self.edges["rdma"] or self.edges["tcp"] or self.edges["other"]
        everybody = len({rank.rank for rank in self.members}) == self.size > 0
        return len(self.host_names) <= 1 and everybody and not crossing  # before 2.20

    @property
    def stage(self) -> str:
        """How far the rank that came least far has come."""
        return STAGES[min((rank.stage for rank in self.members), default=0)]

    def runtime_connect(self, rank: Rank) -> bool:
        """Whether this NCCL connects ranks at the first collective; only some ranks print it."""
        version = rank.version or self._version_seen
        return not version or tuple(map(int, version.split(".")[:2])) >= RUNTIME_CONNECT


PLAIN = {b"NCCL", b"Using", b"Assigned", b"comm", b"Connected"}  # their INFO lines hold no phrase
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
