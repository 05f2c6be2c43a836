"""No false alarm: the healthy lab is accepted, three times running."""

from __future__ import annotations

import pytest

from probes.criteria import TABLE
from tests.faults.conftest import acceptance
from tests.lab.lab import Lab


@pytest.mark.parametrize("time", [1, 2, 3])
def test_healthy_lab_is_accepted(lab: Lab, time: int) -> None:
    record, trial = acceptance(lab, f"healthy-{time}", "probes")
    said = {id: record.verdict(id).value for id in TABLE}
    complaints = [line for result in record.results for line in result.complaints()]
    assert record.decision.accepted, f"{said} {complaints}"
    assert trial.process.returncode == 0
    assert not [finding for result in record.results for finding in result.findings]
    assert all(control.caught for result in record.results for control in result.controls)
    assert record.rehearsal, "a lab run must say that it is a rehearsal"
    assert (trial.folder / "report.html").is_file()
    assert (trial.folder / "junit.xml").is_file()
