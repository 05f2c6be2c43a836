"""HOSTS on the clocks of the nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probes.cluster.system_facts import EXCHANGES, MOST_EXCHANGES, ClockOffset, exchange_times
from probes.hosts.limits import judge_clocks
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.controls import recorder
from tests.support.simulated_hosts import findings, not_passed
from tests.support.simulated_system import StandInSystem, run_system


def with_clocks(*offsets: tuple[float, float], bystanders: int = 0) -> ProbeResult:
    """Run the probe over nodes with these offsets and errors (s)."""
    cluster = StandInSystem(len(offsets) - bystanders, bystanders=bystanders)
    cluster.clocks = {f"id{i}": ClockOffset(*offset) for i, offset in enumerate(offsets)}
    return run_system(cluster)


def test_a_clock_that_is_ahead_is_named_against_the_median() -> None:
    result = with_clocks((0.0, 0.001), (2.0, 0.001), (0.002, 0.001))
    assert not_passed(result) == {"clock_offset cluster": "FAIL"}
    assert findings(result) == [("HOST-CLOCK", ["n1"])]
    text = "against the median of 3 clocks, n1 is 2 s ahead"
    assert result.findings[0].statement == text
    (measured,) = [m for m in result.measurements if m.name == "clock_offset"]
    assert (measured.value, measured.spread) == (2.0, pytest.approx(0.002))


def test_of_two_clocks_both_are_named() -> None:
    result = with_clocks((0.0, 0.001), (-1.0, 0.001))
    assert findings(result) == [("HOST-CLOCK", ["n0", "n1"])]
    text = "against the median of 2 clocks, n0 is 0.5 s ahead, n1 is 0.5 s behind"
    assert result.findings[0].statement == text


def test_where_none_is_far_from_the_median_the_two_farthest_are_named() -> None:
    result = with_clocks((0.0, 0.001), (0.06, 0.001), (0.12, 0.001))
    assert findings(result) == [("HOST-CLOCK", ["n0", "n2"])]


def test_a_head_without_gpus_has_a_clock_too() -> None:
    result = with_clocks((0.0, 0.001), (0.0, 0.001), (5.0, 0.001), bystanders=1)
    assert findings(result) == [("HOST-CLOCK", ["n2"])]


@pytest.mark.near_miss("HOSTS.clock_offset")
def test_clocks_that_are_nearly_equal_pass_also_where_all_differ_from_the_drivers() -> None:
    result = with_clocks((3600.0, 0.001), (3600.09, 0.001), (3600.02, 0.008))
    assert result.verdict is Verdict.PASS
    assert findings(result) == []


@pytest.mark.parametrize("offset", [0.08, 0.12])
def test_an_offset_that_is_not_known_well_enough_proves_nothing(offset: float) -> None:
    result = with_clocks((0.0, 0.015), (offset, 0.015))
    assert not_passed(result) == {"clock_offset cluster": "UNPROVEN"}
    assert findings(result) == []
    (why,) = [m.note for m in result.measurements if m.name == "clock_offset"]
    assert why.startswith("nodes answer too slowly: the offset is ")
    assert "+/- 0.03 s" in why


def test_a_node_without_an_answer_leaves_no_pass_and_hides_no_fault() -> None:
    cluster = StandInSystem(3)
    del cluster.clocks["id1"]
    result = run_system(cluster)
    assert not_passed(result) == {"clock_offset cluster": "UNPROVEN"}
    (why,) = [m.note for m in result.measurements if m.name == "clock_offset"]
    assert why == "no answer from n1"
    cluster.clocks["id2"] = ClockOffset(1.0, 0.001)
    assert not_passed(run_system(cluster)) == {"clock_offset cluster": "FAIL"}
    del cluster.clocks["id2"]
    result = run_system(cluster)
    assert not_passed(result) == {"clock_offset cluster": "UNPROVEN"}
    (control,) = [one for one in result.controls if one.name == "lost clock"]
    assert (control.caught, control.saw) == (None, "the node does not answer")


def test_of_no_nodes_nothing_is_known() -> None:
    measure = recorder("HOSTS")
    judge_clocks({}, ["a", "b"], measure)
    (measured,) = measure.result("finished", 1.0).measurements
    assert (measured.value, measured.note) == (None, "no answer from a, b")


def test_one_node_has_nothing_to_compare() -> None:
    cluster = StandInSystem(1)
    result = run_system(cluster)
    assert result.verdict is Verdict.PASS
    assert "one node: no clocks to compare" in result.coverage
    assert "clock_offset" not in {m.name for m in result.measurements}


class Wire:
    """A node whose clock is ahead by `offset`, and messages that take these times (s)."""

    def __init__(self, offset: float, ways: Callable[[int], tuple[float, float]]) -> None:
        self.time, self.offset, self.ways, self.asked = 100.0, offset, ways, 0

    def ask(self) -> float:
        there, back = self.ways(self.asked)
        self.asked += 1
        self.time += there
        answer = self.time + self.offset
        self.time += back
        return answer

    def compare(self) -> ClockOffset | None:
        return exchange_times(self.ask, lambda: self.time)


def test_the_shortest_exchange_counts() -> None:
    wire = Wire(-3.0, lambda i: (0.001, 0.003) if i == 4 else (0.2, 0.01))
    best = wire.compare()
    assert best is not None
    assert (best.seconds, best.error) == (pytest.approx(-3.001), pytest.approx(0.002))
    assert abs(best.seconds + 3.0) <= best.error
    assert wire.asked == EXCHANGES


def test_a_busy_node_is_asked_more_often_and_not_for_ever() -> None:
    wire = Wire(1.0, lambda i: (0.05, 0.05) if i < EXCHANGES + 3 else (0.001, 0.001))
    best = wire.compare()
    assert best is not None
    assert best.error == pytest.approx(0.001)
    assert wire.asked == EXCHANGES + 4
    slow = Wire(1.0, lambda i: (0.05, 0.05))
    best = slow.compare()
    assert best is not None
    assert best.error == pytest.approx(0.05)
    assert slow.asked == MOST_EXCHANGES


def test_a_drivers_clock_that_is_set_back_meanwhile_counts_for_nothing() -> None:
    wire = Wire(1.0, lambda i: (-5.0, 0.0) if i == 2 else (0.001, 0.001))
    best = wire.compare()
    assert best is not None
    assert best.seconds == pytest.approx(1.0)
    assert Wire(1.0, lambda i: (-5.0, 0.0)).compare() is None
