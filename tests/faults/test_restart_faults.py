"""Training jobs as users get them wrong, and what RESTART says of each: caught, named, located."""

from __future__ import annotations

import pytest

from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import Fault, caught, findings
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.lab import Lab
from tests.support.trial import acceptance

pytestmark = pytest.mark.soak(criterion="restart")
PLUGIN = "faulty_run"
TWICE, NOTICE, UPLOAD = "killed-in-a-step-then", "told-to-leave", "killed-in-an-upload"
UNEQUAL, DIFFERENT = {"RESTART-UNEQUAL"}, {"unequal_steps", "final_state"}
# Rank 3 is the victim both times; whichever of the others' processes ended in time goes on.
OUTLIVED = {"rank 0", "rank 1", "rank 2"}
FAULTS = [
    Fault("forgets-rng", TWICE, DIFFERENT, UNEQUAL, set(), "step 5"),
    Fault("forgets-data", TWICE, DIFFERENT, UNEQUAL, set(), "step 5"),
    Fault("forgets-optimizer", TWICE, DIFFERENT, UNEQUAL, set(), "step 5: digest"),
    Fault("forgets-all", TWICE, DIFFERENT, UNEQUAL, set(), "step 5"),
    Fault("forgets-peer", NOTICE, DIFFERENT, UNEQUAL, set(), "step 7"),
    Fault("unstaged", UPLOAD, DIFFERENT, UNEQUAL, set(), "step 5"),
    Fault("remembers", TWICE, DIFFERENT, UNEQUAL, OUTLIVED, "step 5"),
    Fault(
        "miscalculates", "repeated", DIFFERENT, {"RESTART-NONDETERMINISTIC"}, {"rank 2"},
        "rank 2, step 1",
    ),
    Fault("forgets-rng", "a-node-to-spare", DIFFERENT, UNEQUAL, set(), "step 5"),
    Fault("forgets-rng", "two-nodes", DIFFERENT, UNEQUAL, set(), "step 5"),
    Fault("typed-forgets-rng", "same_command", DIFFERENT, UNEQUAL, set(), "step 5"),
    Fault(
        "shrunk", "fewer", {"samples_differ", "drift"}, UNEQUAL, set(), "have other samples"
    ),
    Fault(
        "prunes-first", "killed-in-a-commit", {"resumed_from", "steps_lost"},
        {"RESTART-STEPS-LOST"},
        set(), "8 steps were lost. Expected: at most 4",
    ),
    Fault(
        "silent", "newest-bit-flipped", {"refusals_explained"}, {"RESTART-UNREPORTED"}, set(),
        "was skipped without a reason in the log",
    ),
    Fault(
        "never-saves", TWICE, {"steps_lost"}, {"RESTART-STEPS-LOST"}, set(),
        "6 steps were lost. Expected: at most 4",
    ),
    Fault(
        "gives-up", TWICE, {"outcome", "attempts"}, {"RESTART-NOT-RECOVERED"}, set(), "1 attempts",
    ),
    Fault(
        "gives-up-early", "killed-while-it-restarts", {"outcome", "attempts"},
        {"RESTART-NOT-RECOVERED"},
        set(), "2 attempts",
    ),
    Fault(
        "never-gives-up", "attempts-used-up", {"outcome", "attempts"}, {"RESTART-ATTEMPTS"},
        set(), "took 3 attempts. Expected: 2",
    ),
    Fault(
        "needs-a-checkpoint", "killed-before", {"outcome", "attempts"}, {"RESTART-NOT-RECOVERED"},
        set(), "there is no checkpoint to resume from",
    ),
    Fault(
        "hasty", NOTICE, {"resumed_from", "steps_lost"}, {"RESTART-STEPS-LOST"}, set(),
        "1 steps were lost. Expected: at most 0",
    ),
    Fault(
        "heedless", NOTICE, {"attempts"}, {"RESTART-ATTEMPTS"}, set(),
        "took 1 attempts. Expected: 2",
    ),
    Fault(
        "no-heartbeat", "stopped-not-killed", {"recovery_time"}, {"RESTART-SLOW"}, set(),
        "recovery: detection 6",
    ),
    Fault("forgets-rng", "punished", DIFFERENT, UNEQUAL, set(), "rank"),
    Fault(
        "gives-up", "punished", {"runs_lost"}, {"RESTART-NOT-RECOVERED"}, set(),
        "1 attempts were lost"
    ),
    Fault(
        "keeps-its-gang", TWICE, {"not_released"}, {"RESTART-LEAK"}, set(),
        "1 placement groups are left",
    ),
    Fault(
        "keeps-its-gang", "no-node", {"outcome", "unreported_waits", "not_released"},
        {"RESTART-NOT-RECOVERED", "RESTART-LEAK"}, set(), "already exists",
    ),
    Fault(
        "stuck", "raylet-killed", {"still_running"}, {"RESTART-LEAK"}, {"rank 1", "node0"},
        "has ended: rank 1 on node0",
    ),
    Fault(
        "reuses-its-gang", "no-node", {"held_while_waiting", "not_released"}, {"RESTART-LEAK"},
        set(),
        "while the run waited for a node it held 1 of 2",
    ),
    Fault(
        "brittle", "full_disk", {"outcome"}, {"RESTART-NOT-RECOVERED"}, set(),
        "a full disk ended the run"
    ),
    Fault(
        "careless", "full_disk", {"saves_refused", "saved_after"}, {"RESTART-TORN"},
        {"rank 3"}, "step-8 was committed",
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_scenario_sees_its_fault(lab: Lab, fault: Fault) -> None:
    caught(lab, "RESTART", PLUGIN, fault, tier="soak")


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
