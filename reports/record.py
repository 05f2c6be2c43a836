"""Defines the data model of a run: evidence, finding, control, criterion, result, record.

A probe observes (`Measurement`), a limit judges (`Limit`), a finding explains (`Finding`).
A finding never changes a verdict. All models are frozen and convert to JSON and back. They need
no cluster, so a record can be judged again with a new contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Any

from pydantic import Field

from reports.measurement import Measurement, RecordModel, Verdict, described
from reports.regressions import NO_BASELINE, BaselineValue, Regression, find_regressions

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = "1.5"  # of the record: a record of another schema must not be read as this one
TIERS = ("quick", "standard", "soak")  # each has all the probes of those before it
MAX_SECONDS = 1e9  # of a probe: about 30 years


class Evidence(RecordModel):
    """Evidence file, stored with the record."""

    kind: str = Field(description="Kind of the file: table, log, series, trace or command.")
    path: str = Field(description="Path of the file, relative to the run folder.")
    sha256: str = Field(description="SHA-256 of the file, in hex digits.")
    caption: str = Field(description="What the file shows, in one line.")
    bytes: int = Field(description="Size of the file in bytes.")


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

    command: str = Field(description="Command to paste, with placeholders, as {node}.")
    means: str = Field(description="What its answers mean.")
    on: str = described("", "Where it is run.")


class Finding(RecordModel):
    """Explanation of a problem: what is wrong, the suspects, the remedy. It never judges.

    `order`, `steps` and `mended` have placeholders, as {node}. `names` holds what this case knows
    of them; reports/orders fills them in.
    """

    code: str = Field(description="Code of the finding; `seatrial explain CODE` explains it.")
    statement: str = Field(description="What is wrong, in one sentence.")
    suspects: list[str] = described([], "Nodes, GPUs, ports or links that may cause it.")
    cause: Cause = described(Cause.UNKNOWN, "Class of the cause.")
    severity: Severity = described(
        Severity.BLOCKS, "Whether it must be mended before an acceptance."
    )
    order: str = described("", "What to do, with placeholders, as {node}.")
    steps: list[RepairStep] = described([], "Commands, and what their answers mean.")
    mended: str = described("", "How to know that it is mended.")
    names: dict[str, str] = described({}, "Names of this case, by the placeholder that they fill.")
    remedy: str = Field(description="What to do, as an order.")
    reproduce: str = described("", "Command that shows the problem again.")
    evidence: list[str] = described([], "Paths of the evidence files that show it.")


class Control(RecordModel):
    """Deliberate fault that the probe had to catch in the same run on the same cluster."""

    name: str = Field(description="Name of the control.")
    fault: str = Field(description="Fault that was planted.")
    caught: bool | None = described(
        None, "Whether the probe caught the fault; null if the control did not run."
    )
    saw: str = described("", "What the probe saw of the fault.")
    observed: list[Measurement] = described(
        [], "Measurements of the fault, one for each measure it turns red."
    )

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
        told = self.headline + (f": {self.saw}" if self.saw else "")
        return told if self.verdict.accepted else f"{told}. Do not trust this result"

    @property
    def headline(self) -> str:
        """The fault, and whether it was caught."""
        missed = "Not run" if self.caught is None else "NOT CAUGHT"
        return f"planted: {self.fault}. {'Caught' if self.verdict.accepted else missed}"


class Criterion(RecordModel):
    """Criterion, one row of the acceptance table."""

    id: str = Field(description="Name of the criterion, for example FABRIC.")
    title: str = Field(description="What the criterion claims.")
    how: str = Field(description="How it is proved.")
    required: bool = described(True, "Whether the run is accepted only if it is proven.")
    not_provable: str = described(
        "", "Why this kind of cluster cannot prove it; it is then not required."
    )
    headlines: dict[str, str] = described(
        {}, "Measures that stand for it, the best first, each with a sentence."
    )
    proven: str = described("", "How the sentence goes on where the criterion is accepted.")


class Waiver(RecordModel):
    """Waiver: labels a FAIL, but never turns it into a PASS; flagged if the criterion passes."""

    id: str = Field(description="Name of the waiver.")
    criterion: str = Field(description="Criterion that it labels.")
    reason: str = Field(description="Why the failure is tolerated.")
    name: str = Field(description="Person who signed the waiver.")
    until: date = Field(description="Last day on which it holds.")


class ProbeResult(RecordModel):
    """Result of one probe for one criterion."""

    probe: str = Field(description="Id of the probe: its file and function.")
    criterion: str = Field(description="Criterion that the probe tests.")
    claim: str = described("", "What the probe tests, in one sentence.")
    state: str = described(
        "interrupted", "finished, error, skipped, interrupted or not run; only finished can prove."
    )
    error: str = described("", "Why the probe did not finish.")
    started: str = described("", "When the probe started, UTC.")
    seconds: float | None = described(
        None, "How long the probe ran, in seconds.", ge=0, le=MAX_SECONDS
    )
    measurements: list[Measurement] = described([], "What the probe measured.")
    findings: list[Finding] = described(
        [], "Explanations of problems. They never change a verdict."
    )
    controls: list[Control] = described(
        [], "Planted faults. Without a caught one, the result proves nothing."
    )
    evidence: list[Evidence] = described([], "Files that the probe kept.")
    series: dict[str, Any] = described({}, "Values of the figures, by the name of the figure.")
    coverage: str = described("", "Which nodes, pairs and GPUs were tested, and which were not.")
    reproduce: str = described("", "Command that runs the probe again.")

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
    """Contract of a run: what was agreed."""

    name: str = Field(description="Name of the contract.")
    sha256: str = described("", "SHA-256 of the contract's text; empty without one.")
    agreed: bool = described(
        True, "Whether it was agreed; false if limits were derived from the cluster."
    )
    tier: str = described("quick", "Tier that the contract asks for.")
    rehearsal: bool = described(False, "Whether the contract declares a rehearsal.")
    title: str = described("", "Title of the report.")
    criteria: list[Criterion] = Field(description="Criteria in the order of the reports.")
    waivers: list[Waiver] = described([], "Waivers of failures.")
    baseline: dict[str, float] = described(
        {}, "Percent that a measure may be worse than in an earlier run."
    )


class OwedProbe(RecordModel):
    """Probe that the tier owes, with the names of the measures and controls it must record."""

    probe: str = Field(description="Id of the probe.")
    criterion: str = Field(description="Criterion that the probe tests.")
    tier: str = Field(description="Lowest tier that owes the probe.")
    measures: list[str] = described([], "Measures that the probe must record.")
    controls: list[str] = described([], "Controls that the probe must run.")
    uncontrolled: dict[str, str] = described({}, "Measures without a control, with the reason.")


class RunProblem(RecordModel):
    """Problem outside the probes. No result shows it, but the run is not accepted."""

    kind: str = Field(description="collection, teardown, internal, rendering, disk or other test.")
    where: str = Field(description="Where it happened.")
    text: str = Field(description="What happened.")

    def sentence(self) -> str:
        """Format one line: kind, place and text of the problem."""
        return f"{self.kind} error in {self.where}: {self.text}"


class RunRecord(RecordModel):
    """Complete record of one run. All pages are renderings of it."""

    schema_version: str = Field(
        default=SCHEMA,
        json_schema_extra={"const": SCHEMA},
        description="Version of the schema.",
    )
    id: str = Field(description="Id of the run.")
    started: str = Field(description="When the run began: UTC, ISO 8601.")
    finished: str | None = described(None, "When the run ended: UTC, ISO 8601; null if it did not.")
    state: str = described("running", "State of the run: running, finished or interrupted.")
    command: str = Field(description="Command line of the run.")
    tier: str = Field(description="Tier of the run: quick, standard or soak.")
    cluster: dict[str, Any] = described(
        {}, "Facts of the cluster, among them `name` and the `nodes` with their names."
    )
    rehearsal: str = described("", "Why the run is a rehearsal; empty if it is none.")
    contract: ContractFacts = Field(description="Contract that the run was judged by.")
    versions: dict[str, str] = described(
        {}, "Versions of seatrial and of the software of the cluster."
    )
    owed: list[OwedProbe] = described(
        [], "Probes that the tier owes; empty if the run ended before them."
    )
    partial: str = described("", "Why not all owed probes were requested; empty if all were.")
    full_run_s: float | None = described(
        None, "Usual seconds of a complete run; null if none was measured.", ge=0, le=MAX_SECONDS
    )
    only: list[str] = described([], "Criteria that were requested; empty for all.")
    loaded: list[str] = described([], "Plugins and conftest files of others.")
    nonce: str = described("", "Text that the customer chose for this run.")
    operator: str = described("", "Who ran the test, as given to --operator.")
    baseline: str = described("", "Id of the run that this one is compared with.")
    baseline_problem: str = described(NO_BASELINE, "Why it cannot be compared; empty if it can.")
    baseline_values: list[BaselineValue] = described(
        [], "Values of that run that the contract compares with."
    )
    head: str = described("", "Hash of the last event.")
    judged_again: str = described("", "Id of the run that is judged again here.")
    unverified: list[str] = described(
        [], "Why that run, or a record that was read alone, cannot be verified."
    )
    problems: list[RunProblem] = described([], "Problems outside the probes.")
    results: list[ProbeResult] = described(
        [], "Results of the probes, and an entry for each owed probe without one."
    )

    def results_of(self, criterion: str) -> list[ProbeResult]:
        """Return the results of one criterion, in the order they ran."""
        return [result for result in self.results if result.criterion == criterion]

    def verdict(self, criterion: str) -> Verdict:
        """Return the worst verdict of a criterion; UNPROVEN if no probe ran for it."""
        worse = [one.verdict for one in self.regressions if one.criterion == criterion]
        return Verdict.worst([*(one.verdict for one in self.results_of(criterion)), *worse])

    @property
    def regressions(self) -> list[Regression]:
        """Measures that are worse than the contract allows, or that cannot be compared."""
        terms, values = self.contract.baseline, self.baseline_values
        problem = self.baseline_problem
        return find_regressions(terms, self.baseline, problem, values, self.results)

    def frame(self) -> DataFrame:
        """Return one row per measurement; `measurement_frame` describes the columns."""
        from reports.frames.measurements import measurement_frame

        about = {"run": self.id, "cluster": self.cluster_name, "started": self.started}
        rows = [(r.criterion, r.probe, m) for r in self.results for m in r.measurements]
        return measurement_frame(about, self.node_names, rows)

    @property
    def cluster_name(self) -> str:
        """Name of the cluster, "unknown" if the record has none."""
        return str(self.cluster.get("name") or "unknown")

    @property
    def node_names(self) -> list[str]:
        """Names of the nodes in the facts of the cluster."""
        names = [node.get("name") for node in node_facts(self.cluster)]
        return [name for name in names if name and isinstance(name, str)]


def node_facts(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the facts of the nodes in the facts of a cluster; facts of another form are left out."""
    nodes = cluster.get("nodes")
    return [node for node in nodes if isinstance(node, Mapping)] if isinstance(nodes, list) else []
