"""Exports the record as CTRF, the Common Test Report Format.

UNPROVEN is `other`. Without the last test, the decision, a tool that counts failures would accept
a run that proved nothing.
"""

from __future__ import annotations

from typing import Any

from reports.acceptance import AcceptanceSummary
from reports.formats.cases import DECISION, Outcome, ReportCase, list_cases
from reports.formats.run_labels import run_facts
from reports.measurement import Measurement
from reports.run_folder.store import parse_time
from reports.sanitize import one_line

STATUSES = ("passed", "failed", "skipped", "pending", "other")
VERSION = "0.0.0"  # the CTRF schema requires a SemVer but names no version


def ctrf(summary: AcceptanceSummary) -> dict[str, Any]:
    """Build the report of a run."""
    record, nodes = summary.record, frozenset(summary.record.node_names)
    facts = {key: one_line(value) for key, value in run_facts(summary).items()}
    tests = [_ctrf_test(case, nodes) for case in list_cases(summary)]
    statuses = [test["status"] for test in tests]
    counts = {status: statuses.count(status) for status in STATUSES}
    start = _epoch_ms(record.started)
    stop = _epoch_ms(record.finished) or start
    return {
        "reportFormat": "CTRF",
        "specVersion": VERSION,
        "generatedBy": "seatrial",
        **({"timestamp": facts["finished"]} if _epoch_ms(record.finished) else {}),
        "results": {
            "tool": {"name": "seatrial"},
            "summary": {"tests": len(tests), **counts, "start": start, "stop": stop},
            "tests": tests,
            "environment": {"reportName": facts["run"], "extra": facts},
        },
    }


def _ctrf_test(case: ReportCase, nodes: frozenset[str]) -> dict[str, Any]:
    status = "other" if case.outcome is Outcome.UNPROVEN else case.outcome.value
    if case.suite == DECISION and case.outcome is not Outcome.PASSED:
        status = "failed"
    test = {
        "name": one_line(case.name) or "unnamed",
        "suite": [one_line(case.suite) or "none"],
        "status": status,
        "duration": round(case.seconds * 1000),
        "rawStatus": case.verdict.value,
        "message": "; ".join(one_line(line) for line in case.lines if line),
    }
    measured = [_ctrf_measurement(m, nodes) for m in case.measurements]
    return {**test, "extra": {"measurements": measured}} if measured else test


def _ctrf_measurement(m: Measurement, nodes: frozenset[str]) -> dict[str, Any]:
    """Describe a value with its limit; `node` is empty if the subject is no node."""
    limit = m.limit if m.judged else None
    return {
        "name": one_line(m.name),
        "subject": one_line(m.subject),
        "node": one_line(m.subject) if m.subject in nodes else "",
        "value": one_line(m.value) if isinstance(m.value, str) else m.value,
        "unit": one_line(m.unit),
        "limit": one_line(limit) if limit else "",
        "low": limit.low if limit else None,
        "high": limit.high if limit else None,
        "because": one_line(limit.because) if limit else "",
        "verdict": m.verdict.value if m.verdict else "",
    }


def _epoch_ms(timestamp: str | None) -> int:
    """Convert to milliseconds since 1970; 0 if the timestamp is missing or invalid."""
    try:
        return round(parse_time(timestamp).timestamp() * 1000)
    except ValueError:
        return 0
