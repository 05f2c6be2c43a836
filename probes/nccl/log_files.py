"""Finds logs and the lines that count: files, filters, and pieces that were pasted."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from probes.findings import join_names
from probes.nccl.evidence import rank_names
from probes.nccl.job import STAGES, Rank
from probes.nccl.lines import MARK, MAX_SKIPPED, STDIN, UnreadableLog
from probes.nccl.log import Log
from probes.nccl.parser import LINE_PARSERS
from probes.nccl.patterns import PREFILTER, SKIPPED_WORDS


def find_logs(given: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """List the log files among the given paths and in given folders, and what is not read.

    Returns (files, one sentence for each thing in the folders that is not read). A pipe is read if
    it is given itself, as by users who unpack a log into it. In a folder it is not read, because it
    may never deliver data. Raises UnreadableLog for a given path that is no log.
    """
    paths: list[Path] = []
    skipped: list[str] = []
    for path in given:
        if path == STDIN:
            paths.append(path)
            continue
        mode = _mode_of(path)
        if stat.S_ISDIR(mode):
            paths += sorted(_walk(path, skipped))
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            paths.append(path)
        else:
            raise UnreadableLog(f"{path}: expected a log file, found a device or a socket")
    return paths, skipped


def _mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise UnreadableLog(f"expected a log file, found nothing at {path}") from None
    except OSError as error:
        raise UnreadableLog(f"{path} cannot be read: {error.strerror}") from None


def _walk(root: Path, skipped: list[str]) -> Iterator[Path]:
    """Yield the regular files below a folder; report in `skipped` why anything else is not read."""
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            skipped.append(f"{folder} cannot be read: {error.strerror}")
            continue
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif entry.is_file(follow_symlinks=False):
                yield path
            elif not entry.is_symlink():
                skipped.append(f"{path} was not read: in a folder, only regular files are read")
            elif not _leads_into(path, root):  # its target is read in its own place
                skipped.append(
                    f"{path} was not read: it is a link to a file outside {root}, or to none. "
                    "Give the file itself"
                )


def _leads_into(link: Path, root: Path) -> bool:
    target, top = os.path.realpath(link), os.path.realpath(root)
    return os.path.exists(target) and os.path.commonpath([target, top]) == top


MAX_LINE = 4 << 10  # bytes of one line: ring maps are longer, but only their beginning is read
EDGE_WORDS = (b"Channel", b"Ring", b"CollNet")
OMITTED = b"lines were left out here"  # no newline: the reader sees a log that was cut off


def filter_log(lines: Iterable[bytes], max_bytes: int) -> bytes:
    """Keep the useful lines, at most `max_bytes`: if there are more, the beginning and the end.

    A shortened log ends like one that was cut off, so that a missing line proves nothing.
    """
    head: list[bytes] = []
    tail: deque[bytes] = deque()
    head_free, tail_bytes, dropped = max_bytes // 2, 0, False
    for line in useful_lines(lines):
        if not tail and len(line) <= head_free:
            head.append(line)
            head_free -= len(line)
            continue
        tail.append(line)
        tail_bytes += len(line)
        while tail_bytes > max_bytes // 2:
            tail_bytes -= len(tail.popleft())
            dropped = True
    return b"".join([*head, *tail, *([OMITTED] if dropped else [])])


def useful_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Pick the lines that the parser uses; in an unbroken run of edges, each edge once."""
    edges: set[tuple[bool, bytes]] = set()
    for number, line in enumerate(lines):
        word, text = _split_line(line)
        if word in EDGE_WORDS:
            head, _, edge = text.partition(b" : ")
            # The parser treats ring edges differently. Of a ring map it only uses that this rank
            # has one.
            content = edge if b" via " in edge else line.partition(MARK)[0]
            key = word == b"Ring" or head.endswith(b"/0"), content
            if key in edges:
                continue
            edges.add(key)
        elif number and line.endswith(b"\n") and not _is_useful(word, text):
            continue
        else:  # the lines before an edge can change its meaning
            edges.clear()
        yield line if len(line) <= MAX_LINE else line[:MAX_LINE] + b"\n"


def _split_line(line: bytes) -> tuple[bytes, bytes]:
    """Split off the first word of an INFO line; of other NCCL lines return kind and line."""
    _, mark, body = line.partition(MARK)
    kind, _, text = body.partition(b" ")
    if kind != b"INFO":
        return mark and kind, line
    if text.startswith(b"[Rank "):
        text = text.partition(b"] ")[2]
    return text.split(b" ", 1)[0].rstrip(b":\n"), text


def _is_useful(word: bytes, text: bytes) -> bool:
    """Return whether the parser uses such a line."""
    if word in (b"WARN", b"version") or word in EDGE_WORDS or word in LINE_PARSERS:
        return True
    if text.split(b" ", 1)[0] in SKIPPED_WORDS:
        return False
    return text.startswith(b"NCCL_") or any(hint in text for hint in (*PREFILTER, b"Init "))


MOST = 0.75  # of the ranks: a piece that has so many is likely to be the log of all
# Lines of each other rank, on average: launchers write what ranks print in blocks of some KB.
FURTHER = 50
COLLECT = (
    "If these are the complete logs of all ranks, give --whole. Otherwise give the log of every "
    "rank from its start: NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/some/folder/nccl.%h.%p.log writes them"
)


def why_no_hang(log: Log) -> str:
    """Return why this piece cannot show that the job hangs or that ranks are missing; else ""."""
    if log.repeated:  # also where the caller says that the log is whole
        return "Ray's driver left out repeated lines"
    if log.every_rank:
        return ""
    if not (log.world_size or has_file_each(log)):
        alike = len({rank.stage for rank in log.job_ranks}) == 1 < len(log.job_ranks)
        end = f", and all {len(log.job_ranks)} processes end at the step `{log.stage}`"
        return f"no line gives the number of ranks{end if alike else ''}"
    if not any(rank.has_beginning for rank in log.ranks.values()):
        return "its beginning is missing"
    if log.world_size > 1 and _present(log) == 1:
        some = "the lines" if log.shown <= 1 else "the rank number"
        return f"it has {some} of only one of {log.world_size} ranks"
    return ""


def has_file_each(log: Log) -> bool:
    """Return whether several processes each wrote one file, from their start."""
    begun = {rank.writer[:2] for rank in log.ranks.values() if rank.has_beginning}
    files = [file.processes for file in log.files if file.count]
    single = {next(iter(found)) for found in files if len(found) == 1}
    return len(files) == len(single & begun) > 1


def shows_order(log: Log) -> bool:
    """Return whether one file shows by its order that some ranks stopped.

    All ranks are in it, and after the last line of those that are behind every other rank wrote at
    a later stage: the end of the file does not explain that.
    """
    ranks, behind = log.job_ranks, log.behind
    others = [rank for rank in ranks if rank not in behind]
    if len(ranks) != log.world_size or len(log.numbers) != len(ranks) or not others:
        return False
    if any(file.skipped == MAX_SKIPPED for file in log.files) or not all(
        rank.stuck for rank in behind
    ):
        return False
    end = max(max(rank.last_line, log.seen.get(rank.writer, 0)) for rank in behind)
    after = [rank.last_line - end for rank in others]
    return is_piece(log) and min(after) > 0 and max(after) >= FURTHER * len(after)


def gave_up(log: Log) -> bool:
    """Return whether all ranks began, none is done, and the job says that it waited in vain."""
    ranks = log.job_ranks
    began = len(log.numbers) == len(ranks) == log.world_size > 1
    stuck = all(rank.open_comms and not rank.initialised for rank in ranks)
    return began and stuck and bool(log.reported("timeout", "work"))


def is_complete(log: Log) -> bool:
    """Return whether every rank of every communicator completed it, and has finished."""
    comms = [*log.communicators.values(), *log.splits.values()]
    done = bool(comms) and all(len(g.members) == g.completed == g.size for g in comms)
    return done and not any(rank.stuck for rank in log.job_ranks)


def _present(log: Log) -> int:
    """Count the ranks that wrote lines."""
    return len({rank.number if rank.number >= 0 else rank.writer[:2] for rank in log.job_ranks})


def number_ranks(numbers: Collection[int]) -> str:
    """Name ranks by their numbers: `rank 3`, `ranks 2, 3`."""
    return f"rank{'s' if len(numbers) > 1 else ''} {join_names(map(str, numbers))}"


def ends_early(log: Log) -> str:
    """Return why no hang is certain in one file, which may be a piece; else ""."""
    if not is_piece(log) or shows_order(log) or gave_up(log):
        return ""
    present = _present(log)
    if present < log.world_size and any(map(_has_gathered, log.ranks.values())):
        if log.shown >= log.world_size:
            return f"it does not show the rank number of each of {log.world_size} ranks"
        return f"it has the lines of {max(present, log.shown)} of {log.world_size} ranks"
    if present < log.world_size:
        absent = sorted(set(range(log.world_size)) - log.numbers)
        return f"{number_ranks(absent)} never joined, or this part of the log ends too early"
    if any(rank.number < 0 and not rank.stage for rank in log.job_ranks):
        return "the first lines of some of its processes are missing"
    all_of = f"all {len(log.behind)} ranks" if len(log.behind) == len(log.job_ranks) else ""
    where = all_of or rank_names(log.behind)
    end = "they hang there, or this part of the log ends there"
    return f"the lines of {where} end at the step `{log.stage}`: {end}"


def is_piece(log: Log) -> bool:
    """Return whether the log may be a piece: one file, which people cut where they like."""
    return not log.every_rank and len(log.files) == 1


def shows_most(log: Log) -> bool:
    """Return whether the log has lines of most ranks, so that the others are missed in it."""
    return _present(log) >= MOST * log.world_size


def all_joined(log: Log) -> bool:
    """Return whether some rank is past the bootstrap: it gathers something from every rank."""
    return any(_has_gathered(rank) for rank in log.ranks.values() if rank.size == log.world_size)


def _has_gathered(rank: Rank) -> bool:
    past = rank.gathered or rank.initialised or bool(rank.edges)
    return past or rank.stage >= STAGES.index("graph")


def crosses_hosts(log: Log) -> bool:
    """Return whether the log shows two hosts: only then can a network be accused."""
    names = {*log.host_names, *log.test_hosts}
    return len(names) > 1 or log.nodes > 1 or log.external_edges > 0
