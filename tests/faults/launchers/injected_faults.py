"""A planted fault, and what a probe must say of it: caught, named and located."""

from __future__ import annotations

import dataclasses

from reports.measurement import Verdict
from reports.record import Finding, RunRecord
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.lab import Lab
from tests.support.trial import acceptance


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of a plugin of this folder, the scenario that sees it, and what it says."""

    fault: str
    scenario: str
    broken: set[str]  # measures that fail
    codes: set[str]  # findings, all of them
    suspects: set[str] = dataclasses.field(default_factory=set)
    says: str = ""

    @property
    def name(self) -> str:
        return f"{self.fault}-{self.scenario}"


def findings(record: RunRecord) -> list[Finding]:
    """All of a run's findings."""
    return [finding for result in record.results for finding in result.findings]


def failed(record: RunRecord) -> set[str]:
    """Names of the measures that failed."""
    return {
        measured.name
        for result in record.results
        for measured in result.measurements
        if measured.verdict is Verdict.FAIL
    }


def caught(lab: Lab, criterion: str, plugin: str, fault: Fault, tier: str = "standard") -> None:
    """Run the scenario with the fault, and compare what is said with what must be."""
    row = criterion.lower()
    arguments = [f"probes/{row}", "-k", fault.scenario, "--tier", tier]
    record, trial = acceptance(lab, fault.name, *arguments, fault=(plugin, fault.fault))
    said = [(one.code, one.suspects, one.statement) for one in findings(record)]
    assert len(record.results) == 1, trial.log.read_text()
    assert record.verdict(criterion) is Verdict.FAIL, said
    assert failed(record) == fault.broken, said
    assert {code for code, _, _ in said} == fault.codes, said
    suspected = {suspect for _, suspects, _ in said for suspect in suspects}
    assert suspected <= fault.suspects, said
    assert bool(suspected) == bool(fault.suspects), said
    assert any(fault.says in statement for _, _, statement in said), said
    nothing_left(lab)
