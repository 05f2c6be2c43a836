"""Tests that a gang is placed completely or not at all when jobs want more than is free."""

import math
import signal

import pytest

from probes.gang import controls, judge
from probes.gang import criterion as check
from probes.gang.invariants import find_deadlocks, is_whole

pytestmark = pytest.mark.criterion("GANG")
CONTENTION_SECONDS = {"quick": 2.0, "standard": 5.0, "soak": 60.0}


def test_two_gangs_compete_and_one_waits_whole(scene, terms, measure, tier):
    """Two jobs each request 75 % of what is free: one gets all it needs, the other holds none.

    When the first lets go, the other starts.
    """
    judge.report_queue_layer(measure, terms)
    with scene("two gangs of 75 %") as run:
        need = math.ceil(0.75 * run.total)
        gangs = run.ask_together(("A", need, {"staff": True}), ("B", need, {"staff": True}))
        won = wait_contention(run, gangs, CONTENTION_SECONDS[tier])
        judge.judge_actors(run, need, won)
        judge.judge_one_placed(run, won, need)
        if len(won) == 1:
            (loser,) = set(gangs) - set(won)
            event = "the other gang was removed"
            judge.time_handoff(run, run.drop(won[0]), loser, "the waiting gang", event)
        else:
            note = f"Ray placed {len(won)} of 2 gangs instead of 1"
            run.measure_at_end(check.PLACEMENT_DELAY, None, note=note)
            judge.report_not_placed(run, [] if won else gangs)
        controls.control_partial_allocation(run, need)
        controls.control_two_that_fit(run)
        controls.control_late_release(run)
        controls.control_unregistered_gpu(run)


def wait_contention(run, gangs, seconds):
    """Wait until a gang is fully placed, then observe the competing gangs for `seconds`.

    Returns the gangs that are fully placed at the end.
    """
    run.until(lambda sample: any(is_whole(sample, gang) for gang in gangs))
    run.observer.wait(seconds)
    return [gang for gang in gangs if is_whole(run.samples[-1], gang)]


def test_a_cancelled_gang_leaves_no_trace(scene):
    """A waiting gang that is cancelled is removed at once, and a running gang keeps its GPUs."""
    with scene("a waiting gang is cancelled") as run:
        running, waiting = judge.start_two_gangs(run, math.ceil(0.75 * run.total))
        fault = "the job reports that it cancelled its gang, but keeps it"
        controls.control_not_cancelled(run, waiting, check.CANCELLED_IN_WORDS_ONLY, fault)
        judge.judge_withdrawal(run, waiting, run.drop(waiting, "B cancels"))
        judge.judge_undisturbed(run, running)
        controls.control_let_go(run, running)


def test_a_dead_driver_gives_its_gang_back(scene):
    """A job whose Ray driver is killed, waiting or running, gives all its accelerators back.

    The one that waits is withdrawn and the one that runs never notices; then that one's driver is
    killed as well, and all it held is free.
    """
    with scene("drivers are killed") as run:
        running, waiting = judge.start_two_gangs(run, math.ceil(0.75 * run.total))
        run.observer.mark("B's driver is stopped", fault=True)
        run.rig.jobs["B"].signal(signal.SIGSTOP)
        fault = "the waiting job's driver is stopped with SIGSTOP instead of killed"
        controls.control_not_cancelled(run, waiting, check.DRIVER_STOPPED_NOT_KILLED, fault)
        killed_at = run.observer.mark("B's driver is killed", fault=True)
        run.rig.jobs["B"].signal(signal.SIGKILL)
        judge.judge_withdrawal(run, waiting, killed_at)
        judge.judge_undisturbed(run, running)
        killed_at = run.observer.mark("A's driver is killed", fault=True)
        run.rig.jobs["A"].signal(signal.SIGKILL)
        freed = run.elapsed(killed_at, run.wait_idle(judge.RELEASE_PATIENCE_SECONDS))
        event = "the release of all accelerators after the driver was killed"
        never = f"not all accelerators were free after {judge.RELEASE_PATIENCE_SECONDS} s"
        judge.judge_time(run, check.RELEASE_TIME, freed, event, never)


@pytest.mark.tier("standard")
def test_one_group_per_job_never_deadlocks(scene, measure):
    """Two jobs that each need all GPUs, with one placement group per job, run one after the other.

    The same jobs with two groups each must be seen to hold and wait: neither can go on.
    """
    with scene(check.TWO_GROUPS_PER_JOB) as run:
        half = run.total // 2
        gangs = run.ask_together(("A", 2 * half), ("B", 2 * half))
        won = wait_contention(run, gangs, 2 * controls.DEADLOCK_SECONDS)
        if won:
            (loser,) = set(gangs) - set(won[:1])
            event = "the first gave its gang back"
            judge.time_handoff(run, run.drop(won[0]), loser, "the second job", event)
        else:
            judge.report_not_placed(run, gangs)
        measure(check.DEADLOCKS, len(find_deadlocks(run.samples, controls.DEADLOCK_SECONDS)))
        run.rig.release()
        controls.control_hold_and_wait(run, half)
