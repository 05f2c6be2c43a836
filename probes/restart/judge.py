"""Judges a run with injected faults."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from probes.check.declarations import exactly
from probes.check.judging import judge_or_explain
from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.kept_gang import GANG_NAME
from probes.faults.process_faults import (
    RankProcesses,
    describe_orphans,
    find_orphans,
    rank_processes,
)
from probes.findings import MAX_NAMES, finding, join_names
from probes.restart import criterion as check
from probes.restart import reference_run as reference
from probes.restart.faulted_run import DONE_EVENTS, SAVE_EVERY, FaultedRun, ettr, recovery_costs
from probes.restart.reference_run import NEWEST, ReferenceRun, Results, StepComparison
from reference_trainer.launch.supervisor import Attempt
from reports.measurement import Limit, Verdict
from reports.numbers import quantity


def judge_run(
    original: ReferenceRun, run: FaultedRun, limits: Callable[[str], Any], measure: Recorder
) -> None:
    """Judge that each fault happened, and that the run recovered by itself, unchanged, in time."""
    scenario = run.scenario
    if run.results and not scenario.gives_up:
        judge_equality(original, run, measure)
    for number, injector in enumerate(run.injectors, 1):
        note = injector.error or "the run ended before seatrial injected the fault"
        measure(check.FAULTS_INJECTED, injector.count or None, on=f"kill {number}", note=note)
    judge_completion(run, measure)
    judge_resume(run, measure)
    if scenario.timed and not scenario.gives_up:
        judge_recovery_time(run, limits(check.RECOVERY_TIME), measure)


def resume_finished(outcome: Results | str, failure: str, measure: Recorder) -> bool:
    """Judge that a resume ended with results; return whether it did.

    `failure` begins the finding when it did not.
    """
    _, error = reference.results_or_error(outcome)
    because = "a checkpoint that cannot be read or written must not end the run"
    limit = Limit(one_of=["finished"], because=because)
    outcome, cause = "gave up" if error else "finished", f"{failure}: {error}"
    found = finding("RESTART-NOT-RECOVERED", cause)
    judge_or_explain(measure, check.OUTCOME, outcome, found, bool(error), limit=limit)
    return not error


def judge_completion(run: FaultedRun, measure: Recorder) -> None:
    """Judge how the run ended, and after how many attempts.

    A run that does not recover has failed in any case.  If a planned fault did not happen, nothing
    else is known of the run.
    """
    scenario, attempts = run.scenario, run.attempts
    finished, expected = bool(run.results), not scenario.gives_up
    failed = expected and not finished
    known, note = failed or run.all_injected, "seatrial could not inject a planned fault"
    outcome = "finished" if finished else "gave up"
    because = f"{scenario.summary}; the run must {'finish' if expected else 'give up'}"
    limit = Limit(one_of=["finished" if expected else "gave up"], because=because)
    measure(check.OUTCOME, outcome if known else None, limit=limit, note=note)
    because = "one per injected fault, plus one if the run must finish"
    limit = exactly(scenario.attempts, "attempts", because)
    measure(check.ATTEMPTS, len(attempts) if known else None, limit=limit, note=note)
    if failed:
        measure.explain(finding("RESTART-NOT-RECOVERED", f"the run did not recover: {run.error}"))
    elif known and len(attempts) != scenario.attempts:
        reasons = "; ".join(attempt.reason or "finished" for attempt in attempts)
        made = f"the run made {quantity(len(attempts), 'attempts')}. Expected: {scenario.attempts}"
        measure.explain(finding("RESTART-ATTEMPTS", f"{made}. How they ended: {reasons}"))


def judge_resume(run: FaultedRun, measure: Recorder) -> None:
    """Judge from which step the last attempt resumed, and how many steps each fault cost."""
    scenario, saved, unseen = run.scenario, run.last_saved, "the run made no second attempt"
    step, note = run.journals[-1][0]["start_step"] if len(run.journals) > 1 else None, unseen
    expected = saved if scenario.resume_step is None else scenario.resume_step
    if step is not None and step != expected and not run.all_injected:
        step, note = None, "seatrial could not inject a planned fault"
    if step is not None and step == saved > expected:
        step, note = None, f"seatrial injected the fault too late: step {saved} was already saved"
    limit = exactly(expected, "step", "the newest complete checkpoint")
    measure(check.RESUMED_FROM, step, limit=limit, note=note)
    because = "the run saves before it exits"
    if scenario.max_lost:
        because = f"the run saves every {SAVE_EVERY} steps"
    if scenario.max_lost > SAVE_EVERY:
        because += ", and a save in the background may not have ended"
    lost, most = max(run.steps_lost, default=None), scenario.max_lost
    limit = Limit(high=most, unit="steps", because=because)
    cost = f"a fault cost {quantity(lost or 0, 'steps')}. Expected: at most {most} ({because})"
    cause, failed = finding("RESTART-STEPS-LOST", cost), lost is not None and lost > most
    judge_or_explain(measure, check.STEPS_LOST, lost, cause, failed, limit=limit, note=unseen)


def judge_recovery_time(run: FaultedRun, limit: Limit, measure: Recorder) -> None:
    """Judge the time from the last fault to a new step.  If it is too long, report its parts."""
    seconds, note = recovery_seconds(run)
    measure(check.RECOVERY_TIME, seconds, note=note)
    if seconds is None or limit.judge(seconds) is not Verdict.FAIL:
        return
    parts = recovery_costs(run, len(run.injectors) - 1)
    texts = {name: "not known" if s is None else f"{s:.0f} s" for name, s in parts.items()}
    statement = f"parts of the recovery time: detection {texts['detect']}, rescheduling "
    statement += f"{texts['reschedule']}, start-up to the first step {texts['init']}"
    measure.explain(finding("RESTART-SLOW", statement))


def recovery_seconds(run: FaultedRun) -> tuple[float | None, str]:
    """Measure the seconds from the last fault to the first new step.

    The fault's time is on the victim's clock, the step's time on its successor's.  A step is done
    when its save begins: the save time is measured separately.  The last attempt has no planted
    delays (see FaultScheduler).  None if no new step, or no fault time, is known; the text is the
    reason.
    """
    last = run.injectors[-1]
    if len(run.journals) < 2:
        return None, "the run made no second attempt"
    if not last.injected_at:
        return None, last.error or "the time of the last fault is not known"
    done = run.resume_points[-1][0]
    ends = (event for event in run.journals[-1] if event["event"] in DONE_EVENTS)
    resumed_at = next((event["t"] for event in ends if event["step"] > done), None)
    seconds = resumed_at - last.injected_at if resumed_at else None
    return seconds, "the run made no new step"


def judge_equality(original: ReferenceRun, run: FaultedRun, measure: Recorder) -> None:
    """Judge that the run equals the run never killed, bit by bit.

    All ranks are compared after the last resume, and the victim's rank in every attempt.  If NCCL
    summed over other rings, losses are compared within a tolerance instead.
    """
    expected, victim = original.results, run.injectors[0].rank
    found = compare_lives(expected, run, victim)
    reordered = reference.reordered_sums(expected, run, victim) if found.unequal else ""
    if reordered:
        tolerance = original.least_wrong_distance / 2
        if math.isnan(tolerance):
            reason = (
                f"{reordered}, so the last bits of losses can differ. seatrial cannot say how far, "
                "because its resumes with planted errors gave no loss. Run RESTART again"
            )
            measure(check.UNEQUAL_STEPS, None, note=reason)
            measure(check.FINAL_STATE, None, note=reason)
            return
        found = compare_lives(expected, run, victim, tolerance)
        measure.covered(
            f"{reordered}, so losses are allowed to differ by {tolerance:.2g} nats: half of the "
            "smallest difference that a planted error caused"
        )
    # A step that differs before any restore was not changed by the restart.
    unrestored = reference.compare_attempts(run, expected[victim], 1).unequal
    code = "RESTART-NONDETERMINISTIC" if unrestored and not reordered else "RESTART-UNEQUAL"
    report_unequal(found, original, run.results, measure, code, bool(reordered))
    judge_losses(run.results, measure)


def compare_lives(
    expected: Results, run: FaultedRun, victim: int, tolerance: float | None = None
) -> StepComparison:
    """Compare all ranks after the last resume, and the victim's rank in every earlier attempt."""
    first = run.results[0]["start_step"] + 1
    found = reference.compare_steps(expected, run.results, first, tolerance)
    earlier = reference.compare_attempts(run, expected[victim], len(run.journals) - 1, tolerance)
    # Otherwise it resumed after its last step, and its restored state is unknown.
    return found + earlier if found.steps or earlier.unequal else found


def judge_losses(results: Results, measure: Recorder) -> None:
    """Judge that every loss is finite."""
    losses = [step["loss"] for result in results for step in result["steps"]]
    wrong = sum(not math.isfinite(loss) for loss in losses)
    cause = finding("RESTART-NAN", f"number of NaN or infinite losses, over all ranks: {wrong}")
    judge_or_explain(measure, check.NON_FINITE, wrong if losses else None, cause)


def report_unequal(
    found: StepComparison,
    original: ReferenceRun,
    results: Results,
    measure: Recorder,
    code: str = "RESTART-UNEQUAL",
    reordered: bool = False,
) -> None:
    """Report the steps that differ from the run never killed, and whether its parameters do.

    If its sums were `reordered`, different last bits of the parameters are no difference.
    """
    measure(check.UNEQUAL_STEPS, found.count, samples=found.compared, note=found.doubt)
    digests = [{r["digest"] for r in each} for each in (results, original.results)]
    equal = digests[0] == digests[1]
    known = all(each and None not in each for each in digests)
    unequal = "reordered" if reordered and not found.unequal else "unequal"
    state = ("equal" if equal else unequal) if known else None
    measure(check.FINAL_STATE, state, note="some ranks reported no hash of their final parameters")
    if found.unequal or state == "unequal":
        statement = "all steps equal those of the run that was never killed, "
        statement += "but the final parameters differ"
        ranks = list[int]()
        if found.unequal:
            first, ranks = reference.first_unequal_step(found.unequal)
            statement = f"first step that differs between the two runs: {first}"
        suspects = [f"rank {rank}" for rank in ranks[:MAX_NAMES]]
        names = {"rank": ranks[0] if ranks else ""}
        measure.explain(finding(code, statement, suspects, names=names))


def judge_left_behind(groups: int, fate: str, measure: Recorder, on: str = "cluster") -> None:
    """Judge that no placement group is left."""
    cause = finding("RESTART-LEAK", f"{quantity(groups, 'placement groups')} {fate}")
    judge_or_explain(measure, check.NOT_RELEASED, groups, cause, on=on)


def find_leaks(
    cluster: Cluster, folder: Path, measure: Recorder, attempts: Iterable[Attempt] = ()
) -> None:
    """Judge that the ended runs of this folder hold no placement group, and that no rank runs."""
    judge_left_behind(len(cluster.groups_named(GANG_NAME)), "still held after the run", measure)
    known = rank_processes(folder, attempts)
    judge_orphans(*find_orphans(cluster, known), known, measure)


def judge_orphans(
    running: RankProcesses, unasked: list[str], known: RankProcesses, measure: Recorder
) -> None:
    """Judge that no rank of `known` still runs.  `unasked` lists hosts that did not answer."""
    if running:
        measure(check.STILL_RUNNING, len(running))
        shown = dict(islice(running.items(), MAX_NAMES))
        statement = f"ranks still run after the run has ended: {describe_orphans(shown)}"
        suspects = [name for (host, *_), rank in shown.items() for name in (f"rank {rank}", host)]
        known_rank = {"rank": next(iter(shown.values()))}
        measure.explain(finding("RESTART-LEAK", statement, suspects, names=known_rank))
    else:
        names = join_names(unasked)
        note = f"{names} did not answer" if names else "no rank logged its node"
        measure(check.STILL_RUNNING, None if unasked or not known else 0, note=note)


def report_run(
    names: dict[str, str], original: ReferenceRun, run: FaultedRun, measure: Recorder
) -> None:
    """Record recovery costs, evidence, and the loss curve with the first kill marked."""
    for number in range(len(run.injectors)):
        for phase, seconds in recovery_costs(run, number).items():
            measure.note(f"time_to_{phase}", seconds, "s", on=f"kill {number + 1}")
    measure.note("ettr", ettr(run), "ratio")
    _report_storage(run, measure)
    name, summary = f"attempts-{run.scenario.name}.json", run.scenario.summary
    caption = f"{summary}: where the ranks of each attempt ran, and how the attempt ended"
    measure.keep(name, list(map(dataclasses.asdict, run.attempts)), kind="log", caption=caption)
    measure.covered(f"{summary}; the victim was {run.injectors[0].describe_target(names)}")
    measure.covered(original.describe())
    if not run.resume_points:
        return
    steps = [s for attempt in range(len(run.journals)) for s in run.step_events(attempt)]
    killed_at, start = run.resume_points[0]
    series = {
        "reference": [[s["step"], s["loss"]] for s in original.results[0]["steps"]],
        "resumed": [[s["step"], s["loss"]] for s in steps],
        "killed_at": killed_at,
        "resumed_from": start["start_step"],
    }
    measure.series("loss", series)


def _report_storage(run: FaultedRun, measure: Recorder) -> None:
    """Record how fast the last attempt saved and loaded, and how long a step waited for its save.

    Saves with a planted delay, and the steps that waited for them, are left out.
    """
    if not run.results:
        return
    result, scenario, last = run.results[0], run.scenario, len(run.journals) - 1
    saves = [s for s in result["checkpoints"] if not scenario.stall_seconds(s["step"], last)]
    if saves:
        rate = sum(s["bytes"] for s in saves) / sum(s["seconds"] for s in saves)
        measure.note("save_rate", rate, "bytes/s", samples=len(saves))
    if saves and not scenario.stalls_in_background:
        saved = {save["step"] for save in saves}
        spans = [span for span in result["spans"] if span["step"] in saved]
        stall = max(span["segments"]["checkpoint"] for span in spans)
        measure.note("save_stall", stall, "s", samples=len(saves))
    if result["load_bytes"]:
        measure.note("load", result["load_seconds"], "s")
        measure.note("load_rate", result["load_bytes"] / result["load_seconds"], "bytes/s")


def judge_repeat(original: ReferenceRun, measure: Recorder) -> None:
    """Judge that a second run is equal to the first.

    Otherwise a difference between two runs proves nothing.  Fails the probe if the second run
    failed.
    """
    results, error = reference.results_or_error(original.repeated)
    if error:
        pytest.fail(f"the run could not be repeated: {error}", pytrace=False)
    found = reference.compare_steps(original.results, results)
    report_unequal(found, original, results, measure, "RESTART-NONDETERMINISTIC")


def judge_steps(original: ReferenceRun, results: Results, first: int, measure: Recorder) -> None:
    """Judge that a resume equals the run never killed, from step `first` on."""
    found = reference.compare_steps(original.results, results, first)
    report_unequal(found, original, results, measure)


def judge_refusal(name: str, original: ReferenceRun, results: Results, measure: Recorder) -> None:
    """Judge that the damaged checkpoint was refused with a reason, and the previous one loaded."""
    starts = {result["start_step"] for result in results}
    loaded = f"the run loaded the checkpoint step-{NEWEST}, which it must refuse"
    statement = f"with the damage {name}, {loaded}"
    cause = finding("RESTART-DAMAGED-LOADED", statement, names={"step": NEWEST})
    judge_or_explain(measure, check.NOT_REFUSED, int(NEWEST in starts), cause)
    limit = exactly(SAVE_EVERY, "step", "the newest complete checkpoint of this run")
    measure(check.RESUMED_FROM, max(starts), limit=limit)
    judge_steps(original, results, max(starts) + 1, measure)
    reasons = {entry["name"]: entry["reason"] for entry in results[0]["skipped"]}
    reason = reasons.get(f"step-{NEWEST}", "")
    limit = exactly(1, "sentences", "the log must explain why each checkpoint was refused")
    statement = f"with the damage {name}, the run skipped the checkpoint step-{NEWEST}, "
    statement += "but its log has no reason"
    cause = finding("RESTART-UNREPORTED", statement, names={"step": NEWEST})
    count, failed = int(bool(reason)), not reason and NEWEST not in starts
    judge_or_explain(measure, check.REFUSALS_EXPLAINED, count, cause, failed, limit=limit)
    measure.covered(f"{name}: {reason or 'no reason was given'}; {original.describe()}")


def judge_full_disk(original: ReferenceRun, results: Results, measure: Recorder) -> None:
    """Judge that all ranks gave up the save that met a full disk, and that a later save worked."""
    victim = len(original.results) - 1
    errors = [save["error"] for save in results[0]["unsaved"]]
    named = sum(f"rank {victim} on" in error and "No space left" in error for error in errors)
    committed = [save["step"] for save in results[0]["checkpoints"]]
    refused = 0 if NEWEST in committed else named  # a committed save was not refused
    limit = exactly(1, "saves", "the disk was full in one save, and its error must name the rank")
    statement = f"the run committed step-{NEWEST}, although rank {victim} could not write its part"
    names = {"rank": victim, "step": NEWEST}
    torn = finding("RESTART-TORN", statement, [f"rank {victim}"], names=names)
    judge_or_explain(measure, check.SAVES_REFUSED, refused, torn, NEWEST in committed, limit=limit)
    limit = exactly(1, "saves", "the disk had space again for the next save")
    measure(check.SAVED_AFTER, len(committed), limit=limit)
    judge_steps(original, results, SAVE_EVERY + 1, measure)
    measure.covered(f"{errors[0] if errors else 'no save failed'}; {original.describe()}")
