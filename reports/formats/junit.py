"""Writes JUnit XML and CTRF for a CI system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

from reports.acceptance import AcceptanceSummary, ReportRow
from reports.measurement import Measurement, Verdict
from reports.record import ProbeResult
from reports.run_folder.times import known_time
from reports.sanitize import one_line

DECISION = "decision"
NO_PROBE = "no probe ran"
BASELINE = "baseline"  # name of the case of a measure that is worse than in an earlier run


class Outcome(Enum):
    """How a case ends for a tool that knows no verdicts."""

    PASSED = "passed"
    FAILED = "failed"
    UNPROVEN = "unproven"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class ReportCase:
    """One test case. `suite` is its criterion. `lines` say what keeps it from PASS."""

    suite: str
    name: str
    outcome: Outcome
    verdict: Verdict
    lines: list[str]
    seconds: float = 0.0
    measurements: list[Measurement] = field(default_factory=list)


def list_cases(summary: AcceptanceSummary) -> Iterator[ReportCase]:
    """Yield the cases of each criterion in the order of the contract, then the decision."""
    for row in summary.rows:
        yield from (_result_case(row, result) for result in row.results)
        if not row.results:
            yield _case(row, NO_PROBE, Verdict.UNPROVEN, [row.problem])
        for one in row.regressions:
            yield _case(row, BASELINE, one.verdict, [one.sentence])
    yield ReportCase(
        suite=DECISION,
        name=DECISION,
        outcome={0: Outcome.PASSED, 1: Outcome.FAILED}.get(summary.exit_code, Outcome.UNPROVEN),
        verdict=summary.shown_verdict,
        lines=[summary.headline, *summary.reasons],
    )


def _result_case(row: ReportRow, result: ProbeResult) -> ReportCase:
    verdict = result.verdict
    if row.criterion.not_provable:  # as in the row: what passes here proves nothing
        verdict = Verdict.worst([verdict, Verdict.UNPROVEN])
    lines = [
        *result.problems(row.criterion),
        *(f"{f.code}: {f.statement}" for f in result.findings),
    ]
    case = _case(row, result.probe, verdict, lines)
    return replace(case, seconds=result.seconds or 0.0, measurements=result.measurements)


def _case(row: ReportRow, name: str, verdict: Verdict, lines: list[str]) -> ReportCase:
    outcome = Outcome.PASSED if verdict.accepted else Outcome.FAILED
    if verdict is Verdict.UNPROVEN:
        outcome = Outcome.UNPROVEN if row.criterion.required else Outcome.SKIPPED
    label = [row.label] if row.label and verdict is not Verdict.PASS else []
    return ReportCase(row.criterion.id, name, outcome, verdict, [*lines, *label])


def run_facts(summary: AcceptanceSummary) -> dict[str, str]:
    """Return the facts of the run as a whole, as text."""
    record = summary.record
    return {
        "cluster": record.cluster_name,
        "run": record.id,
        "contract": record.contract.name,
        "tier": record.tier,
        "state": record.state,
        "started": record.started,
        "finished": record.finished or "no",
        "rehearsal": record.rehearsal or "no",
        "partial": record.partial or "no",
        "verdict": summary.shown_verdict.value,
        "exit_code": str(summary.exit_code),
    }


ELEMENTS = {Outcome.FAILED: "failure", Outcome.UNPROVEN: "error", Outcome.SKIPPED: "skipped"}
COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def junit(summary: AcceptanceSummary) -> str:
    """Return the XML text of a run."""
    root = ElementTree.Element("testsuites", {"name": "seatrial"})
    for name, cases in groupby(list_cases(summary), lambda case: case.suite):
        _add_suite(root, name, list(cases), summary)
    _count_outcomes(root, ("failure", "error"))  # the schema of this element has no `skipped`
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _add_suite(
    root: ElementTree.Element, name: str, cases: list[ReportCase], summary: AcceptanceSummary
) -> None:
    suite = ElementTree.SubElement(root, "testsuite", {"name": one_line(name)})
    if started := known_time(summary.record.started):  # JUnit's are in UTC, without a zone
        suite.set("timestamp", started.strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("time", f"{sum(case.seconds for case in cases):.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _suite_properties(name, cases, summary):
        attributes = {"name": one_line(key), "value": one_line(value)}
        ElementTree.SubElement(properties, "property", attributes)
    for case in cases:
        _add_case(suite, case)
    _count_outcomes(suite, ELEMENTS.values())


def _suite_properties(
    name: str, cases: list[ReportCase], summary: AcceptanceSummary
) -> list[tuple[str, str]]:
    """List the run, the verdict, the nodes, and each value with its limit, also of one name.

    They are not of the case: the schema that Jenkins checks has no properties there.
    """
    facts, nodes = run_facts(summary), frozenset(summary.record.node_names)
    if name == DECISION:
        return list(facts.items())
    measurements = [m for case in cases for m in case.measurements]
    named = dict.fromkeys(m.subject for m in measurements if m.subject in nodes)
    properties = [(key, facts[key]) for key in ("cluster", "run")]
    properties.append(("verdict", Verdict.worst(case.verdict for case in cases).value))
    properties += [("nodes", ", ".join(named))] if named else []
    for m in measurements:
        what = f"{m.name} on {m.subject}"
        properties.append((what, m.value_text))
        if m.judged and m.limit:
            properties.append((f"limit of {what}", f"{m.limit} ({m.limit.because})"))
    return properties


def _add_case(suite: ElementTree.Element, case: ReportCase) -> None:
    """Add a case with what keeps it from passing, or with the output of one that passed."""
    names = {"classname": one_line(case.suite), "name": one_line(case.name)}
    element = ElementTree.SubElement(suite, "testcase", names, time=f"{case.seconds:.3f}")
    shown = [one_line(line) for line in case.lines if line]
    if case.outcome is not Outcome.PASSED:
        attributes = {"type": case.verdict.value, "message": (shown or [case.verdict.value])[0]}
        ElementTree.SubElement(element, ELEMENTS[case.outcome], attributes).text = "\n".join(shown)
    elif shown:
        shown = [case.verdict.value, *shown]
        ElementTree.SubElement(element, "system-out").text = "\n".join(shown)


def _count_outcomes(element: ElementTree.Element, kinds: Iterable[str]) -> None:
    """Set the numbers of tests and of each kind of outcome of an element."""
    element.set("tests", str(len(element.findall(".//testcase"))))
    for kind in kinds:
        element.set(COUNTS[kind], str(len(element.findall(f".//testcase/{kind}"))))


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
    time = known_time(timestamp)
    return round(time.timestamp() * 1000) if time else 0
