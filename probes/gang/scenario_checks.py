"""How a scene ends: what it owes is judged, what was seen is weighed, evidence is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from probes.acceptance.measure import Ledger
from probes.findings import finding, listed
from probes.gang import invariants as checks
from probes.gang.invariants import Sample
from probes.gang.observer import RATE, Mark
from probes.gang.scenario import Scene, Stage


@contextmanager
def scene(stage: Stage, title: str, measure: Ledger, **options: Any) -> Iterator[Scene]:
    """One scenario; what it must show anyway is judged when its body has ended well."""
    at, judge = Scene(stage, title, measure, **options), settle
    try:
        yield at
        judge = close
    finally:
        stage.release()
        judge(at)


def settle(at: Scene) -> None:
    """Judge what is owed.

    What failed while other people's jobs lived here may be their doing: it is not proven.
    """
    owed, at.debts = at.debts, []
    for debt in owed:
        failed = at.measure.fails(debt.name, debt.value)
        others = at.strangers() if failed and not debt.ours else ""
        value = None if others else debt.value
        at.measure(debt.name, value, samples=debt.samples, note=others or debt.note)
        if failed and not others:
            at.measure.explain(debt.because)


def close(at: Scene) -> None:
    """Half-held gangs, double promises, leaks, and whether enough was seen to say so."""
    try:
        free_again = at.idle()
        samples = at.samples
        _halves(at, samples)
        _promises(at, samples)
        if at.steady:
            _account(at, "unaccounted", max(checks.unaccounted(s, at.total) for s in at.stretches))
        last = at.watch.samples[-1]
        _account(at, "left_behind", 0 if free_again is not None else at.total - last["free"])
    finally:
        settle(at)
    _sampled(at)
    _hidden(at, samples)
    _keep(at, samples)


def _halves(at: Scene, samples: list[Sample]) -> None:
    at.measure("half_held", checks.half_samples(samples), samples=len(samples))
    spans = [span for stretch in at.stretches for span in checks.halves(stretch)]
    for span in spans[:3]:
        at.measure.explain(finding("GANG-HALF", span.said(), [f"job {span.job}"]))


def _promises(at: Scene, samples: list[Sample]) -> None:
    """That no accelerator was promised twice."""
    over = checks.overcommitted(samples, at.room)
    first = next(iter(over), {})
    said = f"at {len(over)} samples more was held than was free before, first {first}"
    at.owe("overcommitted", len(over), finding("GANG-TWICE", said, sorted(first)))


def _account(at: Scene, name: str, lost: int) -> None:
    """Accelerators that are missing."""
    last = at.watch.samples[-1]
    gangs, free = last["gangs"], last["free_on"]
    missing = [node for node, count in at.room.items() if free.get(node, 0) < count]
    by = f"held by {listed(gangs)}" if gangs else "not held by any gang, and yet not free"
    if last["actors"]:
        alive = listed(f"{count} of job {job}" for job, count in last["actors"].items())
        by += f"; actors that live: {alive}"
    said = f"{lost} of {at.total} {at.stage.cluster.resource}s were {by}"
    at.owe(name, lost, finding("GANG-LEAK", said, missing))


def _sampled(at: Scene) -> None:
    """Whether enough was seen, how old it was, and how long the scene took."""
    gaps = [gap for stretch in at.stretches for gap in checks.gaps(stretch)]
    if at.sampled:
        rate, told = checks.rate_seen(gaps, RATE)
        at.measure("sample_rate", rate, samples=len(gaps), note=told)
    at.measure.note("longest_gap", max(gaps, default=None), "s", on="sampling")
    took = [sample["took"] for sample in at.samples]
    at.measure.note("lag", checks.usual_most(took), "s", on="sampling")
    at.measure.note("longest_lag", max(took, default=None), "s", on="sampling")
    at.measure.note("duration", sum(gaps), "s")


def _hidden(at: Scene, samples: list[Sample]) -> None:
    """On real GPUs: that none which Ray counts as free is in use behind its back."""
    if not at.stage.cluster.on_gpu:
        return
    counted = at.stage.cluster.counted_on
    blind = checks.sightless(samples, counted)
    hidden = checks.unseen(samples, counted)
    why = listed(f"{node}: {words}" for node, words in blind.items())
    value = sum(count for count, _ in hidden.values())
    at.measure("unseen", None if blind and not hidden else value, note=why)
    if hidden:
        said = "; ".join(
            f"{count} on {node}, where these are in use: {listed(gpus)}"
            for node, (count, gpus) in hidden.items()
        )
        words = f"GPUs are in use that Ray has given to nobody: {said}"
        at.measure.explain(finding("GANG-UNSEEN", words, list(hidden)))


def _keep(at: Scene, samples: list[Sample]) -> None:
    """Evidence and picture."""
    control = [s for s in (at.watch.samples[a:b] for a, b in at.faults) if s]
    unit = at.stage.cluster.resource
    series = {
        "title": at.title,
        "unit": unit,
        "capacity": at.room,
        "taken": len(samples),
        **picture(at.stretches, at.marks),
    }
    if control:
        series["control"] = picture(control, at.marks)
    at.measure.series("gang", series)
    every = at.watch.samples[at.begun :]
    kept = {"samples": every, "marks": at.marks, "control_from_to": at.faults}
    name = "gang-" + "-".join(at.title.replace("%", "percent").split()) + ".json"
    at.measure.keep(name, kept, kind="series", caption=f"{at.title}: who held what, when")
    at.measure.covered(
        f"{at.title}: jobs A and B, {at.total} {unit}s free on "
        f"{len(at.room)} nodes, {len(samples)} samples"
    )


def picture(stretches: list[list[Sample]], marks: list[Mark]) -> dict[str, Any]:
    """Stretches of samples, and the marks set in them, from their own zero; blank in between."""
    zero, end = stretches[0][0]["t"], stretches[-1][-1]["t"]
    samples, half, shown = [], [], []
    for stretch in stretches:
        first, last = stretch[0]["t"], stretch[-1]["t"]
        samples += [{**one, "t": one["t"] - zero} for one in checks.changes(stretch)]
        samples.append({"t": last - zero, "nodes": {}, "waits": {}})
        half += [
            [span.start - zero, span.end - zero, span.job, span.placed, span.size]
            for span in checks.halves(stretch)
        ]
        shown += [[mark.t - zero, *mark[1:]] for mark in marks if first <= mark.t <= last]
    return {"samples": samples, "end": end - zero, "marks": shown, "half": half}
