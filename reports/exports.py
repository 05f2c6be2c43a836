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

from reports.acceptance import decision_sentence, report_rows
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
    _update_checksums(run, paths)
    return paths


def measurements_csv(record: RunRecord) -> str:
    """One line per measurement.  Words that a spreadsheet would run are defused."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_HEADER)
    for result in record.results:
        for m in result.measurements:
            table.writerow(_csv_row(result, m))
    return text.getvalue()


def _csv_row(result: ProbeResult, m: Measurement) -> list[Any]:
    names = [result.criterion, result.probe, m.name, m.subject]
    value = csv_cell(m.value) if isinstance(m.value, str) else m.value
    low, high = (m.limit.low, m.limit.high) if m.limit else (None, None)
    verdict = m.verdict.value if m.verdict else ""
    return [*map(csv_cell, names), value, csv_cell(m.unit), low, high, verdict]


def prometheus(record: RunRecord) -> str:
    """For node_exporter's textfile collector: verdicts 0 PASS to 3 FAIL, values, the decision."""
    lines = [*_help_lines("seatrial_run_info", "Which run this is; always 1.")]
    info = {"run": record.id, "contract": record.contract.name, "tier": record.tier}
    info["rehearsal"] = "yes" if record.rehearsal else "no"
    lines.append(_sample_line("seatrial_run_info", info, 1))
    lines += _help_lines("seatrial_exit_code", "0 accepted, 1 failed, 2 interrupted, 20 unproven.")
    lines.append(_sample_line("seatrial_exit_code", {"run": record.id}, record.exit_code))
    lines += _help_lines("seatrial_criterion_verdict", "0 PASS, 1 MARGINAL, 2 UNPROVEN, 3 FAIL.")
    for row in report_rows(record):
        required = "yes" if row.criterion.required else "no"
        labels = {"criterion": row.criterion.id, "required": required}
        lines.append(_sample_line("seatrial_criterion_verdict", labels, row.verdict.rank))
    lines += _help_lines("seatrial_measurement", "Measured values that are numbers.")
    lines += _measurement_samples(record)
    return "\n".join(lines) + "\n"


def _measurement_samples(record: RunRecord) -> Iterator[str]:
    """Label sets must be unique: equal ones are numbered."""
    counts: dict[tuple[str, ...], int] = {}
    for result in record.results:
        for m in result.measurements:
            if m.value is None or isinstance(m.value, str):
                continue
            key = (result.criterion, result.probe, m.name, m.subject, m.unit)
            counts[key] = counts.get(key, 0) + 1
            labels = dict(zip(("criterion", "probe", "name", "subject", "unit"), key, strict=True))
            labels |= {"occurrence": str(counts[key])} if counts[key] > 1 else {}
            yield _sample_line("seatrial_measurement", labels, float(m.value))


def _help_lines(name: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge"]


def _sample_line(name: str, labels: dict[str, str], value: float) -> str:
    label_text = ",".join(f'{key}="{label_value(text)}"' for key, text in labels.items())
    return f"{name}{{{label_text}}} {value}"


def ctrf(record: RunRecord) -> dict[str, Any]:
    """Common Test Report Format.  UNPROVEN is `other`; the last test is the decision itself.

    Without that last one, a reader that counts failures would take a run that proved nothing
    for a good one.
    """
    tests = [_ctrf_test(result) for result in record.results]
    tests += [
        _test_entry(f"{row.criterion.id}: no probe ran", "other", "UNPROVEN", row.problem)
        for row in report_rows(record)
        if not row.results and row.criterion.required
    ]
    run_status = "passed" if record.exit_code == 0 else "failed"
    sentence = decision_sentence(record)
    tests.append(_test_entry("acceptance", run_status, record.decision.value, sentence))
    counts = {
        status: sum(test["status"] == status for test in tests)
        for status in ("passed", "failed", "skipped", "pending", "other")
    }
    start = _epoch_ms(record.started)
    stop = _epoch_ms(record.finished) or start
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
    message = "; ".join(result.problems())
    test = _test_entry(result.probe, status, result.verdict.value, message, result.seconds)
    return {**test, "suite": [one_line(result.criterion) or "none"]}


def _test_entry(
    name: str, status: str, raw: str, message: str, seconds: float | None = None
) -> dict[str, Any]:
    return {
        "name": one_line(name) or "unnamed",
        "status": status,
        "duration": round((seconds or 0) * 1000),
        "rawStatus": raw,
        "message": one_line(message),
    }


def _epoch_ms(timestamp: str | None) -> int:
    """Milliseconds since 1970; 0 when the record does not say."""
    try:
        return round(
            datetime.fromisoformat((timestamp or "").replace("Z", "+00:00")).timestamp() * 1000
        )
    except ValueError:
        return 0


def _update_checksums(run: Path, paths: list[Path]) -> None:
    """Renew the sums of these files only: the others still tell whether evidence was touched."""
    sums = run / "SHA256SUMS"
    if not sums.is_file():
        return
    old_lines = [line for line in sums.read_text(encoding="utf-8").splitlines() if "  " in line]
    entries = {line.split("  ", 1)[1]: line for line in old_lines}
    for path in paths:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        entries[path.name] = f"{digest}  {path.name}"
    write_atomically(sums, "\n".join(entries[name] for name in sorted(entries)) + "\n")
