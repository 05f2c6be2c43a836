"""Spans: intervals that telescope on any clock, and the host's own clock as their witness."""

import json
import time
from itertools import pairwise

import pytest
import torch

from reference_trainer.telemetry.step_timer import CudaClock, HostClock, StepTimer
from scaling.ladder.step_breakdown import parse_steps, segment_gap, wall_gap


class TickClock:
    """A clock that advances by a set amount at each reading."""

    name = "ticks"

    def __init__(self, *advances):
        self.now, self.advances = 0, list(advances)

    def stamp(self):
        self.now += self.advances.pop(0)
        return self.now

    def wait(self, stamp):
        pass

    def intervals(self, stamps):
        return [float(b - a) for a, b in pairwise(stamps)]

    def total(self, stamps, intervals):
        return float(stamps[-1] - stamps[0])


def test_segments_and_steps_telescope(tmp_path):
    """Also the time between two steps belongs to a step: nothing falls between the cracks."""
    spans = StepTimer(TickClock(100, 1, 2, 4, 8, 16), rank=3, folder=str(tmp_path))
    spans.begin(1)
    spans.mark("data")
    spans.mark("forward")
    spans.mark("data")
    first = spans.end()
    spans.begin(2)
    spans.mark("other")
    spans.mark("data")
    second = spans.end()
    spans.close()
    assert first["segments"] == {**dict.fromkeys(first["segments"], 0.0), "data": 5, "forward": 2}
    assert (first["seconds"], second["seconds"]) == (7, 24)
    assert (second["segments"]["other"], second["segments"]["data"]) == (8, 16)
    lines = (tmp_path / "spans.rank3.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [first, second] == spans.records
    with pytest.raises(ValueError, match="segment is 'lunch'"):
        spans.mark("lunch")


def test_waits_that_are_read_early_are_counted_once_and_belong_to_their_step():
    spans = StepTimer(TickClock(*[1] * 20), rank=0)
    for _ in range(2):
        spans.begin(1)
        for segment in ("forward", "backward"):
            with spans.waiting("all-gather"):
                pass
            spans.mark(segment)
            spans.read_waits()
        assert spans.end()["exposed"] == {
            "forward": {"all-gather": 1.0},
            "backward": {"all-gather": 1.0},
        }


class Event:
    """Stands in for a CUDA event: no GPU is here.  It rounds as they do, but coarsely."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return float(round((later.at - self.at) * 1e3))


class Losing:
    """Stands still in every step's second interval."""

    def intervals(self, stamps):
        return [0.0 if at == 1 else one for at, one in enumerate(super().intervals(stamps))]


class LosingHostClock(Losing, HostClock):
    pass


class LosingCudaClock(Losing, CudaClock):
    pass


def timed(clock):
    """Three steps, cut by this clock; a third of each segment is a wait."""
    spans = StepTimer(clock, rank=0)
    for step in range(1, 4):
        spans.begin(step)
        for segment in ("data", "forward", "backward", "optimizer"):
            with spans.waiting("all-gather"):
                time.sleep(0.0034)  # a wait, and compute: the clock under test has to see both
            time.sleep(0.007)
            spans.mark(segment)
        spans.end()
    return [parse_steps(spans.records)]


def test_terms_sum_to_their_step_between_events_that_round(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    steps = timed(CudaClock())
    assert segment_gap(steps) == 0
    assert wall_gap(steps) < 0.2  # what it rounds by


def test_time_that_no_segment_holds_is_missed_by_their_sum():
    sound, torn = timed(HostClock()), timed(LosingHostClock())
    assert segment_gap(sound) < 1e-6 < 0.1 < segment_gap(torn)
    assert wall_gap(sound) < 0.1


def test_time_that_events_lose_is_missed_by_the_hosts_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    torn = timed(LosingCudaClock())
    assert segment_gap(torn) < 1e-6  # its seconds are the sum of what events tell
    assert wall_gap(torn) > 0.1  # a quarter of it
