"""Exports the record as JUnit: one suite per criterion; the last suite holds the decision.

An unproven case is an error, also if no probe ran, so that no tool counts it as passed. What a
passed case has to say, such as MARGINAL, is its output.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from xml.etree import ElementTree

from reports.acceptance import AcceptanceSummary
from reports.formats.cases import DECISION, Outcome, ReportCase, list_cases
from reports.formats.run_labels import run_facts
from reports.measurement import Verdict
from reports.run_folder.store import parse_time
from reports.sanitize import one_line

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
    if timestamp := _timestamp(summary.record.started):
        suite.set("timestamp", timestamp)
    suite.set("time", f"{sum(case.seconds for case in cases):.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _suite_properties(name, cases, summary):
        attributes = {"name": one_line(key), "value": one_line(value)}
        ElementTree.SubElement(properties, "property", attributes)
    for case in cases:
        _add_case(suite, case)
    _count_outcomes(suite, ELEMENTS.values())


def _timestamp(started: str) -> str:
    """Return the start as JUnit has it: UTC to the second, without a zone; "" if it is invalid."""
    try:
        return parse_time(started).strftime("%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return ""


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
    attributes = {
        "classname": one_line(case.suite),
        "name": one_line(case.name),
        "time": f"{case.seconds:.3f}",
    }
    element = ElementTree.SubElement(suite, "testcase", attributes)
    shown = [one_line(line) for line in case.lines if line]
    if case.outcome is not Outcome.PASSED:
        attributes = {"type": case.verdict.value, "message": (shown or [case.verdict.value])[0]}
        outcome = ElementTree.SubElement(element, ELEMENTS[case.outcome], attributes)
        outcome.text = "\n".join(shown)
    elif shown:
        output = ElementTree.SubElement(element, "system-out")
        output.text = "\n".join([case.verdict.value, *shown])


def _count_outcomes(element: ElementTree.Element, kinds: Iterable[str]) -> None:
    """Set the numbers of tests and of each kind of outcome of an element."""
    element.set("tests", str(len(element.findall(".//testcase"))))
    for kind in kinds:
        element.set(COUNTS[kind], str(len(element.findall(f".//testcase/{kind}"))))
