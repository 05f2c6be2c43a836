"""Does a killed run come back by itself, and is it the run that was never killed?"""

import dataclasses
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

    journal = read_lines(kill.journal)
    before = [e for e in journal if e["event"] == "step" and e["t"] <= kill.at]
    after = [e for e in journal if e["event"] == "step" and e["t"] > kill.at]
    done = max((e["step"] for e in before), default=0)
    first_new = min((e["t"] for e in after if e["step"] > done), default=None)
    unequal = unequal_steps(reference, resumed, start + 1)
    unequal += unequal_steps(
        [{**reference[kill.rank], "steps": reference[kill.rank]["steps"][:done]}],
        [{**resumed[kill.rank], "steps": before}],
    )
    measure("unequal_steps", len(unequal), samples=config.steps * len(resumed))
    measure("victims_dead", kill.count, note=kill.error)
    measure("attempts", len(attempts))
    same = {r["digest"] for r in resumed} == {r["digest"] for r in reference}
    measure("final_state", "equal" if same else "unequal")
    measure(
        "steps_lost",
        done - start,
        limit=Limit(high=SAVE_EVERY, unit="steps", because=f"it saves every {SAVE_EVERY} steps"),
    )
    measure("back_to_work", first_new - kill.at if first_new else None, note="no new step was seen")
    measure.note("resumed_from", start, "step")

    if unequal or not same:
        said = str(unequal[0]) if unequal else "all steps are equal, the parameters are not"
        measure.explain(finding("RESTART-UNEQUAL", said, [f"rank {u.rank}" for u in unequal[:1]]))

    seen = unequal_steps(reference, forgot, start + 1) if forgot else []
    measure.control(
        "random state forgotten",
        "the run is resumed without restoring its random state",
        caught=bool(seen) if forgot else None,
        saw=str(seen[0]) if seen else "no unequal step",
    )
    record(cluster, kill, attempts, before, resumed, reference, done, start, measure)


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


def record(cluster, kill, attempts, before, resumed, reference, done, start, measure):
    """Evidence: the attempts, and the loss curve with the kill marked."""
    names = cluster.names
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
