"""Records what one probe observes: the `measure` fixture.

measure("busbw", 0.117, on="4 nodes")            a judged value; its limit is found by name
measure.note("algbw", 0.07, "GB/s")              a value that only informs
trial = measure.trial()                          judges an injected fault as the probe judges
measure.control("wrong network", fault, trial)      caught if its measures failed in the trial
measure.explain(findings...)                     the cause, the suspects, and the remedy
measure.keep("sweep.txt", table, caption="...")  a file of evidence
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable
from typing import Any

from probes.check.registry import CRITERIA
from probes.contract.contract import Contract
from reports.acceptance import ENDS_RUN
from reports.measurement import Limit, Measurement, Verdict
from reports.numbers import Value
from reports.record import Control, Criterion, Evidence, Finding, ProbeResult
from reports.redact import redact
from reports.run_folder.store import Store


def is_red(criterion: str, one: Measurement) -> bool:
    """Return whether a measurement shows the fault: it fails, or is `doubted` and contradicted."""
    doubted = CRITERIA[criterion].measures[one.name].doubted and one.verdict is Verdict.UNPROVEN
    return one.verdict is Verdict.FAIL or (doubted and one.limit is not None and bool(one.note))


class Recorder:
    """Observations of one probe, written to the store as they are made."""

    def __init__(
        self,
        store: Store | NoStore,
        contract: Contract,
        probe: str,
        criterion: str,
        claim: str,
        reproduce: str,
        say: Callable[[str], None],
    ) -> None:
        self.store, self.contract, self.probe, self.criterion = store, contract, probe, criterion
        self.reproduce, self.say = reproduce, say
        self._recorded: dict[str, list[Any]] = {"measurement": [], "finding": [], "control": []}
        self._coverage: list[str] = []
        # Called before a bad result is recorded: does it follow from a node that was lost?
        self.settle: Callable[[], None] = lambda: None
        store.event("probe_started", probe, criterion=criterion, claim=claim, reproduce=reproduce)

    def __call__(
        self,
        name: str,
        value: Value,
        *,
        on: str = "cluster",
        limit: Limit | None = None,
        **more: Any,
    ) -> None:
        """Record a judged value of a measure of this criterion's row.

        `limit` is for limits that follow from the probe's own set-up (a save interval, a world
        size); all others come from the contract.  `more` is spread, samples and note, as in
        Measurement.  An impossible value becomes None, and the note gives the reason.  A measure
        that the contract declares not provable here only informs.  An unknown name is a bug: raises
        KeyError.
        """
        judged = self.contract.judges(self.criterion, name)
        measure = CRITERIA[self.criterion].measures[name]
        value, doubt = measure.plausible_value(value)
        if doubt:
            more["note"] = doubt
        limit = (limit or self.contract.limit(self.criterion, name)) if judged else None
        more |= {"unit": measure.unit, "limit": limit, "judged": judged}
        self._add_measurement(name=str(name), value=value, subject=on, **more)

    @property
    def row(self) -> Criterion:
        """The facts of its criterion: whether this cluster can prove it, and its sentences."""
        return self.contract.criterion(self.criterion)

    def would_fail(self, name: str, value: Value) -> bool:
        """Return whether this value would break the contract's limit of a measure."""
        limit = self.contract.limit(self.criterion, name)
        return limit is not None and value is not None and limit.judge(value) is Verdict.FAIL

    def note(
        self, name: str, value: Value, unit: str = "", *, on: str = "cluster", **more: Any
    ) -> None:
        """Record a value that only informs; `more` is its spread and samples."""
        self._add_measurement(name=name, value=value, unit=unit, subject=on, judged=False, **more)

    def _add_measurement(self, **fields: Any) -> None:
        measurement = Measurement(**fields)
        if measurement.severity > Verdict.MARGINAL.rank:
            self.settle()
        self._record("measurement", measurement)
        if measurement.verdict not in (None, Verdict.PASS):
            self.say(f"{measurement.verdict.value} {self.row.sentence(measurement)}")

    def trial(self) -> Trial:
        """Return a recorder that judges an injected fault by the same limits and writes nothing."""
        return Trial(self.contract, self.probe, self.criterion)

    def control(
        self,
        name: str,
        fault: str,
        trial: Trial | None,
        *,
        located: bool = True,
        saw: str = "",
        without: Container[str] = (),
    ) -> None:
        """Record whether an injected fault was caught, and what was observed.

        It is caught if each measure that this control is for (CONTROLS) failed in the trial, and
        the fault was `located` where it had been injected.  `trial` is None where the fault could
        not be injected; `saw` then gives the reason.  `without` are measures that the fault cannot
        make fail here.
        """
        possible = [one for one in CRITERIA[self.criterion].controls[name] if one not in without]
        targets = [one for one in possible if self.contract.judges(self.criterion, one)]
        observed = [trial.worst(target) for target in targets] if trial else []
        caught = None
        if observed:
            caught = located and all(is_red(self.criterion, one) for one in observed)
        saw = saw or "; ".join(self.row.sentence(one) for one in observed if one.severity)
        if not caught:
            self.settle()
        item = Control(name=name, fault=fault, caught=caught, saw=saw, observed=observed)
        self._record("control", item)
        if caught is False and self.row.required:  # what was not planted is told at the end
            self.say(item.headline)

    def has_measured(self, name: str) -> bool:
        """Return whether a measure was recorded at all."""
        return any(one.name == name for one in self._recorded["measurement"])

    def worst(self, name: str) -> Measurement:
        """Return a measure's worst judged measurement; without a value if it was never measured."""
        found = [one for one in self._recorded["measurement"] if one.name == name and one.judged]
        never = Measurement(name=name, note="nothing was measured with the planted fault")
        return max(found, key=lambda one: one.severity, default=never)

    def explain(self, *findings: Finding | Iterable[Finding]) -> None:
        """Record findings; those without a reproduce command get the probe's."""
        for item in findings:
            for finding in [item] if isinstance(item, Finding) else item:
                if finding.code not in ENDS_RUN:
                    self.settle()
                command = finding.reproduce or self.reproduce
                self._record("finding", finding.model_copy(update={"reproduce": command}))

    @property
    def finding_codes(self) -> set[str]:
        """Codes of the findings so far."""
        return {finding.code for finding in self._recorded["finding"]}

    def keep(self, name: str, content: Any, *, caption: str, kind: str = "table") -> str:
        """Keep a file of evidence: text as it is, anything else redacted and as JSON.

        Returns its path in the run folder, as a finding names it; "" in a trial.
        """
        is_text = isinstance(content, str)
        text = content if is_text else json.dumps(redact(content), indent=1, default=str)
        entry: Evidence | None = self.store.keep(self.probe, name, text, kind=kind, caption=caption)
        return entry.path if entry else ""

    def series(self, name: str, values: Any) -> None:
        """Record numbers for a figure of the report (shapes: see reports/charts/__init__.py)."""
        self.store.event("series", self.probe, name=name, values=values)

    def covered(self, statement: str) -> None:
        """Record which nodes, pairs and GPUs were exercised, and which not; statements add up."""
        self._coverage.append(statement)
        self.store.event("probe_updated", self.probe, coverage="; ".join(self._coverage))

    def progress(self, message: str) -> None:
        """Print one progress line, live on a terminal, plain in a log."""
        self.say(message)

    def _record(self, kind: str, item: Measurement | Finding | Control) -> None:
        self._recorded[kind].append(item)
        self.store.event(kind, self.probe, **item.model_dump(mode="json"))

    def finish(self, state: str, seconds: float, error: str = "") -> ProbeResult:
        """End the probe as finished, error, skipped or interrupted; return its result."""
        self.store.event("probe_finished", self.probe, state=state, error=error, seconds=seconds)
        return self.result(state, seconds, error)

    def result(self, state: str, seconds: float, error: str = "") -> ProbeResult:
        """Return what was recorded so far as a result."""
        return ProbeResult(
            probe=self.probe,
            criterion=self.criterion,
            state=state,
            error=error,
            seconds=seconds,
            measurements=self._recorded["measurement"],
            findings=self._recorded["finding"],
            controls=self._recorded["control"],
            reproduce=self.reproduce,
        )


class Trial(Recorder):
    """Recorder of a control: it judges by the probe's own limits and writes nothing."""

    def __init__(self, contract: Contract, probe: str, criterion: str) -> None:
        super().__init__(NoStore(), contract, probe, criterion, "", "", lambda message: None)

    @property
    def findings(self) -> list[Finding]:
        """Findings so far."""
        return list(self._recorded["finding"])

    def control(self, name: str, fault: str, trial: Trial | None, **_: Any) -> None:
        """Refuse a control inside a control: raise TypeError."""
        raise TypeError(f"control {name!r} inside a control")


class NoStore:
    """Store of a trial: it keeps nothing."""

    def event(self, kind: str, probe: str = "", **data: Any) -> None:
        """Discard the event."""

    def keep(self, *_: Any, **__: Any) -> None:
        """Discard the evidence."""
