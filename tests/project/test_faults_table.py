"""Each judged measure, and each finding, has a fault that turns it red; the page says which."""

from __future__ import annotations

import ast

import pytest

from probes.check.registry import CRITERIA
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
