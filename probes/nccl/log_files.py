"""Finds log files, and the lines of them that count."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from probes.nccl.lines import MARK, STDIN, UnreadableLog
from probes.nccl.parser import LINE_PARSERS
from probes.nccl.patterns import WORDS, read_hints, say


def find_logs(given: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """List the log files among the given paths and in given folders, and what is not read.

    Returns (files, one sentence for each thing in the folders that is not read). A pipe is read if
    it is given itself, as by users who unpack a log into it. In a folder it is not read, because it
    may never deliver data. Raises UnreadableLog for a given path that is no log.
    """
    paths: list[Path] = []
    skipped: list[str] = []
    for path in given:
        try:
            mode = stat.S_IFIFO if path == STDIN else path.stat().st_mode
        except FileNotFoundError:
            raise UnreadableLog(f"expected a log file, found nothing at {path}") from None
        except OSError as error:
            raise UnreadableLog(f"{path} cannot be read: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            paths += sorted(_walk(path, skipped))
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            paths.append(path)
        else:
            raise UnreadableLog(f"{path}: expected a log file, found a device or a socket")
    return paths, skipped


def _walk(root: Path, skipped: list[str]) -> Iterator[Path]:
    """Yield the regular files below a folder; report in `skipped` why anything else is not read."""

    def skip(error: OSError) -> None:
        skipped.append(f"{error.filename} cannot be read: {error.strerror}")

    for folder, folders, files in os.walk(root, onerror=skip):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink():
                if not _leads_into(path, root):  # its target is read in its own place
                    skipped.append(say("outside", path=path, root=root))
            elif path.is_file():
                yield path
            elif not path.is_dir():
                skipped.append(f"{path} was not read: in a folder, only regular files are read")


def _leads_into(link: Path, root: Path) -> bool:
    target, top = os.path.realpath(link), os.path.realpath(root)
    return os.path.exists(target) and os.path.commonpath([target, top]) == top


MAX_LINE = 4 << 10  # bytes of one line: ring maps are longer, but only their beginning is read
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
        if word in WORDS["edge"]:
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
    """Return whether the parser uses such a line, other than one about an edge."""
    if word in (b"WARN", b"version") or word in LINE_PARSERS:
        return True
    hints = text.startswith(b"NCCL_") or any(hint in text for hint in (*read_hints(), b"Init "))
    return hints and text.split(b" ", 1)[0] not in WORDS["skipped"]
