"""Defines the data model of a run: evidence, finding, control, criterion, result, record.

A probe observes (`Measurement`), a limit judges (`Limit`), a finding explains (`Finding`).
A finding never changes a verdict. All models are frozen and convert to JSON and back. They need
no cluster, so a record can be judged again with a new contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from reports.measurement import Measurement, RecordModel, Verdict, about
from reports.numbers import quantity
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

    BLOCKS = "blocks"
    DEGRADES = "degrades"
    NOTES = "notes"


EFFECT = {
    Severity.BLOCKS: "no acceptance until the fault is fixed",
    Severity.DEGRADES: "jobs run, but slower or less reliably",
    Severity.NOTES: "information",
}


class RepairStep(RecordModel):
    """Command that examines or fixes, and what its answers mean; `on` is where it is run."""

    command: str = Field(description="Command to paste, with placeholders such as {node}.")
    means: str = Field(description="What the output means.")
    on: str = about("", "Machine on which the command is run.")


class Finding(RecordModel):
    """Explanation of a problem: what is wrong, the suspects, the remedy. It never judges.

    `order`, `steps` and `mended` have placeholders, as {node}. `names` holds what this case knows
    of them; reports/orders fills them in.
    """

    code: str = Field(description="Code of the finding; `seatrial explain CODE` explains it.")
    statement: str = Field(description="What is wrong, in one sentence.")
    suspects: list[str] = about([], "Nodes, GPUs, ports or links that can be the cause.")
    cause: Cause = about(Cause.UNKNOWN, "Class of the cause.")
    severity: Severity = about(Severity.BLOCKS, "Meaning of the problem for an acceptance.")
    order: str = about("", "What to do, with placeholders such as {node}.")
    steps: list[RepairStep] = about([], "Commands, and what their output means.")
    mended: str = about("", "How to know that the problem is fixed.")
    names: dict[str, str] = about({}, "Names in this case, by the placeholder that they replace.")
    remedy: str = Field(description="What to do, as an instruction.")
    reproduce: str = about("", "Command that shows the problem again.")
    evidence: list[str] = about([], "Paths of the evidence files that show the problem.")


class Control(RecordModel):
    """Deliberate fault that the probe had to catch in the same run on the same cluster."""

    name: str = Field(description="Name of the control.")
    fault: str = Field(description="Fault that was planted.")
    caught: bool | None = about(
        None, "Whether the probe caught the fault; null if the control did not run."
    )
    saw: str = about("", "What the probe saw of the fault.")
    observed: list[Measurement] = about(
        [], "Measurements under the fault, one for each measure that fails."
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
        """Format one line: whether the planted fault was found, and what the probe saw of it."""
        word = "Reason" if self.caught is None else "Observed with the fault"
        planted = ". Expected without the fault: "
        saw = self.saw if self.caught is None else self.saw.replace(". Expected: ", planted)
        return self.headline + (f". {word}: {saw}" if saw else "")

    @property
    def headline(self) -> str:
        """The fault, and whether it was found."""
        if self.verdict.accepted:
            return f"the test found the planted fault: {self.fault}"
        ran = self.caught is not None
        why = "the test did not find the planted fault" if ran else "the fault was not planted"
        return f"{why}, so the test proves nothing. Fault: {self.fault}"


class Criterion(RecordModel):
    """Criterion, one row of the acceptance table."""

    id: str = Field(description="Name of the criterion, for example FABRIC.")
    title: str = Field(description="What the criterion claims.")
    how: str = Field(description="How the claim is proven.")
    required: bool = about(True, "Whether a run is accepted only if it proves this criterion.")
    not_provable: str = about(
        "", "Why this kind of cluster cannot prove the criterion, which is then not required."
    )
    headlines: dict[str, str] = about(
        {}, "Measures that a report shows for the criterion, the best first, with their sentences."
    )
    failing: dict[str, str] = about(
        {}, "Sentence of a report for each measure that fails, by its name."
    )
    proven: str = about("", "End of the headline if the criterion is accepted.")
    not_tested: str = about("", "What was not tested because one node was ordered.")
    not_countable: dict[str, str] = about(
        {}, "Measures that no device of the fabric counts, as agreed, with the reason."
    )

    @model_serializer(mode="wrap")
    def _leave_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the last two keys only where they say something: most records have neither."""
        rare = ("not_tested", "not_countable")
        return {key: value for key, value in write(self).items() if value or key not in rare}

    def template(self, m: Measurement) -> str:
        """Choose the sentence for a measurement: that of a headline, or of a failure; else ""."""
        failing = self.failing.get(m.name, "") if m.verdict is Verdict.FAIL else ""
        return self.headlines.get(m.name) or failing

    def sentence(self, m: Measurement) -> str:
        """Write a measurement in this criterion's words, with its limit and reason."""
        return m.sentence(self.template(m))


class Waiver(RecordModel):
    """Waiver: labels a FAIL, but never turns it into a PASS; flagged if the criterion passes."""

    id: str = Field(description="Name of the waiver.")
    criterion: str = Field(description="Criterion whose failure the waiver labels.")
    reason: str = Field(description="Why the failure is tolerated.")
    name: str = Field(description="Person who signed the waiver.")
    until: date = Field(description="Last day on which the waiver is valid.")


class ProbeResult(RecordModel):
    """Result of one probe for one criterion."""

    probe: str = Field(description="Id of the probe: its file and function.")
    criterion: str = Field(description="Criterion that the probe tests.")
    claim: str = about("", "What the probe tests, in one sentence.")
    state: str = about(
        "interrupted", "finished, error, skipped, interrupted or not run; only finished can prove."
    )
    error: str = about("", "Why the probe did not finish.")
    started: str = about("", "When the probe started, UTC.")
    seconds: float | None = about(None, "How long the probe ran, in seconds.", ge=0, le=MAX_SECONDS)
    measurements: list[Measurement] = about([], "What the probe measured.")
    findings: list[Finding] = about([], "Explanations of problems. They never change a verdict.")
    controls: list[Control] = about(
        [], "Planted faults. If one was not caught, the result proves nothing."
    )
    evidence: list[Evidence] = about([], "Files that the probe kept.")
    series: dict[str, Any] = about({}, "Values of the figures, by the name of the figure.")
    coverage: str = about("", "Which nodes, pairs and GPUs were tested, and which were not.")
    reproduce: str = about("", "Command that runs the probe again.")

    @property
    def verdict(self) -> Verdict:
        """Worst of judged measurements, controls and state; a missing part is UNPROVEN."""
        judged = [m.verdict for m in self.measurements if m.verdict is not None]
        controls = [c.verdict for c in self.controls] or [Verdict.UNPROVEN]
        state = [] if self.state == "finished" else [Verdict.UNPROVEN]
        return Verdict.worst([Verdict.worst(judged), *controls, *state])

    def problems(self, criterion: Criterion | None = None) -> list[str]:
        """List what keeps this result from PASS: measurements, worst first, controls, state.

        Measurements are in the words of `criterion`; without it under their own names.
        """
        say = criterion.sentence if criterion else Measurement.sentence
        lines = [say(m) for m in sorted(self.measurements, key=lambda m: -m.severity) if m.severity]
        lines += [c.sentence() for c in self.controls if not c.verdict.accepted]
        if self.state == "finished":
            if not any(m.judged for m in self.measurements):
                lines.append("nothing was measured")
            if not self.controls:
                lines.append("no fault was planted (no self-test), so this result proves nothing")
        else:
            lines.append(f"{self.state}: {self.error or 'the test did not finish'}")
        return lines


class ContractFacts(RecordModel):
    """Contract of a run: what was agreed."""

    name: str = Field(description="Name of the contract.")
    sha256: str = about("", "SHA-256 of the contract's text; empty without one.")
    agreed: bool = about(
        True, "Whether the contract was agreed; false if limits were derived from the cluster."
    )
    tier: str = about("quick", "Tier that the contract asks for.")
    rehearsal: bool = about(False, "Whether the contract declares a rehearsal.")
    title: str = about("", "Title of the report.")
    criteria: list[Criterion] = Field(description="Criteria in the order of the reports.")
    waivers: list[Waiver] = about([], "Waivers of failures.")
    baseline: dict[str, float] = about(
        {}, "Percent by which each measure is allowed to be worse than in an earlier run."
    )
    max_marginal: int | None = about(
        None, "How many measures may be MARGINAL; null if no maximum was agreed."
    )


class OwedProbe(RecordModel):
    """Probe that the tier must run, with the names of the measures and controls it must record."""

    probe: str = Field(description="Id of the probe.")
    criterion: str = Field(description="Criterion that the probe tests.")
    tier: str = Field(description="Lowest tier that runs the probe.")
    measures: list[str] = about([], "Measures that the probe must record.")
    controls: list[str] = about([], "Controls that the probe must run.")
    uncontrolled: dict[str, str] = about({}, "Measures without a control, with the reason.")


class RunProblem(RecordModel):
    """Problem outside the probes. No result shows it, but the run is not accepted."""

    kind: str = Field(
        description="collection, teardown, internal, rendering, disk, folder, cleanup, other test."
    )
    where: str = Field(description="Place of the problem.")
    text: str = Field(description="Text of the problem.")

    def sentence(self) -> str:
        """Format one line: kind, place and text of the problem."""
        what = "clean-up failed" if self.kind == "teardown" else f"{self.kind} error"
        return f"{what} in {self.where}: {self.text}"


class RunRecord(RecordModel):
    """Complete record of one run. All pages are renderings of it."""

    schema_version: str = about(
        SCHEMA, "Version of the schema.", json_schema_extra={"const": SCHEMA}
    )
    id: str = Field(description="Id of the run.")
    started: str = Field(description="When the run began: UTC, ISO 8601.")
    finished: str | None = about(None, "When the run ended: UTC, ISO 8601; null if it did not.")
    state: str = about("running", "State of the run: running, finished or interrupted.")
    command: str = Field(description="Command line of the run.")
    tier: str = Field(description="Tier of the run: quick, standard or soak.")
    cluster: dict[str, Any] = about(
        {}, "Facts of the cluster, among them `name` and the `nodes` with their names."
    )
    rehearsal: str = about("", "Why the run is a rehearsal; empty if it is not one.")
    contract: ContractFacts = Field(description="Contract that the run was judged by.")
    versions: dict[str, str] = about({}, "Versions of seatrial and of the software of the cluster.")
    owed: list[OwedProbe] = about(
        [], "Probes that the tier must run; empty if the run ended before it listed them."
    )
    partial: str = about("", "Why the run did not request all probes of its tier; empty if it did.")
    full_run_s: float | None = about(
        None, "Usual seconds of a complete run; null if none was measured.", ge=0, le=MAX_SECONDS
    )
    only: list[str] = about([], "Criteria that were requested; empty for all.")
    loaded: list[str] = about([], "Pytest plugins and conftest.py files from outside seatrial.")
    nonce: str = about("", "Text that the customer chose for this run.")
    submission: str = about("", "Id of the submission, if `seatrial submit` started the run.")
    operator: str = about("", "Who ran the test, as given to --operator.")
    baseline: str = about("", "Id of the earlier run that this run is compared with.")
    baseline_problem: str = about(
        NO_BASELINE, "Why the baseline run cannot be compared; empty if it can."
    )
    baseline_values: list[BaselineValue] = about(
        [], "Values of the baseline run that are compared with this run."
    )
    head: str = about("", "Hash of the last event.")
    judged_again: str = about("", "Id of the original run, if this record judges it again.")
    unverified: list[str] = about(
        [], "Why the original run, or a record without its folder, cannot be verified."
    )
    problems: list[RunProblem] = about([], "Problems outside the probes.")
    clock_steps: list[str] = about([], "Steps of the driver's clock during the run.")
    results: list[ProbeResult] = about(
        [], "Results of the probes, and an entry for each owed probe that has none."
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
        return find_regressions(self)

    @property
    def baseline_text(self) -> str:
        """Name the baseline run, and say so if nothing is worse; "" where nothing was compared."""
        terms = self.contract.baseline
        if not terms or self.baseline_problem or self.regressions:
            return self.baseline
        compared = quantity(len(terms), "measures")
        return f"{self.baseline} ({compared} compared: none is worse than the contract allows)"

    def frame(self) -> DataFrame:
        """Return one row per measurement; `measurement_frame` describes the columns."""
        from reports.frames.measurements import measurement_frame

        facts = {"run": self.id, "cluster": self.cluster_name, "started": self.started}
        rows = [(r.criterion, r.probe, m) for r in self.results for m in r.measurements]
        return measurement_frame(facts, self.node_names, rows)

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


NOT_RUN = "not run"  # state of the entry for a probe without a result
NEVER_WRITTEN = "the test ended before this measurement"


def complete_results(
    results: list[ProbeResult], owed: Iterable[OwedProbe], why_not_run: str
) -> list[ProbeResult]:
    """Return the results, plus an entry for everything that is owed and missing.

    Only finished results are checked for owed measures and controls: the state of the others
    already shows that nothing is proven.
    """
    by_probe = {entry.probe: entry for entry in owed}
    complete = [_with_missing(result, by_probe.get(result.probe)) for result in results]
    have = {result.probe for result in results}
    return complete + [
        ProbeResult(probe=probe, criterion=one.criterion, state=NOT_RUN, error=why_not_run)
        for probe, one in by_probe.items()
        if probe not in have
    ]


def _with_missing(result: ProbeResult, owed: OwedProbe | None) -> ProbeResult:
    """Return a result, plus an entry for each owed measure and control that it lacks."""
    if owed is None or result.state != "finished":
        return result
    judged = {m.name for m in result.measurements if m.judged}
    run = {control.name for control in result.controls}
    no_values = [Measurement(name=n, note=NEVER_WRITTEN) for n in owed.measures if n not in judged]
    fault = "{} (the test ended before this fault was planted)"
    absent = [Control(name=n, fault=fault.format(n)) for n in owed.controls if n not in run]
    new = {"measurements": result.measurements + no_values, "controls": result.controls + absent}
    return result.model_copy(update=new)


NOT_SHOWN = "no planted fault of this run made it fail"


def uncontrolled_measures(
    results: Sequence[ProbeResult], owed: Iterable[OwedProbe]
) -> list[tuple[str, str]]:
    """Return (measure title, reason) for each judged measure that no control turned red.

    Empty if no control observed any measure: then the controls are the problem.
    """
    controls = [control for result in results for control in result.controls]
    if not any(control.observed for control in controls):
        return []
    shown = {name for control in controls for name in control.proves}
    reasons = {name: why for probe in owed for name, why in probe.uncontrolled.items()}
    every = [m for result in results for m in result.measurements if m.judged]
    judged = dict.fromkeys((m.name, m.title) for m in every)
    return [(title, reasons.get(name, NOT_SHOWN)) for name, title in judged if name not in shown]
