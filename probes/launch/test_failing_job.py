"""Tests that a job that fails, stops or loses its node says why and holds nothing."""

from __future__ import annotations

import time
from functools import partial

import pytest

from probes.check.judging import judge_or_explain, plant
from probes.cluster.room import busy_accelerators
from probes.findings import finding, join_names
from probes.launch import criterion as check
from probes.launch import judge, training
from probes.launch.controls import control_missing_rank, prepare_path
from probes.launch.guide import new_name
from probes.launch.job_processes import observe_job, wait_until_free, wait_until_gone, what_is_left
from probes.launch.judge import judge_job, keep_transcript, read_job
from reports.numbers import quantity

SWALLOWS = "python3 -c 'raise KeyError(\"planted error\")' 2>/dev/null || true\n"


@pytest.mark.criterion("LAUNCH")
def test_a_failing_job_says_why(cluster, terms, measure):
    """An exception in the last rank ends the job with an exit code above 0 and a readable error.

    The last 40 lines name the exception, its rank and its host.  A script that swallows its error
    must be caught.
    """
    with prepare_path(cluster, terms, measure) as path:
        measure.progress("launch: a job whose last rank raises an exception")
        said = path.follow(["--plant", "error", "--restarts", "0"])
        swallowed = path.ask(SWALLOWS)
    keep_transcript(said, measure, "failing", "a job whose last rank raises KeyError")
    rank = cluster.size - 1
    host = host_of(read_job(path, said), str(rank))
    failure = training.failure_of("exception", "KeyError", rank, host)
    judge_failure(failure, said, measure)
    measure.covered(f"one job that failed on rank {rank} of {cluster.size}")
    control_swallowed(failure, swallowed, measure)


def control_swallowed(failure, swallowed, measure):
    """Check that a script which hides its error is caught."""
    fault = "a script fails, but prints no error and ends with exit code 0"
    plant(measure, check.SWALLOWED_ERROR, fault, partial(judge_failure, failure, swallowed))


def host_of(job, rank):
    """Return the name of the host where a rank ran; a job that announced none names no host."""
    row = next((row for row in job.rows if row.get("RANK") == rank), {})
    return row.get("host", "unknown-host")


def judge_failure(failure, said, measure):
    """Judge the exit code, what the last lines name, and the time until then."""
    name, hidden, missing = failure.name, said.exit_code == 0, failure.missing(said.lines)
    statement = f"the failing test job {name!r} ended with exit code 0. Expected: above 0."
    cause = finding("LAUNCH-ERROR", statement)
    judge_or_explain(measure, check.HIDDEN_ERRORS, int(hidden), cause, on=name)
    statement = (
        f"the last {training.LAST_LINES} lines of the failing test job {name!r} do not name "
        f"{join_names(missing)}. Expected: {join_names(failure.facts)}."
    )
    cause, facts = finding("LAUNCH-ERROR", statement), len(failure.facts)
    judge_or_explain(
        measure, check.FACTS_MISSING_FROM_ERROR, len(missing), cause, on=name, samples=facts
    )
    note = "the job ended with exit code 0, or did not end"
    measure(check.TIME_TO_ERROR, said.seconds if said.exit_code else None, on=name, note=note)


NO_MEMORY = r"out of memory|OutOfMemory|can't allocate memory|not enough memory|Cannot allocate"
NO_ROOM = r"no free resources|not enough|insufficient|infeasible|no room|cannot be scheduled"
SILENT = r"stayed in|no progress|not answer|did not end|stuck|hangs?\b|time ?out|timed out"
# What a user types who writes the module's name, or its command, wrongly.
NO_MODULE = {"-m reference_trainer": "-m reference_trainr"}
NO_ENTRY = {"reference_trainer launch": "reference_trainer lunch"}
FREE_S = 15  # within this time a user expects the accelerators back
ROOM_S = 10  # a job that cannot start says so after this time, in which it holds nothing


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("standard")
def test_other_failures_say_why_and_hold_nothing(cluster, terms, measure):
    """Jobs that fail in different ways say why in their last 40 lines, and hold nothing afterwards.

    Out of memory and silence name rank and host; a missing module, a wrong entry point and a lack
    of room are the whole job's.
    """
    rank, size = cluster.size - 1, cluster.size
    with prepare_path(cluster, terms, measure) as path:
        idle = busy_accelerators(cluster)
        for name, error, located, options, change in (
            ("out of memory", NO_MEMORY, True, ["--plant", "memory"], {}),
            ("silence", SILENT, True, ["--plant", "silence"], {}),
            ("missing module", "No module named", False, [], NO_MODULE),
            ("wrong entry point", "No such command", False, [], NO_ENTRY),
            ("no room", NO_ROOM, False, ["--workers", str(size + 1), "--wait", str(ROOM_S)], {}),
        ):
            measure.progress(f"launch: a job that fails ({name})")
            with path.start([*options, "--restarts", "0"], change) as running:
                said = running.wait()
            held = wait_until_free(cluster, idle, FREE_S)
            keep_transcript(said, measure, name, f"a job that fails ({name})")
            host = host_of(read_job(path, said), str(rank))
            failure = training.failure_of(name, error, rank if located else None, host)
            judge_failure(failure, said, measure)
            judge_held(held, measure, name)
        swallowed = path.ask(SWALLOWS)
    failure = training.failure_of("exception", "KeyError", rank, "nowhere")
    control_swallowed(failure, swallowed, measure)
    measure.covered("jobs that hung, or lacked memory, a module, an entry point, or room")


def judge_held(held, measure, name):
    """Judge the accelerators that a failed job still holds."""
    statement = (
        f"the failing test job {name!r} still holds {quantity(held, 'accelerators')} "
        f"{FREE_S} s after its end. Expected: none."
    )
    cause = finding("LAUNCH-LEFT", statement)
    judge_or_explain(measure, check.HELD_ACCELERATORS, held, cause, on=name)


SAVED, STEPS = 10, 20  # steps of the first job, and of both together


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("standard")
def test_a_job_goes_on_from_one_nodes_own_disk(cluster, terms, measure):
    """A job saves into a folder that its nodes do not share.  Started again, all ranks resume.

    The first job began at step 0: judged as the second, each of its ranks must be found.
    """
    with (
        prepare_path(cluster, terms, measure) as path,
        training.own_folders(cluster, new_name()) as folder,
    ):
        shared = training.is_shared(cluster, folder)
        save = ["--checkpoints", folder, "--save-every", str(SAVED), "--keep-last", "1"]
        jobs = {}
        for name, steps in (("first job", SAVED), ("second job", STEPS)):
            measure.progress(f"launch: {name} of two, with checkpoints on a node's local disk")
            said = path.follow([*save, "--steps", str(steps)])
            keep_transcript(said, measure, name, f"{name} of two, with checkpoints on a local disk")
            jobs[name] = judge_job(path, said, measure, on=name)
    judge_resume(jobs["second job"], measure, shared=shared)
    fault = "the second job is replaced by a job that began at step 0"
    judge_first, ranks = partial(judge_resume, jobs["first job"]), range(cluster.size)
    suspects = [f"rank {rank}" for rank in ranks]
    plant(measure, check.BEGAN_ANEW, fault, judge_first, suspects=suspects)
    control_missing_rank(path, said, cluster.size, measure)
    measure.covered(f"two jobs: the second job had to resume from step {SAVED}")


def judge_resume(job, measure, *, shared=False):
    """Judge the ranks that did not go on from the checkpoint of the first job's last step.

    Where the nodes share the folder, nothing is shown of a disk of their own.
    """
    if shared:
        note = "the nodes share /tmp, so no checkpoint is only on one node"
        measure(check.RANKS_NOT_RESUMED, None, note=note)
        return
    rows = job.rows if job.ended else []
    wrong = [row for row in rows if "RANK" in row and row.get("from") != str(SAVED)]
    count = len(wrong) if job.ended and job.rows else None
    measure(check.RANKS_NOT_RESUMED, count, samples=len(job.rows), note=judge.NOT_ENDED)
    if wrong:
        on = [row.get("host", "unknown") for row in wrong]
        names, hosts = judge.name_ranks([row["RANK"] for row in wrong], on)
        starts = (f"step {row['from']}" if "from" in row else "an unknown step" for row in wrong)
        found = ", ".join(dict.fromkeys(starts))
        statement = (
            f"{join_names(names)} on {join_names(hosts)}: began at {found}. "
            f"Expected: step {SAVED} (one node has the complete checkpoint of this step)."
        )
        measure.explain(finding("LAUNCH-RESUME", statement, [*names, *hosts]))


FOR_EVER = ["--steps", "1000000"]
BUSY_STEP = 5  # by then all that a job starts is there
FIRST_STEP_S = 330  # as long as the trainer itself waits
PATIENCE_S = 45  # then what is left is left


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("standard")
def test_a_stopped_job_leaves_nothing(cluster, terms, measure):
    """After the user stops a running job, its processes are gone in 15 s, with all they started.

    Its accelerators are free, and the same commands start a job again.  What runs before the stop
    must be seen.
    """
    with prepare_path(cluster, terms, measure) as path:
        measure.progress("launch: a job that its user stops")
        idle = busy_accelerators(cluster)
        with path.start(FOR_EVER) as running:
            trained = running.wait_for_step(BUSY_STEP, FIRST_STEP_S)
            before = observe_job(cluster, training.announced_ranks(running.transcript.text), idle)
            still = what_is_left(cluster, before, idle)
            started = time.monotonic()
            stop(path, running)
            left = wait_until_gone(lambda: what_is_left(cluster, before, idle), PATIENCE_S)
            seconds = time.monotonic() - started
            said = running.transcript
        measure.progress("launch: the same commands again")
        again = path.follow()
    keep_transcript(said, measure, "stopped", "output of a job that its user stopped")
    keep_transcript(again, measure, "again", "output of the same commands, typed again")
    unreached = f"the job did not reach step {BUSY_STEP}: it ended, or took over {FIRST_STEP_S:g} s"
    unable = "" if trained else unreached
    fault = "a job that still runs is judged as if it had been stopped"
    plant(measure, check.RUNNING_JOB, fault, partial(judge_left, cluster, still), unable=unable)
    seen = trained and before.count >= cluster.size and not before.unseen
    judge_stop(cluster, left if seen else None, seconds, measure)
    judge_again(again, measure)
    when = " in training" if trained else ""
    measure.covered(f"one job of {quantity(before.count, 'processes')} was stopped{when}")


def stop(path, running):
    """Stop the job as `ray job stop` does, or by Ctrl-C where the guide submits none.

    Fails the probe in one sentence where the dashboard refuses.
    """
    jobs, cluster = running.transcript.jobs, path.cluster
    cluster.note_kill()
    try:
        for job in jobs:
            cluster.cleanup.end_now("job", f"{cluster.dashboard} {job}")
    except OSError as error:
        pytest.fail(f"Ray's dashboard did not stop the job: {error}", pytrace=False)
    if not jobs:
        running.interrupt()


def judge_stop(cluster, left, seconds, measure):
    """Judge what is left of a stopped job, and when nothing was; None if it was never seen."""
    note = "seatrial did not find a process of every rank before the stop" if left is None else ""
    measure(check.TIME_TO_STOP, None if left is None else seconds, note=note)
    judge_left(cluster, left, measure, note)


def judge_again(again, measure):
    """Judge the same commands after the stop."""
    code = again.exit_code
    statement = f"after a stopped job the same commands end with exit code {code}. Expected: 0."
    cause = finding("LAUNCH-LEFT", statement)
    judge_or_explain(measure, check.EXIT_CODE_AFTER_STOP, code, cause, failed=code != 0)


def judge_left(cluster, left, measure, note=""):
    """Judge what is left of a job."""
    measure(check.LEFT_PROCESSES, None if left is None else left.count, note=note)
    measure(check.HELD_ACCELERATORS, None if left is None else left.busy, note=note)
    if left is None or left.empty:
        return
    names = cluster.node_names
    hosts = sorted(names.get(id, id[:8]) for id, processes in left.processes.items() if processes)
    pids = [str(pid) for processes in left.processes.values() for pid in processes]
    where = f": process {join_names(pids)} on {join_names(hosts)}" if pids else ""
    statement = (
        f"a job that has ended still has {quantity(left.count, 'processes')} and "
        f"{quantity(left.busy, 'accelerators')}{where}. Expected: none."
    )
    measure.explain(finding("LAUNCH-LEFT", statement, hosts))
