"""The page of features says what its data says, and the data names what is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults.test_live_faults import list_cases
from tests.project.coverage_page import (
    COVERAGE_PAGE,
    STATES,
    Feature,
    read_features,
    summarise_states,
)
from tests.support.paths import REPO

MAX_WORDS = 20  # of a feature: a cell of the table is read at a glance
IDS = [*map(str, range(1, 37)), *(f"s{number}" for number in range(1, 15))]
FEATURES = read_features()
LIVE = Path("tests/faults/test_live_faults.py")
CASES = {one.id for faults in (True, False) for one in list_cases(faults=faults)}
SOUND = Feature("1", "It runs.", "works", ["probes/plugin.py"], ["a.py::test_b"])


def find_faults(row: Feature, root: Path = REPO) -> list[str]:
    """Say what is wrong with a row."""
    faults = []
    if row.state not in STATES:
        faults.append(f"state is {row.state!r}, expected one of {', '.join(STATES)}")
    if row.state == "works" and not (row.code and row.tests):
        faults.append("it works, expected a code file and a test")
    if row.state != "works" and not row.note.endswith("."):
        faults.append(f"it is {row.state}, expected a note that says what is not checked")
    if len(row.feature.split()) > MAX_WORDS or not row.feature.endswith("."):
        faults.append(f"feature is no sentence of at most {MAX_WORDS} words")
    faults += [f"{name} is named twice" for name in _twice(row.code) | _twice(row.tests)]
    faults += [f"{name} is not there" for name in row.code if not (root / name).is_file()]
    return faults + [f"{test} is not there" for test in row.tests if not is_test(test, root)]


def _twice(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}


def is_test(test: str, root: Path) -> bool:
    """Whether a file of the tests has this function, and the table of live faults its case."""
    name, _, case = test.partition("::")
    function, _, id = case.partition("[")
    if not (name.startswith("tests/") and (root / name).is_file()):
        return False
    tree = ast.parse((root / name).read_text())
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    has_case = not id or (Path(name) == LIVE and id.removesuffix("]") in CASES)
    return has_case and function.startswith("test_") and function in functions


def test_each_row_is_there_once_and_in_order() -> None:
    assert [row.id for row in FEATURES] == IDS


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row.id)
def test_a_row_names_what_is_there(row: Feature) -> None:
    assert find_faults(row) == []


def test_the_page_begins_with_the_states() -> None:
    counts = [sum(row.state == state for row in FEATURES) for state in STATES]
    sentence = summarise_states(FEATURES)
    assert [int(word) for word in sentence.split() if word.isdecimal()] == [len(IDS), *counts]
    assert f"**{sentence}**" in COVERAGE_PAGE.read_text().partition("| row |")[0]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"state": "perhaps", "note": "Much."}, "state is 'perhaps', expected one of works, thin"),
        ({"code": []}, "it works, expected a code file and a test"),
        ({"tests": []}, "it works, expected a code file and a test"),
        ({"state": "thin"}, "it is thin, expected a note"),
        ({"state": "missing"}, "it is missing, expected a note"),
        ({"feature": "word " * 20 + "end."}, "feature is no sentence of at most 20 words"),
        ({"code": ["probes/plugin.py"] * 2}, "probes/plugin.py is named twice"),
        ({"code": ["probes/gone.py"]}, "probes/gone.py is not there"),
        ({"tests": ["tests/gone.py::test_b"]}, "tests/gone.py::test_b is not there"),
        ({"tests": ["tests/a.py::test_c"]}, "tests/a.py::test_c is not there"),
        ({"tests": ["tests/a.py::test_b[gone]"]}, "tests/a.py::test_b[gone] is not there"),
        ({"tests": ["tests/a.py::b"]}, "tests/a.py::b is not there"),
        ({"tests": ["probes/plugin.py::test_b"]}, "probes/plugin.py::test_b is not there"),
    ],
)
def test_each_rule_can_fail(change: dict[str, object], fault: str, tmp_path: Path) -> None:
    for name in ("probes/plugin.py", "tests/a.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("def test_b(): ...\n\n\ndef b(): ...\n")
    sound = {**vars(SOUND), "tests": ["tests/a.py::test_b"]}
    assert find_faults(Feature(**sound), tmp_path) == []
    (found,) = find_faults(Feature(**{**sound, **change}), tmp_path)
    assert found.startswith(fault)
