"""NCCL's own lines out of any job's log: streamed, in bounded memory, whatever wrote around them.

A line is `host:pid:tid [device] NCCL INFO text`; since 2.26 a WARN has `[date time]` before and
`file:line (function)` within, since 2.30.  Ray puts `(Worker pid=1, ip=10.0.0.1) ` before it, MPI
`[1,0]<stdout>:`, a pod's log collector anything; two ranks that share a pipe write into one line.
Source: src/debug.cc of NCCL 2.18 to 2.30.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from probes.nccl.patterns import SKIPPED

CHUNK = 4 << 20
KEPT = 100  # rows and errors kept per file
LONGEST = 64 << 10  # bytes of one line that are looked at; NCCL's own are under 2 KiB
TEXT = 16 << 10  # bytes of a text: ring maps of 1000s of ranks are cut
MOST_MARKS = 64  # lines looked for within one line
REMEMBERED = 30_000  # beginnings kept in mind; a log with more is read somewhat slower
SHORT = 256  # bytes of a beginning that is kept in mind

MARK = b"NCCL "
KINDS = (b"INFO", b"WARN", b"version")
WRITER = re.compile(
    rb"(?P<host>[A-Za-z0-9_][\w.\-]{0,252}):(?P<pid>\d{1,10}):\d{1,10} "
    rb"(?:\[(?P<device>[\w\-]{0,8})\] )?"
    rb"(?:(?:[\w./\-]+:\d+|\([^()]{0,200}\)) ){0,2}$"
)
SOURCE = re.compile(rb"([\w./\-]{1,200}):\d+ (?:\([^()]{0,200}\) )?$")
ANSI = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
REPEATED = re.compile(rb"\s*\[repeated (\d{1,9})x across cluster\].*$")
COLLECTED = re.compile(rb'(?:\\n)?"\s*,\s*"')  # {"log":"... text\\n","stream":"stdout"}
# nccl-tests without further options: size, count, type, redop, root, then time, algbw, busbw and
# #wrong, once or twice, and nothing more; in our own table N/A for what torch does not have.
FIGURE = rb" +(?:[\d.e+]{1,24}|nan|inf|N/A)"
NCCL_TESTS_ROW = re.compile(
    rb"(?:^|[\s:>\])])\d{1,15} +\d{1,15} +[a-z]\w{2,10} +\w{1,8} +-?\d{1,6}"
    rb"(?:%b%b%b +(?P<first>[\d.e+]{1,12}|nan|inf|N/A))"
    rb"(?:%b%b%b +(?P<second>[\d.e+]{1,12}|nan|inf|N/A))?\s*$" % ((FIGURE,) * 6)
)
HINTS = (b" sum ", b" none ", b" redop ", b"# Out of bounds")  # one is in a chunk with such rows
SHORTEST_ROW = len("8 2 float sum -1 1 1 1 0")
OUT_OF_BOUNDS = re.compile(rb"# Out of bounds values : (\d{1,15}) (?:FAILED|OK)")
# torch's own words for a job that NCCL let down.
OUTCRIES = (
    b"Watchdog caught collective operation timeout",
    *(b"ncclRemoteError", b"ncclSystemError", b"ncclInternalError", b"ncclUnhandledCudaError"),
)
NO_EFA = re.compile(rb"libfabric:(\d{1,10}):[^\n]{0,200}provider efa output empty")
OUTCRY = re.compile(b"|".join(OUTCRIES))


class Writer(NamedTuple):
    """The process that wrote a line, as its prefix says; host "" where there is no prefix."""

    host: str
    pid: int
    device: str


UNKNOWN = Writer("", 0, "")


class UnreadableLog(ValueError):
    """The file cannot be read as text.  One sentence."""


class Lines:
    """The NCCL lines of one file, in order.

    Iterate for (writer, "INFO" | "WARN" | "version", text); `number` is the line of the last one.
    After the end, `bytes`, `binary`, `cut`, `repeated` and `wrong` say what else was there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.binary = False  # has NUL bytes
        self.cut = False  # ends within a line: NCCL ends every line it writes, so a part is missing
        self.repeated = 0  # lines that Ray's driver left out as repetitions
        self.wrong: list[tuple[int, int]] = []  # nccl-tests: (line, wrong elements; -1: nan)
        self.table = False  # has rows of nccl-tests
        self.efa: list[tuple[int, int]] = []  # libfabric: (line, process) without an EFA device
        self.errors: list[tuple[int, str]] = []  # torch: (line, OUTCRIES)
        self._writers: dict[bytes, Writer] = {}
        self._named: dict[tuple[int, str], tuple[str, ...]] = {}  # hosts by process and device
        self._chunk, self._lines, self._counted, self._at = b"", 1, 0, 0
        self._before = b""  # what stands before the mark of the last line

    @property
    def number(self) -> int:
        """Line number of the last line, from 1."""
        self._lines += self._chunk.count(b"\n", self._counted, self._at)
        self._counted = self._at
        return self._lines

    @property
    def source(self) -> bytes:
        """The file of NCCL's source that the last line names, such as `transport/nvls.cc`."""
        match = SOURCE.search(self._before[-512:])
        return match[1] if match else b""

    def __iter__(self) -> Iterator[tuple[Writer, bytes, bytes]]:
        with self.path.open("rb") as raw:  # opened once: a pipe gives its bytes only once
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            file = gzip.GzipFile(fileobj=raw) if zipped else raw
            for chunk in self._chunks(file):
                self._chunk, self._counted, self._at = chunk, 0, 0
                yield from self._scan()
                self._at = len(self._chunk)
                _ = self.number

    def _chunks(self, file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
        """Pieces that end with a line's end; of half a line at the very end, only a warning.

        Half a number, half a list of devices or half an edge would say what the whole does not.
        """
        rest = b""
        try:
            while piece := file.read(CHUNK):
                self.bytes += len(piece)
                self.binary = self.binary or b"\0" in piece
                whole, newline, tail = piece.rpartition(b"\n")
                if not newline:
                    rest = (rest + piece)[-LONGEST:]
                    continue
                yield rest + whole + newline
                rest = tail[-LONGEST:]
            self.cut = bool(rest)
            if b"NCCL WARN " in rest:
                yield rest + b"\n"
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableLog(f"{self.path}: cannot be read to its end ({error})") from None

    def _scan(self) -> Iterator[tuple[Writer, bytes, bytes]]:
        chunk, writers = self._chunk, self._writers
        if any(hint in chunk for hint in HINTS):
            self._corrupted()
        if any(outcry in chunk for outcry in OUTCRIES):
            self._outcries()
        if b"provider efa output" in chunk:
            self._no_efa()
        begin = chunk.find(MARK)
        while begin >= 0:
            end = chunk.find(b"\n", begin)
            if chunk.find(MARK, begin + 5, end) >= 0:
                self._at = begin
                start = chunk.rfind(b"\n", max(0, begin - LONGEST), begin) + 1
                yield from self._shared(chunk[start:end][:LONGEST])
            elif chunk[begin + 10 : chunk.find(b" ", begin + 10)] not in SKIPPED:
                self._at = begin
                start = chunk.rfind(b"\n", max(0, begin - LONGEST), begin) + 1
                before = chunk[start:begin]
                kind, _, text = chunk[begin + 5 : end].partition(b" ")
                if kind in KINDS:
                    self._before = before
                    yield writers.get(before) or self._writer(before), kind, self._plain(text)
            begin = chunk.find(MARK, end)

    def _plain(self, text: bytes) -> bytes:
        """The text without colours, and without what Ray's driver or a JSON collector adds."""
        if b"[repeated " in text and (match := REPEATED.search(text[:TEXT])):
            self.repeated += int(match[1])
            text = text[: match.start()]
        if b"\x1b" in text:
            text = ANSI.sub(b"", text)
        if b'"' in text and (match := COLLECTED.search(text)):
            text = text[: match.start()]
        return text[:TEXT].rstrip()

    def _shared(self, line: bytes) -> Iterator[tuple[Writer, bytes, bytes]]:
        """Several marks in one line: a text that names NCCL, or another rank's line inside."""
        starts, marks = [0], [match.start() for match in re.finditer(MARK, line)][:MOST_MARKS]
        for mark in marks[1:]:
            since = max(starts[-1], mark - 512)
            if match := WRITER.search(line[since:mark]):
                starts.append(since + match.start() + self._glued(match))
        for start, stop in zip(starts, [*starts[1:], len(line)], strict=True):
            mark_at = line.find(MARK, start)
            kind, _, text = line[mark_at + 5 : stop].partition(b" ")
            if kind in KINDS:
                self._before = line[start:mark_at]
                yield self._writer(self._before), kind, self._plain(text)

    def _glued(self, match: re.Match[bytes]) -> int:
        """Characters of the line before that a lost newline put in front of the host's name."""
        name, pid = match["host"].decode(), int(match["pid"])
        device = (match["device"] or b"").decode()
        known = [host for host in self._named.get((pid, device), ()) if name.endswith(host)]
        return len(name) - max(map(len, known), default=len(name))

    def _writer(self, before: bytes) -> Writer:
        """Who wrote the line that begins like this; remembered, as a log has few beginnings."""
        if (known := self._writers.get(before)) is not None:
            return known
        text = ANSI.sub(b"", before[-2048:])
        match = WRITER.search(text)
        device = re.search(rb"\[(\d+)\] $", text)  # a paste that lost host and pid
        writer = UNKNOWN if not device else Writer("", 0, device[1].decode()[:SHORT])
        if match:
            host = sys.intern(match["host"].decode("ascii", "replace"))
            name = sys.intern((match["device"] or b"").decode("ascii", "replace"))
            writer = Writer(host, int(match["pid"]), name)
        if len(before) <= SHORT:
            self._remember(before, writer)
        return writer

    def _remember(self, before: bytes, writer: Writer) -> None:
        if len(self._writers) > REMEMBERED:
            self._writers.clear()
            self._named.clear()
        self._writers[before] = writer
        process = writer.pid, writer.device
        hosts = self._named.get(process, ())
        if writer.host not in hosts and len(hosts) < MOST_MARKS:
            self._named[process] = (*hosts, writer.host)

    def _corrupted(self) -> None:
        """Rows of nccl-tests with wrong elements."""
        for number, line in enumerate(io.BytesIO(self._chunk), self._lines):
            if len(line) < SHORTEST_ROW:
                continue
            row = NCCL_TESTS_ROW.search(line[:512])
            match = row or OUT_OF_BOUNDS.search(line[:512])
            if not match:
                continue
            self.table = True
            wrong = [_count(figure) for figure in match.groups() if figure]
            # The line below the rows is their sum.
            if any(wrong) and (row or not self.wrong) and len(self.wrong) < KEPT:
                self.wrong.append((number, max(wrong, key=abs)))

    def _outcries(self) -> None:
        """Lines in which torch says that NCCL failed."""
        number, counted = self._lines, 0
        for match in OUTCRY.finditer(self._chunk):
            if len(self.errors) == KEPT:
                return
            number += self._chunk.count(b"\n", counted, match.start())
            counted = match.start()
            if not self.errors or self.errors[-1][0] != number:  # one of a line
                self.errors.append((number, match[0].decode()))

    def _no_efa(self) -> None:
        """Lines in which libfabric says that its EFA provider has nothing."""
        number, counted = self._lines, 0
        for match in itertools.islice(NO_EFA.finditer(self._chunk), KEPT - len(self.efa)):
            number += self._chunk.count(b"\n", counted, match.start())
            counted = match.start()
            self.efa.append((number, int(match[1])))


def _count(figure: bytes) -> int:
    """Wrong elements as nccl-tests prints them: `0`, `12`, `1e+06`, `N/A`; -1 for `nan`."""
    if figure == b"N/A":
        return 0
    try:
        return int(float(figure))
    except (ValueError, OverflowError):
        return -1
