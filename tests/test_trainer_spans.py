"""Spans: intervals that telescope on any clock, and the host's own clock as their witness."""

import json
import time
from itertools import pairwise

import pytest

from reference_trainer.spans import HostClock, Spans
from scaling.decompose import steps_of, unsummed, wall_gap


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


def test_segments_and_steps_telescope(tmp_path):
    """Also the time between two steps belongs to a step: nothing falls between the cracks."""
    spans = Spans(TickClock(100, 1, 2, 4, 8, 16), rank=3, folder=str(tmp_path))
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


class Rounding(HostClock):
    """Each interval rounded by itself, as between CUDA events; much more coarsely."""

    def intervals(self, stamps):
        return [round(seconds, 3) for seconds in super().intervals(stamps)]


class Losing(HostClock):
    """A clock that stands still in every step's second interval."""

    def intervals(self, stamps):
        first, _, *others = super().intervals(stamps)
        return [first, 0.0, *others]


def timed(clock):
    """Three steps, cut by this clock."""
    spans = Spans(clock, rank=0)
    for step in range(1, 4):
        spans.begin(step)
        for segment in ("data", "forward", "backward", "optimizer"):
            time.sleep(0.0104)
            spans.mark(segment)
        spans.end()
    return [steps_of(spans.records)]


def test_terms_sum_to_their_step_on_a_clock_that_rounds():
    assert unsummed(timed(Rounding())) == 0


def test_time_that_a_clock_loses_is_missed_by_the_hosts_own():
    sound, torn = timed(HostClock()), timed(Losing())
    assert unsummed(sound) == unsummed(torn) == 0
    assert wall_gap(sound) < 0.1 < wall_gap(torn)  # a quarter of it
