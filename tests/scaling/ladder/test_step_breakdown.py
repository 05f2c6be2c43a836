"""Terms that sum to the step, and who is to blame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.ladder.step_breakdown import (
    Step,
    by_step,
    find_stragglers,
    largest,
    loss_by_term,
    loss_residual,
    mean_seconds,
    mean_terms,
    segment_gap,
    slowest_nodes,
    wall_gap,
)

SEGMENTS = ("data", "forward", "backward", "clip", "optimizer", "checkpoint", "other")


seconds = st.floats(0, 100, allow_nan=False)
step = st.fixed_dictionaries(dict.fromkeys(SEGMENTS, seconds)).map(
    lambda s: Step(sum(s.values()), s)
)
ranks = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(step, min_size=n, max_size=n), min_size=1, max_size=4)
)


@given(ranks, ranks)
def test_what_a_rung_loses_is_the_sum_of_its_terms(
    first: list[list[Step]], other: list[list[Step]]
) -> None:
    base, here = mean_terms(first), mean_terms(other)
    total = sum(here.values())
    if total < 1e-6:
        return
    lost = 1 - mean_seconds(first) / mean_seconds(other)
    assert sum(loss_by_term(base, here).values()) == pytest.approx(lost, rel=1e-9, abs=1e-9)
    assert loss_residual(first, other) < 1e-6


def test_residual_sees_a_term_that_is_missing() -> None:
    whole = [[Step(0.7, dict.fromkeys(SEGMENTS, 0.1))]]
    torn = [[Step(1.0, dict.fromkeys(SEGMENTS, 0.1))]]
    assert loss_residual(whole, whole) == 0
    assert loss_residual(whole, torn) == pytest.approx(0.3)


def test_a_term_that_some_steps_lack_is_a_mean_over_all_steps() -> None:
    steps = [Step(1.0, {"forward": 1.0}), Step(3.0, {"forward": 1.0, "checkpoint": 2.0})]
    assert mean_terms([steps]) == {"forward": 1.0, "checkpoint": 1.0}


EVEN = dict.fromkeys(SEGMENTS, 0.1)
NAN = float("nan")


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_no_number_is_not_hidden_by_a_maximum(order: int) -> None:
    assert largest([0.1, 0.2][::order]) == 0.2
    assert largest([0.1, NAN][::order]) is None
    assert largest([0.1, None][::order]) is None
    assert largest([]) is None


@pytest.mark.parametrize("seconds", [NAN, 0.0, -0.7])
def test_a_step_of_no_length_leaves_its_segments_unproven(seconds: float) -> None:
    sound, bad = Step(0.7, EVEN), Step(seconds, EVEN)
    assert segment_gap([[sound]]) == pytest.approx(0)
    assert segment_gap([[sound, bad]]) is None
    assert segment_gap([[bad, sound]]) is None
    assert segment_gap([]) is None


@pytest.mark.parametrize("wall", [None, NAN, 0.0])
def test_a_window_that_the_hosts_clock_does_not_tell_is_unproven(wall: float | None) -> None:
    sound, bad = Step(0.7, EVEN, wall=0.7), Step(0.7, EVEN, wall=wall)
    assert wall_gap([[sound]]) == pytest.approx(0)
    assert wall_gap([[sound], [bad]]) is None
    assert wall_gap([[bad], [sound]]) is None


def test_the_gap_to_the_hosts_clock_is_a_share_of_the_hosts_time() -> None:
    assert wall_gap([[Step(0.7, EVEN, wall=1.0), Step(0.7, EVEN, wall=1.0)]]) == pytest.approx(0.3)


def test_steps_of_ranks_that_counted_unequal_ones_are_not_combined() -> None:
    one = Step(0.7, EVEN)
    assert by_step([[one], [one]], lambda step: step.seconds) == [0.7]
    with pytest.raises(ValueError, match="shorter"):
        by_step([[one, one], [one]], lambda step: step.seconds)


def test_a_rank_whose_time_is_no_number_is_the_worst_straggler() -> None:
    broken = {**EVEN, "data": NAN}
    worst, *_ = find_stragglers([[Step(0.7, EVEN)], [Step(0.7, broken)], [Step(0.7, EVEN)]])
    assert (worst.rank, worst.segment, worst.share) == (1, "data", float("inf"))
    (node, share), *_ = slowest_nodes({"a": 0.7, "b": NAN, "c": 0.7})
    assert (node, share) == ("b", float("inf"))


def test_a_straggler_is_told_with_rank_and_segment() -> None:
    slow = {**EVEN, "data": 0.5}
    steps = [[Step(0.7, EVEN)] * 3, [Step(1.1, slow)] * 3, [Step(0.7, EVEN)] * 3]
    worst, *others = find_stragglers(steps)
    assert (worst.rank, worst.segment) == (1, "data")
    assert worst.share == pytest.approx(0.4 / (2.5 / 3))
    assert [(one.rank, one.segment, one.share) for one in others] == [
        (0, "none", 0),
        (2, "none", 0),
    ]


def test_all_stragglers_are_told_worst_first_each_with_its_worst_segment() -> None:
    ranks = [
        EVEN,
        {**EVEN, "data": 0.2, "optimizer": 0.4},
        {**EVEN, "checkpoint": 0.9},
        EVEN,
    ]
    found = find_stragglers([[Step(sum(one.values()), one)] for one in ranks])
    mean = sum(sum(one.values()) for one in ranks) / 4
    assert [(one.rank, one.segment) for one in found[:2]] == [(2, "checkpoint"), (1, "optimizer")]
    assert [one.share for one in found] == pytest.approx([0.8 / mean, 0.3 / mean, 0, 0])


def test_no_straggler_is_told_inside_a_collective() -> None:
    waits = {**EVEN, "forward": 0.9}
    assert {one.share for one in find_stragglers([[Step(0.7, EVEN)], [Step(1.5, waits)]])} == {0}


def test_the_slowest_nodes_are_beside_the_median_one() -> None:
    assert slowest_nodes({"a": 1.0, "b": 1.3, "c": 1.0})[0] == ("b", pytest.approx(0.3))
    assert slowest_nodes({"a": 1.0}) == [("a", 0.0)]


def test_half_of_the_nodes_can_be_slow_and_show() -> None:
    found = slowest_nodes({"a": 1.5, "b": 1.0, "c": 2.0, "d": 1.0})
    assert found == [("c", 1.0), ("a", 0.5), ("b", 0.0), ("d", 0.0)]
