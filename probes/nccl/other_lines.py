"""Reads what others write about NCCL into a job's log: rows of rows.toml, and nccl-tests' table."""

from __future__ import annotations

import io
import itertools
import re

from probes.nccl.rows import RowReader

MAX_KEPT = 1000  # rows of a table that are kept
# A row of nccl-tests without further options: size, count, type, redop, root, then time, algbw,
# busbw and #wrong, once or twice. Our own table has N/A where torch has no value.
FIGURE = rb" +(?:[\d.e+]{1,24}|nan|inf|N/A)"
NCCL_TESTS_ROW = re.compile(
    rb"(?:^|[\s:>\])])\d{1,15} +\d{1,15} +[a-z]\w{2,10} +\w{1,8} +-?\d{1,6}"
    rb"(?:%b%b%b +(?P<first>[\d.e+]{1,12}|nan|inf|N/A))"
    rb"(?:%b%b%b +(?P<second>[\d.e+]{1,12}|nan|inf|N/A))?\s*$" % ((FIGURE,) * 6)
)
HINTS = (b" sum ", b" none ", b" redop ", b"Out of bounds values")  # a chunk with rows has one
MIN_ROW_BYTES = len("8 2 float sum -1 1 1 1 0")
OUT_OF_BOUNDS = re.compile(rb"(?<!\w)Out of bounds values : (\d{1,15}) (?:FAILED|OK)")
# nccl-tests names each rank: `#  Rank  0 Group  0 Pid  47853 on  node1 device  0 [0x1a] Tesla`.
TEST_RANK = re.compile(
    rb"#\s+Rank\s+(\d{1,6}) (?:Group\s+\d+ )?Pid\s+(\d{1,10}) on\s+(\S{1,253}) device\s+\d+ "
    rb"\[[^\]\n]{1,32}\] ([^\n]{1,80})"
)
MAX_TEST_RANKS = 100_000  # of one job
TORCH_VERSION = re.compile(rb"NCCL error in: [^\n]{1,400}NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})")
IB_OFF = re.compile(rb"(?<!\w)NCCL_IB_DISABLE=1\b")  # of a command line


class OtherLines(RowReader):
    """Lines of all files that are not NCCL's own, but tell of it, with their places."""

    def __init__(self) -> None:
        super().__init__()
        self.bad_rows: list[tuple[str, int]] = []  # nccl-tests: (place, wrong elements; -1: nan)
        self.tables = 0  # rows of nccl-tests
        self.ib_off = ""  # place of a command that sets NCCL_IB_DISABLE=1
        self.version = ""  # the first of NCCL that a line gives, also one of NCCL's own
        self.test_ranks: dict[int, tuple[str, str]] = {}  # nccl-tests: rank -> (host, GPU)
        self.listed_twice: tuple[int, str, str] | None = None  # nccl-tests: rank, and its two hosts

    @property
    def count(self) -> int:
        """Number of lines that were found."""
        return self.tables + len(self.found)

    def read(self, chunk: bytes, first_line: int) -> None:
        """Read whole lines; `first_line` is the number of the first."""
        if any(hint in chunk for hint in HINTS):
            self._find_bad_rows(chunk, first_line)
        super().read(chunk, first_line)
        if not self.ib_off and b"NCCL_IB_DISABLE=1" in chunk and (match := IB_OFF.search(chunk)):
            self.ib_off = self.place(first_line + chunk.count(b"\n", 0, match.start()))
        if b"NCCL error in" in chunk and (match := TORCH_VERSION.search(chunk)):
            self.version = self.version or match[1].decode()
        if b" Pid " in chunk:
            for match in itertools.islice(TEST_RANK.finditer(chunk), MAX_TEST_RANKS):
                host, gpu = (match[at].decode("utf-8", "replace") for at in (3, 4))
                first, _ = self.test_ranks.setdefault(int(match[1]), (host, gpu))
                if first != host:
                    self.listed_twice = self.listed_twice or (int(match[1]), first, host)

    def _find_bad_rows(self, chunk: bytes, first_line: int) -> None:
        """Find rows of nccl-tests with wrong elements."""
        for number, line in enumerate(io.BytesIO(chunk), first_line):
            if len(line) < MIN_ROW_BYTES:
                continue
            row = NCCL_TESTS_ROW.search(line[:512])
            match = row or OUT_OF_BOUNDS.search(line[:512])
            if not match:
                continue
            self.tables += 1
            counts = [_wrong_count(figure) for figure in match.groups() if figure]
            # The line below the rows is their sum, so it counts only without them.
            if any(counts) and (row or not self.bad_rows) and len(self.bad_rows) < MAX_KEPT:
                self.bad_rows.append((self.place(number), max(counts, key=abs)))


def _wrong_count(figure: bytes) -> int:
    """Parse a count of wrong elements by nccl-tests: `0`, `12`, `1e+06`, `N/A`; -1 for `nan`."""
    if figure == b"N/A":
        return 0
    try:
        return int(float(figure))
    except (ValueError, OverflowError):
        return -1
