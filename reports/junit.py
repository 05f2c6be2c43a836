"""Exports the record as JUnit: one suite per criterion; the last suite holds the decision.

An unproven result is an error, also if no probe ran, so that no tool counts it as passed. Only a
criterion that the contract does not require may be skipped.
"""

from __future__ import annotations

from xml.etree import ElementTree

from reports.acceptance import AcceptanceSummary, ReportRow
from reports.measurement import Verdict
from reports.record import ProbeResult
from reports.sanitize import one_line

KINDS = {Verdict.FAIL: "failure", Verdict.UNPROVEN: "error"}


def junit(summary: AcceptanceSummary) -> str:
    """Return the XML text of a run."""
    record = summary.record
    root = ElementTree.Element("testsuites", {"name": "seatrial"})
    for row in summary.rows:
        _add_criterion(root, row)
    suite = _add_suite(root, "decision", [])
    properties = {
        "run": record.id,
        "contract": record.contract.name,
        "tier": record.tier,
        "rehearsal": record.rehearsal or "no",
        "partial": record.partial or "no",
        "exit_code": str(summary.exit_code),
    }
    _add_properties(suite, properties)
    case = _add_case(suite, "decision", "decision", 0.0)
    if summary.exit_code:
        kind = "failure" if summary.exit_code == 1 else "error"
        _add_outcome(case, kind, [summary.headline, *summary.reasons])
    for element in root:
        _count_outcomes(element)
    _count_outcomes(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _add_criterion(root: ElementTree.Element, row: ReportRow) -> None:
    """Add the suite of a criterion: one case per result, or one case for `no probe ran`."""
    suite = _add_suite(root, row.criterion.id, row.results)
    for result in row.results:
        case = _add_case(suite, row.criterion.id, result.probe, result.seconds or 0.0)
        values = {f"{m.name} on {m.subject}": m.value_text for m in result.measurements}
        _add_properties(case, {"verdict": result.verdict.value, **values})
        if kind := _outcome_kind(row, result.verdict):
            lines = [*result.problems(), *(f"{f.code}: {f.statement}" for f in result.findings)]
            _add_outcome(case, kind, lines)
    if not row.results:
        kind = _outcome_kind(row, Verdict.UNPROVEN)
        case = _add_case(suite, row.criterion.id, "no probe ran", 0.0)
        _add_outcome(case, kind, [row.problem, row.label])


def _outcome_kind(row: ReportRow, verdict: Verdict) -> str:
    """Return the JUnit element of a verdict; "" for no element, which tools read as passed."""
    if row.criterion.required or verdict is Verdict.FAIL:
        return KINDS.get(verdict, "")
    return "skipped"


def _add_suite(
    root: ElementTree.Element, name: str, results: list[ProbeResult]
) -> ElementTree.Element:
    seconds = sum(result.seconds or 0.0 for result in results)
    return ElementTree.SubElement(
        root, "testsuite", {"name": one_line(name), "time": f"{seconds:.3f}"}
    )


def _add_case(
    suite: ElementTree.Element, of: str, name: str, seconds: float
) -> ElementTree.Element:
    attributes = {"classname": one_line(of), "name": one_line(name), "time": f"{seconds:.3f}"}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _add_properties(element: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(element, "properties")
    for name, value in values.items():
        attributes = {"name": one_line(name), "value": one_line(value)}
        ElementTree.SubElement(properties, "property", attributes)


def _add_outcome(case: ElementTree.Element, kind: str, lines: list[str]) -> None:
    shown = [one_line(line) for line in lines if line]
    outcome = ElementTree.SubElement(case, kind, {"message": shown[0] if shown else kind})
    outcome.text = "\n".join(shown)


def _count_outcomes(element: ElementTree.Element) -> None:
    """Set the numbers of tests, failures, errors and skipped tests of an element."""
    element.set("tests", str(len(element.findall(".//testcase"))))
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        element.set(name, str(len(element.findall(f".//testcase/{kind}"))))
