"""What the rate of an operation counts, on a device that works after its calls have returned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.hosts import compute_worker
from probes.hosts.compute_worker import WorkDevice

CALL_S = 0.25
MOST_CALLS = 100  # a rate that nobody waits for would be measured for ever


class LazyDevice:
    """A GPU: calls only queue work, and waiting for it is what takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.queued, self.calls = 0.0, 0, 0
        self.sizes = SimpleNamespace(calls=2)
        self.device = "cuda"
        self.torch = SimpleNamespace(zeros=self.zeros)
        monkeypatch.setattr(
            compute_worker, "time", SimpleNamespace(perf_counter=lambda: self.clock)
        )

    def call(self, *_: Any) -> None:
        self.calls += 1
        assert self.calls <= MOST_CALLS
        self.queued += 1

    def zeros(self, count: int, device: str) -> Any:
        assert device == self.device
        self.queued += 1
        return SimpleNamespace(add_=self.call)

    def wait_for_work(self) -> None:
        self.clock += CALL_S * self.queued
        self.queued = 0


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> LazyDevice:
    return LazyDevice(monkeypatch)


def test_a_rate_counts_all_of_its_own_work_and_no_earlier_work(lazy: LazyDevice) -> None:
    lazy.queued = 8
    gemm = compute_worker.TimedCall("gemm", lazy.call, 10.0)
    assert compute_worker.measure_rate(cast(WorkDevice, lazy), gemm, 1.0) == 10.0 / CALL_S
    assert lazy.calls * CALL_S == 1.0


def test_a_launch_is_timed_until_its_work_is_done(
    lazy: LazyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_worker, "LAUNCHES", 20)
    assert compute_worker.measure_launch(cast(WorkDevice, lazy)) == CALL_S * 1e6
    assert lazy.calls == 20
