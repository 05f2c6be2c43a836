"""Exports the record for other tools: CTRF, Prometheus, and the record's JSON schema.

JUnit is in reports/junit.py, CSV in reports/frames/measurements.py. Nothing is decided here. In no
format is an unproven result "passed".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reports.acceptance import AcceptanceSummary, ReportRow
from reports.frames.measurements import csv_text
from reports.junit import junit
from reports.measurement import Verdict
from reports.page.render import render
from reports.record import ProbeResult, RunRecord
from reports.run_folder.files import SUMS, UnreadableRun, open_regular, write_atomically
from reports.run_folder.store import parse_time, record_text
from reports.sanitize import label_value, one_line
from reports.version import same_version

Sample = tuple[dict[str, str], float]  # of Prometheus: (labels, value)
CTRF_STATUSES = ("passed", "failed", "skipped", "pending", "other")
CTRF_VERSION = "0.0.0"  # the CTRF schema requires a SemVer but names no version


def render_all(
    run: Path | None,
    summary: AcceptanceSummary,
    baseline: AcceptanceSummary | None = None,
    evidence_at: str = ".",
) -> dict[str, str]:
    """Return the text of every rendering, by file name.

    `evidence_at` is the path of the run folder as links on the page reach it.
    """
    return {
        "report.html": render(summary, run, baseline, evidence_at),
        "measurements.csv": csv_text(summary.record.frame()),
        "metrics.prom": prometheus(summary),
        "ctrf.json": json.dumps(ctrf(summary), indent=1) + "\n",
        "junit.xml": junit(summary),
        "record.schema.json": json.dumps(RunRecord.model_json_schema(), indent=1) + "\n",
    }


def write_all(target: Path, texts: dict[str, str]) -> None:
    """Write the renderings into the folder `target`."""
    for name, text in texts.items():
        write_atomically(target / name, text)


def check_renderings(run: Path, summary: AcceptanceSummary) -> tuple[list[str], str]:
    """Find the renderings of a finished run that do not match its events.

    Returns (problems, reason why something was not compared). The reason is "" if all were
    compared. Nothing is compared if another version wrote them, because its wording may differ,
    or if the run was killed. The page of a run with a baseline is not compared either, because
    the baseline run would be needed.
    """
    record = summary.record
    if not (run / SUMS).exists():
        return [], "the run did not finish"
    if not same_version(record.versions):
        return [], "another version of seatrial, or of what it renders with, wrote them"
    texts = {**render_all(run, summary), "record.json": record_text(record)}
    del texts["record.schema.json"]  # does not depend on the run
    if record.baseline:
        del texts["report.html"]
    wrong = [name for name, text in texts.items() if read_content(run / name) != text.encode()]
    problems = [f"{name} does not match the events" for name in wrong]
    return problems, "the page was not: it compares with a baseline" if record.baseline else ""


def read_content(path: Path) -> bytes:
    """Return the bytes of a rendering; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except UnreadableRun:
        return b""


def prometheus(summary: AcceptanceSummary) -> str:
    """Write metrics for node_exporter's textfile collector.

    They are run info, exit code, verdicts (0 PASS to 3 FAIL) and the measured numbers.
    """
    record, run = summary.record, {"run": summary.record.id}
    info = {**run, "contract": record.contract.name, "tier": record.tier}
    marks = {"rehearsal": record.rehearsal, "partial": record.partial}
    kind = {name: "yes" if text else "no" for name, text in marks.items()}
    info |= kind
    lines = _metric_lines("seatrial_run_info", "Which run this is; always 1.", [(info, 1)])
    text = (
        "0 accepted, 1 failed, 2 interrupted, 3 error outside the probes, 4 unusable or "
        "changed, 20 unproven."
    )
    lines += _metric_lines("seatrial_exit_code", text, [({**run, **kind}, summary.exit_code)])
    text = "0 PASS, 1 MARGINAL, 2 UNPROVEN, 3 FAIL."
    lines += _metric_lines("seatrial_criterion_verdict", text, _verdict_samples(summary.rows))
    text = "Measured values that are numbers."
    lines += _metric_lines("seatrial_measurement", text, _measurement_samples(record))
    return "\n".join(lines) + "\n"


def _verdict_samples(rows: list[ReportRow]) -> Iterator[Sample]:
    for row in rows:
        required = "yes" if row.criterion.required else "no"
        yield {"criterion": row.criterion.id, "required": required}, row.verdict.rank


def _measurement_samples(record: RunRecord) -> Iterator[Sample]:
    """Yield one sample per number; an `occurrence` label makes equal label sets unique."""
    counts = Counter[tuple[str, ...]]()
    for result in record.results:
        for m in result.measurements:
            if m.value is None or isinstance(m.value, str):
                continue
            key = (result.criterion, result.probe, m.name, m.subject, m.unit)
            counts[key] += 1
            labels = dict(zip(("criterion", "probe", "name", "subject", "unit"), key, strict=True))
            labels |= {"occurrence": str(counts[key])} if counts[key] > 1 else {}
            yield labels, float(m.value)


def _metric_lines(name: str, text: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        words = [f'{key}="{label_value(label)}"' for key, label in labels.items()]
        lines.append(f"{name}{{{','.join(words)}}} {value}")
    return lines


def ctrf(summary: AcceptanceSummary) -> dict[str, Any]:
    """Build the Common Test Report Format. UNPROVEN is `other`; the last test is the decision.

    Without the last test, a tool that counts failures would accept a run that proved nothing.
    """
    record = summary.record
    tests = [_ctrf_test(result) for result in record.results]
    tests += [
        _test_entry(f"{row.criterion.id}: no probe ran", "other", "UNPROVEN", row.problem)
        for row in summary.rows
        if not row.results and row.criterion.required
    ]
    run_status = "passed" if summary.exit_code == 0 else "failed"
    message = "; ".join([summary.headline, *summary.reasons])
    tests.append(_test_entry("acceptance", run_status, summary.shown_verdict.value, message))
    statuses = [test["status"] for test in tests]
    counts = {status: statuses.count(status) for status in CTRF_STATUSES}
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
            "environment": {
                "reportName": one_line(record.id),
                "extra": {
                    "tier": record.tier,
                    "rehearsal": one_line(record.rehearsal),
                    "partial": one_line(record.partial),
                },
            },
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
    """Convert to milliseconds since 1970; 0 if the timestamp is missing or invalid."""
    try:
        return round(parse_time(timestamp).timestamp() * 1000)
    except ValueError:
        return 0
