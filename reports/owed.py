"""Compares what a run owed with what it recorded: probes, measures and controls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.measurement import Measurement
from reports.record import Control, OwedProbe, ProbeResult

NOT_RUN = "not run"  # state of the entry for a probe without a result
NEVER_WRITTEN = "this probe owes it, and never wrote it"


def complete_results(
    results: list[ProbeResult], owed: Iterable[OwedProbe], partial: str
) -> list[ProbeResult]:
    """Return the results, plus an entry for everything that is owed and missing.

    `partial` is the reason why not all probes were requested. Only finished results are checked
    for owed measures and controls: the state of the others already shows that nothing is proven.
    """
    by_probe = {entry.probe: entry for entry in owed}
    complete = [
        _with_missing(result, by_probe[result.probe])
        if result.probe in by_probe and result.state == "finished"
        else result
        for result in results
    ]
    ran = {result.probe for result in results}
    return complete + [_not_run(entry, partial) for id, entry in by_probe.items() if id not in ran]


def _with_missing(result: ProbeResult, owed: OwedProbe) -> ProbeResult:
    """Return a result, plus an entry for each owed measure and control that it lacks."""
    judged = {m.name for m in result.measurements if m.judged}
    run = {control.name for control in result.controls}
    no_values = [Measurement(name=n, note=NEVER_WRITTEN) for n in owed.measures if n not in judged]
    fault = "{} (this probe owes it, and never ran it)"
    absent = [Control(name=n, fault=fault.format(n)) for n in owed.controls if n not in run]
    return result.model_copy(
        update={
            "measurements": result.measurements + no_values,
            "controls": result.controls + absent,
        }
    )


def _not_run(entry: OwedProbe, partial: str) -> ProbeResult:
    """Build the entry for an owed probe that has no result."""
    reason = f"tier {entry.tier} owes this probe, and it has no result"
    return ProbeResult(
        probe=entry.probe,
        criterion=entry.criterion,
        state=NOT_RUN,
        error=f"{reason}; {partial}" if partial else reason,
    )


NOT_SHOWN = "no control of this run turned it red"


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
    judged = dict.fromkeys(
        (m.name, m.title) for result in results for m in result.measurements if m.judged
    )
    return [(title, reasons.get(name, NOT_SHOWN)) for name, title in judged if name not in shown]
