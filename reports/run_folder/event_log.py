"""Reads and checks the files of a run folder and its log of events."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from reports.numbers import finite_number

SUMS = "SHA256SUMS"  # written last: a run that ended properly has it
RECORD = "record.json"
CONTRACT = "contract.toml"  # text of the contract; a run without one has none
SIGNATURES = "signatures"  # the only folder that gets files after that
FOLDERS = ("evidence", SIGNATURES)  # of a run folder
CHUNK = 1 << 20  # bytes hashed at a time
MAX_FILES = 100_000  # in a folder: a run of 1,000 nodes keeps a few thousand
MAX_FOLDER_DEPTH = 8  # nested folders; those of a run are one level deep


class UnreadableRun(ValueError):
    """Raised if this version cannot read a run folder. Text: what was expected and found."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without following a link or waiting for a pipe.

    Raises UnreadableRun if there is no such file, or it is not a regular file or not readable.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"{path} cannot be read: {_reason(error)}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UnreadableRun(f"{path}: expected a regular file, found something else")
    return os.fdopen(handle, "rb")


def _reason(error: OSError | ValueError) -> str:
    """Return why a path cannot be opened; a ValueError is of a NUL in it."""
    return str(error.strerror) if isinstance(error, OSError) else "its name is not a valid path"


def hash_file(path: Path) -> str:
    """Return the sha256 of a regular file. Raises UnreadableRun."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def list_files(run: Path) -> list[str]:
    """List the files of a run folder, sorted and relative to it.

    Raises UnreadableRun if it has a link, or anything but files and folders. The target of a link
    would be read or shared as part of the run. Raises it also if there are too many files.
    """
    return sorted(_walk(run, ""))


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    if prefix.count("/") > MAX_FOLDER_DEPTH:
        raise UnreadableRun(f"{folder}: expected at most {MAX_FOLDER_DEPTH} levels of folders")
    try:
        with os.scandir(folder) as found:
            entries = [entry for entry, _ in zip(found, range(MAX_FILES), strict=False)]
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"{folder} is not a run folder: {_reason(error)}") from None
    if len(entries) == MAX_FILES:
        raise UnreadableRun(f"{folder}: expected fewer than {MAX_FILES} files")
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield prefix + entry.name
        else:
            kind = "a link" if entry.is_symlink() else "a pipe, a socket or a device"
            expected = "only files and folders in a run folder"
            raise UnreadableRun(f"{entry.path}: expected {expected}, found {kind}")


def find_runs(root: Path) -> list[Path]:
    """Find run folders and records below a folder, sorted. Links and hidden folders are left out.

    A folder that cannot be listed is one of them, so that its reason is shown.
    """
    denied: list[Path] = []
    found = []
    for folder, names, files in os.walk(root, onerror=lambda e: denied.append(Path(e.filename))):
        names[:] = [name for name in names if not name.startswith(".")]  # a run that still comes
        if FILE in files or SUMS in files:
            found.append(Path(folder))
            names.clear()
        elif RECORD in files:
            found.append(Path(folder) / RECORD)
    return sorted([*found, *denied])


def write_atomically(path: Path, text: str) -> None:
    """Replace a file, or a link of that name; readers see either the old text or the new text."""
    # tempfile is not used: it makes the path absolute, which may lead over another mount.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def write_checksums(run: Path) -> None:
    """Write SHA256SUMS of all other files except signatures, in `sha256sum -c` format."""
    names = [n for n in list_files(run) if n != SUMS and not n.startswith(f"{SIGNATURES}/")]
    write_atomically(run / SUMS, "".join(f"{hash_file(run / n)}  {n}\n" for n in names))


SUM_LINE = re.compile(r"(?P<sum>[0-9a-f]{64})  (?P<name>[^\n]+)")
MAX_SUM_LINE = 4400  # bytes of a line in SHA256SUMS: 64 of the hash, and the longest Linux path
MISSING = "is missing"
HEAD = re.compile(rb'^ "head":\s*"(?P<head>[0-9a-f]{64})"', re.M)
HEAD_BYTES = 100  # longer than a match of HEAD, which may cross two chunks


def check_sums(run: Path, files: list[str]) -> Iterator[str]:
    """Yield a problem for each file that is missing, changed or added compared with SHA256SUMS."""
    if SUMS not in files:
        return
    sums = read_sums(run)
    if isinstance(sums, str):
        yield sums
        return
    for name, sha256 in sums.items():
        if name not in files:
            yield f"{name:.80} {MISSING}"
        elif hash_file(run / name) != sha256:
            yield f"{name:.80} differs from its hash in {SUMS}"
    for entry in run.iterdir():
        if entry.is_dir() and entry.name not in FOLDERS:
            yield f"{entry.name:.80}/ was added: seatrial does not create this folder"
    for name in files:
        if name not in sums and name != SUMS and not name.startswith(f"{SIGNATURES}/"):
            yield f"{name:.80} was added: it is not listed in {SUMS}"


def read_sums(run: Path) -> dict[str, str] | str:
    """Read SHA256SUMS as file -> sha256; return a sentence if its format is wrong."""
    sums: dict[str, str] = {}
    with open_regular(run / SUMS) as file:
        for _ in range(MAX_FILES):
            if not (raw := file.readline(MAX_SUM_LINE)):
                return sums
            line = SUM_LINE.fullmatch(raw.decode("utf-8", "replace").removesuffix("\n"))
            if not line or not raw.endswith(b"\n") or line["name"] in sums:
                return f"{SUMS}: line {len(sums) + 1} is malformed or repeats a file"
            sums[line["name"]] = line["sum"]
    return f"{SUMS}: expected fewer than {MAX_FILES} lines"


FILE = "events.jsonl"
# Variable of `seatrial submit`: the id of the submission, which the first event of its run keeps.
SUBMISSION_VARIABLE = "SEATRIAL_SUBMISSION"
NO_LINE = ""  # `prev` of the first line
EVENT_LISTS = {
    "measurement": "measurements",
    "finding": "findings",
    "control": "controls",
    "evidence": "evidence",
}
PROBE_EVENTS = frozenset([*EVENT_LISTS, "series", "probe_updated", "probe_finished"])
MORE_NODES = "run_nodes"  # facts of further nodes: those of all would make too long a line
RUN_EVENTS = frozenset(
    ["run_started", MORE_NODES, "run_owes", "run_updated", "run_problem", "run_finished"]
)
KINDS = PROBE_EVENTS | RUN_EVENTS | {"probe_started"}
# Keys that an event's data may have, for events that change the record. Any other key could
# overwrite data of an earlier event.
KEYS = {
    MORE_NODES: {"nodes"},
    "run_owes": {"owed", "only", "partial", "full_run_s"},
    "run_updated": {"loaded", "baseline", "baseline_problem", "baseline_values"},
    "run_finished": {"finished", "state"},
    "run_problem": {"kind", "where", "text"},
    "probe_started": {"criterion", "claim", "reproduce"},
    "probe_updated": {"coverage"},
    "probe_finished": {"state", "error", "seconds", "coverage"},
    "series": {"name", "values"},
}
NODES_IN_LINE = 256  # nodes whose facts are in one event: some 10 kB each
MAX_LINE = 16 << 20  # bytes
MAX_LOG = 256 << 20  # bytes; the record takes about three times as much memory
MAX_DIGITS = 300  # of an integer: longer ones do not fit a float
MAX_DEPTH = 50  # nested lists and tables; the suite's own have at most 10 levels
MAX_SHOWN = 20  # problems of a log that are listed


def hash_line(line: bytes) -> str:
    """Return the sha256 that the next line has as `prev`; `line` is without its newline."""
    return hashlib.sha256(line).hexdigest()


def join_nodes(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events, with the nodes of the events MORE_NODES in the run_started before them.

    Raises UnreadableRun for MORE_NODES elsewhere, or of another form.
    """
    start: dict[str, Any] | None = None
    for event in events:
        if event["event"] == MORE_NODES:
            if start is None:
                raise UnreadableRun(f"{FILE} has {MORE_NODES} that is not after run_started")
            start = _with_nodes(start, event["data"])
            continue
        if start is not None:
            yield start
        start = event if event["event"] == "run_started" else None
        if start is None:
            yield event
    if start is not None:
        yield start


def _with_nodes(start: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    cluster = start["data"].get("cluster")
    nodes, others = (one.get("nodes") if isinstance(one, dict) else None for one in (cluster, more))
    if not isinstance(nodes, list) or not isinstance(others, list):
        raise UnreadableRun(f"{FILE}: run_started or {MORE_NODES} has no list of nodes")
    return {**start, "data": {**start["data"], "cluster": {**cluster, "nodes": nodes + others}}}


class EventReader:
    """Reader of a run folder's events, one by one. It checks their chain at the same time.

    After the last event, `problems` are sentences on inconsistencies. `head` is the hash of the
    last line, `count` the number of events. An incomplete last line, as a killed run leaves it,
    is dropped.

    Iteration raises UnreadableRun if there is no event log, or if a line or the log is too long.
    A line that is not an event also raises it, unless it is the last one.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.problems: list[str] = []
        self.head, self.count, self.finished = NO_LINE, 0, False
        self._elapsed = 0.0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the events; each is a dict with `event`, `data` and mostly `probe`."""
        return join_nodes(self._checked())

    def _checked(self) -> Iterator[dict[str, Any]]:
        for number, line, event in self._lines():
            if event is None:  # the last line: _lines refuses any other
                if self.finished:
                    self._problem(f"line {number} is after the end of the run")
                continue
            self._check_link(number, event)
            self._check_time(number, event)
            self._check_kind(number, event)
            self.head, self.count = hash_line(line), self.count + 1
            yield event

    def _lines(self) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
        """Yield (number, line, event). The last line may be invalid; its event is then None."""
        if not (self.run / FILE).exists():
            raise UnreadableRun(f"{self.run} is not a run folder: it has no {FILE}")
        with open_regular(self.run / FILE) as file:
            number, size, torn = 0, 0, False
            while raw := file.readline(MAX_LINE + 1):
                if torn:
                    why = "is not a valid JSON event: it was cut off or changed"
                    raise UnreadableRun(f"{self.run}/{FILE} line {number} {why}")
                number, size = number + 1, size + len(raw)
                if len(raw) > MAX_LINE or size > MAX_LOG:
                    limit = MAX_LINE if len(raw) > MAX_LINE else MAX_LOG
                    raise UnreadableRun(
                        f"{self.run}/{FILE} line {number}: expected at most {limit >> 20} MiB "
                        f"{'in a line' if limit == MAX_LINE else 'in the file'}, found more"
                    )
                line = raw.rstrip(b"\n")
                event = _parse_event(line)
                torn = event is None
                yield number, line, event

    def _check_link(self, number: int, event: dict[str, Any]) -> None:
        """Compare the event's number and hash with the line before it."""
        sequence, previous = event.get("seq"), event.get("prev")
        if sequence != self.count + 1:
            self._problem(f"line {number} has event number {sequence!r}, expected {self.count + 1}")
        elif previous != self.head:
            wrong = f"does not contain the hash of line {number - 1}"
            self._problem(f"line {number} {wrong if number > 1 else 'is not the first of the run'}")

    def _check_time(self, number: int, event: dict[str, Any]) -> None:
        """Check that the time since the start does not go back; older logs have none."""
        elapsed = finite_number(event.get("elapsed", self._elapsed))
        if elapsed is None or elapsed < self._elapsed:
            self._problem(f"line {number} has an earlier time than the line before it")
        else:
            self._elapsed = elapsed

    def _check_kind(self, number: int, event: dict[str, Any]) -> None:
        """Record a problem for an unknown kind, an extra key, a second start or a late event.

        An event of an unknown kind would otherwise be ignored.
        """
        kind = event["event"]
        if kind not in KINDS:
            self._problem(f"line {number} has an unknown kind of event: {kind!r:.40}")
        elif not event["data"].keys() <= KEYS.get(kind, event["data"].keys()):
            self._problem(f"line {number} has keys that a {kind} event must not have")
        elif kind == "run_started" and number > 1:
            self._problem(f"line {number} starts a second run")
        elif self.finished and kind != "run_problem":
            self._problem(f"line {number} is after the end of the run")
        self.finished = self.finished or kind == "run_finished"

    def _problem(self, text: str) -> None:
        if len(self.problems) < MAX_SHOWN:
            self.problems.append(f"{FILE}: {text}")


def _parse_event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None if the line is not a valid event."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("data"), dict):
        return None
    if not isinstance(event.get("event"), str) or not isinstance(event.get("probe", ""), str):
        return None
    return event


def parse_json(text: bytes) -> Any:
    """Parse untrusted JSON. Raises ValueError, also for NaN, huge integers and deep nesting."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_bounded)
    except RecursionError:
        raise ValueError(f"lists or objects have more than {MAX_DEPTH} levels") from None
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError(f"lists or objects have more than {MAX_DEPTH} levels")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not valid JSON")


def _depth(value: Any) -> int:
    """Count the levels of nested lists and tables."""
    level, depth = [value], 0
    while level:
        parts = [one.values() if isinstance(one, dict) else one for one in level]
        level = [x for part in parts for x in part if isinstance(x, dict | list)]
        depth += 1
    return depth


def check_head(run: Path, head: str) -> Iterator[str]:
    """Yield a problem if record.json does not have the hash of the last event."""
    with suppress(UnreadableRun), open_regular(run / "record.json") as file:
        tail = b""
        while chunk := file.read(CHUNK):
            if found := HEAD.search(tail + chunk):
                if found["head"].decode() != head:
                    yield f"{FILE}: the hash of its last line differs from `head` in record.json"
                return
            tail = chunk[-HEAD_BYTES:]
        yield "record.json is not the file that the run wrote: its key `head` is missing"
