"""How the seconds that steps spend in collectives are divided between causes."""

from __future__ import annotations

import pytest

from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.causes import CollectiveTimes, LossBudget, detect_communication
from scaling.loss.throttling import LoadSlowdown
from tests.scaling.loss.test_causes import met_for

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
