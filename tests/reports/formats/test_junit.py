"""JUnit fits the schema that Jenkins checks, and is green for no run that is not accepted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from reports.acceptance import AcceptanceSummary, load_summary
from reports.formats.junit import junit
from reports.measurement import Verdict
from reports.record import Finding
from tests.reports.formats.runs import NODES, ODD, every_run, measured, result_of, summary_of
from tests.support.paths import RECORDINGS

# Reduced from jenkinsci/xunit-plugin, junit-10.xsd in src/main/resources, to what we write:
# element -> (required attributes, other attributes, elements inside).
OUTCOMES = {"failure", "error", "skipped"}
ELEMENTS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package"},
        {"properties", "testcase", "system-out"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": ({"name"}, {"time", "classname"}, OUTCOMES | {"system-out"}),
    "system-out": (set(), set(), set()),
    **{name: (set[str](), {"type", "message"}, set[str]()) for name in OUTCOMES},
}


def tree_of(summary: AcceptanceSummary) -> ElementTree.Element:
    """The tree of a run, checked against the schema; its counts are right."""
    root = ElementTree.fromstring(junit(summary).encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        required, others, inside = ELEMENTS[element.tag]
        assert required <= element.attrib.keys() <= required | others, element.tag
        assert {child.tag for child in element} <= inside, element.tag
        for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            if name in element.attrib:
                assert int(element.attrib[name]) == len(element.findall(f".//{kind}"))
        if "tests" in element.attrib:
            assert int(element.attrib["tests"]) == len(element.findall(".//testcase"))
        assert re.fullmatch(r"\d+\.\d{3}", element.get("time", "0.000"))
    return root


def suite_of(summary: AcceptanceSummary, name: str) -> ElementTree.Element:
    (suite,) = [one for one in tree_of(summary) if one.get("name") == name]
    return suite


def properties_of(suite: ElementTree.Element) -> list[tuple[str | None, str | None]]:
    return [(one.get("name"), one.get("value")) for one in suite.iter("property")]


def outcomes_of(suite: ElementTree.Element) -> list[str]:
    """The outcome of each case: its element, or `passed`."""
    inside = [
        [child.tag for child in case if child.tag in OUTCOMES] for case in suite.iter("testcase")
    ]
    return [tags[0] if tags else "passed" for tags in inside]


@every_run
def test_a_run_that_is_not_accepted_is_not_green(run: Path) -> None:
    summary = load_summary(run)
    root = tree_of(summary)
    broken = int(root.attrib["failures"]) + int(root.attrib["errors"])
    assert (broken == 0) == (summary.exit_code == 0)
    last = list(root.iter("testcase"))[-1]
    assert (last.get("name"), last.get("classname")) == ("decision", "decision")
    assert bool([child for child in last if child.tag in OUTCOMES]) == (summary.exit_code != 0)


@every_run
def test_each_criterion_that_is_not_proven_has_a_case_that_did_not_pass(run: Path) -> None:
    summary = load_summary(run)
    if run.name == "hostile":  # its names are cleaned
        return
    for row in summary.rows:
        outcomes = set(outcomes_of(suite_of(summary, row.criterion.id)))
        if row.verdict.accepted:
            assert outcomes == {"passed"}
        elif row.verdict is Verdict.FAIL:
            assert "failure" in outcomes
        else:
            assert ("error" if row.criterion.required else "skipped") in outcomes


def test_what_this_cluster_cannot_prove_does_not_pass() -> None:
    suite = suite_of(load_summary(RECORDINGS / "healthy-lab"), "FABRIC")
    assert outcomes_of(suite) == ["skipped"]
    (skipped,) = suite.iter("skipped")
    assert (skipped.text or "").startswith("not provable here: the lab has no RDMA device")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"state": "interrupted", "finished": None}, 2),
        ({"problems": [{"kind": "teardown", "where": "x", "text": "broke"}]}, 3),
        ({"partial": "-k fabric"}, 20),
        ({"owed": []}, 20),
        ({"results": [], "owed": []}, 20),
    ],
)
def test_the_decision_is_red_where_no_criterion_is(change: dict[str, Any], code: int) -> None:
    sound = result_of(measured("busbw", 2.0, low=1.0))
    assert summary_of(sound).exit_code == 0
    assert outcomes_of(tree_of(summary_of(sound))) == ["passed", "passed"]
    summary = summary_of(sound, **change)
    assert summary.exit_code == code
    assert outcomes_of(tree_of(summary))[-1] == "error"
    assert ("exit_code", str(code)) in properties_of(suite_of(summary, "decision"))


def test_marginal_passes_and_is_seen() -> None:
    summary = summary_of(result_of(measured("busbw", 1.1, low=1.0, marginal_low=1.2)))
    suite = suite_of(summary, "FABRIC")
    assert outcomes_of(suite) == ["passed"]
    assert ("verdict", "MARGINAL") in properties_of(suite)
    assert ("verdict", "MARGINAL") in properties_of(suite_of(summary, "decision"))
    (output,) = suite.iter("system-out")
    assert (output.text or "").splitlines() == [
        "MARGINAL",
        "busbw: 1.1 GB/s. Expected: >= 1 GB/s (agreed for this test)",
    ]


def test_pass_has_no_output_unless_something_was_found() -> None:
    value = measured("busbw", 2.0, low=1.0)
    assert not list(
        tree_of(summary_of(result_of(value))).findall(".//testsuite/testcase/system-out")
    )[1:]
    note = Finding(code="ENV-NOTE", statement="It has no effect.", remedy="Remove it.")
    suite = suite_of(summary_of(result_of(value, findings=[note])), "FABRIC")
    assert [one.text for one in suite.iter("system-out")] == ["PASS\nENV-NOTE: It has no effect."]


def test_values_limits_nodes_run_and_time_are_there() -> None:
    values = [measured("busbw", 0.5, node, low=1.0) for node in [*NODES, "node0 - node1"]]
    retry = measured("busbw", 2.0, "node0", low=1.0)
    summary = summary_of(result_of(*values, retry))
    suite = suite_of(summary, "FABRIC")
    found = properties_of(suite)
    limit = ">= 1 GB/s (agreed for this test)"
    for pair in [
        ("cluster", "atlas"),
        ("run", "run-1"),
        ("verdict", "FAIL"),
        ("nodes", "node0, node1"),
        ("busbw on node0", "0.5 GB/s"),
        ("busbw on node0", "2 GB/s"),
        ("limit of busbw on node1", limit),
    ]:
        assert pair in found
    assert suite.get("timestamp") == "2026-11-20T22:17:03"
    assert suite_of(summary_of(started="yesterday"), "decision").get("timestamp") is None


def test_hostile_names_stay_text() -> None:
    note = Finding(code=ODD, statement=ODD, remedy=ODD)
    value = measured(ODD, 0.5, ODD, low=1.0)
    result = result_of(value, criterion=ODD, findings=[note], probe=ODD, error=ODD)
    contract = {"name": ODD, "criteria": [{"id": ODD, "title": ODD, "how": ODD}]}
    root = tree_of(
        summary_of(
            result, id=ODD, cluster={"name": ODD, "nodes": [{"name": ODD}]}, contract=contract
        )
    )
    assert outcomes_of(root) == ["failure", "failure"]
    lines = "".join(root.itertext()).splitlines()
    assert not [line for line in lines if line.lstrip().startswith("::")]
