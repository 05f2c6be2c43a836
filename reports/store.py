"""The run folder: events as they happen, the record folded from them, evidence with hashes.

    runs/<utc>-<cluster>/events.jsonl   one line per observation, flushed at once
                         record.json    the events folded; written after every probe
                         evidence/      files, each with its sha256 in the record
                         SHA256SUMS     of everything but itself

`record.json` is nothing but `fold_events`: a run that was killed still has its record.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reports.owed import complete_results
from reports.record import SCHEMA, Evidence, ProbeResult, RunRecord
from reports.renamed import with_current_names

FIRST_SCHEMA = "1.0"  # of runs that do not say theirs
SUMS = "SHA256SUMS"  # written last: a run that ended has it
EVENT_LISTS = {
    "measurement": "measurements",
    "finding": "findings",
    "control": "controls",
    "evidence": "evidence",
}
PROBE_EVENTS = (*EVENT_LISTS, "series", "probe_updated", "probe_finished")


class UnreadableRun(ValueError):
    """The folder holds no run that this version can read; says what was expected and found."""


def utc_time() -> str:
    """Tell the ISO 8601 UTC time to the millisecond, for example 2026-11-20T22:17:03.120Z."""
    now = datetime.now(timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str | None) -> datetime:
    """Read a time as `utc_time` tells it; ValueError where there is none."""
    return datetime.fromisoformat((text or "").replace("Z", "+00:00"))


def run_folder_name(cluster: str) -> str:
    """`2026-11-20T221703Z-atlas`: safe on every file system, sorts by time."""
    safe = re.sub(r"[^A-Za-z0-9.-]+", "-", cluster).strip("-.")[:40] or "cluster"
    return f"{utc_time()[:19].replace(':', '')}Z-{safe}"


class Store:
    """Writes one run folder.  Every call is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "evidence").mkdir(parents=True, exist_ok=True)
        self._events = (path / "events.jsonl").open("a", encoding="utf-8")
        self._write_lock = threading.Lock()

    def event(self, kind: str, probe: str = "", /, **data: Any) -> None:
        """Append one event.  `data` must be JSON; NaN, infinity and half characters are mended."""
        line = {"t": utc_time(), "event": kind, **({"probe": probe} if probe else {})}
        line["data"] = json_value(data)
        with self._write_lock:
            self._events.write(json.dumps(line, allow_nan=False) + "\n")
            self._events.flush()

    def add_file(self, name: str, text: str, *, kind: str, caption: str) -> Evidence:
        """Write an evidence file (never over another one) and return its entry."""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "evidence"
        path = self.path / "evidence" / stem
        for copy in range(2, 1000):
            if not path.exists():
                break
            path = path.with_name(f"{Path(stem).stem}-{copy}{Path(stem).suffix}")
        content = text.encode("utf-8", "replace")
        path.write_bytes(content)
        return Evidence(
            kind=kind,
            path=str(path.relative_to(self.path)),
            sha256=hashlib.sha256(content).hexdigest(),
            caption=caption,
            bytes=len(content),
        )

    def save(self) -> RunRecord:
        """Fold the events so far into record.json, by rename."""
        record = fold_events(read_events(self.path))
        write_atomically(self.path / "record.json", record.model_dump_json(indent=1) + "\n")
        return record

    def close(self) -> None:
        """Write the hashes of all files and close the event log."""
        self._events.close()
        write_checksums(self.path)


def json_value(value: Any) -> Any:
    """`value` with NaN and infinity as None and lone surrogates replaced: JSON holds neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {json_value(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old file or the new one, never half of one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_checksums(run: Path) -> None:
    """Write SHA256SUMS over every other file of the run folder, in `sha256sum -c` format."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != SUMS)
    lines = [checksum_line(run, path) for path in files]
    write_atomically(run / SUMS, "\n".join(lines) + "\n")


def checksum_line(run: Path, path: Path) -> str:
    """Write the line of one file as `sha256sum -c` reads it."""
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(run)}"


def read_events(run: Path) -> list[dict[str, Any]]:
    """All whole lines of events.jsonl; a torn last line, as a killed run leaves, is dropped.

    Raises UnreadableRun when there is no event log, or a line inside it is not JSON.
    """
    try:
        text = (run / "events.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise UnreadableRun(f"{run} is not a run folder: it has no readable events.jsonl") from None
    events = []
    lines = text.rstrip("\n").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            event = None
        if isinstance(event, dict) and isinstance(event.get("data"), dict) and "event" in event:
            events.append(event)
        elif number < len(lines):
            raise UnreadableRun(f"{run}/events.jsonl line {number} is not an event")
    return events


def fold_events(events: Iterable[dict[str, Any]]) -> RunRecord:
    """The record of an event log.  A run without its last event reads as interrupted.

    A probe that is started again gets a second result beside the first, so that trying until
    it passes does not wipe out a failure.  Raises UnreadableRun.
    """
    run: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    latest: dict[str, dict[str, Any]] = {}
    for event in events:
        kind, data, probe = event["event"], event["data"], event.get("probe", "")
        if kind == "run_started":
            run, results, latest = {"state": "interrupted", **data}, [], {}
        elif not run:
            raise UnreadableRun("the event log does not begin with run_started")
        elif kind in ("run_owes", "run_updated", "run_finished"):
            run.update(data)
        elif kind == "run_problem":
            run.setdefault("problems", []).append(data)
        elif kind == "probe_started":
            latest[probe] = {"probe": probe, **data}
            results.append(latest[probe])
        elif kind in PROBE_EVENTS:
            if probe not in latest:
                raise UnreadableRun(f"the event log has a {kind} of {probe!r} before its start")
            _add_event(latest[probe], kind, data)
    if not run:
        raise UnreadableRun("the event log is empty")
    return _build_record(run, results)


def _add_event(result: dict[str, Any], kind: str, data: dict[str, Any]) -> None:
    """Put one probe event into the result it belongs to."""
    if kind in EVENT_LISTS:
        result.setdefault(EVENT_LISTS[kind], []).append(data)
    elif kind == "series":
        result.setdefault("series", {})[data.get("name", "")] = data.get("values")
    else:
        result.update(data)


def _build_record(run: dict[str, Any], results: list[dict[str, Any]]) -> RunRecord:
    """The typed record; one sentence when the log is of another schema."""
    run = {"schema_version": FIRST_SCHEMA, **run}
    version = str(run["schema_version"])
    if version.split(".")[0] != SCHEMA.split(".")[0]:
        raise UnreadableRun(f"the run is of schema {version}, this version reads {SCHEMA}")
    owed = run.get("owed") or []
    try:
        results = complete_results(results, owed, run.get("partial", ""))
        return RunRecord(**run, results=[ProbeResult(**result) for result in results])
    except (ValidationError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableRun(f"the log does not fit schema {SCHEMA}: {_error_text(error)}") from None


def _error_text(error: Exception) -> str:
    """The first complaint of a validation error as one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{error.title} {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def load(run: Path) -> RunRecord:
    """The record of a run folder, folded anew from its events.

    Raises UnreadableRun with one sentence when the folder is not a run or is of another schema.
    """
    return fold_events(with_current_names(read_events(run)))
