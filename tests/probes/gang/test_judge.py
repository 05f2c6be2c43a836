"""How gangs are judged that run, win and wait, in words a reader can follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.gang.judge import judge_all_ran, judge_held, judge_one_placed
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
        "running gang A-1 lost accelerators in 2 samples. Current state: A-1 2 of 3 RESCHEDULING"
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
