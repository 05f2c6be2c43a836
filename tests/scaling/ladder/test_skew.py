"""A rung's time adds up: the lost percent, transfer and skew, and every moment charged once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import (
    COLLECTIVE_SEGMENTS,
    Step,
    critical_path,
    describe_exposed,
    exposed_waits,
    loss_by_term,
    loss_residual,
    mean_seconds,
    mean_terms,
    segment_gap,
    split_segment,
    transfer_growth,
    waits_separable,
)
from scaling.loss.causes import CollectiveTimes
from scaling.loss.explain import explain, explain_ladder, loss_sentence, round_to_sum

SEGMENTS = ("data", "forward", "backward", "clip", "optimizer", "checkpoint", "other")

# Nothing, or what a clock can tell: of a sum of 1e-308 s no share can be computed.
amount = st.just(0.0) | st.floats(1e-9, 100, allow_nan=False)
some = st.floats(1e-3, 100, allow_nan=False)
a_step = st.fixed_dictionaries(dict.fromkeys(SEGMENTS, amount) | {"forward": some}).map(
    lambda spent: Step(sum(spent.values()), spent)
)


def tables(ranks: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[Step]]]:
    """Steps of that many ranks, all with the same number of steps."""
    return st.tuples(ranks, st.integers(1, 5)).flatmap(
        lambda size: st.lists(
            st.lists(a_step, min_size=size[1], max_size=size[1]),
            min_size=size[0],
            max_size=size[0],
        )
    )


a_table = tables(st.integers(1, 4))


def torn(table: list[list[Step]], segment: str, times: float) -> list[list[Step]]:
    """The same steps with a segment counted `times` times; their seconds stay."""
    return [
        [replace(s, segments=s.segments | {segment: s.segments[segment] * times}) for s in steps]
        for steps in table
    ]


@settings(max_examples=60, deadline=None)
@given(a_table, a_table)
def test_the_lost_percent_is_the_sum_of_its_terms(
    base: list[list[Step]], here: list[list[Step]]
) -> None:
    lost = 1 - mean_seconds(base) / mean_seconds(here)
    shares = loss_by_term(mean_terms(base), mean_terms(here))
    size = 1 + mean_seconds(base) / mean_seconds(here)  # the two numbers whose difference it is
    assert abs(sum(shares.values()) - lost) <= 1e-9 * size
    assert loss_residual(base, here) <= 1e-9 * size


def waiting(table: list[list[Step]], share: float) -> list[list[Step]]:
    """The same steps, of which so much of forward and backward was waiting, and could be told."""
    return [
        [
            replace(
                s,
                exposed={
                    "forward": {"all-gather": share * s.segments["forward"]},
                    "backward": {
                        "all-gather": share / 3 * s.segments["backward"],
                        "reduce-scatter": share / 2 * s.segments["backward"],
                    },
                },
            )
            for s in steps
        ]
        for steps in table
    ]


@settings(max_examples=60, deadline=None)
@given(a_table, a_table, st.floats(0, 1), st.none() | st.floats(0, 1))
def test_waits_that_can_be_told_are_terms_and_the_sum_stays(
    base: list[list[Step]], here: list[list[Step]], share: float, before: float | None
) -> None:
    apart = waiting(here, share)
    alone = base if before is None else waiting(base, before)
    found = mean_terms(apart)
    assert found["forward"] == pytest.approx((1 - share) * mean_terms(here)["forward"], abs=1e-9)
    assert sum(found.values()) == pytest.approx(mean_seconds(here), rel=1e-9)
    assert loss_residual(alone, apart) <= 1e-9 * (1 + mean_seconds(base) / mean_seconds(here))
    assert critical_path(apart) == critical_path(here)  # it charges whole segments


def test_what_collectives_cost_is_told_by_collective_where_it_can_be() -> None:
    def rung(count: int, gathered: float, reduced: float) -> Rung:
        spent = {"data": 0.1, "forward": 1 + gathered, "backward": 2 + reduced, "optimizer": 0.1}
        waits = {"forward": {"all-gather": gathered}, "backward": {"reduce-scatter": reduced}}
        steps = [[Step(sum(spent.values()), spent, waits)] * 8 for _ in range(2)]
        return Rung(count, ["n0", "n1"], steps, 100, 0, separable=True, clock="cuda events")

    base, here = rung(1, 0.0, 0.0), rung(2, 0.3, 0.1)
    found = explain(base, here, CollectiveTimes(replayed=0.4))
    said = {part.said: part.share * here.seconds for part in found.parts}
    assert said["waiting for all-gather (as long as without training)"] == pytest.approx(0.3)
    assert said["waiting for reduce-scatter (as long as without training)"] == pytest.approx(0.1)
    assert "8.3 % waiting for all-gather (as long as without training)" in str(found)
    (cause,) = explain(base, here, CollectiveTimes(replayed=0.1)).causes
    assert (cause.code, cause.share * here.seconds) == ("SCALE-LINK", pytest.approx(0.3))


@settings(max_examples=60, deadline=None)
@given(a_table, a_table, st.sampled_from([0.0, 2.0]))
def test_a_missing_or_doubled_segment_is_seen(
    base: list[list[Step]], here: list[list[Step]], times: float
) -> None:
    bad = torn(here, "forward", times)
    ratio = mean_seconds(base) / mean_seconds(here)
    counted = sum(mean_terms(bad).values())
    if counted <= 0:  # nothing but that segment was in it
        return
    share = mean_terms(here)["forward"] / counted
    assert loss_residual(base, bad) == pytest.approx(ratio * share, rel=1e-6, abs=1e-9)
    assert segment_gap(bad) >= share * counted / mean_seconds(here) * (1 - 1e-9)
    assert segment_gap(here) < 1e-9


@settings(max_examples=60, deadline=None)
@given(a_table, st.sampled_from(COLLECTIVE_SEGMENTS))
def test_transfer_and_skew_are_the_segment(table: list[list[Step]], segment: str) -> None:
    found = split_segment(table, segment)
    assert found.transfer + found.skew == pytest.approx(
        mean_terms(table)[segment], rel=1e-9, abs=1e-12
    )
    assert found.skew >= -1e-12
    assert 0 <= found.culprit()[1] <= 1


def test_a_wait_that_is_rounding_makes_nobodys_share_more_than_all() -> None:
    """The mean of three equal times is a little less than each of them."""
    steps = [[2.0, 1.0, 1.0], *[[42.827464347702275] * 3], *[[1.0] * 3] * 2]
    table = [[Step(at[rank], {"forward": at[rank]}) for at in steps] for rank in range(3)]
    assert min(split_segment(table, "forward").skews) < 0
    assert split_segment(table, "forward").culprit() == (1, 1.0)


def test_of_ranks_that_waited_for_none_is_to_blame() -> None:
    table = [[Step(1.0, {"forward": 1.0})] * 3] * 2
    assert split_segment(table, "forward").culprit() == (0, 0.0)


def test_a_transfer_grows_by_what_it_takes_more_and_a_new_one_by_all_of_it() -> None:
    def ranks(**waits: float) -> list[list[Step]]:
        return [[Step(2.0, {"forward": 2.0}, {"forward": waits})]] * 2

    found = transfer_growth(ranks(gather=0.25), ranks(gather=0.75, reduce=0.5))
    assert found == {"gather": 0.5, "reduce": 0.5}


def test_a_step_without_a_collective_waited_no_time_for_it() -> None:
    with_it = Step(2.0, {"forward": 2.0}, {"forward": {"gather": 0.5}})
    found = exposed_waits([[with_it, Step(2.0, {"forward": 2.0})]] * 2)
    assert found["gather"].transfer == 0.25


@settings(max_examples=60, deadline=None)
@given(a_table)
def test_the_account_sums_to_the_step(table: list[list[Step]]) -> None:
    found = critical_path(table)
    every = sum(found.transfer_by_step()) + sum(found.unaligned)
    every += sum(
        sum(found.local_by_step(name)) for name in SEGMENTS if name not in COLLECTIVE_SEGMENTS
    )
    assert every / found.steps == pytest.approx(mean_seconds(table), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(2, 4), st.integers(1, 7)).flatmap(
        lambda size: st.tuples(*[
            st.lists(st.lists(a_step, min_size=size[1], max_size=size[1]), min_size=size[0],
                     max_size=size[0]) for _ in range(2)
        ])
    ),
    st.none() | st.floats(-1, 10),
    st.none() | st.floats(-1, 10),
)  # fmt: skip
def test_the_parts_of_an_explanation_sum_to_what_is_lost(
    both: tuple[list[list[Step]], list[list[Step]]], replayed: float | None, agreed: float | None
) -> None:
    names = [f"n{at}" for at in range(len(both[0]))]
    base, here = Rung(1, names, both[0], 100, 0), Rung(len(names), names, both[1], 100, 0)
    found = explain(base, here, CollectiveTimes(replayed, agreed), limit=0.9)
    one, here_s = mean_seconds(base.median_node()), here.seconds
    assert found.lost == pytest.approx(1 - one / here_s, rel=1e-9, abs=1e-9 * (1 + one / here_s))
    size = 1 + sum(abs(part.share) for part in found.parts)
    assert abs(sum(part.share for part in found.parts) - found.lost) <= 1e-9 * size
    assert [c.share for c in found.causes] == sorted((c.share for c in found.causes), reverse=True)


def lockstep(own: list[dict[str, float]], steps: int = 4) -> list[list[Step]]:
    """Ranks with the same steps over and over, that wait for the last in forward."""
    first = [sum(spent.values()) for spent in own]
    found = []
    for spent, before in zip(own, first, strict=True):
        row = {"data": 0.0, "forward": 0.5 + max(first) - before, "optimizer": 0.0} | spent
        found.append([Step(sum(row.values()), row)] * steps)
    return found


def test_one_slow_rank_is_charged_once() -> None:
    even, late = {"data": 0.1}, {"data": 0.4}
    fast, slow = lockstep([even] * 4), lockstep([even, even, late, even])
    lost = mean_seconds(slow) - mean_seconds(fast)
    assert lost == pytest.approx(0.3)
    before, after = critical_path(fast), critical_path(slow)
    assert sum(after.local_by_step("data")) - sum(before.local_by_step("data")) == pytest.approx(
        4 * lost
    )
    assert after.transfer_by_step() == pytest.approx(before.transfer_by_step())
    assert after.unaligned == pytest.approx([0.0] * 4)
    assert {charge.rank for charge in after.entries if charge.segment == "data"} == {2}
    assert split_segment(slow, "forward").culprit() == (2, pytest.approx(1.0))


def test_what_comes_after_the_last_meeting_counts_towards_the_next() -> None:
    rows = [
        [{"forward": 1.0, "optimizer": 0.1}, {"forward": 1.4, "optimizer": 0.1}],
        [{"forward": 1.0, "optimizer": 0.5}, {"forward": 1.0, "optimizer": 0.1}],
    ]
    table = [[Step(sum(row.values()), row) for row in steps] for steps in rows]
    first, last = critical_path(table).entries
    assert (first.step, first.rank, first.seconds, first.typical) == (0, 1, 0.5, 0.1)
    assert (last.step, last.rank) == (1, None)  # nobody is known to be last after the window


def test_ranks_must_have_counted_the_same_steps() -> None:
    one = Step(1.0, {"forward": 1.0})
    for bad in ([], [[]], [[one], [one, one]]):
        with pytest.raises(ValueError, match="the same steps"):
            critical_path(bad)


def test_what_is_not_separable_is_not_zero() -> None:
    spent, nodes = {"forward": 1.0, "backward": 1.0}, ["n0", "n1"]
    waits = {
        "forward": {"all-gather": 0.25},
        "backward": {"all-gather": 0.0, "reduce-scatter": 0.5},
    }
    longer = {**waits, "forward": {"all-gather": 0.5}}
    table = [[Step(2.0, spent, waits)], [Step(2.0, spent, longer)]]
    assert describe_exposed(table, False, nodes) == (
        "waiting for collectives: this run cannot separate the wait from compute"
    )
    found = exposed_waits(table)
    assert (found["all-gather"].transfer, found["all-gather"].skew) == (0.25, 0.125)
    words = describe_exposed(table, True, nodes)
    assert "all-gather 250.0 + 125.0 (rank 0 on n0 causes 100 % of this wait), reduce" in words
    assert words.endswith("reduce-scatter 500.0 + 0.0")
    assert waits_separable([{"separable": True}])
    assert not waits_separable([{"separable": True}, {"separable": False}])
    assert not waits_separable([{}])
    assert not waits_separable([])


@given(st.lists(st.floats(-50, 300), min_size=1, max_size=9))
def test_rounded_parts_sum_to_the_rounded_whole(values: list[float]) -> None:
    whole = round(sum(values))
    found = round_to_sum(values, whole)
    assert sum(found) == whole
    assert all(abs(a - b) < 1.5 for a, b in zip(found, values, strict=True))


def test_a_rung_that_loses_nothing_says_so() -> None:
    assert loss_sentence(2, -0.004, ()) == (
        "at 2 nodes, nothing is lost: a step is 0.4 % shorter than on one node"
    )


def test_a_node_that_never_ran_alone_is_refused() -> None:
    table = lockstep([{"data": 0.1}] * 2)
    base, here = Rung(1, ["a", "b"], table, 1, 0), Rung(2, ["a", "c"], table, 1, 0)
    with pytest.raises(ValueError, match="c did not run alone"):
        explain_ladder([base, here])


def test_who_is_late_within_one_meeting_and_waited_for_in_the_next_is_not_lost() -> None:
    """Rank 1 comes late out of forward, after its last collective; the others wait in backward."""
    quick = {"data": 0.0, "forward": 0.2, "backward": 1.3, "clip": 0.1, "optimizer": 0.0}
    late = quick | {"forward": 1.2, "backward": 0.3}
    found = critical_path([[Step(1.6, quick)], [Step(1.6, late)], [Step(1.6, quick)]])
    assert found.transfer_by_step() == [pytest.approx(1.6)]
    assert found.unaligned == [pytest.approx(0.0)]
    assert sum(entry.seconds for entry in found.entries) == pytest.approx(0.0)


def test_two_meetings_that_follow_each_other_are_one_run() -> None:
    quick, late = {"forward": 0.2, "backward": 1.3}, {"forward": 1.2, "backward": 0.3}
    found = critical_path([[Step(1.5, quick)], [Step(1.5, late)]])
    assert found.transfer_by_step() == [pytest.approx(1.5)]
    assert found.unaligned == [pytest.approx(0.0)]
