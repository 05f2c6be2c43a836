"""A sound cluster passes each scenario of RESTART, and each damaged checkpoint is seen, live.

Faulty training jobs are in `job_faults.py`.
"""

from __future__ import annotations

import pytest

from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import findings
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.lab import Lab
from tests.support.trial import acceptance

pytestmark = pytest.mark.soak(criterion="restart")
PLUGIN = "faulty_run"


def test_two_minutes_of_punishment_are_survived(lab: Lab) -> None:
    arguments = ["probes/restart", "-k", "punished", "--tier", "soak"]
    record, trial = acceptance(lab, "punished", *arguments, fault=(PLUGIN, "none"))
    (result,) = record.results
    assert result.verdict is Verdict.PASS, trial.log.read_text()
    nothing_left(lab)


def test_every_scenario_passes_on_a_sound_cluster(lab: Lab) -> None:
    arguments = ["probes/restart", "-k", "not punished", "--tier", "soak"]
    record, trial = acceptance(lab, "every-scenario", *arguments, seconds=1500)
    wrong = {one.probe: one.problems() for one in record.results if one.verdict != Verdict.PASS}
    assert not wrong, trial.log.read_text()
    assert len(record.results) >= 20
    nothing_left(lab)


def test_whoever_trusts_a_checkpoint_is_caught_for_each_damage(lab: Lab) -> None:
    """What torch can load is loaded, and what it cannot ends the run: never the one before it."""
    arguments = ["probes/restart", "-k", "damaged", "--tier", "standard"]
    record, trial = acceptance(lab, "trusting", *arguments, fault=(PLUGIN, "trusting"))
    assert len(record.results) == 6, trial.log.read_text()
    assert [result.verdict for result in record.results] == [Verdict.FAIL] * 6
    codes = [one.code for one in findings(record)]
    assert codes.count("RESTART-DAMAGED-LOADED") == 2, codes  # a bit, another run's
    # Torn, truncated, not committed, a later one.
    assert codes.count("RESTART-NOT-RECOVERED") == 4, codes
