"""Reads what others write about NCCL into a job's log: nccl-tests, torch and libfabric."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Sized

MAX_KEPT = 100  # rows and errors kept per file
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
# Texts that torch logs when NCCL fails.
TORCH_ERRORS = (
    b"Watchdog caught collective operation timeout",
    b"ncclRemoteError", b"ncclSystemError", b"ncclInternalError", b"ncclUnhandledCudaError",
    b"ncclInvalidUsage", b"ncclInvalidArgument", b"Test NCCL failure",
    b"Heartbeat monitor timed out", b"watchdog got stuck", b"failure detected by watchdog",
    b"Some NCCL operations have failed", b"collective timeout from", b"ncclUniqueId from [0]",
    b"watchdog thread terminated with exception", b"mismatch between collectives on ranks",
    b"are the lagging ranks", b"mismatched ranks that caused the desync",
)  # fmt: skip
# One of them is in each of these.
TORCH_WORDS = (
    b"atchdog", b"time", b"rror", b"NCCL failure", b"nvalid", b"have failed", b"Id from",
    b"mismatch", b"lagging ranks", b" collective #", b"CUDA failure", b"Cuda failure ",
)  # fmt: skip
VLLM_PREFIX = rb"[A-Z]{4,8} [\d\-]{5,10} [\d:.,]{8,15} \[?[\w./]{1,80}:\d{1,6}\] +"
# torch repeats NCCL's last warning, on the next line or on the same one.
LAST_ERROR = re.compile(
    rb"Last error:[ \t]*(?:\\n|\r?\n)?"
    rb"(?:\[?rank\d+\]?: ?|\([^()\n]{1,80}\) ?|\d+: ?|%b)*([^\n]{3,1000})" % VLLM_PREFIX
)
# nccl-tests names each rank: `#  Rank  0 Group  0 Pid  47853 on  node1 device  0 [0x1a] Tesla`.
TEST_RANK = re.compile(
    rb"#\s+Rank\s+(\d{1,6}) (?:Group\s+\d+ )?Pid\s+(\d{1,10}) on\s+(\S{1,253}) device\s+\d+ "
    rb"\[[^\]\n]{1,32}\] ([^\n]{1,80})"
)
MAX_TEST_RANKS = 100_000  # of one job
TORCH_VERSION = re.compile(rb"NCCL error in: [^\n]{1,400}NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})")
# NCCL's RAS client, src/ras/client_support.cc.
RAS_COUNTS = re.compile(rb"Communicator ranks have different \w{1,32} operation counts")
LIBFABRIC_ERROR = re.compile(
    rb"libfabric:(\d{1,10}):[^\n]{0,120}(?:_handle_error|:cq:)[^\n]{0,120}<warn>[^\n]{0,40}?"
    rb"(err: \d{1,5}, message: [^\n]{1,250})"
)
IB_OFF = re.compile(rb"(?<!\w)NCCL_IB_DISABLE=1\b")  # of a command line
NO_EFA = re.compile(rb"libfabric:(\d{1,10}):[^\n]{0,200}provider efa output empty")
TORCH_ERROR = re.compile(
    rb"Test NCCL failure[^\n]{0,160}|"
    rb"(?:Test CUDA|Cuda) failure [\w./\-]{1,80}:\d{1,6} '[^'\n]{1,160}'|"
    rb"NCCL [Ee]rror(?: \d{1,3})?(?:: | [\w./\-]{1,200}:\d{1,6} ')"
    rb"(?:unhandled|internal|invalid|remote process)[^\n'\[]{0,120}|"
    rb"watchdog thread terminated with exception[^\n]{0,200}|"
    rb"collective timeout from[\w\s]{1,30}rank(?: \d{1,6})?|"
    rb"\[\d{1,6}\] is setting up NCCL communicator and retrieving ncclUniqueId[^\n]{0,300}|"
    rb"ranks \[[\d, ]{1,200}\] are the lagging ranks|"
    rb"\[[\d, ]{1,200}\] (?:finished collective #\d{1,20}, but didn't join|"
    rb"joined but didn't finish) collective #\d{1,20}|" + b"|".join(map(re.escape, TORCH_ERRORS))
)


class OtherLines:
    """Lines of one file that are not NCCL's own, but tell of it; each with its line number."""

    def __init__(self) -> None:
        self.bad_rows: list[tuple[int, int]] = []  # nccl-tests: (line, wrong elements; -1: nan)
        self.has_table = False  # has rows of nccl-tests
        self.no_efa: list[tuple[int, int]] = []  # libfabric: (line, process) without an EFA device
        self.torch_errors: list[tuple[int, str]] = []  # torch: (line, one of TORCH_ERRORS)
        self.last_errors: list[tuple[int, bytes]] = []  # torch: (line, NCCL's last warning)
        self.transfer_errors: list[tuple[int, int, str]] = []  # libfabric: (line, process, text)
        self.ib_off = 0  # line of a command that sets NCCL_IB_DISABLE=1
        self.version = ""  # of NCCL, as torch gives it
        self.different_counts: list[tuple[int, str]] = []  # ncclras: (line, its sentence)
        self.test_ranks: dict[int, tuple[str, str]] = {}  # nccl-tests: rank -> (host, GPU)
        self.listed_twice: tuple[int, str, str] | None = None  # nccl-tests: rank, and its two hosts

    def __bool__(self) -> bool:
        errors = self.torch_errors or self.last_errors or self.no_efa or self.different_counts
        return bool(self.has_table or errors or self.transfer_errors)

    def read(self, chunk: bytes, first_line: int) -> None:
        """Read whole lines; `first_line` is the number of the first."""
        if any(hint in chunk for hint in HINTS):
            self._find_bad_rows(chunk, first_line)
        if any(word in chunk for word in TORCH_WORDS):
            self._find_torch_errors(chunk, first_line)
        if b"provider efa output" in chunk:
            found = _take_new(self.no_efa, NO_EFA, chunk, first_line)
            self.no_efa += [(number, int(match[1])) for number, match in found]
        if b"<warn>" in chunk:
            found = _take_new(self.transfer_errors, LIBFABRIC_ERROR, chunk, first_line)
            self.transfer_errors += [
                (number, int(match[1]), match[2].decode("utf-8", "replace"))
                for number, match in found
            ]
        if not self.ib_off and b"NCCL_IB_DISABLE=1" in chunk:
            self.ib_off = next((n for n, _ in _numbered(IB_OFF, chunk, first_line)), 0)
        if b"NCCL error in" in chunk and (match := TORCH_VERSION.search(chunk)):
            self.version = match[1].decode()
        if b"Last error:" in chunk:
            found = _take_new(self.last_errors, LAST_ERROR, chunk, first_line)
            self.last_errors += [(number, match[1]) for number, match in found]
        if b"operation counts" in chunk:
            found = _take_new(self.different_counts, RAS_COUNTS, chunk, first_line)
            self.different_counts += [(number, match[0].decode()) for number, match in found]
        if b" Pid " in chunk:
            for match in itertools.islice(TEST_RANK.finditer(chunk), MAX_TEST_RANKS):
                names = match[3].decode("utf-8", "replace"), match[4].decode("utf-8", "replace")
                self._add_test_rank(int(match[1]), names)

    def _add_test_rank(self, number: int, names: tuple[str, str]) -> None:
        host, _ = self.test_ranks.setdefault(number, names)
        if host != names[0]:
            self.listed_twice = self.listed_twice or (number, host, names[0])

    def read_cut(self, text: bytes, number: int) -> None:
        """Read a last line that is cut off: an error in it is one, a figure may be another."""
        self._find_torch_errors(text, number)

    def _find_bad_rows(self, chunk: bytes, first_line: int) -> None:
        """Find rows of nccl-tests with wrong elements."""
        for number, line in enumerate(io.BytesIO(chunk), first_line):
            if len(line) < MIN_ROW_BYTES:
                continue
            row = NCCL_TESTS_ROW.search(line[:512])
            match = row or OUT_OF_BOUNDS.search(line[:512])
            if not match:
                continue
            self.has_table = True
            counts = [_wrong_count(figure) for figure in match.groups() if figure]
            # The line below the rows is their sum, so it counts only without them.
            if any(counts) and (row or not self.bad_rows) and len(self.bad_rows) < MAX_KEPT:
                self.bad_rows.append((number, max(counts, key=abs)))

    def _find_torch_errors(self, chunk: bytes, first_line: int) -> None:
        """Find lines in which torch reports an error of NCCL."""
        for number, match in _numbered(TORCH_ERROR, chunk, first_line):
            if len(self.torch_errors) == MAX_KEPT:
                return
            if not self.torch_errors or self.torch_errors[-1][0] != number:  # one per line
                self.torch_errors.append((number, match[0].decode()))


def _numbered(
    pattern: re.Pattern[bytes], chunk: bytes, number: int
) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Find all matches of a pattern, each with its line number; `number` is the first line's."""
    counted = 0
    for match in pattern.finditer(chunk):
        number += chunk.count(b"\n", counted, match.start())
        counted = match.start()
        yield number, match


def _take_new(
    kept: Sized, pattern: re.Pattern[bytes], chunk: bytes, number: int
) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Find as many matches as may still be kept, each with its line number."""
    return itertools.islice(_numbered(pattern, chunk, number), MAX_KEPT - len(kept))


def _wrong_count(figure: bytes) -> int:
    """Parse a count of wrong elements by nccl-tests: `0`, `12`, `1e+06`, `N/A`; -1 for `nan`."""
    if figure == b"N/A":
        return 0
    try:
        return int(float(figure))
    except (ValueError, OverflowError):
        return -1
