"""What of a rank's NCCL log is worth its way to the driver: the lines that the reader looks at.

Run on the node.  With NCCL_DEBUG_SUBSYS=GRAPH most of a log is topology, and the same edge is
written once for each channel; at thousands of ranks all of it would fit no driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from probes.nccl.lines import MARK
from probes.nccl.parser import LINE_PARSERS
from probes.nccl.patterns import PREFILTER, SKIPPED_WORDS

MAX_LINE = 4 << 10  # bytes of one line: maps of rings are longer, and only their beginning is read
EDGE_WORDS = (b"Channel", b"Ring", b"CollNet")
OMITTED = b"lines were left out here"  # no line's end: so it is a log that is cut, to the reader


def filter_log(lines: Iterable[bytes], max_bytes: int) -> bytes:
    """Keep the telling lines, at most `max_bytes` of them: of more, the beginning and the end.

    Then it ends like a log that was cut off, for what is not in it proves nothing.
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
    """Pick the lines that tell something; of an unbroken row of edges each one once."""
    edges: set[tuple[bool, bytes]] = set()
    for number, line in enumerate(lines):
        word, text = _split_line(line)
        if word in EDGE_WORDS:
            head, _, edge = text.partition(b" : ")
            # A ring's edges are read in another way than others, and of its map only that this
            # rank has one; see `parser`.
            content = edge if b" via " in edge else line.partition(MARK)[0]
            key = word == b"Ring" or head.endswith(b"/0"), content
            if key in edges:
                continue
            edges.add(key)
        elif number and line.endswith(b"\n") and not _is_useful(word, text):
            continue
        else:  # what comes before an edge decides what it means
            edges.clear()
        yield line if len(line) <= MAX_LINE else line[:MAX_LINE] + b"\n"


def _split_line(line: bytes) -> tuple[bytes, bytes]:
    """Split off the first word of an INFO; of any other line of NCCL's give its kind, and all."""
    _, mark, body = line.partition(MARK)
    kind, _, text = body.partition(b" ")
    if kind != b"INFO":
        return mark and kind, line
    if text.startswith(b"[Rank "):
        text = text.partition(b"] ")[2]
    return text.split(b" ", 1)[0].rstrip(b":\n"), text


def _is_useful(word: bytes, text: bytes) -> bool:
    """Tell whether the parser looks at such a line."""
    if word in (b"WARN", b"version") or word in EDGE_WORDS or word in LINE_PARSERS:
        return True
    if text.split(b" ", 1)[0] in SKIPPED_WORDS:
        return False
    return text.startswith(b"NCCL_") or any(hint in text for hint in (*PREFILTER, b"Init "))
