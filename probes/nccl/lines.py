"""Extracts NCCL's own lines from the log of any job: streamed, in bounded memory.

A line is `host:pid:tid [device] NCCL INFO text`. Since 2.26 a WARN has `[date time]` before that.
Since 2.30 it has `file:line (function)` within. Ray puts `(Worker pid=1, ip=10.0.0.1) ` before a
line, MPI `[1,0]<stdout>:`, and a pod's log collector any text. Two ranks that share a pipe may
write into one line. Source: src/debug.cc of NCCL 2.18 to 2.30.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from probes.nccl.patterns import LINE, WORDS, read_form_table, say
from probes.nccl.rows import MAX_BYTES, Origin, RowReader, find_place, join_wrapped, strip_times

CHUNK = 4 << 20  # bytes read at once: many lines, and little memory
MAX_TOTAL = 4 << 30  # bytes of all files, unpacked: 8192 ranks with 0.5 MiB each
# For a packed file: a log shrinks about 30 times, a decompression bomb about 1000 times.
MAX_RATIO, FREE_UNPACKED = 100, 64 << 20  # and bytes before the ratio is checked
MAX_PENDING = 1 << 20  # bytes of a line without an end; a longer one loses its beginning
MAX_LINE = 64 << 10  # bytes of one line that are examined; NCCL's own have under 2 KiB
MAX_TEXT = 16 << 10  # bytes of a text: ring maps of 1000s of ranks are cut
MAX_MARKS = 64  # lines searched for within one line
MAX_PREFIXES = 30_000  # cached prefixes; a log with more is read somewhat slower
MAX_SKIPPED = 5000  # lines of skipped words whose writer counts, in one file
MAX_HOST = 253  # bytes of a host's name, as DNS has it
MAX_PREFIX = 256  # bytes of a prefix that is cached

MARK = b"NCCL "
LINE_KINDS = (b"INFO", b"WARN", b"version")
BORDERS = " \t\r│|".encode()  # k9s draws a line at both sides


class LogWriter(NamedTuple):
    """The process that wrote a line, by the line's prefix; the host is empty without a prefix."""

    host: str = ""
    pid: int = 0
    device: str = ""


class UnreadableLog(ValueError):
    """Raised when a file cannot be read as text. The message is one sentence."""


class LogLines:
    """The NCCL lines of one file, in order.

    Iterate for (writer, b"INFO" | b"WARN" | b"version", text). `line_number` is that of the last
    line. After the end, `bytes`, `binary`, `truncated`, `repeated` and more describe the rest of
    the file. `others` takes the lines that are not NCCL's.
    """

    def __init__(self, path: Path, others: RowReader, max_bytes: int = MAX_TOTAL) -> None:
        self.path, self.others = path, others
        self.name = "stdin" if path == STDIN else path.name
        self.max_bytes = max_bytes
        self.bytes = 0
        self.binary = False  # has NUL bytes
        # Whether the file ends within a line. NCCL ends every line, so then a part is missing.
        self.truncated = False
        self.overlong = False  # has NCCL's text in the lost part of a line that is too long
        self.repeated = 0  # lines that Ray's driver dropped as repetitions
        self.is_foreign = False  # nothing in it is of NCCL, or tells of it
        # Who wrote lines of skipped words, and the count of lines at the last of them.
        self.seen: dict[LogWriter, int] = {}
        self.count = self.skipped = 0  # lines of NCCL so far, and those of skipped words
        self._writers: dict[bytes, LogWriter] = {}
        self.processes: set[tuple[str, int]] = set()  # that wrote lines, if they are few
        self._chunk, self._line_count, self._counted_to, self._position = b"", 1, 0, 0
        self._prefix = b""  # text before the mark of the last line

    @property
    def line_number(self) -> int:
        """Line number of the last line, from 1."""
        self._line_count += self._chunk.count(b"\n", self._counted_to, self._position)
        self._counted_to = self._position
        return self._line_count

    @property
    def source_file(self) -> bytes:
        """NCCL's source file in the last line, such as `transport/nvls.cc`; empty if none."""
        match = LINE["source_file"].search(self._prefix[-512:])
        return match[1] if match else b""

    @property
    def place(self) -> Origin:
        """Who wrote the last line, by what stands before it."""
        own = LINE["prefix"].search(prefix := self._prefix[-MAX_BYTES:])
        return find_place(prefix[: own.start()] if own else prefix)

    def __iter__(self) -> Iterator[tuple[LogWriter, bytes, bytes]]:
        self.others.file, before = self.name, self.others.count
        try:
            with _open(self.path) as raw:  # opened once: a pipe can be read only once
                gzipped = raw.peek(2)[:2] == b"\x1f\x8b"
                file = gzip.GzipFile(fileobj=raw) if gzipped else raw
                packed = raw if gzipped and raw.seekable() else None
                for chunk in map(_mark_lines, self._read_chunks(file, packed)):
                    self._chunk, self._counted_to, self._position = chunk, 0, 0
                    yield from self._scan()
                    self._position = len(self._chunk)
                    _ = self.line_number
        finally:  # of a job there may be thousands of files
            self._chunk, self._writers = b"", {}
        self.is_foreign = not self.count and self.others.count == before

    def _read_chunks(self, file: Any, packed: BinaryIO | None) -> Iterator[bytes]:
        """Read pieces that end at a line's end; a partial last line only if it is a warning.

        A partial number, list of devices or edge would have another meaning than the complete one.
        """
        pending = b""
        try:
            while piece := file.read(CHUNK):
                self.bytes += len(piece)
                self._check_size(packed)
                self.binary = self.binary or b"\0" in piece
                whole, newline, tail = piece.rpartition(b"\n")
                if not newline:
                    pending = self._keep_end(pending + piece)
                    continue
                yield pending + whole + newline
                pending = self._keep_end(tail)
            self.truncated = bool(pending)
            # An error in a line that is cut off is one; a figure may be another.
            self.others.read(pending, self.line_number)
            if b"NCCL WARN " in pending:
                yield pending + b"\n"
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableLog(f"{self.path}: cannot be read to its end ({error})") from None

    def _check_size(self, packed: BinaryIO | None) -> None:
        """Check that the file is not too large to read.

        Raises UnreadableLog if that would take hours, or if a small file unpacks to a huge one.
        """
        if self.bytes > self.max_bytes:
            raise UnreadableLog(say("too_large", path=self.path, limit=MAX_TOTAL >> 30))
        if packed and self.bytes > FREE_UNPACKED + MAX_RATIO * packed.tell():
            raise UnreadableLog(say("unpacks", path=self.path, ratio=MAX_RATIO))

    def _keep_end(self, line: bytes) -> bytes:
        """Keep the last bytes of a line; note if NCCL's text before them is lost."""
        lost = line.find(MARK, 0, len(MARK) - MAX_PENDING) if len(line) > MAX_PENDING else -1
        self.overlong |= lost >= 0
        return line[-MAX_PENDING:]

    def _scan(self) -> Iterator[tuple[LogWriter, bytes, bytes]]:
        chunk, writers, skipped = self._chunk, self._writers, WORDS["skipped"]
        first_line, own = self._line_count, 0  # lines that hold a line of NCCL and nothing else
        mark = chunk.find(MARK)
        while mark >= 0:
            end = chunk.find(b"\n", mark)
            start = chunk.rfind(b"\n", max(0, mark - MAX_LINE), mark) + 1
            self._position = mark
            if chunk.find(MARK, mark + 5, end) >= 0:
                self.overlong |= chunk.find(MARK, start + MAX_LINE, end) >= 0
                yield from self._split_shared(chunk[start:end][:MAX_LINE])
            elif chunk[mark + 10 : chunk.find(b" ", mark + 10)] not in skipped:
                prefix = chunk[start:mark]
                kind, _, text = chunk[mark + 5 : end].partition(b" ")
                if kind in LINE_KINDS:
                    self._prefix = prefix
                    writer = writers.get(prefix)
                    own += kind != b"WARN" and bool(writer or LINE["prefix"].match(prefix))
                    self.count += 1
                    yield writer or self._writer_of(prefix), kind, self.clean(text)
            elif self.skipped < MAX_SKIPPED:
                self.skipped += 1
                self.count += 1
                self.seen[self._writer_of(chunk[start:mark])] = self.count
            mark = chunk.find(MARK, end)
        if own < chunk.count(b"\n"):  # others wrote too: each ends what it writes with a newline
            self.others.read_all(chunk, first_line)

    def clean(self, text: bytes) -> bytes:
        """Strip colours from the text, and what Ray's driver or a JSON collector adds."""
        if b"[repeated " in text and (match := LINE["repeated"].search(text[:MAX_TEXT])):
            self.repeated += int(match[1])
            text = text[: match.start()]
        for form in read_form_table().noise:
            if form.sign in text:
                text = form.pattern.sub(form.by, text)
        return text[:MAX_TEXT].rstrip(BORDERS)

    def _split_shared(self, line: bytes) -> Iterator[tuple[LogWriter, bytes, bytes]]:
        """Split a line with several marks: a text that names NCCL, or lines of several ranks."""
        starts, marks = [0], [match.start() for match in re.finditer(MARK, line)]
        self.overlong |= len(marks) > MAX_MARKS
        first, known = self._writer_of(line[: marks[0]]).host, self.processes
        for mark in marks[1:MAX_MARKS]:
            search_from = max(starts[-1], mark - 512)
            if (match := LINE["prefix"].search(line[search_from:mark])) and match["host"]:
                # A lost newline puts the end of the line before in front of the host's name.
                name, pid = match["host"].decode(), int(match["pid"])
                ends = (
                    at for at in range(len(name)) if name[at:] == first or (name[at:], pid) in known
                )
                starts.append(search_from + match.start("host") + next(ends, 0))
        for start, stop in zip(starts, [*starts[1:], len(line)], strict=True):
            mark_at = line.find(MARK, start)
            kind, _, text = line[mark_at + 5 : stop].partition(b" ")
            if kind in LINE_KINDS:
                self._prefix = line[start:mark_at]
                self.count += 1
                yield self._writer_of(self._prefix), kind, self.clean(text)

    def _writer_of(self, prefix: bytes) -> LogWriter:
        """Return the writer of a line with this prefix; cached, as a log has few prefixes."""
        if (cached := self._writers.get(prefix)) is not None:
            return cached
        text = LINE["glued_time"].sub(b" ", LINE["colour"].sub(b"", prefix[-MAX_BYTES:]))
        match = LINE["prefix"].search(text)
        if match and (match["host"] or b"").isdigit():  # `10:00:00` is no host
            match = LINE["prefix"].search(strip_times(prefix))
        device = re.search(rb"\[(\d+)\] $", text)  # pasted text without host and pid
        writer = LogWriter(device=device[1].decode()[:MAX_PREFIX] if device else "")
        if match:
            name = (match["host"] or match["accl"]).strip(b"<>[]")
            host = sys.intern(name[-MAX_HOST:].decode("ascii", "replace"))
            device_name = sys.intern((match["device"] or b"").decode("ascii", "replace"))
            writer = LogWriter(host, int(match["pid"] or match["apid"]), device_name)
        if len(prefix) <= MAX_PREFIX:
            if len(self._writers) > MAX_PREFIXES:
                self._writers.clear()
                self.processes.clear()
            self._writers[prefix] = writer
            self.processes |= {writer[:2]} if writer.host else set()
        return writer

    def explain_no_lines(self) -> str:
        """Return one sentence on a file that has no line of NCCL's."""
        if not self.bytes:
            return f"{self.path}: expected NCCL's log, found an empty file"
        if exceptions := self.others.describe_exceptions(self.name):
            return f"{exceptions}. Correct this first: the file has no line of NCCL's"
        content = "binary data" if self.binary else "no line of NCCL's"
        hint = self.others.find_hint(self.name) or say("set_debug")
        return say("foreign", path=self.path, content=content, size=self.bytes, hint=hint)


STDIN = Path("-")  # as given; its lines are called stdin:1


def _open(path: Path) -> AbstractContextManager[Any]:
    """Open a file; `-` is the standard input, which stays open."""
    if path != STDIN:
        return path.open("rb")
    stream: Any = sys.stdin.buffer
    return nullcontext(stream if hasattr(stream, "peek") else io.BufferedReader(stream))


def _mark_lines(chunk: bytes) -> bytes:
    """Put NCCL's mark into lines that have none; where it is elsewhere, only wraps are undone."""
    chunk = join_wrapped(chunk)
    if b"NCCL INFO " in chunk or not any(word in chunk for word in WORDS["unmarked"]):
        return chunk
    return LINE["unmarked"].sub(
        lambda m: b"%bNCCL %b " % (m[1] or m[4] or m[6] or b"", m[2] or m[3] or m[5] or b"INFO"),
        chunk,
    )


def to_text(text: bytes) -> str:
    """Decode a piece of a line."""
    return text.decode("utf-8", "backslashreplace").strip()
