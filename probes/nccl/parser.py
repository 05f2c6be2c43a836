"""From lines to a Log: which road NCCL took, how far init came, and what it complained of.

Behaviour by version: NCCL 2.18 to 2.30, src/init.cc, src/transport/net.cc,
src/transport/net_ib.cc, src/bootstrap.cc.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from probes.nccl.edges import MOST, MOST_RANKS, Edge, Links, edge
from probes.nccl.job import Communicator, Host, Rank, Seat, Sighting, Start, stage
from probes.nccl.lines import Lines, UnreadableLog, Writer
from probes.nccl.log import COMMUNICATOR, FACT, HOST, LINK, RANK, SEAT, Log
from probes.nccl.patterns import LESS, PHRASES, TELLING, TRIES

KEPT = 200  # sightings kept per phrase
LONGEST = 1024  # bytes of a text in which phrases are looked for
SHORT = 256  # bytes of a text about an edge
REMEMBERED = 30_000  # texts about edges that are kept in mind
MOST_SEATS = 1000  # communicators of one rank
MOST_NAMES = 128  # devices, interfaces or networks of one host

SHAPE = re.compile(
    rb"comm (\S{1,32}) rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9})"
)
INIT = re.compile(
    rb"comm (?P<at>\S{1,32}) rank (?P<number>\d{1,9}) n[rR]anks (?P<size>\d{1,9}) "
    rb"(?P<rest>.{0,300}?)\bInit (?P<what>START|COMPLETE)"
)
COMM_ID = re.compile(rb"commId (\w{1,64})")
SPLIT = re.compile(rb"parent (\S{1,32}) (?:\w{1,16} (\d{1,9}) )?color (-?\d{1,12})")
USING_ITEM = re.compile(rb"(?:\[\d+\])?([\w.\-@]{1,64}):([\da-fA-F.:%\w\[\]]{1,64})<\d+>")
# `[0]mlx5_0:1/IB`; merged ports, 2.20 to 2.23: `[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}`.
DEVICE_ITEM = re.compile(rb"\[\d+\](?:=\{[^}]{0,128}\}|([\w.\-+]{1,64}):\d+/\w+)")
# Since 2.24, of each device, and then of ports that are used as one: `[2] name=mlx5_0+mlx5_1`.
VIRTUAL = re.compile(rb"Made virtual device \[(\d{1,4})\] name=([\w.\-+]{1,300}) ")
ENVIRONMENT = re.compile(rb"(NCCL_\w{1,64}) set (?:by environment )?to (.{0,200}?)\.?$")
WATCHED = {  # variables that decide about a finding
    *("NCCL_IB_DISABLE", "NCCL_IBEXT_DISABLE", "NCCL_NET", "NCCL_IB_HCA", "NCCL_NET_PLUGIN"),
}
VERSION = re.compile(rb"(?:NCCL version )?(\d{1,4}\.\d{1,4}\.\d{1,4})(?:[+.\s]|$)")
NETWORK = re.compile(rb"Using network (.{1,64})$|Assigned NET plugin (.{1,64}?) to comm")


def read(paths: Iterable[Path]) -> Log:
    """Fold the files of one job, in any order; lines of all ranks may be in one or many."""
    reader = Reader()
    for path in paths:
        reader.add(path)
    return reader.log.settle()


class Reader:
    """Folds lines into `log`."""

    def __init__(self) -> None:
        self.log = Log()
        self._lines = Lines(Path())
        self._edges: dict[bytes, Edge | None] = {}
        self._known: set[tuple[int, bytes]] = set()

    def add(self, path: Path) -> None:
        """Fold one file in.  A file without NCCL's lines is said in `unread`, not raised."""
        log, lines, found = self.log, Lines(path), 0
        self._lines = lines
        log.files.append(path.name)
        try:
            for writer, kind, text in lines:
                found += 1
                self._line(writer, kind, text)
        except (UnreadableLog, OSError) as error:
            log.unread.append(str(error))
            log.unended = True
        if lines.cut and found:
            log.cut.append(path.name)
        log.repeated += lines.repeated
        log.corrupt += [(f"{path.name}:{number}", wrong) for number, wrong in lines.wrong]
        log.errors += [(f"{path.name}:{number}", said) for number, said in lines.errors]
        log.efa += [(f"{path.name}:{number}", pid) for number, pid in lines.efa]
        if not (found or lines.table or lines.errors or lines.efa):
            log.unread.append(_says_nothing(lines))

    def _line(self, writer: Writer, kind: bytes, text: bytes) -> None:
        rank = self.log.ranks.get(writer) or self._rank(writer)
        if rank is None:
            return
        if text.startswith((b"Channel ", b"Ring ", b"CollNet ")):
            self._edge(rank, text)
            return
        if kind == b"version":
            self._version(rank, text)
            return
        if text.startswith(b"[Rank "):  # since 2.29, some lines
            text = text.partition(b"] ")[2]
        word = text.split(b" ", 1)[0].rstrip(b":")
        self.log.networked |= word.startswith(b"NET/")
        if (reader := READERS.get(word)) is not None:
            reader(self, rank, text)
        elif text.startswith(b"NCCL_"):
            self._environment(rank, text)
            return
        elif b"Init " in text and (match := INIT.search(text, 0, LONGEST)):
            self._init(rank, match)
            return
        warning = kind == b"WARN"
        if warning or (word not in PLAIN and any(told in text for told in TELLING)):
            source = self._lines.source if warning else b""
            self._phrases(rank, (source + b" " if source else b"") + text[:LONGEST], warning)

    def _rank(self, writer: Writer) -> Rank | None:
        log = self.log
        host = log.hosts.get(writer.host)
        if not log.room.take(RANK + (0 if host else HOST)):
            return None
        if host is None:
            host = log.hosts[writer.host] = Host(writer.host)
        rank = log.ranks[writer] = Rank(writer, host)
        return rank

    def _where(self) -> str:
        return f"{self._lines.path.name}:{self._lines.number}"

    def _edge(self, rank: Rank, text: bytes) -> None:
        head, _, key = text.partition(b" : ")
        ring = head.endswith(b"/0") or head.startswith(b"Ring")
        if b" via " not in key:
            rank.at_least("graph")  # a ring map
            return
        rank.at_least("connect")
        if ring:
            late = rank.initialised and not rank.open
            rank.connecting = late and self.log.runtime_connect(rank)
        elif rank.initialised:  # send and receive, or shared memory: no line says `Connected`
            rank.talked = True
        if (id(rank), key) in self._known or len(key) > SHORT:
            return
        if len(self._known) > REMEMBERED:
            self._known.clear()
            self._edges.clear()
        self._known.add((id(rank), key))
        if key not in self._edges:
            self._edges[key] = edge(key, bool(self.log.seen.get("ofi-tcp")))
        if found := self._edges[key]:
            self._take(rank, found, ring)

    def _take(self, rank: Rank, found: Edge, ring: bool) -> None:
        log, host = self.log, rank.host
        links = rank.links = rank.links or Links()
        key = found.key
        if key not in links:
            if not log.room.take(LINK, given=len(links) < MOST):
                return
            links.add(key, len(log.files) - 1 << 40 | self._lines.number)
        if found.kind == "rdma" and found.nic is not None:
            if ring and found.nic not in host.nics and log.room.take(FACT):
                host.nics |= {found.nic}
            log.gdr.add(found.gdr)
            if not found.gdr:
                host.no_gdr = host.no_gdr or self._where()
        if found.network:
            self._uses(host, found.network)
        if found.kind == "other" and len(log.other_networks) < MOST_NAMES:
            log.other_networks.setdefault(found.network, self._where())

    def _uses(self, host: Host, network: str) -> None:
        if network not in host.networks and self._room_for(len(host.networks)):
            host.networks[network] = self._where()

    def _room_for(self, names: int) -> bool:
        """Room for one more name beside so many of one host."""
        return self.log.room.take(FACT, given=names < MOST_NAMES)

    def _version(self, rank: Rank, text: bytes) -> None:
        if match := VERSION.search(text):
            rank.version = sys.intern(match[1].decode())
            self.log.version_seen = self.log.version_seen or rank.version
            rank.at_least("bootstrap")

    def _bootstrap(self, rank: Rank, text: bytes) -> None:
        rank.at_least("bootstrap")
        if match := USING_ITEM.search(text):
            rank.host.bootstrap = _words(match[1]), _words(match[2])

    def _ib(self, rank: Rank, text: bytes) -> None:
        rank.at_least("net-init")
        host = rank.host
        if b"No device found" in text:
            host.devices = host.devices or []
            self._note("no-device", rank, text)
        elif match := VIRTUAL.search(text):
            if int(match[1]) not in host.virtual and self._room_for(len(host.virtual)):
                host.virtual[int(match[1])] = _words(match[2])
        elif b": Using" in text:
            # Since 2.24 `Using ; OOB` follows `No device found`: no item, no device.
            host.devices = host.devices or []
            for match in DEVICE_ITEM.finditer(text.partition(b"; OOB")[0]):
                device = _words(match[1] or match[0])
                if device not in host.devices and self._room_for(len(host.devices)):
                    host.devices.append(device)

    def _socket(self, rank: Rank, text: bytes) -> None:
        rank.at_least("net-init")
        known = rank.host.sockets
        for match in USING_ITEM.finditer(text):
            socket = _words(match[1]), _words(match[2])
            if socket not in known and self._room_for(len(known)):
                known.append(socket)

    def _network(self, rank: Rank, text: bytes) -> None:
        if match := NETWORK.match(text):
            rank.at_least("net-init")
            self._uses(rank.host, _words(match[1] or match[2]))

    def _timings(self, rank: Rank, text: bytes) -> None:
        found = start(rank, text)
        if found is None:
            match = INIT.search(text, 0, LONGEST)
            return self._init(rank, match) if match else None
        if rank.timed:  # a later communicator may wait for a rank that is at work
            return None
        rank.timed, log = True, self.log
        if found.total >= found.limit and len(log.slow) < KEPT:
            log.slow.append(found)
        first = log.quickest.get(found.ranks)
        if (first is None and len(log.quickest) < KEPT) or (
            first is not None and found.bootstrap < first.bootstrap
        ):
            log.quickest[found.ranks] = found
        return None

    def _comm(self, rank: Rank, text: bytes) -> None:
        if match := SHAPE.match(text):
            number, ranks, nodes, local = map(int, match.groups()[1:])
            if not self._sane(number, ranks):
                return
            rank.spans = max(rank.spans, nodes)
            if ranks > rank.ranks or (ranks == rank.ranks and not rank.nodes):
                rank.rank, rank.ranks, rank.nodes, rank.local = number, ranks, nodes, local
            rank.at_least("graph")
            for seat in reversed(rank.seats):
                if seat.pointer == match[1]:
                    seat.local, seat.group.nodes = local, max(nodes, seat.group.nodes)
                    break
        elif match := INIT.search(text, 0, LONGEST):
            self._init(rank, match)

    def _sane(self, number: int, ranks: int) -> bool:
        """Whether a job can be of this size; one that is larger than any is said to be."""
        return number < ranks and self.log.room.take(0, given=ranks <= MOST_RANKS)

    def _init(self, rank: Rank, match: re.Match[bytes]) -> None:
        pointer, number, ranks = match["at"], int(match["number"]), int(match["size"])
        if not self._sane(number, ranks):
            return
        if ranks > rank.ranks:
            rank.rank, rank.ranks, rank.nodes, rank.local = number, ranks, 0, 0
        complete = match["what"] == b"COMPLETE"
        group = self._group(rank, match["rest"], ranks)
        if group is not None:
            self._seat(rank, group, number, pointer)
            group.complete += complete
        if not complete:
            if pointer in rank.open or self.log.room.take(FACT, given=len(rank.open) < MOST_SEATS):
                rank.open[pointer] = stage("topology")
            return
        if rank.open.pop(pointer, None) is not None:
            self.log.room.give(FACT)
        rank.initialised = True
        rank.talked = rank.talked or ranks == 1 or not self.log.runtime_connect(rank)

    def _group(self, rank: Rank, rest: bytes, ranks: int) -> Communicator | None:
        """The communicator that an Init line is about."""
        groups = self.log.communicators
        if match := COMM_ID.search(rest):
            key = match[1]
        elif match := SPLIT.search(rest):
            parent = next((s.group for s in reversed(rank.seats) if s.pointer == match[1]), None)
            which = id(parent), match[2] or b"", match[3], ranks
            groups, key = self.log.splits, b"%x %b %b %d" % which
        else:
            return None
        if key not in groups and self.log.room.take(COMMUNICATOR):
            groups[key] = Communicator(ranks)
        return groups.get(key)

    def _seat(self, rank: Rank, group: Communicator, number: int, pointer: bytes) -> None:
        seat = group.seats.get(number)
        if seat is not None:
            group.doubted |= seat.rank.host is not rank.host
        elif self.log.room.take(SEAT, given=len(rank.seats) < MOST_SEATS):
            group.seats[number] = seat = Seat(group, rank, number, pointer)
            rank.seats.append(seat)

    def _connected(self, rank: Rank, text: bytes) -> None:
        rank.talked, rank.connecting = True, False
        rank.at_least("connect")
        if b" GDR 0" in text:
            self.log.gdr_0 = self.log.gdr_0 or self._where()

    def _nvls(self, rank: Rank, text: bytes) -> None:
        if b"Bind" in text and rank.open:
            rank.at_least("nvls")
        elif b"headRank" in text and rank.initialised:
            rank.talked = True

    def _environment(self, rank: Rank, text: bytes) -> None:
        if match := ENVIRONMENT.match(text):
            rank.at_least("bootstrap")
            known, name = rank.host.environment, _words(match[1])
            if name in WATCHED and name not in known and self.log.room.take(FACT):
                known[name] = _words(match[2]), self._where()

    def _phrases(self, rank: Rank, text: bytes, warning: bool) -> None:
        found = [kind for kind, pattern in PHRASES.items() if pattern.search(text)]
        kinds = [kind for kind in found if not any(kind in LESS.get(k, ()) for k in found)]
        for kind in kinds or (["unknown"] if warning else []):
            self._note(kind, rank, text)

    def _note(self, kind: str, rank: Rank, text: bytes) -> None:
        log = self.log
        if kind in TRIES:
            # Most ranks try again and get through; one that does not must not be lost among them.
            if kind in rank.tried or not log.room.take(4 * FACT):
                return
            rank.tried |= {kind}
        elif len(log.seen[kind]) >= KEPT:
            return
        log.seen[kind].append(Sighting(rank, _words(text[:300]), self._where()))


PLAIN = {
    b"NCCL",
    b"Using",
    b"Assigned",
    b"comm",
    b"Connected",
    b"Init",
}  # their INFO lines hold no phrase
READERS: dict[bytes, Callable[[Reader, Rank, bytes], None]] = {
    b"NCCL": Reader._version,
    b"Bootstrap": Reader._bootstrap,
    b"NET/IB": Reader._ib,
    b"NET/Socket": Reader._socket,
    b"Using": Reader._network,
    b"Assigned": Reader._network,
    b"comm": Reader._comm,
    b"Connected": Reader._connected,
    b"NVLS": Reader._nvls,
    b"Init": Reader._timings,
}


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


TIMINGS = re.compile(
    rb"Init timings - [^:]{1,64}: rank \d{1,9} nranks (\d{1,9}) total (\d{1,9}\.\d{1,3}) "
    rb"\((.{1,300}?)\)"
)


PHASE = re.compile(rb"(\w{1,16}) (\d{1,9}\.\d{1,3})")


def start(rank: Rank, text: bytes) -> Start | None:
    """What a line of timings says; None for any other."""
    match = TIMINGS.match(text)
    phases = {
        name.decode(): float(took) for name, took in PHASE.findall(match[3] if match else b"")
    }
    return Start(rank, int(match[1]), float(match[2]), phases) if match and phases else None
