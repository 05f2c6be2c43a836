"""Other jobs' accelerators are waited for, and what holds them is said once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from probes.cluster import room
from probes.cluster.room import busy_accelerators, describe_busy, wait_for_room
from tests.probes.cluster.room.test_late_nodes import Clock


class Shared:
    """A cluster of four GPUs that other jobs hold until the given seconds."""

    ray_gpu_count, resource = 4, "GPU"

    def __init__(self, clock: Clock, *held: tuple[float, float, str]) -> None:
        self.clock, self.held = clock, held

    def now(self) -> list[str]:
        return [who for since, until, who in self.held if since <= self.clock.now < until]

    def describe_holders(self) -> str:
        return "; ".join(self.now())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(room, "time", clock)
    monkeypatch.setattr(room, "busy_accelerators", lambda cluster: len(cluster.now()))
    return clock


@pytest.mark.parametrize(
    ("free", "idle", "busy"),
    [
        ({"GPU": 4.0}, 0, 0),
        ({"GPU": 3.0}, 0, 1),
        ({}, 0, 4),
        ({"GPU": 3.7}, 0, 1),  # a part of one
        ({"GPU": 3.9995}, 0, 0),  # a rounding error of Ray
        ({"GPU": 1.0}, 2, 1),
        ({"GPU": 3.0}, 2, 0),
    ],
)
def test_accelerators_that_are_given_away_are_counted(
    free: dict[str, float], idle: int, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "available_resources", lambda: free)
    assert busy_accelerators(SimpleNamespace(ray_gpu_count=4, resource="GPU"), idle) == busy


def test_what_an_earlier_probe_gives_back_late_is_no_holder(clock: Clock) -> None:
    assert describe_busy(Shared(clock)) == ""
    assert describe_busy(Shared(clock, (0, 19, "actor A"))) == ""
    assert 19 <= clock.now <= 19 + room.POLL_S
    begun = clock.now
    assert describe_busy(Shared(clock, (0, 1e9, "actor A"))) == "actor A"
    assert clock.now - begun <= room.SETTLE_S + room.POLL_S
    assert describe_busy(Shared(clock, (0, 1e9, ""))) == "some accelerators are in use"


def waited(cluster: Any, seconds: float = 600) -> tuple[float, list[str]]:
    said: list[str] = []
    return wait_for_room(cluster, seconds, said.append), said


def test_a_free_cluster_is_not_waited_for(clock: Clock) -> None:
    assert waited(Shared(clock)) == (0.0, [])


def test_each_change_of_the_holder_is_said_once(clock: Clock) -> None:
    cluster = Shared(clock, (0, 30, "actor A"), (20, 50, "actor B"))
    seconds, said = waited(cluster)
    assert 50 <= seconds <= 50 + room.STEADY_S + room.POLL_S
    assert said == [
        f"{held}: the run waits for free accelerators, at most for --wait-for-room"
        for held in ("actor A", "actor A; actor B", "actor B")
    ]


def test_a_job_that_hands_them_on_is_waited_for(clock: Clock) -> None:
    seconds, _ = waited(Shared(clock, (0, 10, "actor A"), (12, 40, "actor B")))
    assert seconds >= 40


def test_seconds_are_counted_from_the_beginning(clock: Clock) -> None:
    clock.now = 100.25
    seconds, _ = waited(Shared(clock, (0, 104, "actor A")))
    assert 4 <= seconds <= 4 + room.STEADY_S + room.POLL_S
    assert waited(Shared(clock, (0, 1e9, "actor A")), 60)[0] == 60


def test_a_job_that_does_not_end_ends_the_patience_and_not_the_run(clock: Clock) -> None:
    line = "actor A: the run waits for free accelerators, at most for --wait-for-room"
    assert waited(Shared(clock, (0, 1e9, "actor A")), 60) == (60, [line])
