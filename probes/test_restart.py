"""Does a killed run come back by itself, and is it the run that was never killed?"""

import dataclasses
import math
import shutil

import pytest

from probes.equality import unequal_steps
from probes.faults import KillWorker, read_lines
from probes.findings import finding
from reference_trainer.config import TrainConfig
from reference_trainer.gang import GangError, run_with_restarts
from reference_trainer.launch import rank
from reports.record import Limit

SAVE_EVERY, KILL_AT = 4, 7
STEPS = {"quick": 10, "standard": 20, "soak": 40}


@pytest.mark.criterion("RESTART")
def test_killed_run_resumes_as_if_never_killed(cluster, terms, tier, workplace, measure):
    """A run whose rank is killed in mid-step resumes by itself, bitwise equal to one never killed.

    Loss, gradient norm and sample ids of every step and rank, and the parameters at the end, are
    compared bit by bit.  The same resume without its random state must be seen as unequal.
    """
    blind = (
        cluster.blind_to(str(workplace)) if workplace else [node["name"] for node in cluster.nodes]
    )
    if blind:
        said = f"{', '.join(blind)} do not see {workplace or 'a folder that all share'}"
        measure.explain(finding("RESTART-NO-FOLDER", said, blind))
        pytest.fail(f"a checkpoint needs a folder that every node sees: {said}", pytrace=False)
    config = TrainConfig(
        steps=STEPS[tier],
        pace_s=0.15,
        dim=32,
        seq=32,
        save_every=SAVE_EVERY,
        keep_last=STEPS[tier],  # the control resumes once more from where this run resumed
        out=str(workplace / "out"),
        checkpoints=str(workplace / "checkpoints"),
    )
    victim = cluster.size - 1
    with KillWorker(workplace / "out", victim, KILL_AT) as kill:
        resumed, attempts = killed_run(cluster, config, kill, measure)
    if resumed:
        observe(cluster, config, kill, resumed, attempts, measure)


def killed_run(cluster, config, kill, measure):
    """The run, its victim, and whether it came back."""
    measure.progress(
        f"restart: a run of {config.steps} steps, rank {kill.rank} killed in step {kill.step}"
    )
    try:
        results, attempts = run_with_restarts(
            cluster.gang,
            rank,
            config,
            timeout=300,
            on_start=lambda gang, attempt: kill.aim(gang) if attempt == 1 else None,
        )
    except GangError as error:
        measure("victims_dead", kill.count)
        measure("attempts", None, note=str(error))
        measure.explain(finding("RESTART-DEAD", f"the run did not come back: {error}"))
        return [], []
    return results, attempts


def observe(cluster, config, kill, resumed, attempts, measure):
    """Compare with a run never killed, and with a resume that forgets its random state."""
    measure.progress("restart: the same run, never killed; and resumed without its random state")
    start = resumed[0]["start_step"]
    forgetful = forget_after(config, start)
    with cluster.gang() as gang:
        whole = dataclasses.replace(config, save_every=0, checkpoints=None, out=None)
        reference = gang.run(rank, whole, timeout=300)
        forgot = gang.run(rank, forgetful, timeout=300) if forgetful else []

    before, after = two_lives(read_lines(kill.journal))
    unequal = compare(reference, resumed, before, start, kill.rank)
    measure(
        "unequal_steps",
        len(unequal) if before else None,
        samples=config.steps * len(resumed),
        note="the killed life left no step to compare",
    )
    same = {r["digest"] for r in resumed} == {r["digest"] for r in reference}
    measure("final_state", "equal" if same else "unequal")
    measure("non_finite", sum(not math.isfinite(s["loss"]) for r in resumed for s in r["steps"]))
    if unequal or not same:
        said = str(unequal[0]) if unequal else "all steps are equal, the parameters are not"
        measure.explain(finding("RESTART-UNEQUAL", said, [f"rank {u.rank}" for u in unequal[:1]]))
    judge_return(kill, attempts, before, after, start, measure)
    seen = unequal_steps(reference, forgot, start + 1) if forgot else []
    measure.control(
        "random state forgotten",
        "the run is resumed without restoring its random state",
        caught=bool(seen) if forgot else None,
        saw=str(seen[0]) if seen else "no unequal step",
    )
    record(cluster, kill, attempts, before, resumed, reference, start, measure)


def two_lives(journal):
    """The steps that the victim's rank wrote before and after its death, by its own journal.

    Each life begins with a `start` event: no two machines' clocks need to agree.
    """
    starts = [at for at, event in enumerate(journal) if event["event"] == "start"]
    cut = starts[1] if len(starts) > 1 else len(journal)
    lives = journal[:cut], journal[cut:]
    return [[event for event in life if event["event"] == "step"] for life in lives]


def compare(reference, resumed, before, start, victim):
    """Unequal steps of all ranks after the resume, and of the victim's rank before its death."""
    done = before[-1]["step"] if before else 0
    first_life = {**reference[victim], "steps": reference[victim]["steps"][:done]}
    return [
        *unequal_steps(reference, resumed, start + 1),
        *unequal_steps([first_life], [{**resumed[victim], "steps": before}]),
    ]


def judge_return(kill, attempts, before, after, start, measure):
    """That the fault happened once, and how the run came back."""
    unseen = kill.error or "the run ended before its victim was killed"
    measure("victims_dead", kill.count or None, note=unseen)
    measure("attempts", len(attempts) if kill.count else None, note=unseen)
    done = before[-1]["step"] if before else None
    because = f"it saves every {SAVE_EVERY} steps"
    measure(
        "steps_lost",
        done - start if done is not None else None,
        limit=Limit(low=0, high=SAVE_EVERY, unit="steps", because=because),
    )
    new = next((event["t"] for event in after if event["step"] > (done or 0)), None)
    measure("back_to_work", new - kill.at if new else None, note="no new step was seen")
    measure.note("resumed_from", start, "step")


def forget_after(config, start):
    """The same resume in a folder of its own, told not to restore the random state."""
    from pathlib import Path

    source = Path(config.checkpoints) / f"step-{start}"
    if start == 0 or not source.is_dir():
        return None
    target = source.parent.with_name("forgetful")
    shutil.copytree(source, target / source.name)
    return dataclasses.replace(
        config, restore_rng=False, checkpoints=str(target), save_every=0, out=None
    )


def record(cluster, kill, attempts, before, resumed, reference, start, measure):
    """Evidence: the attempts, and the loss curve with the kill marked."""
    names, done = cluster.names, before[-1]["step"] if before else 0
    measure.keep(
        "attempts.json",
        [
            {
                "started": a.started,
                "ready": a.ready,
                "ended": a.ended,
                "lost": a.lost,
                "reason": a.reason,
                "places": [dataclasses.asdict(place) for place in a.places],
            }
            for a in attempts
        ],
        kind="log",
        caption="every attempt: where its ranks were, and how it ended",
    )
    measure.covered(
        f"rank {kill.rank} on {names.get(kill.victim.node, '?')} killed after step {done}; "
        f"{len(resumed)} ranks compared"
    )
    measure.series(
        "loss",
        {
            "reference": [[s["step"], s["loss"]] for s in reference[0]["steps"]],
            "resumed": [[s["step"], s["loss"]] for s in [*before, *resumed[0]["steps"]]],
            "killed_at": done,
            "resumed_from": start,
        },
    )
