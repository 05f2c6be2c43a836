"""What is known of GPUs on each node, without waiting for any.  Ray and NVML are mocks here."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from probes.gang import observer as gpu_eyes
from probes.gang.controls import find_free_gpu
from probes.gang.observer import GpuMonitor, GpuMonitors


class Call:
    """An answer that is there, is still to come, or is an error."""

    def __init__(self, answer: Any, ready: bool = True) -> None:
        self.answer, self.ready = answer, ready


class Node:
    """An eye whose answers the test sets."""

    def __init__(self) -> None:
        self.next = Call({})
        self.uses = SimpleNamespace(remote=lambda: self.next)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Node]:
    """The eyes of n1 and n2."""
    import ray

    made = {"1": Node(), "2": Node()}

    def get(call: Call) -> Any:
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def wait(calls: list[Call], **options: Any) -> tuple[list[Call], list[Call]]:
        return [one for one in calls if one.ready], [one for one in calls if not one.ready]

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(
        gpu_eyes, "on_node", lambda kind, id: SimpleNamespace(remote=lambda counted: made[id])
    )
    return {"n1": made["1"], "n2": made["2"]}


def cluster() -> Any:
    """Two nodes with GPUs, and a head without."""
    rows = [("n1", "1", 8), ("n2", "2", 8), ("head", "3", 0)]
    return SimpleNamespace(
        nodes=[{"name": name, "id": id, "resources": {"GPU": gpus}} for name, id, gpus in rows]
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, as the test sets it."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(gpu_eyes, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_each_node_with_gpus_is_looked_at(nodes: dict[str, Node], clock: SimpleNamespace) -> None:
    nodes["n1"].next, nodes["n2"].next = Call({"GPU-a": [7]}), Call({})
    eyes = GpuMonitors(cluster())
    assert eyes.poll() == {"n1": {"GPU-a": [7]}, "n2": {}}
    clock.now += 0.05
    assert eyes.poll() is None  # NVML would have nothing new
    clock.now += 0.2
    assert eyes.poll() == {"n1": {"GPU-a": [7]}, "n2": {}}


def test_a_node_that_does_not_answer_holds_nobody_up(
    nodes: dict[str, Node], clock: SimpleNamespace
) -> None:
    nodes["n2"].next = late = Call({"GPU-b": [8]}, ready=False)
    eyes = GpuMonitors(cluster())
    assert eyes.poll() == {"n1": {}}
    clock.now += 3
    silent = "seatrial's GPU observer did not answer for 2 s"
    assert eyes.poll() == {"n1": {}, "n2": silent}
    late.ready = True
    clock.now += 3
    assert (eyes.poll() or {})["n2"] == {"GPU-b": [8]}


def test_an_eye_that_died_tells_nothing_any_more(
    nodes: dict[str, Node], clock: SimpleNamespace
) -> None:
    import ray

    eyes = GpuMonitors(cluster())
    nodes["n1"].next = Call({"GPU-a": [7]})
    assert (eyes.poll() or {})["n1"] == {"GPU-a": [7]}
    nodes["n1"].next = Call(ray.exceptions.RayError("gone"))
    clock.now += 1
    assert (eyes.poll() or {})["n1"] == "seatrial's GPU observer died: RayError"


def seen_by(eye: GpuMonitor) -> Any:
    """What it tells once it has looked."""
    deadline = time.monotonic() + 10
    while eye.uses() == "NVML has not answered yet":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return eye.uses()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVML, which answers what the test sets."""
    nvml = SimpleNamespace(uses={"GPU-a": [7]}, count=8, pause=0.0)

    def uses() -> Any:
        time.sleep(nvml.pause)
        if isinstance(nvml.uses, Exception):
            raise nvml.uses
        return nvml.uses

    monkeypatch.setattr(gpu_eyes, "start_nvml", lambda: None)
    monkeypatch.setattr(gpu_eyes, "list_gpus", lambda: [{}] * nvml.count)
    monkeypatch.setattr(gpu_eyes, "gpus_in_use", uses)
    monkeypatch.setattr(gpu_eyes, "PAUSE", 0.01)
    return nvml


def test_what_nvml_sees_is_told(nvml: SimpleNamespace) -> None:
    assert seen_by(GpuMonitor(8)) == {"GPU-a": [7]}


def test_where_nvml_does_not_tell_its_words_are_kept(nvml: SimpleNamespace) -> None:
    nvml.uses = RuntimeError("NVML sees no GPU here")
    assert seen_by(GpuMonitor(8)) == "NVML: NVML sees no GPU here"


def test_gpus_that_are_not_this_clusters_make_it_blind(nvml: SimpleNamespace) -> None:
    assert seen_by(GpuMonitor(4)) == (
        "NVML sees 8 GPUs, but Ray counts 4, so seatrial does not know which of them Ray uses"
    )


def test_an_nvml_that_hangs_is_not_taken_at_its_last_word(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_eyes, "STALE", 0.2)
    eye = GpuMonitor(8)
    assert seen_by(eye) == {"GPU-a": [7]}
    nvml.pause, deadline = 5.0, time.monotonic() + 10
    while not isinstance(eye.uses(), str):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "NVML has not answered" in eye.uses()


def test_only_a_gpu_that_is_free_and_unused_is_squatted_on() -> None:
    facts = [{"name": name, "gpus": [{"uuid": f"{name}-{at}"} for at in range(2)]} for name in "ab"]
    here: Any = SimpleNamespace(facts=facts, gpus_by_node={"a": 2, "b": 2})
    assert find_free_gpu(here, {"a": 1, "b": 2}, {"a": {}, "b": {"b-0": []}}) == ("b", "b-1")
    assert find_free_gpu(here, {"a": 1, "b": 1}, {"a": {}, "b": {}}) is None
    assert find_free_gpu(here, {"a": 2, "b": 2}, {"a": {"a-0": [], "a-1": []}}) is None
    assert find_free_gpu(here, {"a": 2}, {"a": "NVML hangs"}) is None


def test_the_first_look_of_every_node_is_waited_for(
    nodes: dict[str, Node], clock: SimpleNamespace
) -> None:
    """NVML takes 1 to 2 s for each GPU where its driver does not persist."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.now += 1
        if len(waits) == 9:
            nodes["n2"].next.answer = {}

    nodes["n2"].next = Call("NVML has not answered yet")
    vars(gpu_eyes.time)["sleep"] = sleep
    eyes = GpuMonitors(cluster())
    eyes.wait_ready()
    assert len(waits) == 9
    nodes["n2"].next.answer = "NVML: not found"
    eyes.wait_ready(5)
    assert len(waits) <= 9 + 6
