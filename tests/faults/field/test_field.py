"""The museum keeps its word: what it calls named was seen, and what is not has its reason."""

from __future__ import annotations

import re

import pytest

from tests.faults.field.page import FieldFault, read_field
from tests.lab.faults import FAULTS
from tests.support.seen import read_sights

FIELD = read_field()


@pytest.mark.parametrize("name", FIELD)
def test_what_is_named_was_seen(name: str) -> None:
    row, sights = FIELD[name], read_sights()
    assert all(set(row.codes) <= set(sights[test].red) for test in row.kept_by)
    assert bool(row.codes) == bool(row.kept_by)
    assert row.why or (row.now == "named" and row.kept_by)


@pytest.mark.parametrize("name", FIELD)
def test_what_is_planted_is_a_fault_of_the_lab(name: str) -> None:
    planted = FIELD[name].planted
    if not planted.startswith("by hand: "):
        assert {re.split(r"\s", one)[0] for one in planted.split(", ")} <= FAULTS.keys()


def test_what_is_called_named_has_a_code_where_something_fails() -> None:
    rows: list[FieldFault] = [row for row in FIELD.values() if row.now != "named"]
    assert [row.codes for row in rows] == [[] for _ in rows]
