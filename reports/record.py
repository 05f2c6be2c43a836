"""The words of a run: verdict, limit, measurement, evidence, finding, control, result, record.

A probe observes (`Measurement`), a limit judges (`Limit`), a finding explains (`Finding`).
A finding never changes a verdict.  Everything here is frozen, turns into JSON and back, and
needs no cluster, so an old record can be judged again with a new contract.
"""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any

from pydantic import Field

from reports.measurement import Measurement, RecordModel, Verdict

# 1.x only adds.  1.1: owed, partial, loaded, problems; 1.2: a chain of hashes, nonce, unverified;
# 1.3: what a control was measured as, and which measures have none
SCHEMA = "1.3"
MAX_SECONDS = 1e9  # of a probe: 30 years


class Evidence(RecordModel):
    """A file kept beside the record: `path` is relative to the run folder."""

    kind: str  # table, log, series, trace, command
    path: str
    sha256: str
    caption: str
    bytes: int


class Cause(str, Enum):
    """Cause classes, as in Ray's proposal for training diagnostics."""

    HARDWARE = "HARDWARE"
    INFRASTRUCTURE = "INFRASTRUCTURE"
    APPLICATION = "APPLICATION"
    NO_PROGRESS = "NO_PROGRESS"
    UNKNOWN = "UNKNOWN"


class Finding(RecordModel):
    """What is wrong, who is suspected, and what to do.  Explains; never judges."""

    code: str
    statement: str
    suspects: list[str] = []
    cause: Cause = Cause.UNKNOWN
    remedy: str
    reproduce: str = ""
    evidence: list[str] = []


class Control(RecordModel):
    """A deliberate fault that the probe had to catch, live, on the same cluster.

    `observed` is what the probe's own judges made of the fault, one measurement for each measure
    that it was to turn red (none in runs of schema 1.2 and older).
    """

    name: str
    fault: str
    caught: bool | None = None
    saw: str = ""
    observed: list[Measurement] = []

    @property
    def verdict(self) -> Verdict:
        """PASS when caught; otherwise UNPROVEN, for this probe could not be shown to fail.

        Whatever `caught` says, nothing is caught where a measure would have passed.
        """
        passed = any(m.verdict is None or m.verdict.accepted for m in self.observed)
        return Verdict.PASS if self.caught and not passed else Verdict.UNPROVEN

    @property
    def proves(self) -> list[str]:
        """The measures that it showed to fail here."""
        return [m.name for m in self.observed] if self.verdict.accepted else []

    def sentence(self) -> str:
        """One line: the fault, whether it was caught, and what was seen."""
        if self.caught:
            return f"control caught: {self.fault}" + (f"; saw {self.saw}" if self.saw else "")
        state = "was not run" if self.caught is None else "was NOT caught"
        return f"control {state}: {self.fault}; this probe could not be shown to fail" + (
            f" (saw {self.saw})" if self.saw else ""
        )


class Criterion(RecordModel):
    """One row of the acceptance table.

    `not_provable` is the reason why this kind of cluster cannot prove it; such a row is not
    required, and the report lists it.
    """

    id: str
    title: str
    how: str
    required: bool = True
    not_provable: str = ""


class Waiver(RecordModel):
    """Labels a FAIL, never turns it green; flagged when the criterion passes."""

    id: str
    criterion: str
    reason: str
    name: str
    until: date


class ProbeResult(RecordModel):
    """All that one probe saw for one criterion.

    `state` is finished, error, skipped, interrupted, or not run (see reports/owed.py); anything but
    finished is no proof.
    `coverage` says in words which nodes, pairs and GPUs were exercised and which were not.
    """

    probe: str
    criterion: str
    claim: str = ""
    state: str = "interrupted"
    error: str = ""
    seconds: float | None = Field(default=None, ge=0, le=MAX_SECONDS)
    measurements: list[Measurement] = []
    findings: list[Finding] = []
    controls: list[Control] = []
    evidence: list[Evidence] = []
    series: dict[str, Any] = {}
    coverage: str = ""
    reproduce: str = ""

    @property
    def verdict(self) -> Verdict:
        """Worst of the judged measurements, the controls and the state; nothing is UNPROVEN."""
        judged = [m.verdict for m in self.measurements if m.verdict is not None]
        controls = [c.verdict for c in self.controls] or [Verdict.UNPROVEN]
        state = [] if self.state == "finished" else [Verdict.UNPROVEN]
        return Verdict.worst([Verdict.worst(judged), *controls, *state])

    def problems(self) -> list[str]:
        """Every sentence that keeps this result from PASS, worst first."""
        worst_first = sorted(self.measurements, key=lambda m: -m.severity)
        lines = [m.sentence() for m in worst_first if m.severity]
        lines += [c.sentence() for c in self.controls if not c.caught]
        if self.state == "finished":
            if not any(m.judged for m in self.measurements):
                lines.append("nothing was measured")
            if not self.controls:
                lines.append("no control was run: this probe could not be shown to fail")
        else:
            lines.append(f"{self.state}: {self.error or 'the probe did not come to its end'}")
        return lines


class ContractFacts(RecordModel):
    """The contract of a run: not `agreed` when limits were derived; `rehearsal` when it says so."""

    name: str
    sha256: str = ""
    agreed: bool = True
    tier: str = "quick"
    rehearsal: bool = False
    title: str = ""
    criteria: list[Criterion]
    waivers: list[Waiver] = []


class OwedProbe(RecordModel):
    """A probe that the tier owes, with the names of the measures and controls it must write.

    `uncontrolled` says why measures of it have no control.
    """

    probe: str
    criterion: str
    tier: str
    measures: list[str] = []
    controls: list[str] = []
    uncontrolled: dict[str, str] = {}


class RunProblem(RecordModel):
    """What went wrong beside the probes: no result stands for it, yet nothing is accepted."""

    kind: str  # collection, teardown, internal, rendering, other test
    where: str
    text: str

    def sentence(self) -> str:
        """One line: what, where, and what was said."""
        return f"{self.kind} error in {self.where}: {self.text}"


class RunRecord(RecordModel):
    """Everything one run saw.  The record is the product; all pages are renderings of it.

    `owed` is what the tier owes (None: an older version did not say), `partial` why not all of it
    was asked for, `only` the criteria that were; `loaded` names foreign plugins and conftest files.
    `baseline` is the run that the page compares with, `head` the hash of the last event,
    `judged_again` the run whose events these are, `unverified` what of that was not verified.
    """

    schema_version: str = SCHEMA
    id: str
    started: str
    finished: str | None = None
    state: str = "running"  # running, finished, interrupted
    command: str
    tier: str
    cluster: dict[str, Any] = {}
    rehearsal: str = ""
    contract: ContractFacts
    versions: dict[str, str] = {}
    owed: list[OwedProbe] | None = None
    partial: str = ""
    only: list[str] = []
    loaded: list[str] = []
    nonce: str = ""
    baseline: str = ""
    head: str = ""
    judged_again: str = ""
    unverified: list[str] = []
    problems: list[RunProblem] = []
    results: list[ProbeResult] = []

    def results_of(self, criterion: str) -> list[ProbeResult]:
        """The results of one criterion, in the order they ran."""
        return [result for result in self.results if result.criterion == criterion]

    def verdict(self, criterion: str) -> Verdict:
        """Worst result of a criterion; UNPROVEN when no probe ran for it."""
        return Verdict.worst(result.verdict for result in self.results_of(criterion))
