"""Declares RESTART: its checks with their limits, its controls, and its probes."""

from __future__ import annotations

# fmt: off
# isort: off
from probes.check.declarations import (
    ALL_GPUS, CHECKPOINTS, SPARE_RAYLETS, Check, ControlRow, CriterionRow, OnOneNode, Probe,
    default_check, fixed_check, none_of,
)

RESTARTED = (ALL_GPUS, "kills or stops ranks of its own jobs", CHECKPOINTS)
FORGOTTEN = ("rng", "data", "optimizer", "peer", "all")  # what a faulty resume leaves out

FAULTS_INJECTED = fixed_check(
    "faults_injected", "processes", "the fault must have happened exactly once", low=1, high=1,
    doubted=True, no_control="this measure only shows that the planted fault happened",
)
OUTCOME = Check(
    "outcome", "", better="word", from_run="what each scenario must end in: the resumed run finishes, or gives up",
    failing="the run {value}",
)
ATTEMPTS = Check(
    "attempts", "attempts", from_run="one attempt for each injected fault, and one more if the run must finish",
    failing="the killed run needs {value}",
)
RESUMED_FROM = Check(
    "resumed_from", "step", from_run="the newest complete checkpoint",
    failing="the run resumes from the wrong checkpoint: {value}",
)
STEPS_LOST = Check(
    "steps_lost", "steps", from_run="the number of steps between two saves",
    failing="a fault costs the run {value}",
)
NOT_REFUSED = none_of(
    "not_refused", "checkpoints",
    "a checkpoint that is damaged, or that is of another run, must not be loaded",
    failing="a damaged checkpoint is loaded: {value}",
)
REFUSALS_EXPLAINED = Check(
    "refusals_explained", "sentences", from_run="one sentence for each refused checkpoint",
    failing="the log has {value} on why a checkpoint was refused",
)
SAVES_REFUSED = Check(
    "saves_refused", "saves", from_run="the saves in which seatrial plants the error of a full disk; no disk is filled",
    failing="with a full disk, {value} failed with an error that names the rank",
)
SAVED_AFTER = Check(
    "saved_after", "saves", from_run="the saves that are due once there is free space",
    failing="after the disk had space again, the run made {value}",
)
NOT_RELEASED = none_of(
    "not_released", "groups", "a run that has ended must hold no placement group",
    failing="a run that has ended still holds placement groups: {value}",
)
STILL_RUNNING = none_of(
    "still_running", "processes",
    "a rank that still runs can write files, and it holds its GPU",
    failing="ranks still run{on} after their run has ended: {value}",
)
KILLS = Check(
    "kills", "kills", from_run="the number of kills that are due in the given time",
    failing="seatrial killed the run less often than planned: {value}",
)
UNEXPLAINED_FAILURES = none_of(
    "unexplained_failures", "attempts", "every failed attempt must match an injected kill",
    failing="attempts of a run fail without a kill: {value}",
)
RUNS_LOST = none_of(
    "runs_lost", "runs", "every run must finish, however often it is killed",
    failing="killed runs do not finish: {value}",
)
SAMPLES_DIFFER = none_of(
    "samples_differ", "steps", "the samples and their order must not depend on the number of ranks",
    failing="with fewer ranks the samples differ in {value}",
)
DRIFT = Check(
    "drift", "nats", from_run="3 times the difference in loss of two runs that were never killed, the second with one "
    "rank fewer",
    failing="after a resume with fewer ranks, the loss is off by {value}",
)
UNREPORTED_WAITS = none_of(
    "unreported_waits", "waits", "a job that waits for resources must log what it waits for",
    failing="a job waits for resources and does not say so: {value}",
)
HELD_WHILE_WAITING = none_of(
    "held_while_waiting", "bundles", "a waiting job must not keep resources from other jobs",
    failing="a waiting job keeps resources from other jobs: {value}",
)
NON_FINITE = none_of(
    "non_finite", "steps", "training has failed if the loss is NaN or infinite",
    failing="the loss became NaN or infinite: {value}",
)
UNEQUAL_STEPS = none_of(
    "unequal_steps", "steps",
    "a run that was never killed has bitwise the same loss, gradient norm and samples; only the "
    "order of NCCL's sums may differ",
    failing="the restarted run differs from a run that was never killed: {value}",
)
FINAL_STATE = fixed_check(
    "final_state", "",
    "a run that was never killed ends with bitwise the same parameters; only the order of NCCL's "
    "sums may differ", one_of=['equal', 'reordered'],
    failing="compared with a run that was never killed, the final model is {value}",
)
RECOVERY_TIME = default_check(
    "recovery_time", "s",
    "a longer time from the kill to the first new step is no better than a manual restart",
    high=120, no_control="a self-test would make a run wait for longer than the limit",
)

RETURNS = (FAULTS_INJECTED, OUTCOME, ATTEMPTS, RESUMED_FROM, STEPS_LOST)
REFUSES = (OUTCOME, NOT_REFUSED, RESUMED_FROM, REFUSALS_EXPLAINED, UNEQUAL_STEPS, FINAL_STATE)
RESUMES = (*RETURNS, UNEQUAL_STEPS, FINAL_STATE, NON_FINITE, NOT_RELEASED, STILL_RUNNING)

EXPLODING_LOSS = ControlRow("exploding loss", NON_FINITE)
ANOTHER_SCENARIO = ControlRow("another scenario", OUTCOME, ATTEMPTS, RESUMED_FROM, STEPS_LOST)
UNTOUCHED_ONE_TAKEN_FOR_DAMAGED = ControlRow(
    "an untouched one taken for damaged", NOT_REFUSED, RESUMED_FROM, REFUSALS_EXPLAINED,
)
LEFT_BEHIND_ON_PURPOSE = ControlRow("left behind on purpose", NOT_RELEASED, STILL_RUNNING)
DISK_THAT_WAS_NOT_FULL = ControlRow("a disk that was not full", SAVES_REFUSED, SAVED_AFTER)
SILENT_WAIT = ControlRow("silent wait", UNREPORTED_WAITS, HELD_WHILE_WAITING)
KILLS_TAKEN_AWAY = ControlRow("kills taken away", KILLS, UNEXPLAINED_FAILURES, RUNS_LOST)
RESUMED_ONE_SAMPLE_FURTHER_ON = ControlRow("resumed one sample further on", SAMPLES_DIFFER, DRIFT)
FORGETS = (
    *(ControlRow(f"resume forgets: {part}", UNEQUAL_STEPS, FINAL_STATE) for part in FORGOTTEN),
    EXPLODING_LOSS,
)
KILLED_RUN = (*FORGETS, ANOTHER_SCENARIO, LEFT_BEHIND_ON_PURPOSE)

PROBES = (
    Probe(
        "test_restart.py::test_killed_run_resumes_as_if_never_killed",
        cases={"killed-in-a-step-then-in-a-save": "quick", "node-killed": "standard",
        "stopped-not-killed": "standard", "told-to-leave": "standard", "killed-in-an-upload": "standard",
        "killed-in-a-commit": "soak", "killed-before-the-first-checkpoint": "soak",
        "killed-while-it-restarts": "soak"}, usual_s=36,
        checks=(*RESUMES, RECOVERY_TIME),
        controls=KILLED_RUN,
        disturbs=RESTARTED,
    ),
    Probe(
        "test_restart.py::test_killed_run_resumes_as_if_never_killed",
        cases={"attempts-used-up": "soak"},
        checks=(*RETURNS, NOT_RELEASED, STILL_RUNNING),
        controls=(ANOTHER_SCENARIO, LEFT_BEHIND_ON_PURPOSE),
    ),
    Probe(
        "test_restart.py::test_a_run_can_be_repeated",
        tier="quick", usual_s=1,
        checks=(UNEQUAL_STEPS, FINAL_STATE),
        controls=FORGETS,
        disturbs=(ALL_GPUS, CHECKPOINTS),
    ),
    Probe(
        "test_restart.py::test_the_same_command_goes_on_after_a_killed_launcher",
        tier="standard", usual_s=29,
        checks=RESUMES,
        controls=KILLED_RUN,
        disturbs=(*RESTARTED, "kills the launcher of its own job"),
    ),
    Probe(
        "test_restart.py::test_a_damaged_checkpoint_is_refused",
        cases={"newest-bit-flipped": "quick", "metadata-torn": "quick",
        "newest-truncated": "standard", "newest-not-committed": "standard",
        "of-another-run": "standard", "of-a-later-version": "standard"}, usual_s=1,
        checks=REFUSES,
        controls=(UNTOUCHED_ONE_TAKEN_FOR_DAMAGED,),
        disturbs=(ALL_GPUS, CHECKPOINTS, "damages copies of its own checkpoints"),
    ),
    Probe(
        "test_restart.py::test_a_full_disk_costs_a_save_and_not_the_run",
        tier="standard", usual_s=1,
        checks=(FAULTS_INJECTED, OUTCOME, SAVES_REFUSED, SAVED_AFTER, UNEQUAL_STEPS, FINAL_STATE),
        controls=(*FORGETS, DISK_THAT_WAS_NOT_FULL),
        disturbs=(ALL_GPUS, CHECKPOINTS,
        "makes a save of its own job fail as if the disk were full; no disk is filled"),
    ),
    Probe(
        "test_restart.py::test_a_lost_node_is_done_without",
        cases={"no-node-to-spare": "standard"}, usual_s=34,
        checks=(*RESUMES, UNREPORTED_WAITS, HELD_WHILE_WAITING),
        controls=(*KILLED_RUN, SILENT_WAIT),
        disturbs=(*RESTARTED, SPARE_RAYLETS),
    ),
    Probe(
        "test_restart.py::test_a_lost_node_is_done_without",
        cases={"a-node-to-spare": "soak", "raylet-killed": "soak", "two-nodes-at-once": "soak"},
        checks=(*RESUMES, RECOVERY_TIME),
        controls=KILLED_RUN,
    ),
    Probe(
        "test_restart.py::test_a_punished_run_is_the_run_never_killed",
        tier="soak", usual_s=670,
        checks=(KILLS, UNEXPLAINED_FAILURES, RUNS_LOST, STEPS_LOST, UNEQUAL_STEPS, FINAL_STATE,
        NOT_RELEASED, STILL_RUNNING),
        controls=(*FORGETS, LEFT_BEHIND_ON_PURPOSE, KILLS_TAKEN_AWAY),
        disturbs=(*RESTARTED, "kills ranks again and again for ten minutes"),
    ),
    Probe(
        "test_restart.py::test_fewer_ranks_go_on_with_the_same_samples",
        tier="standard", usual_s=15,
        checks=(SAMPLES_DIFFER, RESUMED_FROM, DRIFT),
        controls=(RESUMED_ONE_SAMPLE_FURTHER_ON,),
        disturbs=(ALL_GPUS, CHECKPOINTS),
    ),
)

CRITERION = CriterionRow(
    title="restart from checkpoint works",
    how="a run is killed during training, resumes by itself, and is proven equal to a run that "
    "was never killed", where="one rank for each GPU, on all nodes",
    needs=("a shared folder that all nodes see",),
    headlines={RECOVERY_TIME: "a killed run trains again after {value}"},
    proven=", with the same result", usual_s={"quick": 37, "standard": 225}, depends=("shared",),
    keeps_in_shared=True, on_one_node=OnOneNode(untested="the restart of a run on several nodes"),
)
