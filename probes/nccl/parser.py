"""Parses NCCL log lines into a Log: the transport, the progress of init, and the errors.

Behaviour by version: NCCL 2.18 to 2.30, src/init.cc, src/transport/net.cc, src/transport/net_ib.cc,
src/bootstrap.cc.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from probes.nccl import job
from probes.nccl.job import STAGES, Edge, Host, MatchedMessage, Rank
from probes.nccl.lines import MAX_TOTAL, LogLines, LogWriter, UnreadableLog, to_text
from probes.nccl.log import Log
from probes.nccl.patterns import LINE, WORDS, find_kinds, is_warning, read_hints, read_kinds

MAX_KEPT = 200  # messages kept per phrase
MAX_TEXT = 1024  # bytes of a text that are searched for phrases
MAX_EDGE_TEXT = 256  # bytes of a text about an edge
MAX_COMMS = 1000  # communicators of one rank
MAX_NAMES = 128  # devices, interfaces or networks of one host
# Costs in bytes, above those of CPython 3.11, with short texts and the slots of dicts.
RANK_COST, HOST_COST, COMM_COST, MEMBER_COST, EDGE_COST, FACT_COST = 800, 800, 600, 330, 24, 200


def read_logs(paths: Iterable[Path], skipped: Iterable[str] = ()) -> Log:
    """Read the files of one job, in any order; lines of all ranks may be in one file or in many.

    `skipped` has a sentence for each other thing that is not read.
    """
    log, free_bytes = Log(), MAX_TOTAL
    for path in paths:
        log.files.append(LogLines(path, log.others, free_bytes))
        _read_file(log, path)
        free_bytes -= log.files[-1].bytes
    for sentence in skipped:
        log.skip(sentence)
    return log.finish()


def _read_file(log: Log, path: Path) -> None:
    """Read the newest file; one without NCCL's lines raises nothing: `unread_files` has it."""
    lines = log.files[-1]
    try:
        for writer, kind, text in lines:
            if rank := log.ranks.get(writer) or _add_rank(log, writer):
                rank.last_line = lines.count
                log.has_info |= kind == b"INFO"
                _parse_line(log, rank, kind, text)
    except UnreadableLog as error:
        log.skip(str(error))
    except OSError as error:
        log.skip(f"{path} cannot be read: {error.strerror}")
    if lines.is_foreign:
        log.unread_files.append(lines.explain_no_lines())


def _parse_line(log: Log, rank: Rank, kind: bytes, text: bytes) -> None:
    if text.startswith((b"Channel ", b"Ring ", b"CollNet ")):
        _parse_edge(log, rank, text)
        return
    if kind == b"version":
        _parse_version(log, rank, text)
        return
    if text.startswith(b"[Rank "):  # in some lines since 2.29
        text = text.partition(b"] ")[2]
    word = text.split(b" ", 1)[0].rstrip(b":")
    log.saw_network |= word.startswith(b"NET/")
    if (parse := LINE_PARSERS.get(word)) is not None and kind != b"WARN":
        parse(log, rank, text)
    elif text.startswith(b"NCCL_"):
        _parse_env(log, rank, text)
        return
    elif b"Init " in text and _parse_init(log, rank, text):
        return  # any other line with this word is searched for phrases
    warning = kind == b"WARN"
    if warning or (word not in WORDS["plain"] and any(hint in text for hint in read_hints())):
        source = log.files[-1].source_file if warning else b""
        text = (source + b" " if source else b"") + text[:MAX_TEXT]
        for found in find_kinds(text) or (["unknown"] if warning else []):
            if warning or not is_warning(found):
                _add_hit(log, found, rank, text, warned=warning)


def _add_rank(log: Log, writer: LogWriter) -> Rank | None:
    if not log.take(RANK_COST + HOST_COST * (writer.host not in log.hosts)):
        return None
    host = log.hosts.setdefault(writer.host, Host(writer.host))
    task = log.files[-1].place._replace(process="").who
    return log.ranks.setdefault(writer, Rank(writer, host, task))


def _parse_edge(log: Log, rank: Rank, text: bytes) -> None:
    head, _, key = text.partition(b" : ")
    ring = head.endswith(b"/0") or head.startswith(b"Ring")
    if b" via " not in key:
        rank.advance_to("graph")  # a ring map
        return
    rank.advance_to("connect")
    if ring:
        rank.connecting = rank.initialised and not rank.open_comms and log.connects_at_runtime(rank)
    elif rank.initialised:  # send and receive, or shared memory: no `Connected` line
        rank.connected = True
    if len(key) > MAX_EDGE_TEXT:
        return
    if b" nRanks " in key and (match := LINE["size"].search(key)):
        log.tail_size = max(log.tail_size, min(int(match[1]), job.MAX_RANKS))
    if edge := job.parse_edge(key, bool(log.hits.get("ofi-tcp"))):
        _add_edge(log, rank, edge, ring)


def _add_edge(log: Log, rank: Rank, edge: Edge, ring: bool) -> None:
    host, key = rank.host, edge.packed
    edges = rank.edges = rank.edges or job.EdgeSet()
    if key not in edges:
        if not log.take(EDGE_COST, when=len(edges) < job.MAX_EDGES):
            return
        edges.add(key, len(log.files) - 1 << 40 | log.files[-1].line_number)
    if edge.kind == "rdma" and edge.nic is not None:
        if ring and edge.nic not in host.nics and log.take(FACT_COST):
            host.nics |= {edge.nic}
        if (edge.receives, edge.gdr) not in host.gdr:
            host.gdr[edge.receives, edge.gdr] = log.location
    if edge.network:
        _add_network(log, host, edge.network)
    if edge.kind == "other" and len(log.other_networks) < MAX_NAMES:
        log.other_networks.setdefault(edge.network, log.location)


def _add_network(log: Log, host: Host, network: str) -> None:
    if _is_new(log, network, host.networks):
        host.networks[network] = log.location


def _is_new(log: Log, name: object, known: Collection[object]) -> bool:
    """Return whether this name of a host is new, and there is room for one more."""
    return name not in known and log.take(FACT_COST, when=len(known) < MAX_NAMES)


def _parse_version(log: Log, rank: Rank, text: bytes) -> None:
    if match := LINE["version"].search(text):
        rank.version = sys.intern(match[1].decode())
        log.others.version = log.others.version or rank.version
        rank.advance_to("bootstrap", begins=True)


def _parse_bootstrap(log: Log, rank: Rank, text: bytes) -> None:
    rank.gathered |= text.startswith(b"Bootstrap timings")
    rank.advance_to("bootstrap", begins=not rank.gathered)
    rank.host.bootstrap = next(_interfaces(text), rank.host.bootstrap)


def _parse_ib(log: Log, rank: Rank, text: bytes) -> None:
    rank.advance_to("net-init", begins=True)
    host = rank.host
    if b"No device found" in text:
        host.devices = host.devices or []
        _add_hit(log, "no-device", rank, text)
    elif match := LINE["merged"].search(text):
        if _is_new(log, int(match[1]), host.merged_nics):
            host.merged_nics[int(match[1])] = to_text(match[2])
    elif b": Using" in text:
        # Since 2.24 `Using ; OOB` follows `No device found`: no item, no device.
        host.devices = host.devices or []
        for match in LINE["device"].finditer(text.partition(b"; OOB")[0]):
            device = to_text(match[1] or match[0])
            if _is_new(log, device, host.devices):
                host.devices.append(device)
                host.link_types |= {device: to_text(match[2])} if match[2] else {}


def _parse_socket(log: Log, rank: Rank, text: bytes) -> None:
    rank.advance_to("net-init", begins=True)
    for socket in _interfaces(text):
        if _is_new(log, socket, rank.host.sockets):
            rank.host.sockets.append(socket)


def _parse_old_interface(log: Log, rank: Rank, text: bytes) -> None:
    if b"Using interface" in text and (socket := next(_interfaces(text), None)):
        rank.host.bootstrap = rank.host.bootstrap or socket
        rank.host.sockets = rank.host.sockets or [socket]


def _parse_network(log: Log, rank: Rank, text: bytes) -> None:
    rank.has_beginning = True
    if match := LINE["network"].match(text):
        rank.advance_to("net-init")
        _add_network(log, rank.host, to_text(match[1] or match[2]))


def _parse_timings(log: Log, rank: Rank, text: bytes) -> None:
    timing = job.parse_init_timing(text)
    if timing is None:
        _parse_init(log, rank, text)
    # A later communicator may wait for a rank that is busy.
    elif not rank.timing and log.take(FACT_COST):
        rank.timing = timing


def _parse_init(log: Log, rank: Rank, text: bytes) -> bool:
    match = LINE["init"].search(text, 0, MAX_TEXT)
    if match is None or (match.start() and not match["what"]):
        return False
    pointer, number, ranks = match["at"], int(match["number"]), int(match["size"])
    nodes, local = int(match["nodes"] or 0), int(match["local"] or 0)
    if number >= ranks or not log.take(0, when=ranks <= job.MAX_RANKS):
        return True  # no job has this size
    log.unnamed |= set() if rank.writer.host else {number}
    if ranks > rank.size or (local and ranks == rank.size and not rank.local_ranks):
        rank.number, rank.size, rank.local_ranks = number, ranks, local
    if nodes:
        rank.nodes = max(rank.nodes, nodes)
        rank.advance_to("graph")
        if member := rank.find_member(pointer):
            member.local_ranks, member.comm.nodes = local, max(nodes, member.comm.nodes)
    if not (pointer and match["what"]):
        return True
    complete = match["what"] == b"COMPLETE"
    if comm := _find_comm(log, rank, match["rest"], ranks):
        _add_member(log, rank, comm, number, pointer)
        comm.completed += complete
    if not complete:
        rank.has_beginning = True
        if pointer in rank.open_comms or log.take(FACT_COST, when=len(rank.open_comms) < MAX_COMMS):
            rank.open_comms[pointer] = STAGES.index("topology")
        return True
    if rank.open_comms.pop(pointer, None) is not None:
        log.free_bytes += FACT_COST
    rank.initialised = True
    rank.connected = rank.connected or ranks == 1 or not log.connects_at_runtime(rank)
    return True


def _find_comm(log: Log, rank: Rank, tail: bytes, ranks: int) -> job.Communicator | None:
    """Find the communicator of an Init line, or make it; None if the line names none."""
    comms = log.communicators
    if match := LINE["comm_id"].search(tail):
        key = match[1]
    elif match := LINE["split"].search(tail):
        parent = rank.find_member(match[1])
        parts = id(parent and parent.comm), match[2] or b"", match[3], ranks
        comms, key = log.splits, b"%x %b %b %d" % parts
    else:
        return None
    if key not in comms and log.take(COMM_COST):
        comms[key] = job.Communicator(ranks)
    return comms.get(key)


def _add_member(log: Log, rank: Rank, comm: job.Communicator, number: int, pointer: bytes) -> None:
    member = comm.members.get(number)
    if member is not None:
        comm.rank_conflict |= member.rank.host is not rank.host
    elif log.take(MEMBER_COST, when=len(rank.comms) < MAX_COMMS):
        comm.members[number] = member = job.CommunicatorMember(comm, rank, number, pointer)
        rank.comms.append(member)


def _parse_connected(log: Log, rank: Rank, text: bytes) -> None:
    if text.startswith(b"Connected to"):
        return  # a proxy, before any edge
    rank.advance_to("connect")
    rank.connected |= rank.initialised or text != b"Connected all rings"  # then trees follow
    rank.connecting = False
    if b" GDR 0" in text:
        log.no_gdr = log.no_gdr or log.location


def _parse_nvls(log: Log, rank: Rank, text: bytes) -> None:
    if b"Bind" in text and rank.open_comms:
        rank.advance_to("nvls")
    elif b"headRank" in text and rank.initialised:
        rank.connected = True


def _parse_env(log: Log, rank: Rank, text: bytes) -> None:
    if match := LINE["variable"].match(text):
        rank.advance_to("bootstrap")
        env, name = rank.host.environment, to_text(match[1])
        if match[1] in WORDS["judged"] and name not in env and log.take(FACT_COST):
            env[name] = to_text(match[2]), log.location


def _add_hit(log: Log, kind: str, rank: Rank, text: bytes, *, warned: bool = False) -> None:
    if kind in read_kinds() and read_kinds()[kind].severity == "retry":
        # Most ranks retry and succeed: keep one per rank, so that a failing rank is not lost.
        if kind in rank.retried or not log.take(4 * FACT_COST):
            return
        rank.retried |= {kind}
    elif len(log.hits[kind]) >= MAX_KEPT:
        return
    hit = MatchedMessage(rank, to_text(text[:300]), log.location, warned, log.files[-1].place)
    log.hits[kind].append(hit)


def _interfaces(text: bytes) -> Iterator[tuple[str, str]]:
    """List interfaces with their addresses."""
    return ((to_text(m[1]), to_text(m[2])) for m in LINE["interface"].finditer(text))


LINE_PARSERS: dict[bytes, Callable[[Log, Rank, bytes], object]] = {
    **dict.fromkeys((b"NCCL", b"RCCL"), _parse_version),
    b"Bootstrap": _parse_bootstrap,
    b"NET": _parse_old_interface,  # of 2.3
    b"NET/IB": _parse_ib,
    b"NET/Socket": _parse_socket,
    **dict.fromkeys((b"Using", b"Assigned"), _parse_network),
    **dict.fromkeys((b"comm", b"rank"), _parse_init),
    b"Connected": _parse_connected,
    b"NVLS": _parse_nvls,
    b"Init": _parse_timings,
    b"Comm": _parse_env,
}
