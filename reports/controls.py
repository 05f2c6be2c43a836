"""Finds the judged measures that no control of the run turned red, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.record import OwedProbe, ProbeResult

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
