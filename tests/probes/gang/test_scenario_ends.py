"""What a scenario reports at its end: what is missing and where, and what the chart shows."""

from __future__ import annotations

from typing import Any

import pytest

from probes.gang.invariants import find_hidden_gpus
from probes.gang.observer import ScenarioMark
from probes.gang.scenario_checks import chart_series, judge_gpu_use
from reports.measurement import Verdict
from reports.record import Finding
from tests.support.controls import recorder
from tests.support.simulated_gangs import simulate


def end_with_one_missing(
    monkeypatch: pytest.MonkeyPatch, actors: dict[str, int]
) -> tuple[Any, Finding]:
    """End a scenario in which node0 lacks one, and node1 lacked three just before."""
    scene = simulate(monkeypatch, "", 2, 4)
    with scene("something is missing", steady=False) as run:

        def wait_idle() -> None:
            for lost in ({"node1": 3}, {"node0": 1}):
                scene.rig.ray.lost = lost
                run.observer.poll()
            run.observer.samples[-1]["actors"] = actors

        monkeypatch.setattr(run, "wait_idle", wait_idle)
    result = scene.measure.result("finished", 1.0)
    (missing,) = [one for one in result.measurements if one.name == "not_released"]
    (leak,) = result.findings
    return missing.value, leak


def test_what_is_missing_is_counted_where_it_is_missing_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing, leak = end_with_one_missing(monkeypatch, {})
    assert missing == 1
    assert (leak.code, leak.suspects) == ("GANG-LEAK", ["node0"])
    assert leak.statement == "1 of 8 GPUs were not free, but no gang held them"


def test_actors_that_still_live_are_named_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, leak = end_with_one_missing(monkeypatch, {"A": 2})
    assert leak.statement.endswith("; actors that still ran: 2 of job A")


@pytest.mark.parametrize(
    ("busy", "other", "value", "verdict"),
    [
        ({}, {}, 0, Verdict.PASS),
        ({}, "NVML hangs", None, Verdict.UNPROVEN),
        ({"GPU-a": [7]}, "NVML hangs", 1, Verdict.FAIL),  # what is seen counts
    ],
)
def test_a_silent_node_hides_no_use_on_another(
    busy: dict[str, list[int]], other: Any, value: int | None, verdict: Verdict
) -> None:
    seen = {"free_on": {"n": 2, "m": 2}, "in_use": {"n": busy, "m": other}, "gangs": {}}
    measure = recorder("GANG")
    looks = [seen | {"t": float(t)} for t in range(6)]
    judge_gpu_use(looks, {"n": 2, "m": 2}, measure)
    hidden = find_hidden_gpus(looks, {"n": 2, "m": 2})
    assert hidden == ({"n": (1, ["GPU-a (processes 7)"])} if busy else {})
    (use,) = measure.result("finished", 1.0).measurements
    assert (use.value, use.verdict) == (value, verdict)
    assert use.note == ("m: NVML hangs" if other else "")


def test_the_chart_counts_from_its_first_sample_and_is_blank_between_segments() -> None:
    def look(t: float, placed: int) -> dict[str, Any]:
        nodes = {"n": placed} if placed else {}
        state = "CREATED" if placed == 2 else "PENDING"
        gang = {"job": "A", "placed": placed, "size": 2, "state": state, "nodes": nodes}
        return {"t": t, "free": 2 - placed, "actors": {}, "gangs": {"A-1": gang | {"spare": False}}}

    segments = [[look(10.0, 0), look(11.0, 1), look(12.0, 2)], [look(20.0, 2), look(21.0, 2)]]
    marks = [
        ScenarioMark(9.0, "before"),
        ScenarioMark(11.0, "A asks"),
        ScenarioMark(20.5, "x", True),
    ]
    series = chart_series(segments, [*marks, ScenarioMark(15.0, "between")])
    blank: dict[str, Any] = {"nodes": {}, "waits": {}}
    whole = {"nodes": {"n": {"A": 2}}, "waits": {}}
    assert series == {
        "samples": [
            {"t": 0.0, "nodes": {}, "waits": {"A": 2}},
            {"t": 1.0, "nodes": {"n": {"A": 1}}, "waits": {"A": 1}},
            {"t": 2.0, **whole},
            {"t": 2.0, **blank},
            {"t": 10.0, **whole},
            {"t": 11.0, **blank},
        ],
        "end": 11.0,
        "marks": [[1.0, "A asks", False], [10.5, "x", True]],
        "half": [[1.0, 2.0, "A", 1, 2]],
    }
