"""The acceptance table: its criteria, found by their presence, and what follows from all of them.

A criterion is a folder of `probes` with a `criterion.py`.  Its checks, controls and probes are what
that module declares.  Presence never shrinks what a run must record: a row of ACCEPTANCE_TABLE
without its folder, and a declaration that is not whole, raise BrokenCriterion.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from probes.check.declarations import Check, ControlRow, CriterionRow, Named, Probe
from probes.contract.terms import ClusterTerms
from probes.toml_tables import LazyTable, TableError
from reports.record import TIERS

PROBES = Path(__file__).resolve().parents[1]
FILE = "criterion.py"
# The rows that each run owes, in the order of the report; further criteria follow.
ACCEPTANCE_TABLE = ("FABRIC", "SCALING", "GANG", "LAUNCH", "RESTART", "HOSTS")
# Probes run in this order: the inventory first, then those that hand on their ranks (kept_gang.py).
RUN_FIRST = ("HOSTS", "FABRIC", "SCALING", "RESTART", "GANG", "LAUNCH")
Declared = TypeVar("Declared", bound=Named)


class BrokenCriterion(TableError):
    """A criterion that is missing, or whose declarations are not whole: one sentence."""


def load_criterion(file: Path) -> CriterionRow:
    """Load the criterion of a folder of `probes`.  Raises BrokenCriterion."""
    where = f"probes/{file.parent.name}/{file.name}"
    try:
        module = importlib.import_module(f"probes.{file.parent.name}.criterion")
    except Exception as error:
        raise BrokenCriterion(f"{where} cannot be imported: {error}") from error
    row = getattr(module, "CRITERION", None)
    if not isinstance(row, CriterionRow):
        raise BrokenCriterion(f"{where}: expected CRITERION, a CriterionRow, found {row!r}")
    row = dataclasses.replace(
        row,
        id=file.parent.name.upper(),
        checks=_declared(module, Check, where),
        planted=_declared(module, ControlRow, where),
        duties=tuple(_spread_cases(getattr(module, "PROBES", ()), file.parent.name)),
    )
    for problem in find_problems(row, file.parent):
        raise BrokenCriterion(f"{where}: {problem}")
    return row


def _declared(module: ModuleType, kind: type[Declared], where: str) -> tuple[Declared, ...]:
    """List what a module declares of a kind, in its order, also inside tuples."""
    found: dict[str, Declared] = {}

    def visit(value: Any) -> None:
        if isinstance(value, kind):
            if found.setdefault(str(value), value) is not value:
                raise BrokenCriterion(f"{where}: two {kind.KIND}s are named {value!r}")
        elif isinstance(value, tuple):
            for one in value:
                visit(one)

    for value in vars(module).values():
        visit(value)
    return tuple(found.values())


def _spread_cases(probes: Iterable[Probe], folder: str) -> Iterator[Probe]:
    """Make one probe of each case."""
    for probe in probes:
        for case, tier in (probe.cases or {"": probe.tier}).items():
            test = f"{probe.test}[{case}]" if case else probe.test
            yield dataclasses.replace(probe, test=test, tier=tier, cases={}, folder=folder)


def find_problems(row: CriterionRow, folder: Path) -> Iterator[str]:
    """Find what is not whole in the declarations of a criterion."""
    planted = {check for control in row.planted for check in control.fails}
    everywhere = {check for control in row.planted for check in control.fails if not control.when}
    for control in row.planted:
        for check in control.fails:
            if check not in row.checks:
                yield f"control {control!r} names {check!r}, which is not a check of {row.id}"
        if not control.fails:
            yield f"control {control!r} names no check. Expected: those that it must make fail"
    for check in row.checks:
        if check not in planted and not check.no_control:
            yield f"check {check!r} has no control, and its no_control is empty"
        if check in everywhere and check.no_control:
            yield f"check {check!r} has a control, but also a no_control"
    owed = [check for check in row.checks if not check.not_owed]
    yield from _find_unowed("check", owed, (set(one.checks) for one in row.duties))
    yield from _find_unowed("control", row.planted, (set(one.controls) for one in row.duties))
    tests = [duty.test for duty in row.duties]
    for duty in row.duties:
        if tests.count(duty.test) > 1:
            yield f"two probes are named {duty.test!r}"
        if duty.tier not in TIERS:
            yield f"probe {duty.test!r}: expected a tier of {', '.join(TIERS)}, found {duty.tier!r}"
    for test, duty in {duty.function: duty for duty in reversed(row.duties)}.items():
        if not duty.disturbs:
            yield f"probe {test!r} does not say what it disturbs"
        yield from _find_lost_test(test, folder)


def _find_unowed(kind: str, declared: Iterable[str], owed: Iterable[set[Any]]) -> Iterator[str]:
    """Find what no probe must record, and what one must record and nothing declares."""
    names = set().union(*owed)
    yield from (f"{kind} {one!r} is not in any probe" for one in declared if one not in names)
    lost = sorted(names - set(declared))
    yield from (f"a probe lists the {kind} {one!r}, which is not declared" for one in lost)


def _find_lost_test(test: str, folder: Path) -> Iterator[str]:
    """Find a probe whose test is not in its file."""
    name, _, function = test.partition("::")
    file = folder / name
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not re.search(rf"^def {re.escape(function)}\(", text, re.MULTILINE):
        yield f"probe {test!r}: {function} is not defined in {name}"


@cache
def find_criteria() -> Mapping[str, CriterionRow]:
    """Find all criteria, in the order of the acceptance table.  Raises BrokenCriterion."""
    found = {one.id: one for one in map(load_criterion, sorted(PROBES.glob(f"*/{FILE}")))}
    for id in ACCEPTANCE_TABLE:
        if id not in found:
            lost = f"probes/{id.lower()}/{FILE} is missing"
            raise BrokenCriterion(f"{lost}, but {id} is a row of the acceptance table")
    return {id: found[id] for id in [*ACCEPTANCE_TABLE, *found]}


CRITERIA: Mapping[str, CriterionRow] = LazyTable(find_criteria)


def run_order() -> tuple[str, ...]:
    """List the criteria in the order in which their probes run."""
    return tuple(dict.fromkeys([*RUN_FIRST, *CRITERIA]))


def all_probes() -> list[Probe]:
    """List all probes, in the order in which their criteria run."""
    return [probe for id in run_order() for probe in CRITERIA[id].duties]


def is_judged(criterion: str, measure: str, not_provable: Container[str]) -> bool:
    """Return whether a measure is judged, where `not_provable` criteria cannot be proven."""
    return criterion not in not_provable or CRITERIA[criterion].measures[measure].of_data


@cache
def measures_by_term() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Map each key of [cluster] to the measures that depend on it, by criterion."""
    keys, rows = ClusterTerms.model_fields, CRITERIA.items()
    return {key: {id: _depending_on(key, row) for id, row in rows} for key in keys}


def _depending_on(key: str, row: CriterionRow) -> frozenset[str]:
    """Return the measures of a row that depend on a key of [cluster]."""
    every = key == "accelerators" or key in row.depends
    return frozenset(check for check in row.checks if every or key in check.terms)
