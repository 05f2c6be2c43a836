"""Reads the rows of rows.toml, and finds them in lines that NCCL did not write."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from probes.toml_tables import ClosedTable, fill_shared, read_tables, validate

FILE = Path(__file__).with_name("rows.toml")
# Lines of one row that are kept, and of all: about 20 MB. Each rank may write one.
MAX_OF_A_ROW, MAX_REPORTS = 10_000, 20_000
# Bytes of a line before a row's word, and after it, also over some lines: a trace, a dump.
BEFORE, AFTER = 400, 1500
MAX_QUOTED = 300  # bytes of a text that is quoted
RANK_PREFIX = re.compile(rb"\[?rank(\d{1,6})\]")  # of torch's own logger


class LineRow(ClosedTable):
    """One problem as a line of another program reports it.

    `pattern` is searched where one of the `words` stands. Its named groups fill `sentence`; a group
    `text` is what is quoted, otherwise the whole match. `role` is what the line shows:

    - cause: a fault that it explains: finding `code`, with `advice`
    - report: a call that failed, without the reason; timeout: a call that did not end
    - work: a call that a rank of torch waits in, or its last one
    - follow-up: an error that began elsewhere
    - note: a fact that is no fault; doubt: one that keeps the log from proving anything
    - other: a line without an error that is known here
    - nccl: a phrase of NCCL, of the `kind` of phrases.toml; quote: a text of NCCL itself
    """

    source: Literal[
        "torch", "gloo", "c10d", "xla", "program", "nccl-tests", "libfabric", "ras", "mlx5"
    ]
    role: Literal[
        "cause", "report", "timeout", "work", "follow-up", "note", "doubt", "other", "nccl", "quote"
    ]
    words: Annotated[list[bytes], Field(min_length=1)]
    pattern: bytes
    versions: str
    example: str
    code: str = ""
    kind: str = ""
    sentence: str = ""
    advice: str = ""

    @cached_property
    def regex(self) -> re.Pattern[bytes]:
        """The compiled pattern."""
        return re.compile(self.pattern)


class Rows(ClosedTable):
    """The file: texts that several rows share, and the rows; of one line the first counts."""

    shared: dict[str, str]
    row: Annotated[list[LineRow], Field(min_length=1)]


class Reported(NamedTuple):
    """A line with a row: its place, what is quoted, and the named groups."""

    row: LineRow
    line: str
    text: str
    groups: Mapping[str, str]

    @property
    def rank(self) -> str:
        """The number of the rank that wrote the line; empty if no part of the line has it."""
        return self.groups.get("global") or self.groups.get("rank", "")

    @property
    def sentence(self) -> str:
        """What the row says of this line."""
        return self.fill(self.row.sentence)

    def fill(self, text: str) -> str:
        """Fill what the line gives into a text of its row."""
        return text.format_map(defaultdict(str, {**self.groups, "text": self.text}))


@cache
def read_rows() -> list[LineRow]:
    """Read the rows, once.  Raises TableError."""
    tables = read_tables(FILE)
    shared = validate(Rows, tables, str(FILE)).shared
    return validate(Rows, fill_shared(tables, shared), str(FILE)).row


@cache
def _rows_by_word() -> Mapping[bytes, list[tuple[int, LineRow]]]:
    found: dict[bytes, list[tuple[int, LineRow]]] = defaultdict(list)
    for place, row in enumerate(read_rows()):
        for word in row.words:
            found[word].append((place, row))
    return found


class RowReader:
    """The rows found in files, each line once, at most MAX_OF_A_ROW of a row."""

    def __init__(self) -> None:
        self.file = ""  # name of the one that is read now
        self.found: list[Reported] = []
        self._counts: Counter[int] = Counter()

    def place(self, number: int) -> str:
        """Return `file:line`."""
        return f"{self.file}:{number}"

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
                    match = row.regex.search(window)
                    if match and match.start() <= end - start:  # otherwise it has its own window
                        best[key] = place, row, window, match
        number, counted = first_line, 0
        for (start, _), (place, row, window, match) in sorted(best.items(), key=lambda one: one[0]):
            number += chunk.count(b"\n", counted, start)
            counted = start
            if self._counts[place] < MAX_OF_A_ROW and len(self.found) < MAX_REPORTS:
                self._counts[place] += 1
                self.found.append(_reported(row, self.place(number), window, match))


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


def _reported(row: LineRow, line: str, window: bytes, match: re.Match[bytes]) -> Reported:
    groups = {name: text.decode("utf-8", "replace") for name, text in match.groupdict(b"").items()}
    ranks = RANK_PREFIX.findall(window, 0, match.start())
    groups["global"] = ranks[-1].decode() if ranks else ""
    text = groups.get("text") or match[0][:MAX_QUOTED].decode("utf-8", "replace")
    return Reported(row, line, text.strip(), groups)
