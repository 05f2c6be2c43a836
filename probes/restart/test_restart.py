"""Does a killed run come back by itself, and is it the run that was never killed?"""

import time
from contextlib import contextmanager, nullcontext

import pytest

from probes.acceptance.criteria import exactly
from probes.acceptance.fixtures import shared_folder
from probes.acceptance.stash import RUN
from probes.findings import finding
from probes.restart.checkpoint_corruption import DAMAGES
from probes.restart.faulted_run import NAME, ettr, sail
from probes.restart.judge import (
    a_leak_is_seen,
    an_untouched_one_is_seen,
    came_back,
    equal,
    judge_blows,
    judge_equality,
    judge_return,
    leaks,
    mistakes_are_seen,
    repeats,
    tell,
)
from probes.restart.launcher_kill import FREE_SECONDS, twice
from probes.restart.node_loss import RANKS, Fall, Repair, gang_on, judge_waiting, spare_nodes
from probes.restart.random_kills import LATEST_SECONDS, WORDS, punish
from probes.restart.reference_run import LOST_AT_MOST, NEWEST, SAVE_EVERY, Original
from probes.restart.scenarios import AGAIN, LOSSES, SCENARIOS
from probes.restart.world_size_change import GROWTH, distance, resize, samples_differ
from reports.record import Limit, Verdict

QUICK_DAMAGES = 2
PUNISHED_STEPS, PUNISHED_SECONDS = 60, 600
STANDARD, SOAK = pytest.mark.tier("standard"), pytest.mark.tier("soak")


@contextmanager
def made(request, **options):
    """A run that was never killed; made when the first probe asks for it."""
    run = request.config.stash[RUN]
    with shared_folder(run) if run.cluster else nullcontext() as folder:
        yield Original(folder, **options)


@pytest.fixture(scope="module")
def original(request):
    """Of the cluster's size, with damaged copies of its checkpoints."""
    quick = request.config.getoption("--tier") == "quick"
    wanted = dict(list(DAMAGES.items())[: QUICK_DAMAGES if quick else None])
    with made(request, damages=wanted, fills=not quick, repeats=True) as run:
        yield run


@pytest.fixture(scope="module")
def small_original(request):
    """On the few ranks that lose nodes."""
    with made(request, device="cpu") as run:
        yield run


@pytest.fixture(scope="module")
def long_original(request):
    """Of as many steps as a punished run has."""
    with made(request, steps=PUNISHED_STEPS) as run:
        yield run


def later(each, quick=0, standard=None):
    """All of them: the first few in every tier, more of them in standard, the rest in soak."""
    most = len(each) if standard is None else standard
    return [
        pytest.param(
            one,
            id=getattr(one, "name", one),
            marks=[] if at < quick else STANDARD if at < most else SOAK,
        )
        for at, one in enumerate(each)
    ]


@pytest.mark.criterion("RESTART")
@pytest.mark.parametrize("scenario", later(SCENARIOS, quick=1, standard=4))
def test_killed_run_resumes_as_if_never_killed(
    scenario, cluster, workplace, original, limits, measure
):
    """A run that is killed or stopped resumes by itself, bitwise equal to one never killed.

    Loss, gradient norm, learning rate and sample ids of every step and rank, and the parameters at
    the end, are compared bit by bit.  The same resume with one thing wrong must be seen as unequal.
    """
    original.see(cluster, measure)
    measure.progress(f"restart: {scenario.words}")
    voyage = sail(
        original.paced,
        scenario,
        workplace,
        gang=lambda: cluster.gang(name=NAME),
        victim=scenario.victim % cluster.size,
        before=original.run,
    )
    if not scenario.dies:
        mistakes_are_seen(original, measure)
    if voyage.results and not scenario.dies:
        judge_equality(original, voyage, measure)
    judge_blows(voyage, measure)
    judge_return(voyage, limits, measure)
    leaks(cluster, workplace, measure, voyage.attempts)
    tell(cluster.names, original, voyage, measure)
    if scenario.dies:
        a_leak_is_seen(cluster, cluster.gang(1, name=NAME), measure)


@pytest.mark.criterion("RESTART")
def test_a_run_can_be_repeated(cluster, original, measure):
    """The same run from its first step again is bitwise the same, and saving changes nothing.

    Where it is not, no comparison of two runs says anything, and a number was wrong.
    """
    original.ready(cluster, measure)
    mistakes_are_seen(original, measure)
    repeats(original, measure)
    config = original.config
    shape = f"{config.steps} steps of a model of width {config.dim}"
    measure.covered(f"{shape}, twice by the same ranks: once with saves and once without")


@pytest.mark.criterion("RESTART")
@pytest.mark.parametrize("loss", later(LOSSES, standard=1))
def test_a_lost_node_is_done_without(loss, cluster, workplace, small_original, limits, measure):
    """A run that loses nodes goes on with others, or waits for one and holds nothing meanwhile.

    The nodes are spare raylets on the head's machine, each with one unit of a made-up resource.
    """
    small_original.see(cluster, measure)
    with spare_nodes(cluster, loss.berths, measure) as berths:
        measure.progress(f"restart: {loss.words}")
        repair = Repair(cluster, berths, loss)
        voyage = sail(
            small_original.paced,
            loss,
            workplace,
            gang=lambda: gang_on(berths, name=NAME, say=repair),
            victim=RANKS - 1,
            before=small_original.run,
            arm=lambda out, blow: Fall(out, berths, loss, blow),
        )
        leaks(cluster, workplace, measure, voyage.attempts)
        a_leak_is_seen(cluster, gang_on(berths, 1, name=NAME), measure)
    mistakes_are_seen(small_original, measure)
    if voyage.results:
        judge_equality(small_original, voyage, measure)
    judge_blows(voyage, measure)
    judge_return(voyage, limits, measure)
    judge_waiting(loss, repair, measure)
    tell({**cluster.names, **berths.names}, small_original, voyage, measure)


@pytest.mark.criterion("RESTART")
@STANDARD
def test_the_same_command_goes_on_after_a_killed_launcher(
    cluster, workplace, original, limits, measure
):
    """A launcher that is killed leaves nothing behind, and the same command typed again resumes."""
    original.ready(cluster, measure)
    measure.progress(f"restart: {AGAIN.words}")
    voyage, kept = twice(cluster, original.paced, AGAIN, workplace)
    mistakes_are_seen(original, measure)
    if voyage.results:
        judge_equality(original, voyage, measure)
    judge_blows(voyage, measure)
    measure("left_behind", kept, on="the killed launcher")
    if kept:
        said = f"{kept} placement groups of the killed launcher are left after {FREE_SECONDS} s"
        measure.explain(finding("RESTART-LEAK", said))
    judge_return(voyage, limits, measure)
    leaks(cluster, workplace, measure, voyage.attempts)
    tell(cluster.names, original, voyage, measure)
    a_leak_is_seen(cluster, cluster.gang(1, name=NAME), measure)


@pytest.mark.criterion("RESTART")
@SOAK
def test_a_punished_run_is_the_run_never_killed(cluster, workplace, long_original, measure):
    """Random ranks are killed at random moments, for ten minutes: no run is lost or unequal."""
    long_original.ready(cluster, measure)
    measure.progress(f"restart: {WORDS}")
    seed = time.time_ns() % 2**32
    done = punish(cluster, long_original, workplace, PUNISHED_SECONDS, seed)
    mistakes_are_seen(long_original, measure)
    because = f"a rank may live for {LATEST_SECONDS} s, and a new one takes as long to start"
    measure("kills", done.kills, limit=Limit(low=PUNISHED_SECONDS / 60, because=because))
    measure("unprovoked", len(done.unprovoked))
    if done.unprovoked:
        said = f"{len(done.unprovoked)} attempts were lost unstruck; in their runs: "
        measure.explain(finding("RESTART-ATTEMPTS", said + "; ".join(done.unprovoked)))
    measure("runs_lost", len(done.lost), samples=len(done.voyages))
    if done.lost:
        measure.explain(finding("RESTART-DEAD", done.lost[0]))
    for mode, most in LOST_AT_MOST.items():
        lost, because = done.steps_lost(mode), f"it saves every {SAVE_EVERY} steps"
        measure("steps_lost", lost, limit=Limit(high=most, because=because), on=f"{mode} saves")
    unequal = done.unequal(long_original)
    measure("unequal_steps", len(unequal))
    same = done.digests == {result["digest"] for result in long_original.results}
    ended = "equal" if same else "unequal"
    measure("final_state", ended if done.digests else None, note="no run came to its end")
    if unequal:
        measure.explain(finding("RESTART-UNEQUAL", unequal[0]))
    leaks(cluster, workplace, measure, done.attempts)
    for number, voyage in enumerate(done.voyages, 1):
        measure.note("ettr", ettr(voyage), "ratio", on=f"run {number}")
    a_leak_is_seen(cluster, cluster.gang(1, name=NAME), measure)
    measure.covered(f"{WORDS}: {done.kills} times in {len(done.voyages)} runs, seed {seed}")
    if done.errors:
        measure.covered(f"{len(done.errors)} blows could not be struck: {done.errors[0]}")


@pytest.mark.criterion("RESTART")
@STANDARD
def test_fewer_ranks_go_on_with_the_same_samples(cluster, workplace, original, measure):
    """A run resumed by one rank less takes the same samples, and its loss is within the noise.

    The noise is measured: the distance of two runs of both sizes that nobody resumed.
    """
    original.see(cluster, measure)
    if cluster.size < 2:
        pytest.fail("one rank less than one is none", pytrace=False)
    measure.progress("restart: resumed by one rank less")
    sizes = resize(cluster, workplace)
    because = f"{GROWTH} times the distance of two runs of both sizes that nobody resumed"
    limit = Limit(high=GROWTH * sizes.noise, because=because)
    far = distance(sizes.whole, sizes.mistaken)
    measure.control(
        "resumed one sample further on",
        "the smaller run is resumed with its data one sample further on",
        caught=limit.judge(far) is Verdict.FAIL
        and bool(samples_differ(sizes.whole, sizes.mistaken)),
        saw=f"a distance of {far:.3g}",
    )
    differ = samples_differ(sizes.whole, sizes.resumed)
    measure("samples_differ", len(differ), samples=len(sizes.resumed[0]["steps"]))
    (began,) = {result["start_step"] for result in sizes.resumed}
    measure("resumed_from", began, limit=exactly(SAVE_EVERY, "step", "the one that it was given"))
    drift = distance(sizes.whole, sizes.resumed)
    measure("drift", drift, limit=limit)
    measure.note("noise", sizes.noise)
    if differ or limit.judge(drift) is Verdict.FAIL:
        said = (
            f"steps {differ} have other samples" if differ else f"the loss differs by {drift:.3g}"
        )
        measure.explain(finding("RESTART-UNEQUAL", f"resumed by one rank less, {said}"))
    measure.covered(f"saved by {len(sizes.whole)} ranks, resumed by {len(sizes.resumed)}")


@pytest.mark.criterion("RESTART")
@pytest.mark.parametrize("name", later(DAMAGES, quick=QUICK_DAMAGES))
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
    why = {entry["name"]: entry["reason"] for entry in found[0]["skipped"]}
    reason = why.get(f"step-{NEWEST}", "")
    measure("reasons", int(bool(reason)), limit=exactly(1, "sentences", "a refusal says why"))
    if not reason and NEWEST not in starts:
        said = f"{name}: step-{NEWEST} was passed over without a word"
        measure.explain(finding("RESTART-SILENT", said))
    measure.covered(f"{name}: {reason or 'no reason was given'}")


@pytest.mark.criterion("RESTART")
@STANDARD
def test_a_full_disk_costs_a_save_and_not_the_run(cluster, original, measure):
    """A save that meets a full disk on one rank is given up by all; run and later saves go on."""
    original.ready(cluster, measure)
    found, victim = original.full_disk, len(original.results) - 1
    measure("struck", original.filled or None, note="no file was made to meet a full disk")
    if not original.filled:
        return
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
