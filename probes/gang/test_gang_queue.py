"""Do gangs of many sizes have their turn, when more is wanted than there is?"""

import math
import random

import pytest

from probes.findings import finding
from probes.gang.controls import one_early
from probes.gang.invariants import held
from probes.gang.judge import PENDING_SECONDS, all_ran, bounded, handed_off, passes, withdrawn
from probes.gang.scenario import NoRoom

pytestmark = [pytest.mark.criterion("GANG"), pytest.mark.tier("standard")]
STREAM_SECONDS = {"standard": 8.0, "soak": 60.0}
STORM = {"standard": 50, "soak": 200}
TRAIN_PATIENCE_SECONDS = 3.0  # of Ray Train for its workers, where it usually has 60
TRAIN_SECONDS = 60  # until Ray Train has its workers


def test_mixed_gangs_of_twice_the_cluster_all_run(scene):
    """Gangs of a half, a quarter, an eighth ... of what is free, twice as much in all, all run."""
    with scene("mixed sizes, twice the cluster", steady=False) as at:
        one_early(at)
        sizes = halving(at.total)
        all_ran(at, sizes, at.flows(sizes, hold=0.3))


def halving(total):
    """Sizes total/2, total/4, ... 1, over and over until they sum to twice the total."""
    sizes, size = [], total // 2
    while (left := 2 * total - sum(sizes)) > 0:
        sizes.append(min(size, left))
        size = size // 2 or max(total // 2, 1)
    return sizes


def test_a_gang_that_does_not_fit_blocks_nobody(scene, cluster):
    """A gang larger than the whole cluster waits and holds nothing; one behind it is placed."""
    with scene("a gang larger than the cluster") as at:
        one_early(at)
        huge = at.ask("A", cluster.counted + 1)
        at.watch.dwell(PENDING_SECONDS)
        begun = at.watch.mark("B asks behind it")
        passes(at, at.ask("B", max(at.total - 1, 1)), begun)
        withdrawn(at, huge, at.drop(huge, "A cancels"))


def test_a_big_gang_under_a_stream_of_small_ones(scene, terms, measure, tier):
    """A gang of all that is free is placed at last, after another job's small gangs have ended.

    Plain Ray promises no fairness: the wait and who overtook are told, and the wait is bounded only
    where the contract declares a queue layer.
    """
    with scene("a big gang under a stream", steady=False) as at:
        one_early(at)
        at.stream("B", [1], width=at.total + 2, hold=0.3)
        if at.until(lambda sample: held(sample, "B") >= max(at.total // 2, 1)) is None:
            raise NoRoom("the stream of small gangs never ran, so nothing overtook anybody")
        before = set(at.watch.samples[-1]["gangs"])
        asked = at.watch.mark("A asks for all")
        big = at.ask("A", at.total)
        there = at.placed(big, STREAM_SECONDS[tier])
        ended = at.watch.mark("the stream ends")
        at.stage.jobs["B"].ask("calm")
        if there is None:
            there = handed_off(at, ended, big, "the stream ended and the big gang was not placed")
        bounded(at, at.took(asked, there), terms)
        late = [sample for sample in at.samples if asked <= sample["t"] <= (there or ended)]
        overtook = {
            gang for sample in late for gang, e in sample["gangs"].items() if e["placed"]
        }  # fmt: skip
        measure.note("overtaken_by", len(overtook - before - {big}), "gangs")


def test_a_storm_of_gangs_leaves_nothing(scene, tier):
    """Gangs of random sizes from two jobs, asked for all at once: all run, and nothing leaks."""
    with scene("a storm", steady=False) as at:
        one_early(at)
        dice = random.Random(at.total)
        sizes = [dice.randint(1, at.total) for _ in range(STORM[tier])]
        all_ran(at, sizes, at.flows(sizes, hold=0.1))


@pytest.mark.uses("pyarrow")
def test_ray_train_waits_as_a_gang(scene, workplace, measure):
    """Ray Train without room holds nothing, asks anew when its patience ends, and runs at last."""
    with scene("Ray Train waits", steady=False) as at:
        one_early(at)
        need = math.ceil(0.75 * at.total)
        running = at.ask("A", need)
        if at.placed(running) is None or workplace is None:
            raise NoRoom("Ray Train needs a folder, and a gang that is in its way: one was missing")
        at.watch.mark("B trains")
        jobs = at.stage.jobs
        jobs["A"].ask("guard", jobs["B"].id, not at.others)
        jobs["B"].ask("train", need, str(workplace), TRAIN_PATIENCE_SECONDS)
        at.watch.dwell(3.5 * TRAIN_PATIENCE_SECONDS)
        let_go = at.drop(running)
        there = at.until(lambda sample: held(sample, "B") >= need, TRAIN_SECONDS)
        asked = {gang for sample in at.samples for gang in sample["gangs"] if gang[0] == "B"}
        measure.note("train_withdrew", max(len(asked) - 1, 0), "times")
        measure.note("train_placed_in", at.took(let_go, there), "s")
        stuck = finding("GANG-STUCK", "Ray Train was not placed after release", ["job B"])
        at.owe("never_placed", int(there is None), stuck, samples=len(asked))
        ended = "never placed" if there is None else jobs["B"].ask("outcome")
        broke = finding("GANG-STUCK", f"Ray Train was placed and ended so: {ended}", ["job B"])
        at.owe("train_ended", ended, *([] if there is None else [broke]), ours=there is not None)
        if ended != "finished":
            jobs["B"].end()  # it would go on asking, or still runs
