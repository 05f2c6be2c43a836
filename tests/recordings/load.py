"""Turns a typed record back into a run folder: the inverse of `fold_events`."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from reports.measurement import Limit, Measurement
from reports.record import Control, Evidence, OwedProbe, ProbeResult, RunRecord
from reports.run_folder.event_log import (
    CONTRACT,
    EVENT_LISTS,
    NO_LINE,
    hash_line,
    write_atomically,
    write_checksums,
)


@dataclass(frozen=True)
class Recording:
    """One exhibit: the record, its evidence files by path, and what it teaches."""

    name: str
    teaches: str
    record: RunRecord
    files: dict[str, str] = field(default_factory=dict)
    torn: str = ""  # half a line, as a killed run leaves it
    ends: bool = True  # whether run_finished was written


def measured(
    name: str,
    value: Any,
    unit: str = "",
    on: str = "cluster",
    *,
    because: str = "",
    spread: float | None = None,
    samples: int | None = None,
    note: str = "",
    **limit: Any,
) -> Measurement:
    """A measurement; it is judged when a `because` is given."""
    return Measurement(
        name=name,
        value=value,
        unit=unit,
        subject=on,
        limit=Limit(unit=unit, because=because, **limit) if because else None,
        judged=bool(because),
        spread=spread,
        samples=samples,
        note=note,
    )


def owing(record: RunRecord) -> RunRecord:
    """The same run, which owes every probe that it has; results and findings have the command."""
    owed = [OwedProbe(probe=r.probe, criterion=r.criterion, tier="quick") for r in record.results]
    results = []
    for result in record.results:
        again = {"reproduce": f"pytest '{result.probe}' --cluster auto"}
        findings = [one.model_copy(update=again) for one in result.findings]
        results.append(result.model_copy(update={**again, "findings": findings}))
    return record.model_copy(update={"owed": owed, "results": results})


def control(name: str, fault: str, saw: str, caught: bool | None = True) -> Control:
    """A control that was caught, unless said otherwise."""
    return Control(name=name, fault=fault, caught=caught, saw=saw)


def evidence(files: dict[str, str], path: str, kind: str, caption: str) -> Evidence:
    """The entry of an evidence file of this recording."""
    content = files[path].encode()
    return Evidence(
        kind=kind,
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        caption=caption,
        bytes=len(content),
    )


def write(recording: Recording, museum: Path) -> Path:
    """Write the run folder of one exhibit; what is expected of it stands in expected.toml."""
    run = museum / recording.name
    shutil.rmtree(run, ignore_errors=True)
    named = {entry.path for result in recording.record.results for entry in result.evidence}
    for path, text in recording.files.items():
        if path not in named:
            continue  # of another exhibit of this cluster
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_text(text, encoding="utf-8")
    run.mkdir(parents=True, exist_ok=True)
    recording = with_contract(recording, run)
    write_atomically(run / "events.jsonl", chained(events(recording)) + recording.torn)
    if recording.ends:
        write_checksums(run)
    return run


def with_contract(recording: Recording, run: Path) -> Recording:
    """The recording with the contract that was agreed in its folder: synthetic, as its numbers."""
    record = recording.record
    names = {m.name for result in record.results for m in result.measurements}
    criteria = [
        one.model_copy(update={"failing": {k: v for k, v in one.failing.items() if k in names}})
        for one in record.contract.criteria  # only those that it needs
    ]
    contract = record.contract.model_copy(update={"criteria": criteria})
    record = record.model_copy(update={"contract": contract})
    recording = replace(recording, record=record)
    if not record.contract.agreed:
        return recording
    text = f"schema = 1\nname = {json.dumps(record.contract.name)}\n".encode()
    (run / CONTRACT).write_bytes(text)
    facts = {"sha256": hashlib.sha256(text).hexdigest()}
    contract = record.contract.model_copy(update=facts)
    return replace(recording, record=record.model_copy(update={"contract": contract}))


def chained(told: list[dict[str, Any]]) -> str:
    """The lines of an event log: each with its number and the hash of the one before."""
    lines, head = [], NO_LINE
    for number, event in enumerate(told, 1):
        line = json.dumps({"seq": number, "prev": head, **event})
        head = hash_line(line.encode())
        lines.append(line + "\n")
    return "".join(lines)


def events(recording: Recording) -> list[dict[str, Any]]:
    """The events of a record: each probe ends as many seconds after its start as it took."""
    record = recording.record.model_dump(mode="json")
    results, finished, state = record.pop("results"), record.pop("finished"), record.pop("state")
    del record["head"], record["clock_steps"]  # no event says them
    del record["submission"]  # these runs are older than it
    told = [("run_started", "", record)]
    for result in results:
        told += probe_events(result)
    if recording.ends:
        told.append(("run_finished", "", {"finished": finished, "state": state}))
    moment, stamped = datetime.fromisoformat(record["started"].replace("Z", "+00:00")), []
    for kind, probe, data in told:
        took = data["seconds"] if kind == "probe_finished" else None
        moment += timedelta(seconds=took or 0.01 * bool(stamped))
        stamped.append(_event(moment, kind, probe, data))
    return stamped


def probe_events(result: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """probe_started, everything the probe saw, probe_finished."""
    probe = result.pop("probe")
    del result["started"]  # it is the time of the event
    lists = {kind: result.pop(key) for kind, key in EVENT_LISTS.items()}
    series = result.pop("series")
    end = {key: result.pop(key) for key in ("state", "error", "seconds", "coverage")}
    told = [("probe_started", probe, result)]
    told += [(kind, probe, entry) for kind, entries in lists.items() for entry in entries]
    told += [("series", probe, {"name": name, "values": v}) for name, v in series.items()]
    return [*told, ("probe_finished", probe, end)]


def _event(moment: datetime, kind: str, probe: str, data: dict[str, Any]) -> dict[str, Any]:
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"t": stamp, "event": kind, **({"probe": probe} if probe else {}), "data": data}


def without(record: RunRecord, criterion: str) -> RunRecord:
    """The same run, had no probe run for this criterion."""
    left = [result for result in record.results if result.criterion != criterion]
    return record.model_copy(update={"results": left})


def replaced(record: RunRecord, criterion: str, **changes: Any) -> RunRecord:
    """The same run, with fields of one criterion's result changed."""
    return record.model_copy(
        update={
            "results": [
                _changed(result, changes) if result.criterion == criterion else result
                for result in record.results
            ]
        }
    )


def _changed(result: ProbeResult, changes: dict[str, Any]) -> ProbeResult:
    return result.model_copy(update=changes)
