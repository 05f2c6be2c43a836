"""How the seconds that steps spend in collectives are divided between causes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.causes import (
    CollectiveTimes,
    LossBudget,
    detect_communication,
    detect_unexplained,
    noise_limit,
)
from scaling.loss.significance import FALSE_ALARM_RATE, student_t
from scaling.loss.throttling import LoadSlowdown, LocalSegmentGrowth
from tests.scaling.loss.test_causes import met_for

OPTIMIZER = LocalSegmentGrowth("optimizer", 0.1, True, {}, (), 0.1)
RUNG = Rung(2, ["a", "b"], [[Step(1.0, {})] * 24] * 2, 2, non_finite=0)


@pytest.mark.parametrize(
    ("seconds", "share"),
    [(0.3, 0.1), (0.5, 0.2), (0.9, 0.2)],
    ids=["half of it was hidden", "none was", "the rest is something else"],
)
def test_a_node_slow_under_load_costs_what_the_step_lost_and_no_more_than_it_was_slow(
    seconds: float, share: float
) -> None:
    """Collectives take 0.2 s of a step of 1 s; node b computes 0.2 s longer."""
    ledger, slowdown = LossBudget(1.0), LoadSlowdown(0.2, 0.0, {"b": 0.2})
    times = CollectiveTimes(0.2, 0.2)
    detect_communication(ledger, met_for(seconds, 0.001), RUNG, times, None, seconds, slowdown)
    (cause,) = ledger.causes
    assert (cause.code, cause.where) == ("SCALE-STRAGGLER", "b")
    assert cause.share == pytest.approx(share)
    assert [part.share for part in ledger.parts] == [pytest.approx(share), pytest.approx(0.2)]


def test_compute_that_is_slower_on_every_node_is_told_apart_from_collectives() -> None:
    """Collectives take 0.2 s, as in the replay; compute takes 0.1 s longer on all nodes."""
    ledger, slowdown = LossBudget(1.0), LoadSlowdown(0.2, 0.1, {})
    times = CollectiveTimes(0.2, 0.2)
    detect_communication(ledger, met_for(0.3, 0.001), RUNG, times, None, 0.3, slowdown)
    (cause,) = ledger.causes
    assert (cause.code, cause.where) == ("SCALE-UNEXPLAINED", "every node")
    assert (cause.segment, cause.share) == ("compute", pytest.approx(0.1))
    assert [part.share for part in ledger.parts] == [pytest.approx(0.1), pytest.approx(0.2)]


@pytest.mark.parametrize(
    ("seconds", "share"), [(0.1, 0.05), (0.2, 0.1), (0.22, 0.1)], ids=["hidden", "all", "more"]
)
def test_links_of_the_agreed_rate_save_no_more_than_in_the_replay(
    seconds: float, share: float
) -> None:
    """The replay takes 0.2 s, and 0.1 s on such links."""
    ledger = LossBudget(1.0)
    times = CollectiveTimes(0.2, 0.1)
    detect_communication(ledger, met_for(seconds, 0.001), RUNG, times, None, seconds)
    (cause,) = ledger.causes
    assert (cause.code, cause.share) == ("SCALE-LINK", pytest.approx(share))


@pytest.mark.parametrize(
    ("limit", "codes"), [(0.8, []), (0.9, ["SCALE-TOKENS"])], ids=["exactly", "below"]
)
def test_tokens_are_too_few_below_the_limit_and_it_is_told_how_many_would_do(
    limit: float, codes: list[str]
) -> None:
    """A step of 1 s, 0.2 s of it in collectives: 2.25 times the work would make them a tenth."""
    ledger, rung = LossBudget(1.0), Rung(2, ["a", "b"], RUNG.steps, 20_000, non_finite=0)
    detect_communication(ledger, met_for(0.2, 0.001), rung, CollectiveTimes(0.2, 0.2), limit, 0.2)
    assert [cause.code for cause in ledger.causes] == codes
    for cause in ledger.causes:
        assert cause.statement.startswith("10,000 tokens per GPU and step are too few")
        assert "22,500 tokens would reach 90 %" in cause.statement


def test_two_per_cent_of_a_step_matter_and_less_does_not() -> None:
    assert LossBudget(4.0).matters(0.08)
    assert not LossBudget(4.0).matters(0.079)


def test_two_steps_do_not_say_what_the_noise_is_and_three_do() -> None:
    assert noise_limit(0.1, 2) == math.inf
    assert noise_limit(0.1, 3) == pytest.approx(0.1 * student_t(FALSE_ALARM_RATE, 2))
    assert noise_limit(0.5, 24) == pytest.approx(0.5 * student_t(FALSE_ALARM_RATE, 23))


@pytest.mark.parametrize(
    ("grown", "uncertainty", "segments"),
    [
        ([], 0.05, ["unknown"]),
        ([], 0.15, []),
        ([OPTIMIZER], 0.05, ["optimizer"]),
        ([OPTIMIZER], 0.15, ["optimizer"]),  # it grew beyond its own noise
        ([replace(OPTIMIZER, significant=False)], 0.15, []),  # it may be noise
        ([replace(OPTIMIZER, common=0.001)], 0.15, []),  # it explains nothing
    ],
)
def test_the_rest_is_a_cause_beyond_the_uncertainty_or_where_a_segment_grew(
    grown: list[LocalSegmentGrowth], uncertainty: float, segments: list[str]
) -> None:
    ledger = LossBudget(1.0)
    detect_unexplained(ledger, grown, 0.1, uncertainty)
    assert [cause.segment for cause in ledger.causes] == segments
    assert [part.share for part in ledger.parts] == [0.1]
