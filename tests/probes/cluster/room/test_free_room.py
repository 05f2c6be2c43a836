"""Other jobs' accelerators are waited for, and what holds them is said once."""

from __future__ import annotations

from typing import Any

import pytest

from probes.cluster.room import free_room
from probes.cluster.room.free_room import wait_for_room
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
    monkeypatch.setattr(free_room, "time", clock)
    monkeypatch.setattr(free_room, "busy_accelerators", lambda cluster: len(cluster.now()))
    return clock


def waited(cluster: Any, seconds: float = 600) -> tuple[float, list[str]]:
    said: list[str] = []
    return wait_for_room(cluster, seconds, said.append), said


def test_a_free_cluster_is_not_waited_for(clock: Clock) -> None:
    assert waited(Shared(clock)) == (0.0, [])


def test_each_change_of_the_holder_is_said_once(clock: Clock) -> None:
    cluster = Shared(clock, (0, 30, "actor A"), (20, 50, "actor B"))
    seconds, said = waited(cluster)
    assert 50 <= seconds <= 50 + free_room.STEADY_S + free_room.POLL_S
    assert said == ["actor A", "actor A; actor B", "actor B"]


def test_a_job_that_hands_them_on_is_waited_for(clock: Clock) -> None:
    seconds, _ = waited(Shared(clock, (0, 10, "actor A"), (12, 40, "actor B")))
    assert seconds >= 40


def test_a_job_that_does_not_end_ends_the_patience_and_not_the_run(clock: Clock) -> None:
    assert waited(Shared(clock, (0, 1e9, "actor A")), 60) == (60, ["actor A"])
