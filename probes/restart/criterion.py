"""Defines RESTART: its measures with their limits, its probes, and its controls."""

from __future__ import annotations

from probes.check.criterion import (
    CriterionRow,
    Duty,
    Measure,
    default_measure,
    doubted,
    fixed_measure,
    none_of,
)

FORGOTTEN = ("rng", "data", "optimizer", "peer", "all")  # what a faulty resume leaves out
FORGETS = (*(f"resume forgets: {part}" for part in FORGOTTEN), "exploding loss")
LEFT = ("left behind on purpose",)
OTHER = ("another scenario",)
KILLED_RUN = (*FORGETS, *OTHER, *LEFT)
SAME = ("unequal_steps", "final_state")
RETURNS = ("faults_injected", "outcome", "attempts", "resumed_from", "steps_lost")
HOLDS = ("not_released", "still_running")
RESUMES = (*RETURNS, *SAME, "non_finite", *HOLDS)
REFUSES = ("outcome", "not_refused", "resumed_from", "refusals_explained", *SAME)
INTACT = ("an untouched one taken for damaged",)
WAITS = ("unreported_waits", "held_while_waiting")
SAME_RANKS, OTHER_RANKS = "restart/test_restart.py", "restart/test_restart.py"
KILLED = f"{SAME_RANKS}::test_killed_run_resumes_as_if_never_killed"
DAMAGED = f"{SAME_RANKS}::test_a_damaged_checkpoint_is_refused"
NODE_LOST = f"{OTHER_RANKS}::test_a_lost_node_is_done_without"

MEASURES = {
    "faults_injected": doubted(
        fixed_measure("processes", "the fault must have happened exactly once", low=1, high=1)
    ),
    "outcome": Measure("", from_run="the outcome that the scenario must have"),
    "attempts": Measure("attempts", from_run="one per injected fault, plus the last"),
    "resumed_from": Measure("step", from_run="the newest complete checkpoint"),
    "steps_lost": Measure("steps", from_run="the save interval of the probe"),
    "not_refused": none_of(
        "checkpoints",
        "a checkpoint that is not proven complete, and of this run, must not be loaded",
    ),
    "refusals_explained": Measure("sentences", from_run="the checkpoints that were refused"),
    "saves_refused": Measure("saves", from_run="the saves that met a full disk"),
    "saved_after": Measure("saves", from_run="the saves that are due once there is free space"),
    "not_released": none_of("groups", "a run that has ended must hold nothing"),
    "still_running": none_of(
        "processes", "a rank that outlives its run may still write files, and holds its device"
    ),
    "kills": Measure("kills", from_run="the number of kills that are due in the given time"),
    "unexplained_failures": none_of("attempts", "every failed attempt must match an injected kill"),
    "runs_lost": none_of("runs", "every run must finish, however often it is killed"),
    "samples_differ": none_of(
        "steps", "the samples and their order must not depend on the number of ranks"
    ),
    "drift": Measure("", from_run="the distance between two runs that were not resumed"),
    "unreported_waits": none_of(
        "waits", "a job that waits for resources must log what it waits for"
    ),
    "held_while_waiting": none_of(
        "bundles", "a waiting job must not keep resources from other jobs"
    ),
    "non_finite": none_of("steps", "training has failed if the loss is NaN or infinite"),
    "unequal_steps": none_of(
        "steps",
        "loss, gradient norm and samples must be bitwise equal to those of a run that was never killed",
    ),
    "final_state": fixed_measure(
        "",
        "the final parameters must be bitwise equal to those of a run that was never killed, "
        "except for sums that NCCL added in another order",
        one_of=["equal", "reordered"],
    ),
    "recovery_time": default_measure(
        "s",
        "from the kill to the first new step; a longer wait is no better than a manual restart",
        high=120,
    ),
}

CONTROLS = {
    **{f"resume forgets: {part}": ("unequal_steps", "final_state") for part in FORGOTTEN},
    "exploding loss": ("non_finite",),
    "another scenario": ("outcome", "attempts", "resumed_from", "steps_lost"),
    "an untouched one taken for damaged": (*("not_refused", "resumed_from", "refusals_explained"),),
    "left behind on purpose": ("not_released", "still_running"),
    "a disk that was not full": ("saves_refused", "saved_after"),
    "silent wait": ("unreported_waits", "held_while_waiting"),
    "kills taken away": ("kills", "unexplained_failures", "runs_lost"),
    "resumed one sample further on": ("samples_differ", "drift"),
}
NO_CONTROL = {
    "faults_injected": "it shows that the probe's own fault happened",
    "recovery_time": "a run would have to stand still for longer than the limit",
}
DUTIES = (
    Duty(
        f"{KILLED}[killed-in-a-step-then-in-a-save]",
        "quick",
        (*RESUMES, "recovery_time"),
        KILLED_RUN,
    ),
    *(
        Duty(f"{KILLED}[{case}]", "standard", (*RESUMES, "recovery_time"), KILLED_RUN)
        for case in ("stopped-not-killed", "told-to-leave", "killed-in-an-upload")
    ),
    *(
        Duty(f"{KILLED}[{case}]", "soak", (*RESUMES, "recovery_time"), KILLED_RUN)
        for case in (
            "killed-in-a-commit",
            "killed-before-the-first-checkpoint",
            "killed-while-it-restarts",
        )
    ),
    Duty(f"{KILLED}[attempts-used-up]", "soak", (*RETURNS, *HOLDS), (*OTHER, *LEFT)),
    Duty(f"{SAME_RANKS}::test_a_run_can_be_repeated", "quick", SAME, FORGETS),
    Duty(
        f"{SAME_RANKS}::test_the_same_command_goes_on_after_a_killed_launcher",
        "standard",
        RESUMES,
        KILLED_RUN,
    ),
    *(
        Duty(f"{DAMAGED}[{case}]", tier, REFUSES, INTACT)
        for case, tier in {
            "newest-bit-flipped": "quick",
            "metadata-torn": "quick",
            "newest-truncated": "standard",
            "newest-not-committed": "standard",
            "of-another-run": "standard",
            "of-a-later-version": "standard",
        }.items()
    ),
    Duty(
        f"{SAME_RANKS}::test_a_full_disk_costs_a_save_and_not_the_run",
        "standard",
        ("faults_injected", "outcome", "saves_refused", "saved_after", *SAME),
        (*FORGETS, "a disk that was not full"),
    ),
    Duty(
        f"{NODE_LOST}[no-node-to-spare]",
        "standard",
        (*RESUMES, *WAITS),
        (*KILLED_RUN, "silent wait"),
    ),
    *(
        Duty(f"{NODE_LOST}[{case}]", "soak", (*RESUMES, "recovery_time"), KILLED_RUN)
        for case in ("a-node-to-spare", "raylet-killed", "two-nodes-at-once")
    ),
    Duty(
        f"{OTHER_RANKS}::test_a_punished_run_is_the_run_never_killed",
        "soak",
        ("kills", "unexplained_failures", "runs_lost", "steps_lost", *SAME, *HOLDS),
        (*FORGETS, *LEFT, "kills taken away"),
    ),
    Duty(
        f"{OTHER_RANKS}::test_fewer_ranks_go_on_with_the_same_samples",
        "standard",
        ("samples_differ", "resumed_from", "drift"),
        ("resumed one sample further on",),
    ),
)

RESTART = CriterionRow(
    title="restart from checkpoint works",
    how="a run is killed during training, resumes by itself, and is proven equal to a run that was never killed",
    headlines={"recovery_time": "a killed run trains again after {value}"},
    proven=", with an equal result",
    measures=MEASURES,
    duties=DUTIES,
    controls=CONTROLS,
    no_control=NO_CONTROL,
)
