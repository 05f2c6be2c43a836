"""What is known of GPUs on each node, without waiting for any.  Ray and NVML are mocks here."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from probes import gpu_eyes
from probes.gpu_eyes import GpuEye, GpuEyes


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
        gpu_eyes, "pinned", lambda kind, id: SimpleNamespace(remote=lambda: made[id])
    )
    return {"n1": made["1"], "n2": made["2"]}


def cluster() -> Any:
    """Two nodes with GPUs, and a head without."""
    rows = [("n1", "1", 8), ("n2", "2", 8), ("head", "3", 0)]
    return SimpleNamespace(
        nodes=[{"name": name, "id": id, "resources": {"GPU": gpus}} for name, id, gpus in rows]
    )


def test_each_node_with_gpus_is_looked_at(nodes: dict[str, Node]) -> None:
    nodes["n1"].next, nodes["n2"].next = Call({"GPU-a": [7]}), Call({})
    assert GpuEyes(cluster()).look() == {"n1": {"GPU-a": [7]}, "n2": {}}


def test_a_node_that_does_not_answer_holds_nobody_up(nodes: dict[str, Node]) -> None:
    nodes["n2"].next = late = Call({"GPU-b": [8]}, ready=False)
    eyes = GpuEyes(cluster())
    assert eyes.look() == {"n1": {}, "n2": "it does not answer"}
    late.ready = True
    assert eyes.look()["n2"] == {"GPU-b": [8]}


def test_an_eye_that_died_tells_nothing_any_more(nodes: dict[str, Node]) -> None:
    import ray

    eyes = GpuEyes(cluster())
    nodes["n1"].next = Call({"GPU-a": [7]})
    assert eyes.look()["n1"] == {"GPU-a": [7]}
    nodes["n1"].next = Call(ray.exceptions.RayError("gone"))
    assert eyes.look()["n1"] == "its observer died: RayError"


def test_where_nvml_does_not_tell_its_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise RuntimeError("NVML sees no GPU here")

    monkeypatch.setattr(gpu_eyes, "gpus_in_use", fail)
    eye, deadline = GpuEye(), time.monotonic() + 10
    while "not looked" in eye.uses():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert eye.uses() == "NVML: NVML sees no GPU here"
