"""The record in the formats of other tools: CSV, CTRF, Prometheus, and its own JSON schema.

JUnit is written by pytest itself.  Nothing here decides anything: what is not proven is not
"passed" in any of them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from reports.acceptance import decision_sentence, rows
from reports.page.render import render
from reports.record import Measurement, ProbeResult, RunRecord, Verdict
from reports.sanitize import csv_cell, label_value, one_line
from reports.store import write_atomically

CSV_HEADER = [
    *("criterion", "probe", "name", "subject"),
    *("value", "unit", "low", "high", "verdict"),
]
CTRF_VERSION = "0.0.0"  # the schema asks for a SemVer and names none


def write_all(run: Path, record: RunRecord, baseline: RunRecord | None = None) -> list[Path]:
    """Write every rendering into the run folder; returns their paths."""
    texts = {
        "report.html": render(record, run, baseline),
        "measurements.csv": measurements_csv(record),
        "metrics.prom": prometheus(record),
        "ctrf.json": json.dumps(ctrf(record), indent=1) + "\n",
        "record.schema.json": json.dumps(RunRecord.model_json_schema(), indent=1) + "\n",
    }
    for name, text in texts.items():
        write_atomically(run / name, text)
    paths = [run / name for name in texts]
    _renew_sums(run, paths)
    return paths


def measurements_csv(record: RunRecord) -> str:
    """One line per measurement.  Words that a spreadsheet would run are defused."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_HEADER)
    for result in record.results:
        for one in result.measurements:
            table.writerow(_csv_row(result, one))
    return text.getvalue()


def _csv_row(result: ProbeResult, one: Measurement) -> list[Any]:
    words = [result.criterion, result.probe, one.name, one.subject]
    value = csv_cell(one.value) if isinstance(one.value, str) else one.value
    low, high = (one.limit.low, one.limit.high) if one.limit else (None, None)
    verdict = one.verdict.value if one.verdict else ""
    return [*map(csv_cell, words), value, csv_cell(one.unit), low, high, verdict]


def prometheus(record: RunRecord) -> str:
    """For node_exporter's textfile collector: verdicts 0 PASS to 3 FAIL, values, the decision."""
    lines = [*_heading("seatrial_run_info", "Which run this is; always 1.")]
    info = {"run": record.id, "contract": record.contract.name, "tier": record.tier}
    info["rehearsal"] = "yes" if record.rehearsal else "no"
    lines.append(_sample("seatrial_run_info", info, 1))
    lines += _heading("seatrial_exit_code", "0 accepted, 1 failed, 2 interrupted, 20 unproven.")
    lines.append(_sample("seatrial_exit_code", {"run": record.id}, record.exit_code))
    lines += _heading("seatrial_criterion_verdict", "0 PASS, 1 MARGINAL, 2 UNPROVEN, 3 FAIL.")
    for row in rows(record):
        required = "yes" if row.criterion.required else "no"
        labels = {"criterion": row.criterion.id, "required": required}
        lines.append(_sample("seatrial_criterion_verdict", labels, row.verdict.rank))
    lines += _heading("seatrial_measurement", "Measured values that are numbers.")
    lines += _measurement_samples(record)
    return "\n".join(lines) + "\n"


def _measurement_samples(record: RunRecord) -> Iterator[str]:
    """Label sets must be unique: equal ones are numbered."""
    seen: dict[tuple[str, ...], int] = {}
    for result in record.results:
        for one in result.measurements:
            if one.value is None or isinstance(one.value, str):
                continue
            key = (result.criterion, result.probe, one.name, one.subject, one.unit)
            seen[key] = seen.get(key, 0) + 1
            labels = dict(zip(("criterion", "probe", "name", "subject", "unit"), key, strict=True))
            labels |= {"occurrence": str(seen[key])} if seen[key] > 1 else {}
            yield _sample("seatrial_measurement", labels, float(one.value))


def _heading(name: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge"]


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{label_value(words)}"' for key, words in labels.items())
    return f"{name}{{{inside}}} {value}"


def ctrf(record: RunRecord) -> dict[str, Any]:
    """Common Test Report Format.  UNPROVEN is `other`; the last test is the decision itself.

    Without that last one, a reader that counts failures would take a run that proved nothing
    for a good one.
    """
    tests = [_ctrf_test(result) for result in record.results]
    tests += [
        _test(f"{row.criterion.id}: no probe ran", "other", "UNPROVEN", row.complaint)
        for row in rows(record)
        if not row.results and row.criterion.required
    ]
    decided = "passed" if record.exit_code == 0 else "failed"
    sentence = decision_sentence(record)
    tests.append(_test("acceptance", decided, record.decision.value, sentence))
    counts = {
        status: sum(test["status"] == status for test in tests)
        for status in ("passed", "failed", "skipped", "pending", "other")
    }
    start = _milliseconds(record.started)
    stop = _milliseconds(record.finished) or start
    return {
        "reportFormat": "CTRF",
        "specVersion": CTRF_VERSION,
        "generatedBy": "seatrial",
        "results": {
            "tool": {"name": "seatrial"},
            "summary": {"tests": len(tests), **counts, "start": start, "stop": stop},
            "tests": tests,
            "environment": {"reportName": one_line(record.id), "extra": {"tier": record.tier}},
        },
    }


def _ctrf_test(result: ProbeResult) -> dict[str, Any]:
    status = {Verdict.FAIL: "failed", Verdict.UNPROVEN: "other"}.get(result.verdict, "passed")
    if result.state == "skipped" and status == "other":
        status = "skipped"
    message = "; ".join(result.complaints())
    test = _test(result.probe, status, result.verdict.value, message, result.seconds)
    return {**test, "suite": [one_line(result.criterion) or "none"]}


def _test(
    name: str, status: str, raw: str, message: str, seconds: float | None = None
) -> dict[str, Any]:
    return {
        "name": one_line(name) or "unnamed",
        "status": status,
        "duration": round((seconds or 0) * 1000),
        "rawStatus": raw,
        "message": one_line(message),
    }


def _milliseconds(moment: str | None) -> int:
    """Milliseconds since 1970; 0 when the record does not say."""
    try:
        return round(
            datetime.fromisoformat((moment or "").replace("Z", "+00:00")).timestamp() * 1000
        )
    except ValueError:
        return 0


def _renew_sums(run: Path, paths: list[Path]) -> None:
    """Renew the sums of these files only: the others still tell whether evidence was touched."""
    sums = run / "SHA256SUMS"
    if not sums.is_file():
        return
    old = [line for line in sums.read_text(encoding="utf-8").splitlines() if "  " in line]
    listed = {line.split("  ", 1)[1]: line for line in old}
    for path in paths:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        listed[path.name] = f"{digest}  {path.name}"
    write_atomically(sums, "\n".join(listed[name] for name in sorted(listed)) + "\n")
