"""What a run that met faults is judged by, and the controls that show the judge awake."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from probes.acceptance.criteria import exactly
from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.faults.orphaned_ranks import marks, outlived, told
from probes.findings import SHOWN, finding, listed
from probes.restart.equality import Unequal, first_apart, unequal_steps
from probes.restart.faulted_run import DONE, NAME, Voyage, costs, ettr
from probes.restart.reference_run import NEWEST, SAVE_EVERY, STEPS, Original, Results
from reference_trainer.launch.supervisor import Attempt
from reports.record import Limit, Verdict

Limits = Callable[[str], Any]
NOT_MADE = "the run that nobody kills was not made"  # no gang came together


def apart(found: Results | str) -> tuple[Results, str]:
    """Results, or why there are none."""
    return ([], found or "no reason was given") if isinstance(found, str) else (found, "")


def judge_blows(voyage: Voyage, measure: Ledger) -> None:
    """That each blow happened, once."""
    for number, strike in enumerate(voyage.strikes, 1):
        unseen = strike.error or "the run ended before its victim was struck"
        measure("struck", strike.count or None, on=f"blow {number}", note=unseen)


def came_back(found: Results | str, words: str, measure: Ledger) -> bool:
    """Whether a resume ended with results; `words` say what happened when it did not."""
    _, error = apart(found)
    because = "one checkpoint that cannot be used, or be written, is no reason to end a run"
    limit = Limit(one_of=["finished"], because=because)
    measure("outcome", "gave up" if error else "finished", limit=limit)
    if error:
        measure.explain(finding("RESTART-DEAD", f"{words}: {error}"))
    return not error


def judge_return(voyage: Voyage, limits: Limits, measure: Ledger) -> None:
    """Whether it came back by itself, where it began again, and what that cost."""
    judge_end(voyage, measure)
    judge_resume(voyage, measure)
    if voyage.scenario.timed and not voyage.scenario.dies:
        judge_speed(voyage, limits("back_to_work"), measure)


def judge_end(voyage: Voyage, measure: Ledger) -> None:
    """How it ended, and in how many attempts.

    A run that does not come back has failed in any case; of one that was not struck as planned
    nothing else is known.
    """
    scenario, attempts = voyage.scenario, voyage.attempts
    came_back, expected = bool(voyage.results), not scenario.dies
    dead = expected and not came_back
    known, unstruck = dead or voyage.all_struck, "a blow did not happen"
    outcome = "finished" if came_back else "gave up"
    wanted = f"{scenario.words}: {'it ends by itself' if expected else 'it gives up'}"
    measure(
        "outcome",
        outcome if known else None,
        limit=Limit(one_of=["finished" if expected else "gave up"], because=wanted),
        note=unstruck,
    )
    measure(
        "attempts",
        len(attempts) if known else None,
        limit=exactly(scenario.attempts, "attempts", "one for each blow, and one to end in"),
        note=unstruck,
    )
    if dead:
        measure.explain(finding("RESTART-DEAD", f"the run did not come back: {voyage.error}"))
    elif known and len(attempts) != scenario.attempts:
        reasons = "; ".join(attempt.reason or "ended" for attempt in attempts)
        said = f"it took {len(attempts)} attempts, expected {scenario.attempts}: {reasons}"
        measure.explain(finding("RESTART-ATTEMPTS", said))


def judge_resume(voyage: Voyage, measure: Ledger) -> None:
    """Where the last life began, and how many steps each blow cost."""
    scenario, saved = voyage.scenario, voyage.saved
    again = len(voyage.lives) > 1
    began, note = voyage.lives[-1][0]["start_step"] if again else None, "no second life was seen"
    wanted = saved if scenario.resumes is None else scenario.resumes
    if began is not None and began != wanted and not voyage.all_struck:
        began, note = None, "a blow did not happen"
    if began is not None and began == saved > wanted:
        began, note = None, f"a blow came late: step {saved} had been saved before it"
    measure(
        "resumed_from",
        began,
        limit=exactly(wanted, "step", "the newest that was saved whole"),
        note=note,
    )
    because = f"it saves every {SAVE_EVERY} steps" if scenario.lost else "it saves before it leaves"
    if scenario.lost > SAVE_EVERY:
        because += ", in the background: the save before may not have ended"
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


def judge_speed(voyage: Voyage, limit: Limit, measure: Ledger) -> None:
    """How long it took from the last blow to a new step, and what took it."""
    seconds = back_to_work(voyage)
    measure("back_to_work", seconds, note="no new step was seen")
    if seconds is None or limit.judge(seconds) is not Verdict.FAIL:
        return
    parts = dataclasses.asdict(costs(voyage, len(voyage.strikes) - 1))
    said = {name: "an unknown time" if s is None else f"{s:.0f} s" for name, s in parts.items()}
    measure.explain(
        finding(
            "RESTART-SLOW",
            f"the loss was seen after {said['detect']}, a whole gang was there {said['reschedule']}"
            f" later, and its start took {said['init']}",
        )
    )


def back_to_work(voyage: Voyage) -> float | None:
    """Seconds from the last blow to the first new step: victim's clock to its successor's.

    A step is done when its save begins: how long that takes is another measurement, and saves of
    the steps before that are held up on purpose are none.
    """
    if len(voyage.lives) < 2 or not voyage.strikes[-1].at:
        return None
    done = voyage.cuts[-1][0]
    ends = (event for event in voyage.lives[-1] if event["event"] in DONE)
    new = next((event["t"] for event in ends if event["step"] > done), None)
    again = voyage.seconds(len(voyage.lives) - 1)
    held = sum(planted for step, (_, planted) in again.items() if step <= done)
    return new - held - voyage.strikes[-1].at if new else None


def judge_equality(original: Original, voyage: Voyage, measure: Ledger) -> None:
    """Bit by bit: all ranks after the last resume, and the victim's rank in every life."""
    whole, victim = original.results, voyage.strikes[0].rank
    unequal = unequal_steps(whole, voyage.results, voyage.results[0]["start_step"] + 1)
    compared = len(voyage.results) * len(voyage.results[0]["steps"])
    before = len(voyage.lives) - 1
    unequal += voyage.unequal(whole[victim], before)
    # What was unequal before anything was restored, the restart is not to blame for.
    fresh = before and voyage.unequal(whole[victim], 1)
    if compared:  # else it came back after its last step: nothing is known of what it restored
        compared += sum(len(voyage.steps(at)) for at in range(before))
    code = "RESTART-UNREPEATABLE" if fresh else "RESTART-UNEQUAL"
    tell_unequal(unequal, compared, original, voyage.results, measure, code)
    losses = [step["loss"] for result in voyage.results for step in result["steps"]]
    measure("non_finite", sum(not math.isfinite(loss) for loss in losses))


def tell_unequal(
    unequal: list[Unequal],
    compared: int,
    original: Original,
    found: Results,
    measure: Ledger,
    code: str = "RESTART-UNEQUAL",
) -> None:
    """The steps that differ from the run never killed, and whether its parameters do."""
    measure(
        "unequal_steps",
        len(unequal) if compared or unequal else None,
        samples=compared,
        note="no step was done after a resume",
    )
    same = {r["digest"] for r in found} == {r["digest"] for r in original.results}
    measure("final_state", "equal" if same else "unequal")
    if unequal or not same:
        said, ranks = "all steps are equal, the parameters are not", list[int]()
        if unequal:
            first, ranks = first_apart(unequal)
            said = str(first)
        measure.explain(finding(code, said, [f"rank {rank}" for rank in ranks[:SHOWN]]))


def leaks(
    cluster: Cluster, folder: Path, measure: Ledger, attempts: Iterable[Attempt] = ()
) -> None:
    """That the runs in this folder, which have ended, hold nothing, and that no rank still runs."""
    left = len(cluster.groups_named(NAME))
    measure("left_behind", left)
    if left:
        measure.explain(finding("RESTART-LEAK", f"{left} placement groups are left"))
    known = marks(folder, attempts)
    running, unasked = outlived(cluster, known)
    if running:
        measure("still_running", len(running))
        some = dict(islice(running.items(), SHOWN))
        said = f"of a run that has ended there still runs {told(some)}"
        suspects = [place for (host, *_), rank in some.items() for place in (f"rank {rank}", host)]
        measure.explain(finding("RESTART-LEAK", said, suspects))
    else:
        note = f"{listed(unasked)} could not be asked" if unasked else "no rank said where it runs"
        measure("still_running", None if unasked or not known else 0, note=note)


def tell(names: dict[str, str], original: Original, voyage: Voyage, measure: Ledger) -> None:
    """Figures that only inform, evidence, and the loss curve with the first kill marked."""
    for number in range(len(voyage.strikes)):
        for part, seconds in dataclasses.asdict(costs(voyage, number)).items():
            measure.note(f"{part}_s", seconds, "s", on=f"blow {number + 1}")
    measure.note("ettr", ettr(voyage), "ratio")
    _tell_storage(voyage, measure)
    measure.keep(
        f"attempts-{voyage.scenario.name}.json",
        [dataclasses.asdict(attempt) for attempt in voyage.attempts],
        kind="log",
        caption=f"{voyage.scenario.words}: where the ranks of each attempt were, and how it ended",
    )
    whom = voyage.strikes[0].whom(names)
    measure.covered(f"{voyage.scenario.words}; the victim was {whom}")
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


def _tell_storage(voyage: Voyage, measure: Ledger) -> None:
    """How fast the last life saved and loaded, and how long a step waited for its save.

    A save that was held up on purpose says nothing of that; nor does a step that waited for it.
    """
    if not voyage.results:
        return
    result, scenario = voyage.results[0], voyage.scenario
    saves = [save for save in result["checkpoints"] if not scenario.held(save["step"])]
    if saves:
        rate = sum(s["bytes"] for s in saves) / sum(s["seconds"] for s in saves)
        measure.note("save_rate", rate, "bytes/s", samples=len(saves))
    if saves and not scenario.held_beside:
        saved = {save["step"] for save in saves}
        spans = [span for span in result["spans"] if span["step"] in saved]
        stall = max(span["segments"]["checkpoint"] for span in spans)
        measure.note("save_stall", stall, "s", samples=len(saves))
    if result["load_bytes"]:
        measure.note("load", result["load_seconds"], "s")
        rate = result["load_bytes"] / result["load_seconds"]
        measure.note("load_rate", rate, "bytes/s")


def repeats(original: Original, measure: Ledger) -> None:
    """That the same run, once more, is the same: else two runs' difference says nothing."""
    found, error = apart(original.again)
    if error:
        pytest.fail(f"the run could not be repeated: {error}", pytrace=False)
    unequal = unequal_steps(original.results, found)
    compared = sum(len(result["steps"]) for result in found)
    tell_unequal(unequal, compared, original, found, measure, "RESTART-UNREPEATABLE")


def equal(original: Original, found: Results, first: int, measure: Ledger) -> None:
    """That a resume is the run never killed, from step `first` on."""
    unequal = unequal_steps(original.results, found, first)
    compared = len(found) * (STEPS - first + 1)
    tell_unequal(unequal, compared, original, found, measure)


def judge_refusal(name: str, original: Original, found: Results, measure: Ledger) -> None:
    """That the damaged checkpoint was not loaded, the one before it was, and the run says why."""
    starts = {result["start_step"] for result in found}
    measure("not_refused", int(NEWEST in starts))
    if NEWEST in starts:
        said = f"{name}: step-{NEWEST} was loaded although it was damaged"
        measure.explain(finding("RESTART-TRUSTED", said))
    wanted = exactly(SAVE_EVERY, "step", "the newest that is whole and this run's")
    measure("resumed_from", max(starts), limit=wanted)
    equal(original, found, max(starts) + 1, measure)
    why = {entry["name"]: entry["reason"] for entry in found[0]["skipped"]}
    reason = why.get(f"step-{NEWEST}", "")
    measure("reasons", int(bool(reason)), limit=exactly(1, "sentences", "a refusal says why"))
    if not reason and NEWEST not in starts:
        said = f"{name}: step-{NEWEST} was passed over without a word"
        measure.explain(finding("RESTART-SILENT", said))
    measure.covered(f"{name}: {reason or 'no reason was given'}")


def judge_full_disk(original: Original, found: Results, measure: Ledger) -> None:
    """That the save that met a full disk was given up by all, and later ones were not."""
    victim = len(original.results) - 1
    said = [save["error"] for save in found[0]["unsaved"]]
    named = sum(f"rank {victim} on" in error and "No space left" in error for error in said)
    measure("saves_refused", named, limit=exactly(1, "saves", "one met a full disk, and is named"))
    committed = [save["step"] for save in found[0]["checkpoints"]]
    if NEWEST in committed:
        torn = f"step-{NEWEST} was committed although rank {victim} could not write its part"
        measure.explain(finding("RESTART-TORN", torn, [f"rank {victim}"]))
    measure("saved_after", len(committed), limit=exactly(1, "saves", "there was room again"))
    equal(original, found, SAVE_EVERY + 1, measure)
    measure.covered(said[0] if said else "no save was refused")
