"""Defines LAUNCH: its measures with their limits, its probes, and its controls."""

from __future__ import annotations

from probes.acceptance.criteria.criterion import (
    CriterionRow,
    Duty,
    Measure,
    default_measure,
    doubted,
    fixed_measure,
    none_of,
)

MEASURES = {
    # Python returns -9 for a command that signal 9 ended: a failure, not an error of measurement.
    "exit_code": fixed_measure(
        "", "the documented commands must succeed", low=0, high=0, signed=True
    ),
    "ranks": Measure("ranks", from_run="one rank per accelerator"),
    "wrong_ranks": none_of(
        "ranks",
        "each rank must run once, on this cluster, on its own GPU (if GPUs are real), with correct and consistent RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
    ),
    "time_to_first_step": doubted(
        default_measure("s", "a user should see the first step within five minutes", high=300)
    ),
}

CONTROLS = {
    "missing variable": ("wrong_ranks", "exit_code", "ranks", "time_to_first_step"),
}
DUTIES = (
    Duty(
        "launch/test_launch.py::test_documented_path_starts_a_correct_job",
        "quick",
        ("exit_code", "ranks", "wrong_ranks", "time_to_first_step"),
        ("missing variable",),
    ),
)

LAUNCH = CriterionRow(
    title="a user can launch without help",
    how="the documented commands, run as written in a clean shell, start a job that runs correctly",
    headlines={"time_to_first_step": "a new user's first step comes after {value}"},
    measures=MEASURES,
    duties=DUTIES,
    controls=CONTROLS,
)
