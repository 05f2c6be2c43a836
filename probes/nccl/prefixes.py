"""Reads what launchers and log collectors put before a line, and joins lines that were wrapped.

Of a line that failed it finds the rank, the process and the host, as torchrun, mpirun, srun, Ray,
kubectl, docker compose and pdsh name them.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from probes.nccl.patterns import LINE, read_table
from probes.toml_tables import ClosedTable

FILE = Path(__file__).with_name("prefixes.toml")
MAX_BYTES = 2048  # of a prefix that are examined


class Origin(NamedTuple):
    """Who wrote a line, by what stands before its text; a part is empty if nothing names it."""

    rank: str = ""  # of the job, as torch's own logger and torchrun give it
    task: str = ""  # as the launcher counts: `rank 3`, `task 3`, `local rank 3`
    process: str = ""  # its number on the host
    host: str = ""  # name or address, also of a pod

    @property
    def who(self) -> str:
        """The rank, or else the process."""
        process = f"process {self.process}" if self.process else ""
        return f"rank {self.rank}" if self.rank else self.task or process

    @property
    def name(self) -> str:
        """Rank or process, and host: `rank 3 on node1`, as far as they are known."""
        return " on ".join(filter(None, (self.who, self.host)))


NOWHERE = Origin()


class PlaceForm(ClosedTable):
    """One form of a prefix: its groups are parts of an Origin, and `label` is what `task` counts.

    `example` is such a prefix, and `place` is what it names.
    """

    source: str
    pattern: re.Pattern[str]
    example: str
    place: str
    label: str = ""


class LineForms(ClosedTable):
    """The file: of two forms that name one part of an Origin, the later one counts."""

    form: Annotated[list[PlaceForm], Field(min_length=1)]


@cache
def read_forms() -> LineForms:
    """Read the file, once.  Raises TableError."""
    return read_table(LineForms, FILE)


def find_place(prefix: bytes) -> Origin:
    """Find who wrote a line by its prefix; of two prefixes of one form the inner one counts."""
    text = strip_times(prefix).decode("ascii", "replace").lstrip()
    found: dict[str, str] = {}
    for form in read_forms().form if text else ():
        for match in form.pattern.finditer(text):
            parts = {part: name for part, name in match.groupdict().items() if name}
            found |= parts | ({"task": f"{form.label} {match['task']}"} if form.label else {})
    return Origin(**found)


def strip_times(prefix: bytes) -> bytes:
    """Leave colours and points in time out of a prefix."""
    return LINE["time"].sub(b" ", LINE["colour"].sub(b"", prefix[-MAX_BYTES:]))


# Columns where a terminal breaks a line, within a word.  A mail breaks it at a blank before.
TERMINALS = (80, 120)
MAILS = (*range(64, 81), *range(108, 121))
SAMPLE = 200  # lines looked at first: a wrapped log has no longer one among them, but joints
MOST = 0.9  # of the lines that go on are as long as the terminal is wide, if one broke them
MAX_PIECES = 40  # of one line
END = 200  # bytes of a text whose end is looked at
SHORT = 16  # bytes of a line on average: a log that is wrapped has more, and lines take memory
HEADS = (b"NCCL ", b"rror", b"atchdog", b"gloo", b"c10d")  # one of them is in what is joined
OWN = re.compile(rb"CCL (?:INFO|WARN|version) ")  # a line that says so is no rest of another
RULE = re.compile(rb"([^\w\s])\1{3}$")  # a row of `=====`


def join_wrapped(chunk: bytes) -> bytes:
    """Join lines that a terminal or a mail broke; the newlines follow, so that numbers hold."""
    sample = chunk[: SAMPLE * TERMINALS[-1]].split(b"\n")[:SAMPLE]
    if max(map(len, sample)) > TERMINALS[-1] + 1 or chunk.count(b"\n") > len(chunk) // SHORT:
        return chunk
    lines = chunk.replace(b"\r\n", b"\n").split(b"\n")
    width = max(map(len, lines))
    cuts = [len(a) for a, b in pairwise(lines[:SAMPLE]) if _goes_on(a, b, width)]
    if width not in MAILS or not cuts:
        return chunk
    hard = width in TERMINALS and sum(size >= width - 1 for size in cuts) >= MOST * len(cuts)
    joined, pieces, piece = [b""], 0, b""  # the first is no line
    for line in lines:
        mailed = line[:1] not in (b" ", b"\t") and not LINE["complete"].search(joined[-1][-END:])
        cut = len(piece) >= width - 1 if hard else mailed
        known = pieces < MAX_PIECES and any(word in joined[-1] for word in HEADS)
        if known and cut and _goes_on(piece, line, width):
            more = line.lstrip(b"> ") if piece.startswith(b">") else line
            joined[-1] += (b"" if hard and len(piece) == width else b" ") + more
            pieces += 1
        else:
            joined += [b""] * pieces + [line]
            pieces = 0
        piece = line
    return b"\n".join(joined[1:] + [b""] * pieces)


def _goes_on(piece: bytes, line: bytes, width: int) -> bool:
    """Return whether a line may be the rest of the one before it: its first word had no room."""
    word = line.lstrip(b"> ").split(None, 1)[:1]
    fits = not word or len(piece) + 1 + len(word[0]) <= width
    return not (fits or OWN.search(line) or LINE["begin"].match(line) or RULE.search(piece))
