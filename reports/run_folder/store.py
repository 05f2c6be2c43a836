"""Prepares the folder of a run and writes events and evidence to it."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import math
import os
import re
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from reports.record import SCHEMA, Evidence, RunRecord
from reports.redact import redact, redact_text
from reports.run_folder import event_log
from reports.run_folder.event_log import FILE, MAX_LINE, MAX_LOG, NODES_IN_LINE
from reports.run_folder.fold import fold_events
from reports.run_folder.times import steady_s, utc_time
from reports.sanitize import one_line

# A large run needs as much: rank logs 64 MiB at most, the events of 200,000 measurements 84 MB,
# and the record and the page repeat the events.
MIN_FREE_MIB = 256
TRIAL_BYTES = 1 << 16  # more than any file system keeps in a directory entry, so space is used
NAMES_SHOWN = 3  # of the files found; enough to recognise them


class UnusableFolder(ValueError):
    """Raised if a run cannot be written there. One sentence: expected, found, what to do."""


def prepare_run_folder(path: Path) -> None:
    """Make the folder of a run (mode 0700), or use an empty one unchanged.

    Raises UnusableFolder if it is a link, has files, cannot be written, or lacks free space.
    """
    if os.path.islink(path):
        raise _unusable(path, "is a link")  # the link's owner could redirect the run
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = sorted(os.listdir(path))
    except (OSError, ValueError) as error:
        raise _unusable(path, _reason(error)) from None
    if "events.jsonl" in names:
        raise _unusable(path, "already contains a run")
    if names:
        more = ", ..." if len(names) > NAMES_SHOWN else ""
        raise _unusable(path, f"contains other files ({', '.join(names[:NAMES_SHOWN])}{more})")
    _require_room(path)


def prepare_parent(path: Path) -> None:
    """Make the folder that holds runs, if it does not exist. It may be a link and contain runs.

    Raises UnusableFolder if no run can be created in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unusable(path, _reason(error)) from None
    _require_room(path)


def _require_room(path: Path) -> None:
    """Check free space and write as a run does: a new file, fsync, rename over an old file.

    Raises UnusableFolder.
    """
    try:
        disk = os.statvfs(path)
        free_mib = disk.f_bavail * disk.f_frsize >> 20
        if disk.f_blocks and free_mib < MIN_FREE_MIB:  # some network file systems report none
            raise _unusable(path, f"has {free_mib} MiB free, and a run needs {MIN_FREE_MIB} MiB")
        _try_writing(path)
    except OSError as error:
        raise _unusable(path, _reason(error)) from None


def _try_writing(path: Path) -> None:
    trial = path / f".seatrial-{secrets.token_hex(8)}"
    try:
        for _ in range(2):  # the second time over the file of the first
            event_log.write_atomically(trial, "0" * TRIAL_BYTES)
    finally:
        with suppress(OSError):
            trial.unlink()


def _reason(error: OSError | ValueError) -> str:
    """Describe why the folder cannot be used."""
    code = getattr(error, "errno", None)
    if code == errno.EEXIST:
        return "is not a folder"
    if code == errno.ENOTDIR:
        return "is below a path that is not a folder"
    return f"cannot be written ({getattr(error, 'strerror', None) or error})"


def _unusable(path: Path, found: str) -> UnusableFolder:
    advice = "name another folder with --run-dir"
    return UnusableFolder(one_line(f"a run needs its own folder, but {path} {found}: {advice}"))


ROOM_BYTES = 4 << 20  # the last events take some kB, and record.json and the page of a lab 1 MB
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PRIVATE = 0o700  # other users of a login node must not read facts of the cluster


def make_free_folder(wanted: Path) -> Path:
    """Make this folder; if it exists, the first free one of `-2`, `-3` and so on."""
    target = wanted
    for number in itertools.count(2):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir(mode=PRIVATE)
            break
        except FileExistsError:
            target = wanted.with_name(f"{wanted.name}-{number}")
    return target


def run_folder_name(cluster: str) -> str:
    """Return `2026-11-20T221703Z-atlas`: valid on every file system, sorts by time."""
    safe = re.sub(r"[^A-Za-z0-9.-]+", "-", cluster).strip("-.")[:40] or "cluster"
    return f"{utc_time()[:19].replace(':', '')}Z-{safe}"


@dataclass(frozen=True)
class Line:
    """One line of the event log: its text without the newline, and where it ends in the file."""

    text: bytes
    hash: str
    end: int

    @property
    def event(self) -> dict[str, Any]:
        """The event of the line."""
        return dict(json.loads(self.text))


class Store:
    """Writer of one run folder that holds no run yet.

    A call returns when its data is written; `save` also syncs the events to the disk. Secrets are
    removed from all events and evidence here, and nowhere else. Methods raise OSError if the disk
    is full. The next event that can be written is preceded by one on the events that were lost.

    What was written is kept in memory as well. A folder that is lost or changed by others costs
    the run neither its verdict nor, with `write_again`, its record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun, self._begun_s = datetime.now(timezone.utc), steady_s()
        self._write_lock = threading.RLock()
        self._lines: list[Line] = []
        self._is_writing = False  # a line that is not in `_lines` yet
        self._end: int | None = None  # index of the line with run_finished
        self._has_sums = False
        self._contract, self._room = b"", -1
        self._lost, self._why = 0, ""  # events that could not be written
        self._open()

    def _open(self) -> None:
        self.path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        (self.path / "evidence").mkdir(mode=PRIVATE, exist_ok=True)
        self._log = os.open(self.path / FILE, NEW_FILE | os.O_APPEND, 0o600)

    @property
    def elapsed_s(self) -> float:
        """Time since the folder was opened (s), whatever the machine's clock is set to."""
        return round(steady_s() - self._begun_s, 3)

    @property
    def run_time(self) -> str:
        """Time now (ISO 8601, UTC) by the clock as it was when the folder was opened."""
        return utc_time(self._begun + timedelta(seconds=self.elapsed_s))

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self._lines[-1].hash if self._lines else event_log.NO_LINE

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self._lines)

    @property
    def end_state(self) -> str:
        """State in which the run has ended; empty before its end is written."""
        return "" if self._end is None else str(self._lines[self._end].event["data"]["state"])

    @property
    def _size(self) -> int:
        return self._lines[-1].end if self._lines else 0

    def event(self, kind: str, probe: str = "", /, **data: Any) -> None:
        """Append one event. `data` must be JSON; NaN, infinity and lone surrogates are replaced.

        An event after the end of the run, other than of a problem, takes the end back.
        """
        with self._write_lock:
            try:
                if self._log < 0:
                    raise OSError(errno.EBADF, "the run has ended")
                self._take_back_sums()
                if kind != "run_problem":
                    self._take_back_end()
                if self._lost:
                    self._append("run_problem", "", self._loss())
                    self._lost = 0
                self._append(kind, probe, data)
            except OSError as error:
                self._lost, self._why = self._lost + 1, error.strerror or str(error)
                raise

    def _take_back_sums(self) -> None:
        """Remove SHA256SUMS: it is of the folder without the next event."""
        if self._has_sums:
            with suppress(OSError):
                os.unlink(self.path / event_log.SUMS)
            self._has_sums = False

    def _take_back_end(self) -> None:
        """Remove run_finished, and keep the problems after it."""
        if self._end is None:
            return
        _, *later = self._lines[self._end :]
        del self._lines[self._end :]
        self._end = None
        os.ftruncate(self._log, self._size)
        for line in later:
            self._append_again(line.event)

    def _append_again(self, event: dict[str, Any]) -> None:
        times = {"t": event["t"], "elapsed": event["elapsed"]}
        self._append(event["event"], event.get("probe", ""), event["data"], times)

    def _loss(self) -> dict[str, str]:
        """Build the data of a RunProblem for the events that are missing here."""
        text = f"{self._lost} event{'s' * (self._lost > 1)} could not be written: {self._why}"
        return {"kind": "disk", "where": FILE, "text": text}

    def _append(
        self, kind: str, probe: str, data: dict[str, Any], times: dict[str, Any] | None = None
    ) -> None:
        """Write one complete line or nothing; `times` are of an older line. Raises OSError."""
        times = times or {"t": utc_time(), "elapsed": self.elapsed_s}
        place = {"seq": self.count + 1, "prev": self.head, **times, "event": kind}
        about = {"probe": redact_text(probe)} if probe else {}
        event = {**place, **about, "data": redact(json_value(data))}
        line = json.dumps(event, allow_nan=False).encode()
        end = self._size + len(line) + 1
        if len(line) >= MAX_LINE or end > MAX_LOG:
            raise OSError(0, f"more than {MAX_LOG >> 20} MiB, or {MAX_LINE >> 20} MiB in one event")
        if self._is_writing:  # a signal came between the file and `_lines`
            os.ftruncate(self._log, self._size)
        self._is_writing = True
        try:
            self._write(line + b"\n")
        except OSError:
            with suppress(OSError):  # half a line would make the complete log unreadable
                os.ftruncate(self._log, self._size)
            raise
        self._lines.append(Line(line, event_log.hash_line(line), end))
        self._is_writing = False
        if kind == "run_finished":
            self._end = self.count - 1

    def _write(self, text: bytes) -> None:
        while text:
            text = text[os.write(self._log, text) :]

    def start(self, contract: bytes, /, **data: Any) -> None:
        """Write the contract's text (empty if limits are derived: no file) and the first events."""
        self._contract = contract
        self._write_contract()
        cluster = data.get("cluster", {})
        nodes = cluster.get("nodes", [])
        parts = [nodes[at : at + NODES_IN_LINE] for at in range(0, len(nodes), NODES_IN_LINE)]
        first = {**data, "cluster": {**cluster, "nodes": parts[0]}} if parts else data
        with self._write_lock:  # no other event comes between
            self.event("run_started", **{"schema_version": SCHEMA, **first})
            for part in parts[1:]:
                self.event(event_log.MORE_NODES, nodes=part)

    def _write_contract(self) -> None:
        if self._contract:
            write_new(self.path / event_log.CONTRACT, self._contract)

    def keep_room(self) -> None:
        """Occupy room on the disk, so that a run can write its end where the disk is full.

        The file has no name: it ends with this process, or with `free_room`.
        """
        with suppress(OSError):
            name = self.path / f".seatrial-{secrets.token_hex(8)}"
            self._room = os.open(name, NEW_FILE, 0o600)
            os.unlink(name)
            os.write(self._room, os.urandom(ROOM_BYTES))  # zeros may take no room

    def free_room(self) -> None:
        """Give back the room that `keep_room` took; safe to repeat."""
        room, self._room = self._room, -1
        if room >= 0:
            os.close(room)

    def keep(self, probe: str, name: str, text: str, *, kind: str, caption: str) -> Evidence:
        """Write an evidence file under an unused name, and the event with its hash."""
        content = redact_text(text).encode("utf-8", "replace")
        path = self._free_name(name)
        write_new(path, content)
        entry = Evidence(
            kind=kind,
            path=str(path.relative_to(self.path)),
            sha256=hashlib.sha256(content).hexdigest(),
            caption=caption,
            bytes=len(content),
        )
        try:
            self.event("evidence", probe, **entry.model_dump())
        except BaseException:  # also Ctrl-C, which may come after the event was written
            if self._lines[-1].event["data"].get("path") != entry.path:
                path.unlink()  # the file would look as if it had been added later
            raise
        return entry

    def _free_name(self, name: str) -> Path:
        """Choose an unused name in the evidence folder."""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:100] or "evidence"
        path = self.path / "evidence" / stem
        for copy in range(2, 1000):
            if not path.exists():
                break
            path = path.with_name(f"{Path(stem).stem}-{copy}{Path(stem).suffix}")
        return path

    def record(self) -> RunRecord:
        """Fold the events in memory into their record."""
        record = fold_events(event_log.join_nodes(line.event for line in list(self._lines)))
        return record.model_copy(update={"head": self.head})

    def save(self) -> RunRecord:
        """Sync the events to the disk and fold them into record.json."""
        os.fsync(self._log)
        record = self.record()
        event_log.write_atomically(self.path / "record.json", record_text(record))
        return record

    def write_again(self, found: str) -> None:
        """Put aside what is at the folder's path, and write the run there again, from memory.

        `found` is what is wrong with the folder. Evidence that is not whole any more is lost, and
        its events with it. Raises OSError; the events in memory stay as they were.
        """
        with self._write_lock:
            kept = self._lines, self._end, self._log
            try:
                aside = self._put_aside()
                self._lines, self._end, self._is_writing = [], None, False
                self._open()
                self._write_contract()
                lost = self._write_events(kept[0], aside)
                self.event("run_problem", **_damage(self.path, found, aside, lost))
            except OSError:
                if self._log != kept[2]:
                    os.close(self._log)
                self._lines, self._end, self._log = kept
                raise
            if self._log != kept[2]:  # who closed the old one left its number to the new one
                with suppress(OSError):  # the file is gone: NFS says so here
                    os.close(kept[2])

    def _put_aside(self) -> Path | None:
        """Rename what is at the folder's path; None if nothing is there."""
        if not os.path.lexists(self.path):
            return None
        for number in itertools.count(1):
            aside = self.path.with_name(f"{self.path.name}-damaged{number if number > 1 else ''}")
            if not os.path.lexists(aside):
                break
        self.path.rename(aside)
        return aside

    def _write_events(self, lines: list[Line], aside: Path | None) -> list[str]:
        """Append all events whose evidence is whole; return the paths of the other evidence."""
        lost = []
        for event in (line.event for line in lines):
            if event["event"] == "evidence" and not self._move_evidence(event["data"], aside):
                lost.append(event["data"]["path"])
            else:
                self._append_again(event)
        return lost

    def _move_evidence(self, entry: dict[str, Any], aside: Path | None) -> bool:
        """Move a file of evidence here if it is what the run wrote."""
        if aside is None or aside.is_symlink() or (aside / "evidence").is_symlink():
            return False
        try:
            if event_log.hash_file(aside / entry["path"]) != entry["sha256"]:
                return False
            os.rename(aside / entry["path"], self.path / entry["path"])
        except (OSError, event_log.UnreadableRun):
            return False
        return True

    def seal(self) -> None:
        """Write the hashes of all files; the next event takes them back."""
        with self._write_lock:
            event_log.write_checksums(self.path)
            self._has_sums = True

    def close(self) -> None:
        """Write the hashes of all files, and close the event log; safe to repeat."""
        if self._log >= 0:
            if not self._has_sums:
                self.seal()
            log, self._log = self._log, -1
            os.close(log)


def _damage(path: Path, found: str, aside: Path | None, lost: list[str]) -> dict[str, str]:
    """Build the data of a RunProblem for a folder that was written again."""
    sentences = [f"the run folder was changed during the run: {found}"]
    sentences += [f"The changed folder was renamed to {aside.name}"] if aside else []
    sentences += [f"The events were written again, to a new folder {path.name}"]
    if lost:
        sentences += [f"Lost evidence files ({len(lost)}): {', '.join(lost[:NAMES_SHOWN])}"]
    return {"kind": "folder", "where": path.name, "text": ". ".join(sentences)}


def write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet, completely or not at all."""
    handle = os.open(path, NEW_FILE, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except BaseException:
        path.unlink()
        raise


def record_text(record: RunRecord) -> str:
    """Return the text of record.json."""
    return record.model_dump_json(indent=1) + "\n"


def json_value(value: Any) -> Any:
    """Replace NaN and infinity by None, and lone surrogates by `?`: JSON holds neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {json_value(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value
