"""Tests that gangs of many sizes are all placed when jobs want more than is free."""

import math
import random

import pytest

from probes.findings import finding
from probes.gang import criterion as check
from probes.gang import judge
from probes.gang.controls import control_release_one_early
from probes.gang.invariants import count_held
from probes.gang.scenario import NoRoom

pytestmark = [pytest.mark.criterion("GANG"), pytest.mark.tier("standard")]
STREAM_SECONDS = {"standard": 8.0, "soak": 60.0}
STORM_GANGS = {"standard": 50, "soak": 200}
TRAIN_TIMEOUT_SECONDS = 3.0  # that Ray Train waits for its workers; its default is 60
TRAIN_START_SECONDS = 60  # for Ray Train to get its workers


def test_mixed_gangs_of_twice_the_cluster_all_run(scene):
    """Gangs of different sizes that need twice the free accelerators in total are all placed."""
    with scene("gangs for twice the free GPUs", steady=False) as run:
        control_release_one_early(run)
        sizes = halving_sizes(run.total)
        judge.judge_all_ran(run, sizes, run.run_streams(sizes, hold=0.3))


def halving_sizes(total):
    """List sizes total/2, total/4, ... 1, over and over until they sum to twice the total."""
    sizes, size = [], total // 2
    while (remaining := 2 * total - sum(sizes)) > 0:
        sizes.append(min(size, remaining))
        size = size // 2 or max(total // 2, 1)
    return sizes


def test_a_gang_that_does_not_fit_blocks_nobody(scene, cluster):
    """A gang larger than the cluster waits and holds nothing, and a later gang is placed."""
    with scene("a gang larger than the cluster") as run:
        control_release_one_early(run)
        huge = run.ask("A", cluster.ray_gpu_count + 1, judge.PENDING_SECONDS)
        judge.judge_not_blocked(run, "B", max(run.total - 1, 1), "B asks while A waits")
        judge.judge_withdrawal(run, huge, run.drop(huge, "A cancels"))


def test_a_big_gang_under_a_stream_of_small_ones(scene, terms, measure, tier):
    """A gang that needs all free accelerators is placed after another job's small gangs end.

    Plain Ray promises no fairness: the wait and the gangs that overtook are reported. The wait is
    bounded only where the contract declares a queue layer.
    """
    with scene("a large gang behind small ones", steady=False) as run:
        control_release_one_early(run)
        run.start_stream("B", [1], width=run.total + 2, hold=0.3)
        if run.until(lambda sample: count_held(sample, "B") >= max(run.total // 2, 1)) is None:
            why = "so the large gang does not have to wait"
            raise NoRoom(f"Ray did not place the small gangs, {why}")
        before = set(run.observer.samples[-1]["gangs"])
        asked = run.observer.mark("A asks for all")
        big = run.ask("A", run.total)
        when = run.wait_placed(big, STREAM_SECONDS[tier])
        ended = run.observer.mark("the stream ends")
        run.rig.jobs["B"].call("calm")
        if when is None:
            when = judge.time_handoff(run, ended, big, "the large gang", "the small gangs ended")
        judge.judge_big_wait(run, run.elapsed(asked, when), terms)
        window = [sample for sample in run.samples if asked <= sample["t"] <= (when or ended)]
        overtook = {gang for sample in window for gang, e in sample["gangs"].items() if e["placed"]}
        measure.note("overtaken_by", len(overtook - before - {big}), "gangs")


def test_a_storm_of_gangs_leaves_nothing(scene, tier):
    """Gangs of random sizes, requested by two jobs at once, are all placed, and no GPU leaks."""
    with scene("many gangs of random sizes", steady=False) as run:
        control_release_one_early(run)
        rng = random.Random(run.total)
        sizes = [rng.randint(1, run.total) for _ in range(STORM_GANGS[tier])]
        judge.judge_all_ran(run, sizes, run.run_streams(sizes, hold=0.1))


@pytest.mark.uses("pyarrow")
def test_ray_train_waits_as_a_gang(scene, workplace, measure):
    """Ray Train without enough GPUs holds none, asks again after a timeout, and then runs."""
    with scene("Ray Train waits", steady=False) as run:
        control_release_one_early(run)
        need = math.ceil(0.75 * run.total)
        running = run.ask("A", need)
        if workplace is None:
            raise NoRoom(
                "the host that runs seatrial cannot write into the folder of `shared` in the "
                "contract. Correct the mount there, and test again"
            )
        if run.wait_placed(running) is None:
            raise NoRoom(
                "this test lets Ray Train wait for GPUs that another job holds, but Ray did not "
                "place that job"
            )
        run.observer.mark("B trains")
        jobs = run.rig.jobs
        jobs["A"].call("guard", jobs["B"].id, not run.other_jobs)
        jobs["B"].call("train", need, str(workplace), TRAIN_TIMEOUT_SECONDS)
        run.observer.wait(3.5 * TRAIN_TIMEOUT_SECONDS)
        released = run.drop(running)
        when = run.until(lambda sample: count_held(sample, "B") >= need, TRAIN_START_SECONDS)
        gangs = {gang for sample in run.samples for gang in sample["gangs"] if gang[0] == "B"}
        measure.note("train_withdrew", max(len(gangs) - 1, 0), "times")
        measure.note("train_placed_in", run.elapsed(released, when), "s")
        free = f"within {TRAIN_START_SECONDS} s, although enough GPUs were free"
        stuck = finding("GANG-STUCK", f"Ray did not place Ray Train's workers {free}")
        run.measure_at_end(check.NEVER_PLACED, int(when is None), stuck, samples=len(gangs))
        outcome = "never placed" if when is None else jobs["B"].call("outcome")
        message = f"Ray placed Ray Train's workers, but their run ended with: {outcome}"
        broken = [] if when is None else [finding("GANG-STUCK", message, ["job B"])]
        run.measure_at_end(check.RAY_TRAIN_OUTCOME, outcome, *broken, ours=when is not None)
        if outcome != "finished":
            jobs["B"].end()  # it would keep asking, or still runs
