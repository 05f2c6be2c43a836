"""Is a gang placed whole or not at all, when jobs want more than there is?"""

import math
import signal

import pytest

from probes.gang import invariants as checks
from probes.gang.controls import (
    DEADLOCK_SECONDS,
    hold_and_wait,
    naive,
    squat,
    still_there,
)
from probes.gang.invariants import whole
from probes.gang.judge import (
    WITHDRAWN_SECONDS,
    handed_off,
    in_time,
    none_placed,
    one_whole,
    runs_and_waits,
    staffed,
    tell_queue,
    undisturbed,
    withdrawn,
)

pytestmark = pytest.mark.criterion("GANG")
CONTENTION_SECONDS = {"quick": 2.0, "standard": 5.0, "soak": 60.0}


def test_two_gangs_compete_and_one_waits_whole(scene, terms, measure, tier):
    """Of two jobs that each want 75 % of what is free, one gets all of it and one holds nothing.

    When the first lets go, the other starts.
    """
    tell_queue(measure, terms)
    with scene("two gangs of 75 %") as at:
        need = math.ceil(0.75 * at.total)
        gangs = at.together(("A", need, {"staff": True}), ("B", need, {"staff": True}))
        won = contend(at, gangs, CONTENTION_SECONDS[tier])
        staffed(at, need, won)
        one_whole(at, won, need)
        if len(won) == 1:
            (loser,) = set(gangs) - set(won)
            handed_off(at, at.drop(won[0]), loser, "the waiting gang was not placed within 30 s")
        else:
            at.owe("handoff", None, note=f"{len(won)} of 2 gangs were placed")
            none_placed(at, [] if won else gangs)
        naive(at, need)
        squat(at)


def contend(at, gangs, seconds):
    """Look on while both want what only one can have; the gangs that are whole then."""
    at.until(lambda sample: any(whole(sample, gang) for gang in gangs))
    at.watch.dwell(seconds)
    return [gang for gang in gangs if whole(at.samples[-1], gang)]


def test_a_cancelled_gang_leaves_no_trace(scene):
    """A gang that waits and is cancelled is gone at once; the one that runs never notices."""
    with scene("a waiting gang is cancelled") as at:
        running, waiting = runs_and_waits(at, math.ceil(0.75 * at.total))
        fault = "the job says that it cancels its gang, and does not"
        still_there(at, waiting, "cancelled in words only", fault)
        withdrawn(at, waiting, at.drop(waiting, "B cancels"))
        undisturbed(at, running)


def test_a_dead_driver_gives_its_gang_back(scene):
    """A job whose driver is killed, while it waits or while it holds, leaves nothing behind.

    The one that waits is withdrawn and the one that runs never notices; then that one's driver is
    killed as well, and all it held is free.
    """
    with scene("drivers are killed") as at:
        running, waiting = runs_and_waits(at, math.ceil(0.75 * at.total))
        at.watch.mark("B's driver is stopped", fault=True)
        at.stage.jobs["B"].signal(signal.SIGSTOP)
        fault = "the waiting job's driver is stopped with SIGSTOP instead of killed"
        still_there(at, waiting, "driver stopped, not killed", fault)
        killed = at.watch.mark("B's driver is killed", fault=True)
        at.stage.jobs["B"].signal(signal.SIGKILL)
        withdrawn(at, waiting, killed)
        undisturbed(at, running)
        killed = at.watch.mark("A's driver is killed", fault=True)
        at.stage.jobs["A"].signal(signal.SIGKILL)
        freed = at.took(killed, at.idle(WITHDRAWN_SECONDS))
        in_time(at, "freed", freed, "all was free again", [running], "all was not free again")


@pytest.mark.tier("standard")
def test_one_group_per_job_never_deadlocks(scene, measure):
    """Two jobs that each want all they need in one group take turns.

    The same jobs with two groups each must be seen to hold and wait: neither can go on.
    """
    with scene("two groups per job") as at:
        half = at.total // 2
        gangs = at.together(("A", 2 * half), ("B", 2 * half))
        won = contend(at, gangs, 2 * DEADLOCK_SECONDS)
        if won:
            (loser,) = set(gangs) - set(won[:1])
            handed_off(at, at.drop(won[0]), loser, "the second of two jobs was never placed")
        else:
            none_placed(at, gangs)
        measure("deadlocks", len(checks.deadlocks(at.samples, DEADLOCK_SECONDS)))
        at.stage.release()
        hold_and_wait(at, half)
