"""Makes a record of events, and reads it from its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reports import record as records
from reports.measurement import Limit, Measurement
from reports.record import SCHEMA, OwedProbe, ProbeResult, RunRecord, complete_results
from reports.run_folder import event_log
from reports.run_folder.event_log import EVENT_LISTS, FILE, MAX_LOG, PROBE_EVENTS, UnreadableRun
from reports.run_folder.times import ClockSteps

MODELS = {"finding": records.Finding, "control": records.Control, "evidence": records.Evidence}


def fold_events(events: Iterable[dict[str, Any]]) -> RunRecord:
    """Fold events into their record. A run without its last event is interrupted.

    A probe that is started again gets a second result, so retries cannot remove a failure. A
    second start of the run removes nothing either. Raises UnreadableRun if the events do not fit
    the schema.
    """
    try:
        return _Fold().fold(events)
    except (ValidationError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableRun(f"the run does not fit schema {SCHEMA}: {_error_text(error)}") from None


class _Fold:
    """Record under construction. Events become models at once, because a log may be long."""

    def __init__(self) -> None:
        self.run: dict[str, Any] = {}
        self.results: list[dict[str, Any]] = []
        self.latest: dict[str, dict[str, Any]] = {}
        self.limits: dict[str, Limit] = {}  # thousands of measurements share a few limits
        self.clock = ClockSteps()

    def fold(self, events: Iterable[dict[str, Any]]) -> RunRecord:
        for event in events:
            kind, data, probe = event["event"], event["data"], event.get("probe", "")
            self.clock.see(event)
            if kind == "run_started":
                if not self.run:  # a second start changes nothing
                    self.run = {"state": "interrupted", **data}
                    _require_schema(self.run)
            elif not self.run:
                raise UnreadableRun(f"{FILE} does not begin with the event run_started")
            elif kind in ("run_owes", "run_updated", "run_finished"):
                self.run.update(data)
            elif kind == "run_problem":
                self.run.setdefault("problems", []).append(data)
            elif kind == "probe_started":
                name = data.get("probe", probe)
                self.latest[probe] = {**data, "probe": name, "started": event.get("t", "")}
                self.results.append(self.latest[probe])
            elif kind in PROBE_EVENTS:
                self._add(kind, probe, data)
        if not self.run:
            raise UnreadableRun(f"{FILE} has no complete line: it is empty or was cut off")
        return self._build()

    def _add(self, kind: str, probe: str, data: dict[str, Any]) -> None:
        """Add one probe event to the latest result of its probe."""
        if probe not in self.latest:
            raise UnreadableRun(f"{FILE} has a {kind} event of {probe!r} before its start")
        result = self.latest[probe]
        if kind in EVENT_LISTS:
            result.setdefault(EVENT_LISTS[kind], []).append(self._typed(kind, data))
        elif kind == "series":
            result.setdefault("series", {})[data.get("name", "")] = data.get("values")
        else:
            result.update(data)

    def _typed(self, kind: str, data: dict[str, Any]) -> Any:
        if kind != "measurement":
            return MODELS[kind](**data)
        if data.get("limit") is not None:
            key = repr(data["limit"])
            if key not in self.limits:
                self.limits[key] = Limit(**data["limit"])
            data = {**data, "limit": self.limits[key]}
        return Measurement(**data)

    def _build(self) -> RunRecord:
        results = [ProbeResult(**result) for result in self.results]
        owed = [OwedProbe(**one) for one in self.run.get("owed", [])]
        ended = self.run["state"] == "finished"
        absent = "left this test out" if ended else "stopped before this test"
        results = complete_results(results, owed, self.run.get("partial") or f"the run {absent}")
        steps = [*self.run.pop("clock_steps", []), *self.clock.steps]
        return RunRecord(**self.run, clock_steps=steps, results=results)


def _require_schema(run: dict[str, Any]) -> None:
    """Raise UnreadableRun if the run's schema is not SCHEMA."""
    wrote = run.get("schema_version", "unknown")
    if wrote == SCHEMA:
        return
    suite, name = run.get("versions"), "(unknown version)"
    if isinstance(suite, dict):
        name = suite.get("seatrial", name)
    raise UnreadableRun(
        f"the run has schema {wrote!s:.20}, written by seatrial {name!s:.20}. This version reads "
        f"only {SCHEMA}: use the version that wrote the run (`pip install .` in its checkout)"
    )


def _error_text(error: Exception) -> str:
    """Return the first error of a validation as one line; the text of any other error."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{error.title} {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


ALONE = "it is a record.json without its run folder, so nothing shows if it was changed"


def read_record(path: Path) -> RunRecord:
    """Read a record.json. Raises UnreadableRun.

    A file that lies in a run folder is refused: its folder can be verified, so it must be.
    """
    folder = path.absolute().parent
    if (folder / FILE).exists() or (folder.parent / FILE).exists():
        raise UnreadableRun(f"{path} is in a run folder: give the folder, which can be verified")
    with event_log.open_regular(path) as file:
        text = file.read(MAX_LOG + 1)
    if len(text) > MAX_LOG:
        raise UnreadableRun(f"{path}: expected at most {MAX_LOG >> 20} MiB, found more")
    try:
        record = event_log.parse_json(text)
    except ValueError as error:
        message = f"{path}: expected the record.json of a run, found invalid JSON: {error}"
        raise UnreadableRun(message) from None
    results = record.get("results") if isinstance(record, dict) else None
    if not isinstance(results, list) or not all(isinstance(one, dict) for one in results):
        raise UnreadableRun(f"{path}: expected the record.json of a run, found different JSON")
    return fold_events(_events(record))


def _events(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield events that fold into the record, so that it is checked as a run folder is."""
    start = {key: value for key, value in record.items() if key != "results"}
    yield {"event": "run_started", "data": start}
    for result in record["results"]:
        rest = dict(result)
        about = {"probe": rest.pop("probe", "")}
        known = {key: rest.pop(key) for key in event_log.KEYS["probe_started"] & rest.keys()}
        yield {"event": "probe_started", **about, "data": known}
        for kind, key in EVENT_LISTS.items():
            for entry in rest.pop(key, []):
                yield {"event": kind, **about, "data": entry}
        for name, values in rest.pop("series", {}).items():
            yield {"event": "series", **about, "data": {"name": name, "values": values}}
        yield {"event": "probe_finished", **about, "data": rest}
