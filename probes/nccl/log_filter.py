"""What of a rank's NCCL log is worth its way to the driver: the lines that the reader looks at.

Run on the node.  With NCCL_DEBUG_SUBSYS=GRAPH most of a log is topology, and the same edge is
written once for each channel; at thousands of ranks all of it would fit no driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from probes.nccl.lines import MARK
from probes.nccl.parser import READERS
from probes.nccl.patterns import SKIPPED, TELLING

LONGEST = 4 << 10  # bytes of one line: maps of rings are longer, and only their beginning is read
EDGES = (b"Channel", b"Ring", b"CollNet")
LEFT_OUT = b"lines were left out here"  # no line's end: so it is a log that is cut, to the reader


def sieved(lines: Iterable[bytes], most: int) -> bytes:
    """The telling lines, at most `most` bytes of them: of more, the beginning and the end.

    Then it ends like a log that was cut off, for what is not in it proves nothing.
    """
    head: list[bytes] = []
    tail: deque[bytes] = deque()
    free, held, lost = most // 2, 0, False
    for line in telling(lines):
        if not tail and len(line) <= free:
            head.append(line)
            free -= len(line)
            continue
        tail.append(line)
        held += len(line)
        while held > most // 2:
            held -= len(tail.popleft())
            lost = True
    return b"".join([*head, *tail, *([LEFT_OUT] if lost else [])])


def telling(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines that tell something; of an unbroken row of edges each one once."""
    edges: set[tuple[bool, bytes]] = set()
    for number, line in enumerate(lines):
        word, text = _said(line)
        if word in EDGES:
            head, _, edge = text.partition(b" : ")
            # A ring's edges are read in another way than others, and of its map only that this
            # rank has one; see nccl_reader.
            said = edge if b" via " in edge else line.partition(MARK)[0]
            key = word == b"Ring" or head.endswith(b"/0"), said
            if key in edges:
                continue
            edges.add(key)
        elif number and line.endswith(b"\n") and not _tells(word, text):
            continue
        else:  # what comes before an edge decides what it means
            edges.clear()
        yield line if len(line) <= LONGEST else line[:LONGEST] + b"\n"


def _said(line: bytes) -> tuple[bytes, bytes]:
    """First word and text of an INFO; of any other line of NCCL's its kind, and all of it."""
    _, mark, said = line.partition(MARK)
    kind, _, text = said.partition(b" ")
    if kind != b"INFO":
        return mark and kind, line
    if text.startswith(b"[Rank "):
        text = text.partition(b"] ")[2]
    return text.split(b" ", 1)[0].rstrip(b":\n"), text


def _tells(word: bytes, text: bytes) -> bool:
    """Whether the reader looks at such a line."""
    if word in (b"WARN", b"version") or word in EDGES or word in READERS:
        return True
    if text.split(b" ", 1)[0] in SKIPPED:
        return False
    return text.startswith(b"NCCL_") or any(told in text for told in (*TELLING, b"Init "))
