"""Writes a run folder: events as they happen, the record folded from them, evidence with hashes.

    runs/<utc>-<cluster>/events.jsonl   one line per observation, chained (see event_log.py)
                         contract.toml  the contract's text, to check all limits
                         record.json    the events folded; written after every probe
                         evidence/      files, each with its sha256 in the events
                         SHA256SUMS     of all other files; nothing but signatures changes later
                         signatures/    of the parties, over SHA256SUMS (see signatures.py)

`record.json` contains only the result of `fold_events`, so a killed run still has its record.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from reports.record import SCHEMA, Evidence, RunRecord
from reports.redact import redact, redact_text
from reports.run_folder.event_log import FILE, MAX_LINE, MAX_LOG, NO_LINE, EventReader, hash_line
from reports.run_folder.files import write_atomically, write_checksums
from reports.run_folder.fold import fold_events

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
        write_atomically(self.path / "record.json", record_text(record))
        return record

    def close(self) -> None:
        """Close the event log and write the hashes of all files; safe to repeat."""
        if self._log >= 0:
            log, self._log = self._log, -1
            os.close(log)
            write_checksums(self.path)


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
