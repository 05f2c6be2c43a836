"""A planted fault, or what is near to one, and what a probe must say of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reports.measurement import Verdict
from reports.record import Finding, RunRecord
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import Trial, acceptance, agreed

Check = Callable[[Lab, RunRecord, Trial], None]


def are_exactly(named: list[str], expected: list[str]) -> bool:
    """Return whether all of these were suspected; several findings name them in any order."""
    return expected in (named, sorted(named))


def are_some_of(named: list[str], expected: list[str]) -> bool:
    """Return whether some of these were suspected, and no other."""
    return {*named} <= {*expected} and bool(named) == bool(expected)


def are_all_of(named: list[str], expected: list[str]) -> bool:
    """Return whether these were suspected; others may be as well."""
    return {*expected} <= {*named}


@dataclass(frozen=True, eq=False)  # pytest groups tests by it
class Family:
    """What the cases of one table have in common: the lab, the run, and what is checked of each.

    `lab` are the arguments of `lab_of`; without it the cases use the lab that all files share.
    With a `plugin` of this folder, a case's name is a fault of the plugin. Otherwise it is a fault
    of the lab, as `python -m tests.lab fault` takes it. `one_finding`: there is no second one.
    """

    criterion: str
    soak: str  # `make soak CRITERION=...` runs it
    arguments: list[str]
    lab: dict[str, Any] = field(default_factory=dict)
    contract: str = "lab"
    terms: dict[str, str] = field(default_factory=dict)  # as `agreed` takes them
    plugin: str = ""
    red: Verdict = Verdict.FAIL
    sound: tuple[Verdict, ...] = (Verdict.PASS,)
    one_finding: bool = False
    suspected: Callable[[list[str], list[str]], bool] = are_exactly
    also: tuple[Check, ...] = ()


@dataclass(frozen=True, eq=False)  # pytest groups tests by it
class Case:
    """A fault and what is said of it. Without `codes` it is near to a fault, and nothing is said.

    `broken` are the measures that fail, where they are checked. Each of `says` is in a statement.
    `near` are measures that are judged and kept. `controls` is their number, where it is checked.
    """

    name: str
    codes: set[str] = field(default_factory=set)
    suspects: list[str] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    broken: set[str] | None = None
    planted: list[str] | None = None  # the lab's faults, where they are not the name
    terms: dict[str, str] = field(default_factory=dict)  # in place of the family's
    more: str = ""  # lines of the contract
    scenario: str = ""  # a part of a probe's name: only such probes run
    arguments: list[str] = field(default_factory=list)  # in place of the family's
    near: tuple[str, ...] = ()
    controls: int | None = None
    times: int = 1
    in_make_test: bool = False  # it is no part of a soak
    also: tuple[Check, ...] | None = None  # in place of the family's

    @property
    def id(self) -> str:
        words = f"{self.name}-{self.scenario}" if self.scenario else self.name
        return re.sub(r"[^\w]+", "-", words)


def findings(record: RunRecord) -> list[Finding]:
    """All of a run's findings."""
    return [finding for result in record.results for finding in result.findings]


def said_of(record: RunRecord) -> list[tuple[str, list[str], str]]:
    """Return code, suspects and statement of each finding."""
    return [(one.code, one.suspects, one.statement) for one in findings(record)]


def failed(record: RunRecord) -> set[str]:
    """Names of the measures that failed."""
    return {
        measured.name
        for result in record.results
        for measured in result.measurements
        if measured.verdict is Verdict.FAIL
    }


def all_caught(record: RunRecord) -> bool:
    """Return whether each control was caught."""
    return all(control.caught for result in record.results for control in result.controls)


def see(family: Family, case: Case, lab: Lab, run: str) -> None:
    """Plant what the case says, run the family's probes, and compare."""
    if not family.plugin:
        plant(lab, case)
    arguments = case.arguments or family.arguments
    if case.scenario:
        arguments = [*arguments, "-k", case.scenario]
    terms, contract = case.terms or family.terms, family.contract
    if terms or case.more:
        contract = agreed(lab, terms, case.more)
    fault = (family.plugin, case.name) if family.plugin else None
    record, trial = acceptance(lab, run, *arguments, contract=contract, fault=fault)
    is_named(family, case, record, trial)
    for check in family.also if case.also is None else case.also:
        check(lab, record, trial)


def plant(lab: Lab, case: Case) -> None:
    """Plant each of the case's faults of the lab; a quoted word may have spaces."""
    for planted in [case.name] if case.planted is None else case.planted:
        inject(lab, *(word.strip("'") for word in re.findall(r"'[^']*'|\S+", planted)))


def is_named(family: Family, case: Case, record: RunRecord, trial: Trial) -> None:
    """Compare what was said with what must be."""
    said = said_of(record)
    about = f"{said} {trial.log.read_text()[-3000:]}"
    verdicts = (family.red,) if case.codes else family.sound
    assert record.verdict(family.criterion) in verdicts, about
    assert case.broken is None or failed(record) == case.broken, about
    assert {code for code, *_ in said} == case.codes, about
    assert not family.one_finding or len(said) == len(case.codes), about
    suspects = [*dict.fromkeys(name for _, names, _ in said for name in names)]
    assert family.suspected(suspects, case.suspects), about
    for words in case.says:
        assert any(words in statement for *_, statement in said), about
    if case.controls is not None:
        assert [len(result.controls) for result in record.results] == [case.controls], about
        assert all_caught(record), about


def is_sound(record: RunRecord, trial: Trial, criterion: str = "HOSTS") -> None:
    """Check that a criterion passed, that nothing was found, and that each control was caught."""
    assert record.verdict(criterion) is Verdict.PASS, trial.log.read_text()[-4000:]
    assert not findings(record)
    assert all_caught(record)


def has_no_problem(record: RunRecord, trial: Trial, probes: int = 1) -> None:
    """Check that nothing failed and nothing was found, and that each probe lacks nothing."""
    assert failed(record) == set(), trial.log.read_text()[-3000:]
    assert findings(record) == []
    assert [result.problems() for result in record.results] == [[]] * probes


# What some families check as well.


def controls_are_caught(lab: Lab, record: RunRecord, trial: Trial) -> None:
    assert all_caught(record), [result.controls for result in record.results]


def is_rejected(lab: Lab, record: RunRecord, trial: Trial) -> None:
    assert trial.process.returncode == 1


def is_alone(lab: Lab, record: RunRecord, trial: Trial) -> None:
    assert len(record.results) == 1, trial.log.read_text()


def leaves_nothing(lab: Lab, record: RunRecord, trial: Trial) -> None:
    nothing_left(lab)
