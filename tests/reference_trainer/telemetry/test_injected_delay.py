"""Planted delays, as text."""

from __future__ import annotations

import time

import pytest

from reference_trainer.config import TrainConfig
from reference_trainer.telemetry.event_log import (
    NO_DELAYS,
    DelayInjector,
    InjectedDelay,
    parse_delays,
)


def test_planted_delays_are_read_and_counted():
    plan = parse_delays("data:rank=2:seconds=0.25, clip:rank=0:seconds=0:from=3:to=4")
    assert plan[0] == InjectedDelay(segment="data", rank=2, seconds=0.25)
    stalls = DelayInjector(plan, rank=0)
    for step in range(1, 7):
        stalls.inject("clip", step)
        stalls.inject("data", step)
    assert stalls.fired == 2
    begun = time.perf_counter()
    DelayInjector(plan, rank=2).inject("data", 1)
    assert time.perf_counter() - begun >= 0.25


def test_no_delay_is_planted_where_the_environment_forbids_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = parse_delays("data:rank=0:seconds=0")
    for value, fired in (("", 1), ("1", 0)):
        monkeypatch.setenv(NO_DELAYS, value)
        stalls = DelayInjector(plan, rank=0)
        stalls.inject("data", 1)
        assert stalls.fired == fired


@pytest.mark.parametrize(
    "text",
    ["data", "data:rank=x:seconds=1", "data:rank=1", "nap:rank=1:seconds=1",
     "data:rank=1:seconds=1:until=3", "data:rank=1:seconds=-1", "data:rank=1:seconds=nan"],
)  # fmt: skip
def test_a_delay_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match="expected PLACE:rank=R:seconds=S"):
        TrainConfig(stall=text)
