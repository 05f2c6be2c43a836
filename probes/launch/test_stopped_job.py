"""Tests that a job which its user stops leaves nothing, and that the next one starts."""

import time

import pytest

from probes.cluster.room.free_room import busy_accelerators
from probes.findings import finding, join_names
from probes.launch.job.announcements import announced_ranks
from probes.launch.job.job_processes import (
    observe_job,
    wait_until_gone,
    what_is_left,
)
from probes.launch.judge import keep_transcript
from probes.launch.prepare import prepare_path
from reports.numbers import quantity

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
            before = observe_job(cluster, announced_ranks(running.transcript.text), idle)
            still = what_is_left(cluster, before, idle)
            started = time.monotonic()
            stop(path, running)
            left = wait_until_gone(lambda: what_is_left(cluster, before, idle), PATIENCE_S)
            seconds = time.monotonic() - started
            said = running.transcript
        measure.progress("launch: the same commands again")
        again = path.follow()
    keep_transcript(said, measure, "transcript-stopped.txt", "a job that its user stopped")
    keep_transcript(again, measure, "transcript-again.txt", "the same commands after the stop")
    measure.control(
        "running job",
        "what runs before the stop is judged as left over",
        judge_left(cluster, still, measure.trial()) if trained else None,
        saw="" if trained else "the job took no step",
    )
    seen = trained and before.count >= cluster.size and not before.unseen
    judge_stop(cluster, left if seen else None, seconds, measure)
    judge_again(again, measure)
    measure.covered(f"one job of {quantity(before.count, 'processes')} was stopped as it trained")


def stop(path, running):
    """Stop the job as `ray job stop` does, or by Ctrl-C where the guide submits none.

    Fails the probe in one sentence where the dashboard refuses.
    """
    jobs, cluster = running.transcript.jobs, path.cluster
    try:
        for job in jobs:
            cluster.cleanup.end_now("job", f"{cluster.dashboard} {job}")
    except OSError as error:
        pytest.fail(f"the job could not be stopped: {error}", pytrace=False)
    if not jobs:
        running.interrupt()


def judge_stop(cluster, left, seconds, measure):
    """Judge what is left of a stopped job, and when nothing was; None if it was never seen."""
    note = "the job's processes were not seen before the stop" if left is None else ""
    measure("time_to_stop", None if left is None else seconds, note=note)
    judge_left(cluster, left, measure, note)


def judge_again(again, measure):
    """Judge the same commands after the stop."""
    measure("exit_code_after_stop", again.exit_code)
    if again.exit_code != 0:
        statement = f"after a stopped job the same commands end with {again.exit_code}."
        measure.explain(finding("LAUNCH-LEFT", f"{statement} Expected: 0."))


def judge_left(cluster, left, measure, note=""):
    """Judge what is left of a job, and return the recorder."""
    measure("left_processes", None if left is None else left.count, note=note)
    measure("held_accelerators", None if left is None else left.busy, note=note)
    if left is None or left.empty:
        return measure
    names = cluster.node_names
    hosts = sorted(names.get(id, id[:8]) for id, processes in left.processes.items() if processes)
    pids = [str(pid) for processes in left.processes.values() for pid in processes]
    where = f": process {join_names(pids)} on {join_names(hosts)}" if pids else ""
    statement = (
        f"a job that has ended still has {quantity(left.count, 'processes')} and "
        f"{quantity(left.busy, 'accelerators')}{where}. Expected: none."
    )
    measure.explain(finding("LAUNCH-LEFT", statement, hosts))
    return measure
