"""What GANG's controls do to a cluster, and what they leave, over the simulated scheduler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from probes.gang import controls
from probes.gang import invariants as checks
from probes.gang.invariants import Sample
from probes.gang.scenario import DRAIN_SECONDS, Scenario
from reports.record import Control, ProbeResult
from tests.support.controls import recorder
from tests.support.simulated_gangs import SimulatedScene, simulate


def only_control(scene: SimulatedScene) -> Control:
    """Return the control of a scene that has one."""
    result: ProbeResult = scene.measure.result("finished", 1.0)
    (control,) = result.controls
    return control


CONTROLS: dict[str, Callable[[Scenario], None]] = {
    "one bundle early": controls.control_release_one_early,
    "two groups per job": lambda run: controls.control_hold_and_wait(run, 2),
    "two that fit": controls.control_two_that_fit,
    "late release": controls.control_late_release,
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_over_when_all_is_shown_as_free(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What comes next counts what is free: nothing may still be on its way back."""
    scene = simulate(monkeypatch, "shows free late")
    with scene("controls") as run:
        CONTROLS[name](run)
        last = run.observer.samples[-1]
        assert (last["free"], last["gangs"]) == (run.total, {})
    assert only_control(scene).caught


def test_a_control_ends_as_soon_as_all_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = simulate(monkeypatch)
    with scene("controls") as run:
        controls.control_release_one_early(run)
        assert run.observer.samples[-1]["t"] < DRAIN_SECONDS


@pytest.mark.parametrize("fault", ["places a little late", "places late"])
@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_waits_where_placing_takes_long(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    scene = simulate(monkeypatch, fault)
    with scene("controls") as run:
        CONTROLS[name](run)
    assert only_control(scene).caught


def test_the_deadlock_is_shown_with_what_each_job_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = simulate(monkeypatch)
    with scene("two groups") as run:
        controls.control_hold_and_wait(run, 2)
    (asked,) = [mark for mark in run.marks if mark.fault]
    assert asked.message == "both ask for their second group"
    assert asked.t < 1.0  # as soon as both hold their first
    control = only_control(scene)
    assert control.caught
    assert "job A held 2 of 4" in control.saw
    assert "job B held 2 of 4" in control.saw


def test_a_group_that_a_job_of_the_deadlock_gave_up_must_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = simulate(monkeypatch, "keeps cancelled")
    with scene("two groups") as run:
        controls.control_hold_and_wait(run, 2)
    findings = scene.measure.result("finished", 1.0).findings
    stayed = [one.suspects for one in findings if one.code == "GANG-NOT-REMOVED"]
    assert stayed == [["job A"], ["job B"]]


def test_only_a_deadlock_that_the_control_made_counts() -> None:
    entries = {job: {"job": job, "placed": 1, "size": 2} for job in "AB"}
    waits = [{"t": at / 10, "gangs": entries} for at in range(20)]
    run: Any = SimpleNamespace(observer=SimpleNamespace(samples=[*waits, {"t": 2.0, "gangs": {}}]))
    assert len(controls._deadlocks_since(run, 0.0)) == 2
    assert controls._deadlocks_since(run, 1.5) == []


@pytest.mark.parametrize(("nodes", "caught"), [({"n": 1, "m": 1}, True), ({"n": 2}, False)])
def test_a_gang_on_one_node_is_no_fault_to_catch(nodes: dict[str, int], caught: bool) -> None:
    measure = recorder("GANG")
    controls.control_fragments(measure, nodes)
    controls.control_wrong_strategy(measure, nodes)
    made = measure.result("finished", 1.0).controls
    assert [one.caught for one in made] == [caught, caught]


@pytest.mark.parametrize(("count", "caught"), [(2, True), (1, False)])
def test_of_one_node_two_bundles_show_that_they_were_not_spread(count: int, caught: bool) -> None:
    measure = recorder("GANG")
    controls.control_wrong_strategy(measure, {"n": count}, alone=True)
    (control,) = measure.result("finished", 1.0).controls
    assert (control.name, control.caught) == ("PACK passed off as STRICT_SPREAD", caught)


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (1, 7), (2, 4), (3, 1)], ids=str)
def test_two_that_fit_fill_each_node_even_where_their_number_is_odd(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    scene = simulate(monkeypatch, "", *shape)
    with scene("two that fit") as run:
        controls.control_two_that_fit(run)
    assert only_control(scene).caught


def test_a_judge_that_overlooks_one_too_many_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, judge = simulate(monkeypatch, "", 2, 4), checks.find_overcommitted

    def lax(samples: list[Sample], capacity: dict[str, int]) -> list[dict[str, str]]:
        return judge(samples, {node: count + 1 for node, count in capacity.items()})

    with scene("two that fit") as run:
        monkeypatch.setattr(checks, "find_overcommitted", lax)
        controls.control_two_that_fit(run)
    assert not only_control(scene).caught


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> SimulatedScene:
    """A scene on node0 with two GPUs, of which NVML and Ray are simulated."""
    import ray

    scene = simulate(monkeypatch, "", 1, 2)
    using: dict[str, list[int]] = {}
    noted: list[tuple[str, ...]] = []
    vars(scene.rig.cluster).update(
        on_gpu=True,
        nodes=[{"name": "node0", "id": "id0"}],
        facts=[{"name": "node0", "gpus": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]}],
        gpus_by_node={"node0": 2},
        noted=noted,
        note_kill=lambda nodes: noted.append((*nodes, *using)),
    )
    observer: Any = scene.rig.observer
    sample = observer._sample
    observer._sample = lambda: sample() | {"in_use": {"node0": dict(using)}}
    user = SimpleNamespace(
        allocate=SimpleNamespace(remote=lambda uuid: using.update({uuid: [4711]}))
    )
    actor = SimpleNamespace(remote=lambda: user)
    monkeypatch.setattr(controls, "on_node", lambda kind, id: actor)
    monkeypatch.setattr(ray, "get", lambda answer, timeout: answer)
    monkeypatch.setattr(ray, "kill", lambda actor: using.clear())
    return scene


def test_a_gpu_used_in_secret_is_caught_and_is_free_afterwards(with_gpus: SimulatedScene) -> None:
    with with_gpus("a GPU in secret") as run:
        controls.control_unregistered_gpu(run)
        assert run.observer.samples[-1]["in_use"] == {"node0": {}}
    control = only_control(with_gpus)
    assert with_gpus.rig.cluster.noted == [("id0", "GPU-a")], "before its process is ended"
    assert control.caught
    assert control.saw == "GPU-a (processes 4711)"
    assert [mark.message for mark in run.marks if mark.fault] == [
        "a process on node0 uses a GPU that it did not request"
    ]
    result = with_gpus.measure.result("finished", 1.0)
    assert [one.sentence() for one in result.measurements if one.severity] == []


def test_both_jobs_hold_a_part_whoever_ray_serves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until all is held, no more is asked for than there is: one job could get all of its own."""
    told: list[str] = []
    jobs = {job: SimpleNamespace(call=lambda *_, job=job: told.append(job)) for job in "AB"}
    observer = SimpleNamespace(
        samples=[], mark=lambda *_, **__: 0.0, look_away=lambda _: None, wait=lambda _: None
    )
    run: Any = SimpleNamespace(
        rig=SimpleNamespace(jobs=jobs, release=lambda: None),
        observer=observer,
        as_control=nullcontext,
        release_all=lambda: None,
        until=lambda *_: told.append("all held"),
        total=3,
        measure=None,
    )
    monkeypatch.setattr(controls, "plant", lambda *_, **__: None)
    controls.control_partial_allocation(run, 3)
    assert told == ["A", "B", "A", "all held", "B", "A", "B"]
