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
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from reports.record import SCHEMA, Evidence, RunRecord
from reports.redact import redact, redact_text
from reports.run_folder import event_log
from reports.run_folder.event_log import FILE, MAX_LINE, MAX_LOG, NO_LINE, EventReader, hash_line
from reports.run_folder.fold import fold_events
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
        raise _unusable(path, "holds a run already")
    if names:
        more = ", ..." if len(names) > NAMES_SHOWN else ""
        raise _unusable(path, f"holds other files ({', '.join(names[:NAMES_SHOWN])}{more})")
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
            raise _unusable(path, f"has {free_mib} MiB left, and a run needs {MIN_FREE_MIB} MiB")
        _try_writing(path)
    except OSError as error:
        raise _unusable(path, _reason(error)) from None


def _try_writing(path: Path) -> None:
    old, new = (path / f".seatrial-{secrets.token_hex(8)}" for _ in range(2))
    try:
        for file in (old, new):
            with file.open("xb") as handle:
                handle.write(bytes(TRIAL_BYTES))
                handle.flush()
                os.fsync(handle.fileno())
        os.replace(new, old)
    finally:
        for file in (old, new):
            with suppress(OSError):
                file.unlink()


def _reason(error: OSError | ValueError) -> str:
    """Describe why the folder cannot be used."""
    code = getattr(error, "errno", None)
    if code == errno.EEXIST:
        return "is not a folder"
    if code == errno.ENOTDIR:
        return "lies in what is not a folder"
    return f"cannot be written ({getattr(error, 'strerror', None) or error})"


def _unusable(path: Path, found: str) -> UnusableFolder:
    advice = "name another with --run-dir"
    return UnusableFolder(
        one_line(f"a run needs a folder of its own, but {path} {found}: {advice}")
    )


CONTRACT = "contract.toml"
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PRIVATE = 0o700  # other users of a login node must not read facts of the cluster


def utc_time() -> str:
    """Return the ISO 8601 UTC time to the millisecond, for example 2026-11-20T22:17:03.120Z."""
    now = datetime.now(timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str | None) -> datetime:
    """Parse a time in the format of `utc_time`. Raises ValueError if there is none."""
    return datetime.fromisoformat((text or "").replace("Z", "+00:00"))


def known_time(text: str | None) -> datetime | None:
    """Parse a time in the format of `utc_time`; None if there is none."""
    try:
        return parse_time(text)
    except (ValueError, TypeError):
        return None


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


class Store:
    """Writer of one run folder that holds no run yet.

    A call returns when its data is written; `save` also syncs the events to the disk. Secrets are
    removed from all events and evidence here, and nowhere else. Methods raise OSError if the disk
    is full. The next event that can be written is preceded by one on the events that were lost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        (path / "evidence").mkdir(mode=PRIVATE, exist_ok=True)
        self._log = os.open(path / FILE, NEW_FILE | os.O_APPEND, 0o600)
        self._write_lock = threading.Lock()
        self._head, self._count, self._size = NO_LINE, 0, 0
        self._lost, self._why = 0, ""  # events that could not be written

    def event(self, kind: str, probe: str = "", /, **data: Any) -> None:
        """Append one event. `data` must be JSON; NaN, infinity and lone surrogates are replaced."""
        with self._write_lock:
            try:
                if self._lost:
                    self._append("run_problem", "", self._loss())
                    self._lost = 0
                self._append(kind, probe, data)
            except OSError as error:
                self._lost, self._why = self._lost + 1, error.strerror or str(error)
                raise

    def _loss(self) -> dict[str, str]:
        """Build the data of a RunProblem for the events that are missing here."""
        text = f"{self._lost} event{'s' * (self._lost > 1)} could not be written: {self._why}"
        return {"kind": "disk", "where": FILE, "text": text}

    def _append(self, kind: str, probe: str, data: dict[str, Any]) -> None:
        """Write one complete line or nothing. Raises OSError."""
        place = {"seq": self._count + 1, "prev": self._head, "t": utc_time(), "event": kind}
        about = {"probe": redact_text(probe)} if probe else {}
        event = {**place, **about, "data": redact(json_value(data))}
        line = json.dumps(event, allow_nan=False).encode()
        if len(line) >= MAX_LINE or self._size + len(line) >= MAX_LOG:
            raise OSError(0, f"a run holds {MAX_LOG >> 20} MiB of events, {MAX_LINE >> 20} in one")
        try:
            self._write(line + b"\n")
        except OSError:
            with suppress(OSError):  # half a line would make the complete log unreadable
                os.ftruncate(self._log, self._size)
            raise
        self._head, self._count = hash_line(line), self._count + 1
        self._size += len(line) + 1

    def _write(self, text: bytes) -> None:
        while text:
            text = text[os.write(self._log, text) :]

    def start(self, contract: bytes, /, **data: Any) -> None:
        """Write the contract's text (empty if limits are derived: no file) and the first event."""
        if contract:
            write_new(self.path / CONTRACT, contract)
        self.event("run_started", **{"schema_version": SCHEMA, **data})

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
        except OSError:
            path.unlink()  # without an event, the file would look as if it had been added later
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

    def save(self) -> RunRecord:
        """Sync the events to the disk and fold them into record.json."""
        os.fsync(self._log)
        log = EventReader(self.path)
        record = fold_events(log).model_copy(update={"head": log.head})
        event_log.write_atomically(self.path / "record.json", record_text(record))
        return record

    def close(self) -> None:
        """Close the event log and write the hashes of all files; safe to repeat."""
        if self._log >= 0:
            log, self._log = self._log, -1
            os.close(log)
            event_log.write_checksums(self.path)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet, completely or not at all."""
    handle = os.open(path, NEW_FILE, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except OSError:
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
