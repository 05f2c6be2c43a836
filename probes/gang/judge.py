"""Judges how gangs affect each other: withdrawn, undisturbed, not blocked, handed on in time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from probes.check.judging import judge_or_explain
from probes.check.recorder import Recorder
from probes.contract.contract import ClusterTerms
from probes.findings import finding, join_names
from probes.gang import criterion as check
from probes.gang.invariants import Sample, is_whole
from probes.gang.scenario import PLACED_SECONDS, Scenario
from reports.numbers import quantity
from reports.record import Finding

PENDING_SECONDS = 0.7  # how long a gang without room is observed
WITHDRAWN_SECONDS = 10  # for a cancelled gang, or one of a dead driver, to be removed
RELEASE_PATIENCE_SECONDS = 30  # longer than the limit of 10 s, so that late releases are measured


def start_two_gangs(run: Scenario, need: int) -> tuple[str, str]:
    """Start a gang of A that runs and a gang of B that has no room; return both names."""
    running = run.ask("A", need)
    run.wait_placed(running)
    return running, run.ask("B", need, PENDING_SECONDS)


def judge_withdrawal(run: Scenario, gang: str, since: float) -> None:
    """Judge that a gang is removed, and note how long it took."""
    took = run.elapsed(since, run.wait_gone(gang, WITHDRAWN_SECONDS))
    judge_gone(gang, took is not None, WITHDRAWN_SECONDS, run.measure)
    run.measure.note("time_to_remove_gang", took, "s")


def judge_gone(gang: str, gone: bool, seconds: float, measure: Recorder) -> None:
    """Judge that a gang was removed within `seconds`."""
    message = f"gang {gang} still existed {seconds} s after its job cancelled it or died"
    stays = blame_job("GANG-NOT-REMOVED", message, gang[0])
    judge_or_explain(measure, check.NOT_REMOVED, int(not gone), stays)


def blame_job(code: str, message: str, job: str) -> Finding:
    """Make a finding whose suspect is one job."""
    return finding(code, message, [f"job {job}"], names={"job": job})


def judge_undisturbed(run: Scenario, gang: str) -> None:
    """Judge that a running gang was fully placed in every sample since its placement.

    It observes a little longer, because harm may come late.
    """
    run.observer.wait(PENDING_SECONDS)
    judge_held(gang, run.samples, run.measure)


def judge_held(gang: str, samples: Sequence[Sample], measure: Recorder) -> None:
    """Judge that a gang was fully placed in every sample since the first such sample."""
    states = [is_whole(sample, gang) for sample in samples]
    lost = states[states.index(True) :].count(False) if True in states else None
    now = _states_text(samples[-1]) if samples else ""
    seen = quantity(lost or 0, "samples")
    message = f"gang {gang} ran, but lacked accelerators in {seen}. Last sample: {now}"
    harmed = blame_job("GANG-LOST-ACCELERATORS", message, gang[0])
    note = "Ray never placed the gang"
    judge_or_explain(measure, check.LOST_WHILE_RUNNING, lost, harmed, note=note)


def judge_one_placed(run: Scenario, won: list[str], need: int) -> None:
    """Judge that one of two gangs that cannot both fit is placed, with all it asked for."""
    gangs = run.observer.samples[-1]["gangs"]
    sizes = {gang: gangs[gang]["size"] for gang in won if gang in gangs}
    small = [gang for gang, size in sizes.items() if size < need]
    for gang in small:
        given = quantity(sizes[gang], "accelerators")
        message = f"Ray gave gang {gang} only {given}. Expected: {need}"
        run.measure.explain(blame_job("GANG-PARTIAL", message, gang[0]))
    both = (
        f"Ray placed both gangs ({join_names(won)}). Each needs {need} accelerators, but only "
        f"{run.total} were free"
    )
    twice = finding("GANG-OVERCOMMIT", both, sorted(run.capacity))
    clash = [twice] if len(won) > 1 and not small else []
    run.measure_at_end(check.PLACED_CONCURRENTLY, len(won), *clash, ours=bool(small))


def judge_actors(run: Scenario, need: int, gangs: Iterable[str]) -> None:
    """Judge that each accelerator of a placed gang has its running actor."""
    placed = sorted(gangs)
    if not placed:
        run.measure_at_end(check.ACTORS_NOT_RUNNING, None, note="Ray placed no gang")
        return
    all_running = run.until(lambda sample: not missing_actors(sample, need))
    missing = 0 if all_running is not None else missing_actors(run.samples[-1], need)
    message = f"{missing} of {need} actors of gang {join_names(placed)} did not run"
    jobs = sorted({f"job {gang[0]}" for gang in placed})
    unstaffed = finding("GANG-NO-ACTORS", message, jobs)
    run.measure_at_end(check.ACTORS_NOT_RUNNING, missing, unstaffed, ours=True)


def missing_actors(sample: Sample, need: int) -> int:
    """Count the needed actors that do not run."""
    return max(0, need - sum(sample["actors"].values()))


def judge_not_blocked(run: Scenario, job: str, size: int, event: str) -> str:
    """Ask for a gang that has room; judge that it is placed although another gang waits.

    `event` is the mark of the request. Returns the gang's name.
    """
    asked_at = run.observer.mark(event)
    gang = run.ask(job, size)
    took = run.elapsed(asked_at, run.wait_placed(gang))
    run.measure.note("placed_behind_in", took, "s")
    message = (
        f"Ray did not place gang {gang} within {PLACED_SECONDS} s, although enough accelerators "
        f"were free. Last sample: {_states_text(run.observer.samples[-1])}"
    )
    run.measure_at_end(check.BLOCKED_BEHIND, int(took is None), finding("GANG-BLOCKED", message))
    return gang


def time_handoff(run: Scenario, since: float, gang: str, who: str, event: str) -> float | None:
    """Judge how long a waiting gang takes to be placed once there is room.

    Returns when it was placed, or None. If it never was, `who` names the gang, and `event` is what
    made room.
    """
    placed = run.wait_placed(gang)
    never = f"Ray did not place {who} within {PLACED_SECONDS} s after {event}"
    took, event = run.elapsed(since, placed), f"the placement of gang {gang}"
    judge_time(run, check.PLACEMENT_DELAY, took, event, never)
    stuck = finding("GANG-STUCK", f"{never}. Last sample: {_states_text(run.observer.samples[-1])}")
    run.measure_at_end(check.NEVER_PLACED, int(placed is None), stuck)
    return placed


def judge_time(run: Scenario, name: str, took: float | None, event: str, never: str) -> None:
    """Judge that an event came in time; `never` is the note if it never came.

    The gangs that waited are no suspects: the finding names them, and accuses none.
    """
    message = f"{event} took {took:.1f} s" if took else ""
    run.measure_at_end(name, took, finding("GANG-SLOW", message), note=never)


def report_not_placed(run: Scenario, gangs: Iterable[str]) -> None:
    """Report that these gangs had room and were not placed."""
    names = sorted(gangs)
    message = (
        f"Ray placed none of the gangs {join_names(names)}. Expected: one of them. "
        f"Last sample: {_states_text(run.observer.samples[-1])}"
    )
    run.measure_at_end(check.NEVER_PLACED, len(names), finding("GANG-STUCK", message))


def judge_all_ran(run: Scenario, sizes: list[int], rows: list[dict[str, Any]]) -> None:
    """Judge that each gang was placed; note how long the smaller and the larger ones waited."""
    missed = len(sizes) - len(rows)
    message = f"Ray never placed {missed} of {len(sizes)} gangs, although each of them fits"
    stuck = finding("GANG-STUCK", message)
    run.measure_at_end(check.NEVER_PLACED, missed, stuck, samples=len(sizes))
    middle = (min(sizes) + max(sizes)) / 2
    small = [row["waited"] for row in rows if row["size"] <= middle]
    large = [row["waited"] for row in rows if row["size"] > middle]
    for group, values in (("small", small), ("large", large)):
        mean = sum(values) / len(values) if values else None
        run.measure.note(f"wait_{group}", mean, "s", samples=len(values))
    run.measure.note("wait_longest", max((row["waited"] for row in rows), default=None), "s")


def _states_text(sample: Sample) -> str:
    """Describe what gangs hold in this sample."""
    states = [
        f"gang {gang} holds {e['placed']} of {e['size']} accelerators (state {e['state']})"
        for gang, e in sample["gangs"].items()
    ]
    return join_names(states) or "no gang exists"


def judge_big_wait(run: Scenario, wait: float | None, terms: ClusterTerms) -> None:
    """Judge a big gang's wait if the contract declares a queue layer; otherwise only note it."""
    if terms.queue:
        late = finding("GANG-SLOW", f"the large gang waited {wait or 0:.1f} s behind small gangs")
        never = "Ray never placed the large gang"
        run.measure_at_end(check.LARGE_GANG_WAIT, wait, late, note=never)
    else:
        run.measure.note(check.LARGE_GANG_WAIT, wait, "s")


def report_queue_layer(measure: Recorder, terms: ClusterTerms) -> None:
    """Report a declared queue layer as not proven: it gangs pods, between Ray clusters."""
    if terms.queue:
        measure.covered(f"{terms.queue} was not tested, because it schedules pods outside Ray")
