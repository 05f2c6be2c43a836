"""Which judged measures no control of the run turned red, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.record import OwedProbe, ProbeResult

NOT_SHOWN = "no control of this run turned it red"


def uncontrolled_measures(
    results: Sequence[ProbeResult], owed: Iterable[OwedProbe] | None
) -> list[tuple[str, str]]:
    """Return (measure, reason) for what a criterion judges and no control of it turned red.

    Empty for runs of schema 1.2 and older, whose controls do not tell what they are for.
    """
    controls = [control for result in results for control in result.controls]
    if not any(control.observed for control in controls):
        return []
    shown = {name for control in controls for name in control.proves}
    reasons = {name: why for probe in owed or () for name, why in probe.uncontrolled.items()}
    judged = dict.fromkeys(
        (m.name, m.title) for result in results for m in result.measurements if m.judged
    )
    return [(title, reasons.get(name, NOT_SHOWN)) for name, title in judged if name not in shown]
