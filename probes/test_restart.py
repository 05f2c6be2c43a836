"""Does a killed run come back by itself, and is it the run that was never killed?"""

import dataclasses
import math
import signal
from contextlib import nullcontext

import pytest

from probes.criteria import exactly
from probes.damages import DAMAGES
from probes.equality import unequal_steps
from probes.findings import finding
from probes.plugin import RUN, shared_folder
from probes.restart_original import MISTAKES, NEWEST, SAVE_EVERY, STEPS, Original
from probes.restart_run import NAME, Blow, Scenario, costs, ettr, sail
from reports.record import Limit

QUICK_DAMAGES = 2
STANDARD = pytest.mark.tier("standard")
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


@pytest.fixture(scope="module")
def original(request):
    """The run that was never killed; made when the first probe asks for it."""
    run, quick = request.config.stash[RUN], request.config.getoption("--tier") == "quick"
    wanted = dict(list(DAMAGES.items())[: QUICK_DAMAGES if quick else None])
    with shared_folder(run) if run.cluster else nullcontext() as folder:
        yield Original(folder, wanted, fills=not quick)


def later(each, count):
    """All of them, those after the first `count` in the standard tier only."""
    return [
        pytest.param(one, id=getattr(one, "name", one), marks=[] if at < count else STANDARD)
        for at, one in enumerate(each)
    ]


@pytest.mark.criterion("RESTART")
@pytest.mark.parametrize("scenario", later(SCENARIOS, 1))
def test_killed_run_resumes_as_if_never_killed(scenario, cluster, workplace, original, measure):
    """A run that is killed or stopped resumes by itself, bitwise equal to one never killed.

    Loss, gradient norm, learning rate and sample ids of every step and rank, and the parameters at
    the end, are compared bit by bit.  The same resume with one thing wrong must be seen as unequal.
    """
    original.see(cluster, measure)
    measure.progress(f"restart: {scenario.words}")
    config = dataclasses.replace(original.config, pace_s=0.15)
    voyage = sail(cluster, config, scenario, workplace, original.run)
    if scenario.dies:
        a_leak_is_seen(cluster, measure)
    else:
        mistakes_are_seen(original, measure)
    for number, strike in enumerate(voyage.strikes, 1):
        unseen = strike.error or "the run ended before its victim was struck"
        measure("struck", strike.count or None, on=f"blow {number}", note=unseen)
    judge_return(voyage, measure)
    if voyage.results and not scenario.dies:
        judge_equality(original, voyage, measure)
    leaks(cluster, measure)
    tell(cluster, original, voyage, measure)


def mistakes_are_seen(original, measure):
    """Controls: resumes of the run never killed that get one thing wrong."""
    for what, fault in MISTAKES.items():
        found = original.mistaken[what]
        ran = not isinstance(found, str)
        seen = unequal_steps(original.results, found, NEWEST + 1) if ran else []
        measure.control(
            f"resume forgets: {what}",
            fault,
            caught=bool(seen) if ran else None,
            saw=str(seen[0]) if seen else found if not ran else "no unequal step",
        )


def judge_return(voyage, measure):
    """Whether it came back by itself, where it began again, and what that cost."""
    scenario, attempts = voyage.scenario, voyage.attempts
    came_back, expected = bool(voyage.results), not scenario.dies
    wanted = f"{scenario.words}: {'it ends by itself' if expected else 'it gives up'}"
    measure(
        "outcome",
        "finished" if came_back else "gave up",
        limit=Limit(one_of=["gave up" if scenario.dies else "finished"], because=wanted),
    )
    measure(
        "attempts",
        len(attempts),
        limit=exactly(scenario.attempts, "attempts", "one for each blow, and one to end in"),
    )
    if came_back is not expected:
        said = f"the run {'ended' if came_back else 'did not come back'}: {voyage.error}"
        measure.explain(finding("RESTART-DEAD", said))
    began = voyage.lives[-1][0]["start_step"] if len(voyage.lives) > 1 else None
    measure(
        "resumed_from",
        began,
        limit=exactly(scenario.resumes, "step", "the newest that was saved whole"),
        note="no second life was seen",
    )
    because = f"it saves every {SAVE_EVERY} steps" if scenario.lost else "it saves before it leaves"
    lost = [done - start["start_step"] for done, start in voyage.cuts]
    measure(
        "steps_lost",
        max(lost, default=None),
        limit=Limit(high=scenario.lost, unit="steps", because=because),
        note="no second life was seen",
    )
    if max(lost, default=0) > scenario.lost:
        said = f"{max(lost)} steps were lost, from {scenario.lost} at most"
        measure.explain(finding("RESTART-LOST", said))
    if not scenario.dies:
        measure("back_to_work", back_to_work(voyage), note="no new step was seen")


def back_to_work(voyage):
    """Seconds from the last blow to the first new step: victim's clock to its successor's."""
    if len(voyage.lives) < 2 or not voyage.strikes[-1].at:
        return None
    done = voyage.cuts[-1][0]
    new = next((event["t"] for event in voyage.steps(-1) if event["step"] > done), None)
    return new - voyage.strikes[-1].at if new else None


def judge_equality(original, voyage, measure):
    """Bit by bit: all ranks after the last resume, and the victim's rank in every life."""
    whole, victim = original.results, voyage.strikes[0].rank
    unequal = unequal_steps(whole, voyage.results, voyage.results[0]["start_step"] + 1)
    compared = len(voyage.results) * len(voyage.results[0]["steps"])
    for at in range(len(voyage.lives) - 1):
        lived = voyage.steps(at)
        numbers = {step["step"] for step in lived}
        steps = [step for step in whole[victim]["steps"] if step["step"] in numbers]
        unequal += unequal_steps([{**whole[victim], "steps": steps}],
                                 [{**whole[victim], "steps": lived}])  # fmt: skip
        compared += len(lived)
    tell_unequal(unequal, compared, original, voyage.results, measure)
    losses = [step["loss"] for result in voyage.results for step in result["steps"]]
    measure("non_finite", sum(not math.isfinite(loss) for loss in losses))


def tell_unequal(unequal, compared, original, found, measure):
    """The steps that differ from the run never killed, and whether its parameters do."""
    measure("unequal_steps", len(unequal) if compared else None, samples=compared)
    same = {r["digest"] for r in found} == {r["digest"] for r in original.results}
    measure("final_state", "equal" if same else "unequal")
    if unequal or not same:
        said = str(unequal[0]) if unequal else "all steps are equal, the parameters are not"
        measure.explain(finding("RESTART-UNEQUAL", said, [f"rank {u.rank}" for u in unequal[:1]]))


def a_leak_is_seen(cluster, measure):
    """Control: a gang of the run's name that is there on purpose."""
    with cluster.gang(1, name=NAME):
        held = cluster.groups_named(NAME)
    measure.control(
        "left behind on purpose",
        "a gang of the same name holds one accelerator while what is left is counted",
        caught=held == 1,
        saw=f"{held} placement groups",
    )


def leaks(cluster, measure):
    """That the run holds nothing when it has ended."""
    held = cluster.groups_named(NAME)
    measure("left_behind", held)
    if held:
        measure.explain(finding("RESTART-LEAK", f"{held} placement groups are left"))


def tell(cluster, original, voyage, measure):
    """Figures that only inform, evidence, and the loss curve with the first kill marked."""
    names = cluster.names
    for number in range(len(voyage.strikes)):
        for part, seconds in dataclasses.asdict(costs(voyage, number)).items():
            measure.note(f"{part}_s", seconds, "s", on=f"blow {number + 1}")
    measure.note("ettr", ettr(voyage), "ratio")
    saves = [save for result in voyage.results[:1] for save in result["checkpoints"]]
    if saves:
        rate = sum(s["bytes"] for s in saves) / sum(s["seconds"] for s in saves)
        measure.note("save_rate", rate, "bytes/s", samples=len(saves))
        stalls = [span["segments"]["checkpoint"] for span in voyage.results[0]["spans"]]
        measure.note("save_stall", max(stalls), "s", samples=len(saves))
        measure.note("load", voyage.results[0]["load_seconds"], "s")
    measure.keep(
        f"attempts-{voyage.scenario.name}.json",
        [dataclasses.asdict(attempt) for attempt in voyage.attempts],
        kind="log",
        caption=f"{voyage.scenario.words}: where the ranks of each attempt were, and how it ended",
    )
    victim = voyage.strikes[0].victim
    measure.covered(
        f"{voyage.scenario.words}; the victim was rank {voyage.strikes[0].rank} on "
        f"{names.get(victim.node, '?') if victim else '?'}"
    )
    if not voyage.cuts:
        return
    measure.series(
        "loss",
        {
            "reference": [[s["step"], s["loss"]] for s in original.results[0]["steps"]],
            "resumed": [[s["step"], s["loss"]] for at in range(len(voyage.lives))
                        for s in voyage.steps(at)],
            "killed_at": voyage.cuts[0][0],
            "resumed_from": voyage.cuts[0][1]["start_step"],
        },
    )  # fmt: skip


@pytest.mark.criterion("RESTART")
@pytest.mark.parametrize("name", later(DAMAGES, QUICK_DAMAGES))
def test_a_damaged_checkpoint_is_refused(name, cluster, original, measure):
    """A checkpoint that is torn, altered or not this run's is never loaded: the one before it is.

    The run then ends as if nothing had been wrong.
    """
    original.ready(cluster, measure)
    found = original.damaged[name]
    if isinstance(found, str) or isinstance(original.mistaken["rng"], str):
        measure("not_refused", None, note=found)
        measure.explain(finding("RESTART-DEAD", f"{name}: the run did not come back: {found}"))
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
    trusted = {result["start_step"] for result in original.mistaken["rng"]}
    measure.control(
        "an untouched one taken for damaged",
        f"a resume from an untouched step-{NEWEST} is judged as if that had been damaged",
        caught=NEWEST in trusted,
        saw=f"it began after step {max(trusted)}",
    )


@pytest.mark.criterion("RESTART")
@STANDARD
def test_a_full_disk_costs_a_save_and_not_the_run(cluster, original, measure):
    """A save that meets a full disk on one rank is given up by all; run and later saves go on."""
    original.ready(cluster, measure)
    found, victim = original.full_disk, len(original.results) - 1
    measure("struck", original.filled or None, note="no file was made to meet a full disk")
    if isinstance(found, str):
        measure(
            "outcome", "gave up", limit=Limit(one_of=["finished"], because="one save is no run")
        )
        measure.explain(finding("RESTART-DEAD", f"a full disk ended the run: {found}"))
        return
    said = [save["error"] for save in found[0]["unsaved"]]
    named = sum(f"rank {victim} on" in error and "No space left" in error for error in said)
    measure("saves_refused", named, limit=exactly(1, "saves", "one met a full disk, and is named"))
    committed = [save["step"] for save in found[0]["checkpoints"]]
    measure("saved_after", len(committed), limit=exactly(1, "saves", "there was room again"))
    equal(original, found, SAVE_EVERY + 1, measure)
    mistakes_are_seen(original, measure)
    measure.covered(said[0] if said else "no save was refused")


def equal(original, found, first, measure):
    """That a resume is the run never killed, from step `first` on."""
    unequal = unequal_steps(original.results, found, first)
    compared = len(found) * (STEPS - first + 1)
    tell_unequal(unequal, compared, original, found, measure)
