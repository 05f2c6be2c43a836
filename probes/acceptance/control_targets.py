"""Looks up which measures each control must make fail, and why a measure has no control.

A control counts as caught only if its measures failed, judged as the probe judges them.
"""

from __future__ import annotations

from probes.acceptance.criteria import CRITERIA
from reports.measurement import Measurement, Verdict

CONTROLS = {name: row.controls for name, row in CRITERIA.items()}
NO_CONTROL = {name: row.no_control for name, row in CRITERIA.items()}


def is_red(criterion: str, one: Measurement) -> bool:
    """Return whether a measurement shows the fault: it fails, or is `doubted` and contradicted."""
    doubted = CRITERIA[criterion].measures[one.name].doubted
    return one.verdict is Verdict.FAIL or (
        doubted and one.verdict is Verdict.UNPROVEN and one.limit is not None and bool(one.note)
    )
