"""Filters a rank's NCCL log to the lines that the parser uses, before it is sent to the driver.

It runs on the node. With NCCL_DEBUG_SUBSYS=GRAPH most of a log is topology, and each channel writes
the same edge again. With thousands of ranks, unfiltered logs would not fit into the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from probes.nccl.lines import MARK
from probes.nccl.parser import LINE_PARSERS
from probes.nccl.patterns import PREFILTER, SKIPPED_WORDS

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
