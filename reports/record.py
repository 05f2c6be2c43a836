"""Defines the data model of a run: evidence, finding, control, criterion, result, record.

A probe observes (`Measurement`), a limit judges (`Limit`), a finding explains (`Finding`).
A finding never changes a verdict. All models are frozen and convert to JSON and back. They need
no cluster, so an old record can be judged again with a new contract.
"""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any

from pydantic import Field

from reports.measurement import Measurement, RecordModel, Verdict

# 1.x versions only add fields. 1.1: owed, partial, loaded, problems. 1.2: a chain of hashes,
# nonce, unverified. 1.3: the measurements of a control, and the measures that have no control.
# 1.4: severity, order, steps, mended and names of a finding.
SCHEMA = "1.4"
MAX_SECONDS = 1e9  # of a probe: about 30 years


class Evidence(RecordModel):
    """Evidence file, stored with the record. `path` is relative to the run folder."""

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


class Severity(str, Enum):
    """What a finding means for the acceptance, worst first."""

    BLOCKS = "blocks"  # no acceptance until it is mended
    DEGRADES = "degrades"  # works, but slower or less surely
    NOTES = "notes"  # information


class RepairStep(RecordModel):
    """Command that examines or mends, and what its answers mean; `on` is where it is run."""

    command: str
    means: str
    on: str = ""


class Finding(RecordModel):
    """Explanation of a problem: what is wrong, the suspects, the remedy. It never judges.

    `order`, `steps` and `mended` have placeholders, as {node}. `names` holds what this case knows
    of them; reports/orders fills them in. Findings of schema 1.3 and older have none of these.
    """

    code: str
    statement: str
    suspects: list[str] = []
    cause: Cause = Cause.UNKNOWN
    severity: Severity = Severity.BLOCKS
    order: str = ""
    steps: list[RepairStep] = []
    mended: str = ""
    names: dict[str, str] = {}
    remedy: str
    reproduce: str = ""
    evidence: list[str] = []


class Control(RecordModel):
    """Deliberate fault that the probe had to catch in the same run on the same cluster.

    `observed` are the probe's measurements of the fault, one for each measure that should turn
    red. It is empty in runs of schema 1.2 and older.
    """

    name: str
    fault: str
    caught: bool | None = None
    saw: str = ""
    observed: list[Measurement] = []

    @property
    def verdict(self) -> Verdict:
        """PASS if caught; otherwise UNPROVEN, because the probe was not shown to be able to fail.

        Even with `caught`, a control is not caught if an observed measure is accepted or not
        judged.
        """
        passed = any(m.verdict is None or m.verdict.accepted for m in self.observed)
        return Verdict.PASS if self.caught and not passed else Verdict.UNPROVEN

    @property
    def proves(self) -> list[str]:
        """Names of the measures that this control turned red."""
        return [m.name for m in self.observed] if self.verdict.accepted else []

    def sentence(self) -> str:
        """Format one line: the fault, whether it was caught, and what the probe saw."""
        planted = f"planted: {self.fault}"
        if self.verdict.accepted:
            return f"{planted}. Caught" + (f": {self.saw}" if self.saw else "")
        state = "Not run" if self.caught is None else "NOT CAUGHT"
        return f"{planted}. {state}{f': {self.saw}' if self.saw else ''}. Do not trust this result"


class Criterion(RecordModel):
    """Criterion, one row of the acceptance table.

    `not_provable` is the reason why this kind of cluster cannot prove it. Such a row is not
    required, but the report lists it.
    """

    id: str
    title: str
    how: str
    required: bool = True
    not_provable: str = ""


class Waiver(RecordModel):
    """Waiver: labels a FAIL, but never turns it into a PASS; flagged if the criterion passes."""

    id: str
    criterion: str
    reason: str
    name: str
    until: date


class ProbeResult(RecordModel):
    """Result of one probe for one criterion.

    `state` is finished, error, skipped, interrupted, or not run (see reports/owed.py). Only
    finished can be a proof. `coverage` describes which nodes, pairs and GPUs were tested and which
    were not.
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
        """Worst of judged measurements, controls and state; a missing part is UNPROVEN."""
        judged = [m.verdict for m in self.measurements if m.verdict is not None]
        controls = [c.verdict for c in self.controls] or [Verdict.UNPROVEN]
        state = [] if self.state == "finished" else [Verdict.UNPROVEN]
        return Verdict.worst([Verdict.worst(judged), *controls, *state])

    def problems(self) -> list[str]:
        """List what keeps this result from PASS: measurements, worst first, controls, state."""
        worst_first = sorted(self.measurements, key=lambda m: -m.severity)
        lines = [m.sentence() for m in worst_first if m.severity]
        lines += [c.sentence() for c in self.controls if not c.verdict.accepted]
        if self.state == "finished":
            if not any(m.judged for m in self.measurements):
                lines.append("nothing was measured")
            if not self.controls:
                lines.append("no control was run: this result cannot be trusted")
        else:
            lines.append(f"{self.state}: {self.error or 'the probe did not finish'}")
        return lines


class ContractFacts(RecordModel):
    """Contract of a run: not `agreed` if limits were derived; `rehearsal` if it declares one."""

    name: str
    sha256: str = ""
    agreed: bool = True
    tier: str = "quick"
    rehearsal: bool = False
    title: str = ""
    criteria: list[Criterion]
    waivers: list[Waiver] = []


class OwedProbe(RecordModel):
    """Probe that the tier owes, with the names of the measures and controls it must record.

    `uncontrolled` maps measures without a control to the reason.
    """

    probe: str
    criterion: str
    tier: str
    measures: list[str] = []
    controls: list[str] = []
    uncontrolled: dict[str, str] = {}


class RunProblem(RecordModel):
    """Problem outside the probes. No result shows it, but the run is not accepted."""

    kind: str  # collection, teardown, internal, rendering, other test
    where: str
    text: str

    def sentence(self) -> str:
        """Format one line: kind, place and text of the problem."""
        return f"{self.kind} error in {self.where}: {self.text}"


class RunRecord(RecordModel):
    """Complete record of one run. All pages are renderings of it.

    `owed` are the probes that the tier owes (None: an older version did not record them).
    `partial` is the reason why not all were requested, `only` the requested criteria. `loaded`
    names foreign plugins and conftest files. `baseline` is the run that the page compares with,
    `head` the hash of the last event. `judged_again` is the run whose events these are;
    `unverified` are the reasons why that run could not be verified.
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
        """Return the results of one criterion, in the order they ran."""
        return [result for result in self.results if result.criterion == criterion]

    def verdict(self, criterion: str) -> Verdict:
        """Return the worst verdict of a criterion; UNPROVEN if no probe ran for it."""
        return Verdict.worst(result.verdict for result in self.results_of(criterion))
