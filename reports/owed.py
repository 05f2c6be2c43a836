"""What a run owes: fixed before any probe is selected, and held against what there is.

A probe that has no result, and a measure or control that a result lacks, become UNPROVEN entries of
the record: every rendering then shows them, by whatever means they went missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from reports.measurement import Measurement
from reports.record import Control, OwedProbe, ProbeResult

NOT_RUN = "not run"  # state of a result that stands for a probe without any
NEVER_WRITTEN = "this probe owes it, and never wrote it"


def complete_results(
    results: list[ProbeResult], owed: Iterable[OwedProbe], partial: str
) -> list[ProbeResult]:
    """Return the results with an entry for all that is owed and missing.

    `partial` is why not all was asked for.  Measures and controls are owed by results that came to
    their end: of others the state tells already that nothing is proven.
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
    """Return a result with an entry for each measure and control it lacks."""
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
    """Return the result of a probe that was owed and has none."""
    reason = f"tier {entry.tier} owes this probe, and it has no result"
    return ProbeResult(
        probe=entry.probe,
        criterion=entry.criterion,
        state=NOT_RUN,
        error=f"{reason}; {partial}" if partial else reason,
    )
