"""Does a killed run come back by itself, and is it the run that was never killed?"""

import dataclasses
import signal
from contextlib import nullcontext

import pytest

from probes.criteria import exactly
from probes.damages import DAMAGES
from probes.findings import finding
from probes.plugin import RUN, shared_folder
from probes.restart_command import twice
from probes.restart_judging import (
    a_leak_is_seen,
    an_untouched_one_is_seen,
    came_back,
    equal,
    judge_blows,
    judge_equality,
    judge_return,
    leaks,
    mistakes_are_seen,
    tell,
)
from probes.restart_nodes import RANKS, Fall, Loss, Repair, gang_on, judge_waiting, spare_nodes
from probes.restart_original import NEWEST, SAVE_EVERY, Original
from probes.restart_run import NAME, Blow, Scenario, sail

QUICK_DAMAGES = 2
STANDARD, SOAK = pytest.mark.tier("standard"), pytest.mark.tier("soak")
HOLD = f"commit:rank=0:seconds=1:from={NEWEST}:to={NEWEST}"
SCENARIOS = [
    Scenario(
        name="killed-in-a-step-then-in-a-save",
        words="SIGKILL in a step, and in the next life between a save's data and its commit",
        blows=(Blow("begin", 7), Blow("written", NEWEST)),
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
        changes={"stall": HOLD},
    ),
    Scenario(
        name="stopped-not-killed",
        words="SIGSTOP in a step: no socket closes, and only a heartbeat tells",
        blows=(Blow("begin", 7, signal.SIGSTOP),),
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
    ),
    Scenario(
        name="told-to-leave",
        words="SIGTERM, as a preemption gives notice: it saves, leaves, and nothing is lost",
        blows=(Blow("begin", 6, signal.SIGTERM),),
        resumes=6,
        lost=0,
    ),
    Scenario(
        name="killed-in-an-upload",
        words="SIGKILL while a save is written in the background",
        blows=(Blow("saving", NEWEST),),
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
        changes={
            "save_mode": "async",
            "stall": HOLD.replace("commit", "upload").replace("seconds=1", "seconds=5"),
        },
    ),
    Scenario(
        name="killed-before-the-first-checkpoint",
        words="SIGKILL in step 2: it starts over, and says so",
        blows=(Blow("begin", 2),),
        resumes=0,
        lost=SAVE_EVERY,
    ),
    Scenario(
        name="killed-while-it-restarts",
        words="SIGKILL in a step, and of the next life as soon as it is there",
        blows=(Blow("begin", 7), Blow("")),
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
    ),
    Scenario(
        name="attempts-used-up",
        words="SIGKILL in every life: after two of them it gives up and leaves nothing behind",
        blows=(Blow("begin", 5), Blow("begin", 5)),
        restarts=1,
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
        dies=True,
    ),
]
LOSSES = [
    Loss(
        name="no-node-to-spare",
        words="a node is lost and none is to spare: it waits, holds nothing, and says so",
        blows=(Blow("begin", 7),),
        berths=2,
        waits=True,
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
    ),
    Loss(
        name="a-node-to-spare",
        words="a node is lost and one is to spare",
        blows=(Blow("begin", 7),),
        berths=3,
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
    ),
    Loss(
        name="raylet-killed",
        words="SIGKILL of Ray's own process on a node: the rank there must end, too",
        blows=(Blow("begin", 5),),
        berths=3,
        whole=False,
        changes={"pace_s": 1.5},  # it takes a rank some seconds to see that its raylet is gone
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
    ),
    Loss(
        name="two-nodes-at-once",
        words="all its nodes are lost at once, and there are others",
        blows=(Blow("begin", 7),),
        berths=4,
        fall=2,
        resumes=SAVE_EVERY,
        lost=SAVE_EVERY,
    ),
]
AGAIN = Scenario(
    name="launcher-killed",
    words="SIGKILL of the launcher; the same command is typed again",
    blows=(Blow("begin", 7),),
    resumes=SAVE_EVERY,
    lost=SAVE_EVERY,
)


@pytest.fixture(scope="module")
def original(request):
    """The run that was never killed; made when the first probe asks for it."""
    run, quick = request.config.stash[RUN], request.config.getoption("--tier") == "quick"
    wanted = dict(list(DAMAGES.items())[: QUICK_DAMAGES if quick else None])
    with shared_folder(run) if run.cluster else nullcontext() as folder:
        yield Original(folder, wanted, fills=not quick)


@pytest.fixture(scope="module")
def small_original(request):
    """As `original`, on the few ranks that lose nodes."""
    run = request.config.stash[RUN]
    with shared_folder(run) if run.cluster else nullcontext() as folder:
        yield Original(folder, {}, fills=False, device="cpu")


def later(each, count, tier=STANDARD):
    """All of them, those after the first `count` in a longer tier only."""
    return [
        pytest.param(one, id=getattr(one, "name", one), marks=[] if at < count else tier)
        for at, one in enumerate(each)
    ]


@pytest.mark.criterion("RESTART")
@pytest.mark.parametrize("scenario", later(SCENARIOS, 1))
def test_killed_run_resumes_as_if_never_killed(
    scenario, cluster, workplace, original, limits, measure
):
    """A run that is killed or stopped resumes by itself, bitwise equal to one never killed.

    Loss, gradient norm, learning rate and sample ids of every step and rank, and the parameters at
    the end, are compared bit by bit.  The same resume with one thing wrong must be seen as unequal.
    """
    original.see(cluster, measure)
    measure.progress(f"restart: {scenario.words}")
    config = dataclasses.replace(original.config, pace_s=0.15)
    voyage = sail(
        config,
        scenario,
        workplace,
        gang=lambda: cluster.gang(name=NAME),
        victim=cluster.size - 1,
        before=original.run,
    )
    if scenario.dies:
        a_leak_is_seen(cluster, cluster.gang(1, name=NAME), measure)
    else:
        mistakes_are_seen(original, measure)
    judge_blows(voyage, measure)
    judge_return(voyage, limits, measure)
    if voyage.results and not scenario.dies:
        judge_equality(original, voyage, measure)
    leaks(cluster, measure)
    tell(cluster.names, original, voyage, measure)


@pytest.mark.criterion("RESTART")
@STANDARD
@pytest.mark.parametrize("loss", later(LOSSES, 1, SOAK))
def test_a_lost_node_is_done_without(loss, cluster, workplace, small_original, limits, measure):
    """A run that loses nodes goes on with others, or waits for one and holds nothing meanwhile.

    The nodes are spare raylets on the head's machine, each with one unit of a made-up resource.
    """
    small_original.see(cluster, measure)
    config = dataclasses.replace(small_original.config, pace_s=0.15)
    with spare_nodes(cluster, loss.berths, measure) as berths:
        measure.progress(f"restart: {loss.words}")
        repair = Repair(cluster, berths)
        voyage = sail(
            config,
            loss,
            workplace,
            gang=lambda: gang_on(berths, name=NAME, say=repair),
            victim=RANKS - 1,
            before=small_original.run,
            arm=lambda out, blow: Fall(out, berths, loss, blow),
        )
        a_leak_is_seen(cluster, gang_on(berths, 1, name=NAME), measure)
        leaks(cluster, measure)
    mistakes_are_seen(small_original, measure)
    judge_blows(voyage, measure)
    judge_return(voyage, limits, measure)
    judge_waiting(loss, repair, measure)
    if voyage.results:
        judge_equality(small_original, voyage, measure)
    tell({**cluster.names, **berths.names}, small_original, voyage, measure)


@pytest.mark.criterion("RESTART")
@STANDARD
def test_the_same_command_goes_on_after_a_killed_launcher(
    cluster, workplace, original, limits, measure
):
    """A launcher that is killed leaves nothing behind, and the same command typed again resumes."""
    original.ready(cluster, measure)
    measure.progress(f"restart: {AGAIN.words}")
    config = dataclasses.replace(original.config, pace_s=0.15)
    voyage, kept = twice(cluster, config, AGAIN, workplace)
    mistakes_are_seen(original, measure)
    a_leak_is_seen(cluster, cluster.gang(1, name=NAME), measure)
    judge_blows(voyage, measure)
    measure("left_behind", kept, on="the killed launcher")
    judge_return(voyage, limits, measure)
    if voyage.results:
        judge_equality(original, voyage, measure)
    leaks(cluster, measure)
    tell(cluster.names, original, voyage, measure)


@pytest.mark.criterion("RESTART")
@pytest.mark.parametrize("name", later(DAMAGES, QUICK_DAMAGES))
def test_a_damaged_checkpoint_is_refused(name, cluster, original, measure):
    """A checkpoint that is torn, altered or not this run's is never loaded: the one before it is.

    The run then ends as if nothing had been wrong.
    """
    original.ready(cluster, measure)
    found = original.damaged[name]
    an_untouched_one_is_seen(original, measure)
    if not came_back(found, f"{name}: the run did not come back", measure):
        return
    starts = {result["start_step"] for result in found}
    measure("not_refused", int(NEWEST in starts))
    if NEWEST in starts:
        said = f"{name}: step-{NEWEST} was loaded although it was damaged"
        measure.explain(finding("RESTART-TRUSTED", said))
    measure(
        "resumed_from",
        max(starts),
        limit=exactly(SAVE_EVERY, "step", "the newest that is whole and this run's"),
    )
    equal(original, found, max(starts) + 1, measure)
    reason = next((skipped["reason"] for skipped in found[0]["skipped"]), "no reason was given")
    measure.covered(f"{name}: {reason}")


@pytest.mark.criterion("RESTART")
@STANDARD
def test_a_full_disk_costs_a_save_and_not_the_run(cluster, original, measure):
    """A save that meets a full disk on one rank is given up by all; run and later saves go on."""
    original.ready(cluster, measure)
    found, victim = original.full_disk, len(original.results) - 1
    measure("struck", original.filled or None, note="no file was made to meet a full disk")
    mistakes_are_seen(original, measure)
    if not came_back(found, "a full disk ended the run", measure):
        return
    said = [save["error"] for save in found[0]["unsaved"]]
    named = sum(f"rank {victim} on" in error and "No space left" in error for error in said)
    measure("saves_refused", named, limit=exactly(1, "saves", "one met a full disk, and is named"))
    committed = [save["step"] for save in found[0]["checkpoints"]]
    if NEWEST in committed:
        said = f"step-{NEWEST} was committed although rank {victim} could not write its part"
        measure.explain(finding("RESTART-TORN", said, [f"rank {victim}"]))
    measure("saved_after", len(committed), limit=exactly(1, "saves", "there was room again"))
    equal(original, found, SAVE_EVERY + 1, measure)
    measure.covered(said[0] if said else "no save was refused")
