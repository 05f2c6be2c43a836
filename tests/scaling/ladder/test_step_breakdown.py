"""Terms that sum to the step, and who is to blame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.ladder.step_breakdown import (
    Step,
    find_straggler,
    loss_by_term,
    loss_residual,
    mean_seconds,
    mean_terms,
    slowest_node,
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


def test_laggard_names_rank_and_segment() -> None:
    even = dict.fromkeys(SEGMENTS, 0.1)
    slow = {**even, "data": 0.5}
    steps = [[Step(0.7, even)] * 3, [Step(1.1, slow)] * 3, [Step(0.7, even)] * 3]
    found = find_straggler(steps)
    assert (found.rank, found.segment) == (1, "data")
    assert found.share == pytest.approx(0.4 / (2.5 / 3))


def test_laggard_does_not_blame_inside_a_collective() -> None:
    even = dict.fromkeys(SEGMENTS, 0.1)
    waits = {**even, "forward": 0.9}
    assert find_straggler([[Step(0.7, even)], [Step(1.5, waits)]]).share == 0


def test_slow_node_alone() -> None:
    assert slowest_node({"a": 1.0, "b": 1.3, "c": 1.0}) == ("b", pytest.approx(0.3))
    assert slowest_node({"a": 1.0}) == ("a", 0.0)
