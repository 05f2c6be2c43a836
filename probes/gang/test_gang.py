"""Is a gang placed whole or not at all, when jobs want more than there is?"""

import math
import random
import signal

import pytest

from probes.acceptance import component_placement as components
from probes.acceptance.stash import RUN
from probes.findings import finding, listed
from probes.gang import invariants as checks
from probes.gang.controls import (
    DEADLOCK_SECONDS,
    hold_and_wait,
    naive,
    one_early,
    squat,
    still_there,
)
from probes.gang.invariants import held, placed, whole
from probes.gang.judge import (
    PENDING_SECONDS,
    WITHDRAWN_SECONDS,
    all_ran,
    bounded,
    handed_off,
    in_time,
    none_placed,
    one_whole,
    passes,
    runs_and_waits,
    staffed,
    tell_queue,
    undisturbed,
    withdrawn,
)
from probes.gang.node_loss import beside_a_waiting_gang, spare_raylets, under_a_gang
from probes.gang.placement import layouts, one_astray, torn, where
from probes.gang.scenario import NoRoom, Stage

CONTENTION_SECONDS = {"quick": 2.0, "standard": 5.0, "soak": 60.0}
STREAM_SECONDS = {"standard": 8.0, "soak": 60.0}
STORM = {"standard": 50, "soak": 200}
TRAIN_PATIENCE_SECONDS = 3.0  # of Ray Train for its workers, where it usually has 60
TRAIN_SECONDS = 60  # until Ray Train has its workers


@pytest.fixture(scope="module")
def stage(request):
    """Two jobs and the observer, started once for all scenarios."""
    stage = Stage(request.config.stash[RUN].cluster)
    yield stage
    stage.close()


@pytest.fixture
def scene(cluster, stage, measure):
    """`scene("title")`: one scenario on the stage; too little room ends it unproven."""
    return lambda title, **options: stage.scene(title, measure, **options)


@pytest.mark.criterion("GANG")
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


@pytest.mark.criterion("GANG")
def test_a_cancelled_gang_leaves_no_trace(scene):
    """A gang that waits and is cancelled is gone at once; the one that runs never notices."""
    with scene("a waiting gang is cancelled") as at:
        running, waiting = runs_and_waits(at, math.ceil(0.75 * at.total))
        fault = "the job says that it cancels its gang, and does not"
        still_there(at, waiting, "cancelled in words only", fault)
        withdrawn(at, waiting, at.drop(waiting, "B cancels"))
        undisturbed(at, running)


@pytest.mark.criterion("GANG")
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


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
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


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
def test_a_gang_that_does_not_fit_blocks_nobody(scene, cluster):
    """A gang larger than the whole cluster waits and holds nothing; one behind it is placed."""
    with scene("a gang larger than the cluster") as at:
        one_early(at)
        huge = at.ask("A", cluster.counted + 1)
        at.watch.dwell(PENDING_SECONDS)
        begun = at.watch.mark("B asks behind it")
        passes(at, at.ask("B", max(at.total - 1, 1)), begun)
        withdrawn(at, huge, at.drop(huge, "A cancels"))


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
def test_fragments_are_not_mistaken_for_room(scene, measure):
    """A gang for one node waits with nothing while free accelerators lie on several nodes.

    A PACK gang of the same size is placed on them at once.
    """
    with scene("fragments", nodes=2) as at:
        largest, crumbs = max(at.room.values()), ""
        if largest > 1 and at.total - len(at.room) < largest:
            raise NoRoom(f"fragments need {largest} free beside one of each node, see {at.room}")
        if largest > 1:  # one accelerator of each node is taken, so that no node is whole
            crumbs = at.ask("A", len(at.room), strategy="STRICT_SPREAD")
            if at.placed(crumbs) is None:
                raise NoRoom("no fragments: a gang of one on each node was not placed")
        strict = at.ask("B", max(largest, 2), strategy="STRICT_PACK")
        at.watch.dwell(PENDING_SECONDS)
        lies = at.watch.samples[-1]["gangs"][strict]["nodes"]
        said = f"STRICT_PACK of {max(largest, 2)} lies on {listed(lies)}, which had no such room"
        wrong = finding("GANG-MISPLACED", said, ["job B"])
        at.owe("placed_in_fragments", len(lies), wrong, ours=len(lies) > 1)
        begun = at.watch.mark("A asks for the same, PACK")
        loose = at.ask("A", max(largest, 2))
        passes(at, loose, begun)
        passed_off(measure, "PACK", at.watch.samples[-1]["gangs"].get(loose, {}).get("nodes", {}))
        if crumbs:
            at.drop(crumbs)
            handed_off(at, at.drop(loose), strict, "no node became whole again")


def passed_off(measure, strategy, nodes):
    """Control: a gang that lies on several nodes, judged as if it had asked for one."""
    seen = checks.misplaced("STRICT_PACK", nodes, nodes)
    measure.control(
        f"{strategy} passed off as STRICT_PACK",
        "a gang that lies on several nodes is judged as if it had asked for one",
        caught=bool(seen),
        saw=seen or f"nothing wrong with {nodes}",
    )


@pytest.mark.criterion("GANG")
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


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
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


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
def test_a_storm_of_gangs_leaves_nothing(scene, tier):
    """Gangs of random sizes from two jobs, asked for all at once: all run, and nothing leaks."""
    with scene("a storm", steady=False) as at:
        one_early(at)
        dice = random.Random(at.total)
        sizes = [dice.randint(1, at.total) for _ in range(STORM[tier])]
        all_ran(at, sizes, at.flows(sizes, hold=0.1))


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
def test_strategies_hold(scene, measure):
    """PACK, SPREAD, STRICT_PACK and STRICT_SPREAD put a gang where they say."""
    with scene("placement strategies", nodes=2) as at:
        nodes, largest = len(at.room), max(at.room.values())
        wanted = {"PACK": largest, "STRICT_PACK": largest, "STRICT_SPREAD": nodes, "SPREAD": nodes}
        seen = {strategy: where(at, strategy, size) for strategy, size in wanted.items()}
        wrong = [checks.misplaced(strategy, lies, at.room) for strategy, lies in seen.items()]
        wrong += [f"{strategy} was not placed" for strategy, lies in seen.items() if not lies]
        one_more = at.ask("B", nodes + 1, strategy="STRICT_SPREAD")
        at.watch.dwell(PENDING_SECONDS)
        if placed(at.watch.samples[-1], one_more):
            wrong.append(f"STRICT_SPREAD of {nodes + 1} was placed on {nodes} nodes")
        wrong = [said for said in wrong if said]
        ours = any(said.startswith("STRICT") for said in wrong)  # the others are wishes
        why = [finding("GANG-MISPLACED", said) for said in wrong]
        at.owe("misplaced", len(wrong), *why, samples=len(wanted) + 1, ours=ours)
        passed_off(measure, "SPREAD", seen["SPREAD"])


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
def test_components_lie_where_they_were_put(scene, cluster, terms, measure):
    """Collocated components of a job see the same accelerators, disaggregated ones see others.

    The contract's own placement is taken where it has one.
    """
    if cluster.resource != "GPU":
        pytest.fail("components are told apart by their GPU, and this cluster has none")
    terms.placement(cluster.size)
    with scene("components", sampled=False) as at:
        wrong, missed = [], []
        for parts, split in layouts(terms, cluster.size, at.total):
            places = at.seated(parts)
            wrong += components.layout_faults(parts, places) + torn(parts, places, split)
            missed.append(components.layout_faults(parts, one_astray(places)))
        measure("misplaced", len(wrong), samples=len(missed))
        measure.explain(finding("GANG-MISPLACED", said) for said in wrong[:3])
        measure.control(
            "one rank astray",
            "a rank reports the accelerator of another component's rank",
            caught=all(missed),
            saw=missed[0][0] if missed[0] else "nothing wrong",
        )


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
def test_a_lost_node_harms_its_own_gang_only(scene):
    """A gang that lost a node is in nobody's way once its launcher has removed it.

    Four spare raylets join the cluster and two are killed: one while a gang waits, one under a
    gang that runs.  Ray 2.60 places nobody else while the harmed gang stands; that is reported.
    """
    with scene("a node is lost", alone=True) as at, spare_raylets(at, 4) as berths:
        one_early(at)
        two = {"strategy": "STRICT_SPREAD", "resource": berths.resource}
        running = at.ask("A", 2, **two)
        at.placed(running)
        # What the harmed gang will want again is there, and taken: it is not infeasible.
        taken = at.ask("B", 1, **two)
        at.placed(taken)
        waiting = at.ask("B", 2, **two)
        at.watch.dwell(PENDING_SECONDS)
        gangs = at.watch.samples[-1]["gangs"]
        mine = gangs[running]["nodes"]
        empty = set(berths.names.values()) - {*mine, *gangs[taken]["nodes"]}
        beside_a_waiting_gang(at, berths, waiting, min(empty))
        undisturbed(at, running)
        under_a_gang(at, berths, running, next(iter(mine)))


@pytest.mark.criterion("GANG")
@pytest.mark.tier("standard")
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
