"""How gangs are judged that run, win and wait, in words a reader can follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.gang.judge import (
    judge_actors,
    judge_all_ran,
    judge_gone,
    judge_held,
    judge_one_placed,
    report_not_placed,
    time_handoff,
)
from reports.record import ProbeResult
from tests.support.controls import MemoryRecorder, recorder
from tests.support.simulated_gangs import simulate


def finished(measure: MemoryRecorder) -> ProbeResult:
    return measure.result("finished", 1.0)


def test_a_gang_that_lost_accelerators_is_shown_as_it_is_now() -> None:
    held = [(3, "CREATED"), (1, "RESCHEDULING"), (2, "RESCHEDULING")]
    entries = [{"placed": placed, "size": 3, "state": state} for placed, state in held]
    measure = recorder("GANG")
    judge_held("A-1", [{"gangs": {"A-1": entry}} for entry in entries], measure)
    (found,) = finished(measure).findings
    assert found.statement == (
        "gang A-1 ran, but lacked accelerators in 2 samples. Last sample: gang A-1 holds 2 of 3 "
        "accelerators (state RESCHEDULING)"
    )


def test_a_winner_that_is_already_gone_is_still_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = simulate(monkeypatch)
    with scene("gone") as run:
        judge_one_placed(run, ["A-1"], 3)
    (placed,) = [one for one in finished(scene.measure).measurements if "placed" in one.name]
    assert (placed.value, placed.severity) == (1, 0)


def test_gangs_up_to_the_middle_size_wait_as_small_ones() -> None:
    measure: Any = recorder("GANG")
    run: Any = SimpleNamespace(measure=measure, measure_at_end=lambda *given, **options: None)
    rows = [{"size": size, "waited": float(size)} for size in (1, 2, 3)]
    judge_all_ran(run, [1, 2, 3], rows)
    waits = {one.name: (one.value, one.samples) for one in finished(measure).measurements}
    assert waits == {"wait_small": (1.5, 2), "wait_large": (3.0, 1), "wait_longest": (3.0, None)}


def at_end(**what: Any) -> Any:
    """Make a scene that only keeps what is judged at its end, as (name, value, findings, note)."""
    kept: list[Any] = []

    def keep(name: str, value: Any, *found: Any, note: str = "", ours: bool = False) -> None:
        kept.append((name, value, [one.statement for one in found], note))

    return SimpleNamespace(kept=kept, measure_at_end=keep, **what)


def test_a_winner_that_is_too_small_is_named_with_its_job() -> None:
    measure = recorder("GANG")
    seen = SimpleNamespace(samples=[{"gangs": {"A-1": {"size": 2}}}])
    judge_one_placed(at_end(measure=measure, observer=seen, total=4, capacity={}), ["A-1"], 3)
    (found,) = finished(measure).findings
    assert found.statement == "Ray gave gang A-1 only 2 accelerators. Expected: 3"
    assert (found.code, found.names["job"]) == ("GANG-PARTIAL", "A")


def test_without_a_placed_gang_its_actors_are_not_known() -> None:
    run = at_end()
    judge_actors(run, 3, [])
    assert run.kept == [("actors_not_running", None, [], "Ray placed no gang")]


def test_a_gang_that_stays_is_blamed_on_its_job() -> None:
    measure = recorder("GANG")
    judge_gone("B-12", False, 5.0, measure)
    (found,) = finished(measure).findings
    assert found.suspects == ["job B"]
    assert found.statement == "gang B-12 still existed 5.0 s after its job cancelled it or died"


def test_a_handoff_says_when_the_gang_was_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = simulate(monkeypatch)
    with scene("handoff") as run:
        since = run.observer.mark("B asks")
        gang = run.ask("B", 1)
        placed = time_handoff(run, since, gang, "job B", "job A ended")
    assert placed is not None
    assert placed >= since


def test_a_gang_that_was_not_placed_is_shown_as_it_was_last() -> None:
    entries = [{"placed": placed, "size": 3, "state": "PENDING"} for placed in (0, 2, 1)]
    samples = [{"gangs": {"B-1": entry}} for entry in entries]
    run = at_end(observer=SimpleNamespace(samples=samples))
    report_not_placed(run, ["B-1"])
    text = (
        "Ray placed none of the gangs B-1. Expected: one of them. "
        "Last sample: gang B-1 holds 1 of 3 accelerators (state PENDING)"
    )
    assert run.kept == [("never_placed", 1, [text], "")]
