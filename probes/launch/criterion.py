"""Defines LAUNCH: its measures with their limits, its probes, and its controls."""

from __future__ import annotations

from probes.check.criterion import (
    Circumstances,
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
        "each rank must run once, on this cluster, on an accelerator of its own, with correct and consistent variables",
    ),
    "time_to_first_step": doubted(
        default_measure("s", "a user should see the first step within five minutes", high=300)
    ),
    "guide_faults": default_measure(
        "lines",
        "any user must be able to type the guide's commands, on this cluster and the next",
        high=0,
    ),
    "rights_of_user": none_of(
        "rights", "a user is neither root nor in a group that others are not in"
    ),
    "ranks_with_other_weights": none_of(
        "ranks", "all ranks must begin with the same weights, and end with the same"
    ),
    "misplaced_samples": none_of("samples", "each sample must be trained on by one rank"),
    "ranks_with_other_validation": none_of("ranks", "all ranks must validate on the same data"),
    "metric_error": default_measure(
        "ratio",
        "a logged loss must be the mean of all ranks; four digits are logged, and wrong means differ by 0.1 % or more",
        high=0.0005,
    ),
    "loss_ratio": default_measure(
        "ratio", "in 20 steps the loss falls to two thirds; without learning it stays", high=0.9
    ),
    "wrong_exports": none_of("exports", "rank 0 must export the model, and no other rank"),
    "export_error": default_measure(
        "ratio",
        "the exported model must be the trained one; bf16 against fp32 differs by less than 1 %",
        high=0.02,
    ),
    "share_on_agreed_network": default_measure(
        "ratio",
        "a job on the agreed fabric sends all of the fewest bytes that FSDP needs there; elsewhere it sends none",
        low=0.5,
    ),
    "hidden_errors": none_of("errors", "a job that failed must end with an exit code above 0"),
    "facts_missing_from_error": none_of(
        "facts", "the last 40 lines must name the exception, its rank and its host"
    ),
    "time_to_stop": default_measure(
        "s", "a user who stops a job expects its accelerators back at once", high=15
    ),
    "left_processes": none_of("processes", "a stopped job must leave no process on any node"),
    "held_accelerators": none_of("accelerators", "a job that has ended must hold no accelerator"),
    "exit_code_after_stop": fixed_measure(
        "", "after a stopped job the same commands must succeed", low=0, high=0, signed=True
    ),
    "ranks_not_resumed": none_of(
        "ranks", "all ranks must go on from the newest checkpoint, also if one node alone has it"
    ),
    "nodes_of_rank_0": default_measure(
        "nodes", "a job must run correctly wherever its first rank is", low=2
    ),
    "time_to_error": default_measure(
        "s", "a user should learn within five minutes that the job failed", high=300
    ),
}

CONTROLS = {
    "missing variable": ("wrong_ranks", "exit_code", "ranks", "time_to_first_step"),
    "wrong guide": ("guide_faults",),
    "own user": ("rights_of_user",),
    "planted errors": (
        *("ranks_with_other_weights", "misplaced_samples", "ranks_with_other_validation"),
        *("metric_error", "loss_ratio", "wrong_exports", "export_error"),
    ),
    "job on another network": ("share_on_agreed_network",),
    "swallowed error": ("hidden_errors", "facts_missing_from_error"),
    "forgotten variable": ("wrong_ranks",),
    "leftovers": ("left_processes", "held_accelerators"),
    "began anew": ("ranks_not_resumed",),
    "missing rank": ("ranks", "wrong_ranks"),
    "running job": ("left_processes", "held_accelerators"),
}
DUTIES = (
    Duty(
        "launch/test_launch.py::test_documented_path_starts_a_correct_job",
        "quick",
        (
            *("guide_faults", "rights_of_user", "wrong_ranks", "exit_code", "ranks"),
            *("time_to_first_step", "ranks_with_other_weights", "ranks_with_other_validation"),
            *("misplaced_samples", "metric_error", "loss_ratio", "wrong_exports", "export_error"),
            "share_on_agreed_network",
        ),
        (
            *("wrong guide", "own user", "missing variable", "planted errors"),
            "job on another network",
        ),
    ),
    Duty(
        "launch/test_failing_job.py::test_a_failing_job_says_why",
        "quick",
        ("hidden_errors", "facts_missing_from_error", "time_to_error"),
        ("swallowed error",),
    ),
    Duty(
        "launch/test_failing_job.py::test_a_stopped_job_leaves_nothing",
        "standard",
        ("time_to_stop", "left_processes", "held_accelerators", "exit_code_after_stop"),
        ("running job",),
    ),
    Duty(
        "launch/test_failing_job.py::test_other_failures_say_why_and_hold_nothing",
        "standard",
        ("hidden_errors", "facts_missing_from_error", "time_to_error", "held_accelerators"),
        ("swallowed error",),
    ),
    Duty(
        "launch/test_launch.py::test_the_same_commands_work_every_time",
        "standard",
        ("wrong_ranks", "exit_code", "ranks", "nodes_of_rank_0"),
        ("missing rank",),
    ),
    Duty(
        "launch/test_failing_job.py::test_a_job_goes_on_from_one_nodes_own_disk",
        "standard",
        ("wrong_ranks", "exit_code", "ranks", "ranks_not_resumed"),
        ("began anew", "missing rank"),
    ),
    Duty(
        "launch/test_launch.py::test_other_launchers_give_each_rank_what_it_needs",
        "soak",
        ("wrong_ranks", "exit_code", "ranks"),
        ("forgotten variable",),
    ),
    Duty(
        "launch/test_launch.py::test_eight_jobs_in_a_row_leave_nothing",
        "soak",
        ("wrong_ranks", "exit_code", "ranks", "left_processes", "held_accelerators"),
        ("leftovers",),
    ),
)


def tries_another_user(here: Circumstances) -> bool:
    """Return whether another user must follow the guide."""
    return not here.one_host and here.terms.launch.user != "own"


def leaves_its_nodes(here: Circumstances) -> bool:
    """Return whether a job's bytes cross an agreed network."""
    return here.terms.fabric is not None and here.nodes > 1 and not here.one_host


def has_several_hosts(here: Circumstances) -> bool:
    """Return whether a node has a disk that another has not."""
    return here.nodes > 1 and not here.one_host


LAUNCH = CriterionRow(
    title="a user can launch without help",
    how="another user types the commands of the agreed guide; the job runs correctly, on the agreed network, and a failing job says why",
    headlines={"time_to_first_step": "a new user's first step comes after {value}"},
    measures=MEASURES,
    duties=DUTIES,
    controls=CONTROLS,
    no_control={
        "time_to_stop": "it is the time until left processes and held accelerators are none, which have a control",
        "exit_code_after_stop": "the same commands as in the first probe, whose exit code has a control",
        "nodes_of_rank_0": "it counts what the probe itself arranged: another node is held each time",
        "time_to_error": "it is the time of the job whose error the probe plants; how long a job may be silent is not planted",
    },
    conditions={
        "rights_of_user": tries_another_user,
        "own user": tries_another_user,
        "nodes_of_rank_0": lambda here: here.nodes > 1,
        "ranks_not_resumed": has_several_hosts,
        "began anew": has_several_hosts,
        "share_on_agreed_network": leaves_its_nodes,
        "job on another network": leaves_its_nodes,
    },
)
