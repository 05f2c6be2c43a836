"""Declares LAUNCH: its checks with their limits, its controls, and its probes."""

from __future__ import annotations

# fmt: off
# isort: off
from probes.check.declarations import (
    ALL_GPUS, OWN_HOSTS, SEVERAL_HOSTS, SEVERAL_NODES, Check, ControlRow, CriterionRow, OnOneNode,
    Probe, When, default_check, fixed_check, none_of, ordered,
)

OTHER_USER = OWN_HOSTS & When(lambda here: here.terms.launch.user != "own", frozenset({"launch"}))

# Python returns -9 for a command that signal 9 ended: a failure, not an error of measurement.
EXIT_CODE = fixed_check(
    "exit_code", "", "every command of the guide must succeed", low=0, high=0, signed=True,
    failing="the guide's commands end with exit code {value}",
)
RANKS = Check(
    "ranks", "ranks", from_run="one rank per accelerator", failing="the guide's job runs {value}",
)
WRONG_RANKS = none_of(
    "wrong_ranks", "ranks",
    "each rank must run once, on this cluster, on its own accelerator, with correct and "
    "consistent variables", failing="ranks run in the wrong place or with wrong variables: {value}",
)
TIME_TO_FIRST_STEP = default_check(
    "time_to_first_step", "s", "a user should see the first step within five minutes", high=300,
    doubted=True,
)
GUIDE_FAULTS = default_check(
    "guide_faults", "lines",
    "the guide's commands must work for any user, and on another cluster", high=0,
    failing="the guide has faults: {value}",
)
RIGHTS_OF_USER = none_of(
    "rights_of_user", "rights", "an ordinary user is not root and has no group besides its own",
    when=OTHER_USER, failing="the guide was tested with rights that users do not have: {value}",
)
RANKS_WITH_OTHER_WEIGHTS = none_of(
    "ranks_with_other_weights", "ranks",
    "all ranks must begin with the same weights, and end with the same",
    failing="ranks have different weights: {value}",
)
MISPLACED_SAMPLES = none_of(
    "misplaced_samples", "samples", "exactly one rank must train on each sample",
    failing="samples are trained on twice, or never: {value}",
)
RANKS_WITH_OTHER_VALIDATION = none_of(
    "ranks_with_other_validation", "ranks", "all ranks must validate on the same data",
    failing="ranks validate on different data: {value}",
)
METRIC_ERROR = default_check(
    "metric_error", "ratio",
    "the logged loss must be the mean of all ranks; the limit allows only for its rounding to "
    "four decimals", high=0.0005, failing="the logged loss is wrong by {value}",
)
LOSS_RATIO = default_check(
    "loss_ratio", "ratio", "in 20 steps, sound training lowers the loss to two thirds of its first value, so the limit is wide",
    high=0.9, failing="after training, the loss is {value} of its first value",
)
WRONG_EXPORTS = none_of(
    "wrong_exports", "exports", "rank 0 must export the model, the other ranks must not",
    failing="a rank other than rank 0 exported the model, or no rank did: {value}",
)
EXPORT_ERROR = default_check(
    "export_error", "ratio",
    "the exported model must be the trained one; bf16 rounding changes its loss by under 1 %",
    high=0.02, failing="the exported model differs from the trained one by {value}",
)
SHARE_ON_AGREED_NETWORK = default_check(
    "share_on_agreed_network", "ratio",
    "a job on the agreed fabric sends all its FSDP traffic over this fabric; a job on another "
    "network sends none: half of the traffic separates the two", low=0.5, when=SEVERAL_HOSTS & ordered("fabric"), depends=("management",),
    failing="the job sends only {value} of its traffic over the agreed network",
)
HIDDEN_ERRORS = none_of(
    "hidden_errors", "errors", "a job that failed must end with an exit code above 0",
    failing="a job that failed ({subject}) ended with exit code 0: {value}",
)
FACTS_MISSING_FROM_ERROR = none_of(
    "facts_missing_from_error", "facts",
    "the last 40 lines must name the error, and also rank and host if the error is of one rank",
    failing="the end of the log of a failed job ({subject}) lacks {value}: error, rank or host",
)
TIME_TO_STOP = default_check(
    "time_to_stop", "s", "a user who stops a job expects its accelerators back at once", high=15,
    no_control="this time only shows when `left_processes` and `held_accelerators` are 0, and these "
    "measures have self-tests", failing="a stopped job keeps processes or accelerators for {value}",
)
LEFT_PROCESSES = none_of(
    "left_processes", "processes", "a job that has ended must leave no process on any node",
    failing="processes still run{on} after their job has ended: {value}",
)
HELD_ACCELERATORS = none_of(
    "held_accelerators", "accelerators", "a job that has ended must hold no accelerator",
    failing="a job that has ended still holds {value}",
)
EXIT_CODE_AFTER_STOP = fixed_check(
    "exit_code_after_stop", "", "after a stopped job the same commands must succeed", low=0, high=0,
    signed=True,
    no_control="in another test of LAUNCH, the exit code of the same commands has a self-test",
    failing="after a stopped job, the same commands end with exit code {value}",
)
RANKS_NOT_RESUMED = none_of(
    "ranks_not_resumed", "ranks",
    "all ranks must resume from the newest checkpoint, even if only one node has it",
    when=SEVERAL_HOSTS, failing="ranks do not resume from the newest checkpoint: {value}",
)
NODES_OF_RANK_0 = default_check(
    "nodes_of_rank_0", "nodes", "a job must run correctly, whichever node rank 0 is on", low=2,
    when=SEVERAL_NODES,
    no_control="the test itself moves rank 0: it holds the GPUs of a different node each time",
    failing="rank 0 ran only on {value}",
)
TIME_TO_ERROR = default_check(
    "time_to_error", "s", "a user should learn within five minutes that the job failed", high=300,
    no_control="the test plants an error that comes early, and no self-test plants a late error", failing="a user learns only after {value} that the job failed ({subject})",
)

MISSING_VARIABLE = ControlRow("missing variable", WRONG_RANKS, EXIT_CODE, RANKS, TIME_TO_FIRST_STEP)
WRONG_GUIDE = ControlRow("wrong guide", GUIDE_FAULTS)
OWN_USER = ControlRow("own user", RIGHTS_OF_USER)
PLANTED_ERRORS = ControlRow(
    "planted errors", RANKS_WITH_OTHER_WEIGHTS, MISPLACED_SAMPLES, RANKS_WITH_OTHER_VALIDATION,
    METRIC_ERROR, LOSS_RATIO, WRONG_EXPORTS, EXPORT_ERROR,
)
JOB_ON_ANOTHER_NETWORK = ControlRow("job on another network", SHARE_ON_AGREED_NETWORK)
SWALLOWED_ERROR = ControlRow("swallowed error", HIDDEN_ERRORS, FACTS_MISSING_FROM_ERROR)
FORGOTTEN_VARIABLE = ControlRow("forgotten variable", WRONG_RANKS)
LEFTOVERS = ControlRow("leftovers", LEFT_PROCESSES, HELD_ACCELERATORS)
BEGAN_ANEW = ControlRow("began anew", RANKS_NOT_RESUMED)
MISSING_RANK = ControlRow("missing rank", RANKS, WRONG_RANKS)
RUNNING_JOB = ControlRow("running job", LEFT_PROCESSES, HELD_ACCELERATORS)

PROBES = (
    Probe(
        "test_launch.py::test_documented_path_starts_a_correct_job",
        tier="quick", usual_s=34,
        checks=(GUIDE_FAULTS, RIGHTS_OF_USER, WRONG_RANKS, EXIT_CODE, RANKS, TIME_TO_FIRST_STEP,
        RANKS_WITH_OTHER_WEIGHTS, RANKS_WITH_OTHER_VALIDATION, MISPLACED_SAMPLES, METRIC_ERROR,
        LOSS_RATIO, WRONG_EXPORTS, EXPORT_ERROR, SHARE_ON_AGREED_NETWORK),
        controls=(WRONG_GUIDE, OWN_USER, MISSING_VARIABLE, PLANTED_ERRORS, JOB_ON_ANOTHER_NETWORK),
        disturbs=(ALL_GPUS, "submits jobs of 20 training steps each, from a temporary home folder", "if seatrial runs as root, creates a user on the host of seatrial, types the guide as this user, and removes the user and the user's files"),
    ),
    Probe(
        "test_failing_job.py::test_a_failing_job_says_why",
        tier="quick", usual_s=20,
        checks=(HIDDEN_ERRORS, FACTS_MISSING_FROM_ERROR, TIME_TO_ERROR),
        controls=(SWALLOWED_ERROR,),
        disturbs=(ALL_GPUS, "submits a job that fails"),
    ),
    Probe(
        "test_failing_job.py::test_a_stopped_job_leaves_nothing",
        tier="standard", usual_s=30,
        checks=(TIME_TO_STOP, LEFT_PROCESSES, HELD_ACCELERATORS, EXIT_CODE_AFTER_STOP),
        controls=(RUNNING_JOB,),
        disturbs=(ALL_GPUS, "submits a job, and stops it while it trains"),
    ),
    Probe(
        "test_failing_job.py::test_other_failures_say_why_and_hold_nothing",
        tier="standard", usual_s=124,
        checks=(HIDDEN_ERRORS, FACTS_MISSING_FROM_ERROR, TIME_TO_ERROR, HELD_ACCELERATORS),
        controls=(SWALLOWED_ERROR,),
        disturbs=(ALL_GPUS,
        "submits jobs that fail; one of them hangs for a minute"),
    ),
    Probe(
        "test_launch.py::test_the_same_commands_work_every_time",
        tier="standard", usual_s=42,
        checks=(WRONG_RANKS, EXIT_CODE, RANKS, NODES_OF_RANK_0),
        controls=(MISSING_RANK,),
        disturbs=(ALL_GPUS, "holds all accelerators of one node, and then of another node"),
    ),
    Probe(
        "test_failing_job.py::test_a_job_goes_on_from_one_nodes_own_disk",
        tier="standard", usual_s=32,
        checks=(WRONG_RANKS, EXIT_CODE, RANKS, RANKS_NOT_RESUMED),
        controls=(BEGAN_ANEW, MISSING_RANK),
        disturbs=(ALL_GPUS, "writes small checkpoints to /tmp of each node, and removes them"),
    ),
    Probe(
        "test_launch.py::test_other_launchers_give_each_rank_what_it_needs",
        tier="soak", usual_s=65,
        checks=(WRONG_RANKS, EXIT_CODE, RANKS),
        controls=(FORGOTTEN_VARIABLE,),
        disturbs=(ALL_GPUS, "submits jobs that write their results to the shared folder"),
    ),
    Probe(
        "test_launch.py::test_eight_jobs_in_a_row_leave_nothing",
        tier="soak", usual_s=123,
        checks=(WRONG_RANKS, EXIT_CODE, RANKS, LEFT_PROCESSES, HELD_ACCELERATORS),
        controls=(LEFTOVERS,),
        disturbs=(ALL_GPUS, "submits eight jobs, one after the other"),
    ),
)

CRITERION = CriterionRow(
    title="a user can launch without help",
    how="seatrial types the commands of your user guide, or of seatrial's own, in an empty home "
    "folder; the job must run correctly, on the agreed network; a failing job must say why",
    where="a shell on the host that runs seatrial, and one rank for each GPU",
    needs=("Ray's dashboard, to which the job is submitted",),
    headlines={TIME_TO_FIRST_STEP: "the guide leads to training in {value}"},
    usual_s={"quick": 54, "standard": 283}, depends=("launch",),
    on_one_node=OnOneNode(untested="jobs on several nodes"),
)
