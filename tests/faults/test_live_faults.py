"""Each fault of the table is named where it is planted; what is near to one is sound, live."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.launchers.injected_faults import Case, Family, see
from tests.faults.live_faults import FAMILIES
from tests.lab.lab import Lab


def list_cases(*, faults: bool) -> list[Any]:
    """Return family, case, name of the run, and lab, for each fault or for what is near to one."""
    listed = []
    for name, (family, cases) in FAMILIES.items():
        lab = tuple(family.lab.items())
        for case in (one for one in cases if bool(one.codes) is faults):
            marks = [] if case.in_make_test else [pytest.mark.soak(criterion=family.soak)]
            marks += [pytest.mark.near_miss(*case.near)] * bool(case.near)
            ids = [f"{name}-{case.id}{f'-{at}' * (case.times > 1)}" for at in range(case.times)]
            for id in ids:
                run = id if faults else f"near-{id}"
                listed.append(pytest.param(family, case, run, lab, marks=marks, id=id))
    return listed


def over(cases: list[Any]) -> pytest.MarkDecorator:
    """Parametrise a test so that a lab is up once for all cases that name it."""
    names = ("family", "case", "run", "whole_lab")  # pytest sorts by the last one first
    return pytest.mark.parametrize(names, cases, indirect=["whole_lab"], scope="module")


@over(list_cases(faults=True))
def test_a_fault_is_named(lab: Lab, family: Family, case: Case, run: str) -> None:
    see(family, case, lab, run)


@over(list_cases(faults=False))
def test_what_is_near_to_a_fault_is_sound(lab: Lab, family: Family, case: Case, run: str) -> None:
    see(family, case, lab, run)
