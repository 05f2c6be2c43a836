"""Reads what others write into a job's log: rows of rows.toml, nccl-tests' table, and prefixes.

A prefix is what launchers and log collectors put before a line: torchrun, mpirun, srun, Ray,
kubectl, docker compose, pdsh. It names rank, process or host. Lines that were wrapped are joined.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from probes.nccl.patterns import LINE, WORDS, LogForm, read_form_table, read_table
from probes.toml_tables import ClosedTable
from reports.groups import group_pairs

FILE = Path(__file__).with_name("rows.toml")
# Lines of one row that are kept, and of all: about 20 MB. Each rank may write one.
MAX_OF_A_ROW, MAX_REPORTS = 16_000, 20_000
# Bytes of a line before a row's word, and after it, also over some lines: a trace, a dump.
BEFORE, AFTER = 400, 1500
MAX_KEPT = 1000  # rows of a table that are kept
MAX_QUOTED = 300  # bytes of a text that is quoted
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


def find_place(prefix: bytes) -> Origin:
    """Find who wrote a line by its prefix; of two prefixes of one form the inner one counts."""
    text = strip_times(prefix).decode("ascii", "replace").lstrip()
    found: dict[str, str] = {}
    for form in read_form_table().place if text else ():
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
        known = pieces < MAX_PIECES and any(word in joined[-1] for word in WORDS["joined"])
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
    ends = LINE["own"].search(line) or LINE["begin"].match(line) or LINE["ruler"].search(piece)
    return not (fits or ends)


class LineRow(LogForm):
    """One problem as a line of another program reports it.

    `pattern` is searched where one of the `words` stands. Its named groups fill `sentence`; a group
    `text` is what is quoted, otherwise the whole match. `role` is what the line shows:

    - cause: a fault that it explains: finding `code`, with `advice`. With `ends` it ended a
      process, and errors of other processes follow from it; `caught`: a program may go on after it
    - report: a call that failed, without the reason; timeout: a call that did not end
    - work: a call that a rank of torch waits in, or its last one
    - follow-up: an error that began elsewhere
    - note: a fact that is no fault; doubt: one that keeps the log from proving anything
    - other: a line without an error that is known here
    - exception: of a program, whatever it is
    - hint: why NCCL_DEBUG=INFO shows nothing more
    - nccl: a phrase of NCCL, of the `kind` of phrases.toml; quote: a text of NCCL itself
    """

    source: Literal[
        "torch", "gloo", "c10d", "xla", "program", "nccl-tests", "libfabric", "ras", "mlx5"
    ]
    role: Literal[
        "cause", "report", "timeout", "work", "follow-up", "note", "doubt", "other", "nccl",
        "quote", "exception", "hint",
    ]  # fmt: skip
    words: Annotated[list[bytes], Field(min_length=1)]
    kind: str = ""
    sentence: str = ""
    ends: bool = False
    caught: bool = False


class Rows(ClosedTable):
    """The file: texts that several rows share, and the rows; of one line the first counts."""

    shared: dict[str, str]
    row: Annotated[list[LineRow], Field(min_length=1)]


class Reported(NamedTuple):
    """A line with a row: its place, what is quoted, and the named groups."""

    row: LineRow
    line: str
    detail: str
    groups: Mapping[str, str]
    place: Origin

    @property
    def rank(self) -> str:
        """The number of the rank that wrote the line; empty if no part of the line has it."""
        return self.place.rank or self.groups.get("rank", "")

    @property
    def where(self) -> str:
        """Who wrote the line, such as `rank 3`; empty if nothing says it."""
        return self.place._replace(rank=self.rank).name

    @property
    def sentence(self) -> str:
        """What the row says of this line."""
        return self.fill(self.row.sentence)

    def fill(self, text: str) -> str:
        """Fill what the line gives into a text of its row."""
        return text.format_map(defaultdict(str, {**self.groups, "text": self.detail}))


@cache
def read_rows() -> list[LineRow]:
    """Read the rows, once.  Raises TableError."""
    return read_table(Rows, FILE).row


@cache
def _rows_by_word() -> Mapping[bytes, list[tuple[int, LineRow]]]:
    return group_pairs((word, one) for one in enumerate(read_rows()) for word in one[1].words)


class RowReader:
    """Lines of all files that are not NCCL's own, but tell of it, with their places.

    Of the rows each line counts once, at most MAX_OF_A_ROW of a row.
    """

    def __init__(self) -> None:
        self.file = ""  # name of the one that is read now
        self.found: list[Reported] = []
        self.count = 0  # of lines that were found, also such that are not kept
        self._counts: Counter[int] = Counter()
        # By file and role, the first and the last: what only counts where nothing of NCCL is found.
        self.asides: dict[tuple[str, str], list[Reported]] = {}
        self.bad_rows: list[tuple[str, int]] = []  # nccl-tests: (place, wrong elements; -1: nan)
        self.ib_off = ""  # place of a command that sets NCCL_IB_DISABLE=1
        self.version = ""  # the first of NCCL that a line gives, also one of NCCL's own
        self.test_ranks: dict[int, tuple[str, str]] = {}  # nccl-tests: rank -> (host, GPU)
        self.listed_twice: tuple[int, str, str] | None = None  # nccl-tests: rank, and its two hosts

    def place(self, number: int) -> str:
        """Return `file:line`."""
        return f"{self.file}:{number}"

    def describe_exceptions(self, file: str) -> str:
        """Return one sentence on the exceptions in a file; empty if it has none."""
        found = self.asides.get((file, "exception"), [])
        texts = dict.fromkeys(map(_quote, found))
        both = "the first exception is {}, the last one is {}"
        says = both if len(texts) > 1 else "the last exception is {}"
        return f"{found[0].line}: {says.format(*texts)}" if found else ""

    def find_hint(self, file: str) -> str:
        """Return why a file has no line of NCCL's; empty if nothing says it."""
        hints = self.asides.get((file, "hint"), [])
        return "".join(f"{one.line}: {one.sentence}" for one in hints[:1])

    def read(self, chunk: bytes, first_line: int) -> None:
        """Find rows in whole lines; `first_line` is the number of the first."""
        # By the place of the line: a text of NCCL may stand on the line of another row.
        best: dict[tuple[int, bool], tuple[int, LineRow, bytes, re.Match[bytes]]] = {}
        for word, rows in _rows_by_word().items():
            for start, end, window in _windows(chunk, word):
                for place, row in rows:
                    key = start, row.role == "quote"
                    if key in best and best[key][0] < place:
                        continue
                    match = row.pattern.search(window)
                    if match and match.start() <= end - start:  # otherwise it has its own window
                        best[key] = place, row, window, match
        number, counted = first_line, 0
        for (start, _), (place, row, window, match) in sorted(best.items(), key=lambda one: one[0]):
            number += chunk.count(b"\n", counted, start)
            counted = start
            if row.role in ("exception", "hint"):
                asides = self.asides.setdefault((self.file, row.role), [])
                asides[1:] = [_reported(row, self.place(number), window, match)]
                continue
            self.count += 1
            self._counts[place] += 1
            if self._counts[place] <= MAX_OF_A_ROW and len(self.found) < MAX_REPORTS:
                self.found.append(_reported(row, self.place(number), window, match))

    def read_all(self, chunk: bytes, first_line: int) -> None:
        """Read rows, and what else tells of NCCL; `first_line` is the number of the first line."""
        if any(hint in chunk for hint in WORDS["table"]):
            self._find_bad_rows(chunk, first_line)
        self.read(chunk, first_line)
        match = LINE["ib_off"].search(chunk) if b"NCCL_IB_DISABLE=1" in chunk else None
        if match and not self.ib_off:
            self.ib_off = self.place(first_line + chunk.count(b"\n", 0, match.start()))
        if b"NCCL error in" in chunk and (match := LINE["torch_version"].search(chunk)):
            self.version = self.version or match[1].decode()
        if b" Pid " in chunk:
            for match in LINE["test_rank"].finditer(chunk):
                host, gpu = (match[at].decode("utf-8", "replace") for at in (3, 4))
                first, _ = self.test_ranks.setdefault(int(match[1]), (host, gpu))
                if first != host:
                    self.listed_twice = self.listed_twice or (int(match[1]), first, host)

    def _find_bad_rows(self, chunk: bytes, first_line: int) -> None:
        """Find rows of nccl-tests with wrong elements."""
        for match in LINE["test_row"].finditer(chunk):
            self.count += 1
            counts = [_wrong_count(figure) for figure in match.groups() if figure]
            # The line below the rows is their sum, so it counts only without them.
            kept = not (match["sum"] and self.bad_rows) and len(self.bad_rows) < MAX_KEPT
            if any(counts) and kept:
                number = first_line + chunk.count(b"\n", 0, match.end())
                self.bad_rows.append((self.place(number), max(counts, key=abs)))


def _windows(chunk: bytes, word: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield begin and end of each line with the word, and the text around it."""
    at = chunk.find(word)
    while at >= 0:
        low = max(0, at - BEFORE)
        start = chunk.rfind(b"\n", low, at) + 1 or low
        end = chunk.find(b"\n", at)
        end = len(chunk) if end < 0 else end
        yield start, end, chunk[start : at + AFTER]
        at = chunk.find(word, min(end, at + AFTER))


def _quote(one: Reported) -> str:
    where = f" ({one.where})" if one.where else ""
    return f"`{one.detail}`{where}"


def _reported(row: LineRow, line: str, window: bytes, match: re.Match[bytes]) -> Reported:
    groups = {name: text.decode("utf-8", "replace") for name, text in match.groupdict(b"").items()}
    text = groups.get("text") or match[0][:MAX_QUOTED].decode("utf-8", "replace")
    # These patterns begin with the line: what stands before their text is in the match.
    inner = row.role in ("exception", "nccl") and groups.get("text")
    at = match.start("text") if inner else match.start()
    return Reported(row, line, text.strip(), groups, find_place(window[:at].rpartition(b"\n")[2]))


def _wrong_count(figure: bytes) -> int:
    """Parse a count of wrong elements by nccl-tests: `0`, `12`, `1e+06`, `N/A`; -1 for `nan`."""
    with suppress(ValueError, OverflowError):
        return 0 if figure == b"N/A" else int(float(figure))
    return -1
