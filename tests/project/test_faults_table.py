"""Each judged measure, and each finding, has a fault that turns it red; the page says which."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Made
from typing import Any, cast

import pytest

from probes.check.registry import CRITERIA
from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import Case, Family, are_all_of, are_some_of, is_named
from tests.faults.live_faults import FAMILIES
from tests.faults.table import PAGE, code_rows, make_rows, read_reasons, write_page
from tests.support.paths import REPO
from tests.support.seen import read_sights

SIGHTS, REASONS = read_sights(), read_reasons()
HOW = (
    "Write a test that sees it. Mark a near miss with near_miss(MEASURE). "
    "Run both with SEATRIAL_SEEN=write, or give a reason in tests/faults/reasons.toml. "
    "Then run `make docs`."
)


def test_the_page_says_what_the_tests_say() -> None:
    assert PAGE.read_text() == write_page(), "run `python -m tests.faults.table`"


@pytest.mark.parametrize("criterion", CRITERIA)
def test_each_measure_has_a_control_a_fault_and_a_near_miss(criterion: str) -> None:
    rows = make_rows(criterion, SIGHTS, REASONS)
    assert {f"{criterion}.{row.name}": row.empty for row in rows if row.empty} == {}, HOW


def test_each_finding_was_seen() -> None:
    assert [row.name for row in code_rows(SIGHTS, REASONS) if row.empty] == [], HOW


def test_each_measure_was_seen_red_by_some_test() -> None:
    """A reason may stand for a lab's fault, never for every test."""
    red = {name for sight in SIGHTS.values() for name in sight.red}
    names = {f"{id}.{name}" for id, row in CRITERIA.items() for name in row.measures}
    assert names - red == set()


def test_a_reason_stands_only_where_a_test_is_missing() -> None:
    empty = {
        (f"{criterion}.{row.name}", column)
        for criterion in CRITERIA
        for row in make_rows(criterion, SIGHTS, {})
        for column in row.empty
    }
    empty |= {(row.name, "tests") for row in code_rows(SIGHTS, {}) if row.empty}
    assert {(name, column) for name, each in REASONS.items() for column in each} <= empty


def test_the_tests_that_are_named_are_there() -> None:
    functions: dict[str, set[str]] = {}
    for test in SIGHTS:
        path, _, name = test.partition("::")
        if path not in functions:
            tree = ast.parse((REPO / path).read_text())
            functions[path] = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert name.partition("[")[0] in functions[path], test


def test_no_test_that_draws_its_faults_is_named() -> None:
    """What hypothesis draws differs between runs: such a test cannot promise what it sees."""
    for path in {test.partition("::")[0] for test in SIGHTS}:
        for node in ast.walk(ast.parse((REPO / path).read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(one).startswith("given(") for one in node.decorator_list
            ):
                named = [test for test in SIGHTS if test.startswith(f"{path}::{node.name}")]
                assert named == []


def test_each_live_case_runs_a_probe_that_is_there() -> None:
    for family, cases in FAMILIES.values():
        for arguments in (case.arguments or family.arguments for case in cases):
            path, _, function = arguments[0].partition("::")
            assert (REPO / path).exists(), arguments
            assert not function or f"def {function}(" in (REPO / path).read_text(), arguments


SEEN = Case("a fault", {"HOST-A"}, ["node1"], ["node1: 7"], broken={"gpus"}, controls=1)
ONE = Family("HOSTS", "hosts", [], one_finding=True)


def see(family: Family, case: Case, tmp_path: Path) -> None:
    """Compare a case with a made-up run in which HOSTS names node1."""
    said = Made(code="HOST-A", suspects=["node1"], statement="node1: 7 GPUs")
    measured = [Made(name="gpus", verdict=Verdict.FAIL), Made(name="xids", verdict=Verdict.PASS)]
    result = Made(findings=[said], measurements=measured, controls=[Made(caught=True)])
    record = Made(results=[result], verdict={"HOSTS": Verdict.FAIL}.get)
    (tmp_path / "log").write_text("")
    is_named(family, case, cast(Any, record), cast(Any, Made(log=tmp_path / "log")))


def test_what_is_seen_of_a_live_fault_is_what_its_case_says(tmp_path: Path) -> None:
    see(ONE, SEEN, tmp_path)
    see(replace(ONE, suspected=are_some_of), replace(SEEN, suspects=["node1", "node2"]), tmp_path)
    see(replace(ONE, suspected=are_all_of), replace(SEEN, suspects=[]), tmp_path)


@pytest.mark.parametrize(
    ("family", "case"),
    [
        ({"red": Verdict.UNPROVEN}, {}),
        ({}, {"codes": {"HOST-B"}}),
        ({}, {"codes": set()}),
        ({}, {"suspects": ["node1", "node2"]}),
        ({"suspected": are_some_of}, {"suspects": []}),
        ({"suspected": are_some_of}, {"suspects": ["node2"]}),
        ({"suspected": are_all_of}, {"suspects": ["node1", "node2"]}),
        ({}, {"says": ["node1: 7", "node1: 8"]}),
        ({}, {"broken": set()}),
        ({}, {"controls": 2}),
    ],
)
def test_each_check_of_a_live_fault_can_fail(
    family: dict[str, Any], case: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        see(replace(ONE, **family), replace(SEEN, **case), tmp_path)
