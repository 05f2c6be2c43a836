"""Which measures no control turned red, and what the page says of them."""

from __future__ import annotations

from typing import Any

import pytest

from reports.measurement import Limit, Measurement, Verdict
from reports.record import NOT_SHOWN, Control, OwedProbe, ProbeResult, uncontrolled_measures

NONE = Limit(high=0, because="none is right")


def one(name: str, value: float = 0, **more: Any) -> Measurement:
    return Measurement(name=name, value=value, limit=NONE, **more)


def control(*observed: Measurement, caught: bool | None = True) -> Control:
    return Control(name="c", fault="a fault", caught=caught, observed=[*observed])


def result(*measurements: Measurement, controls: list[Control]) -> ProbeResult:
    return ProbeResult(
        probe="p",
        criterion="GANG",
        state="finished",
        measurements=[*measurements],
        controls=controls,
    )


def owed(**uncontrolled: str) -> list[OwedProbe]:
    return [OwedProbe(probe="p", criterion="GANG", tier="quick", uncontrolled=uncontrolled)]


def test_a_control_that_observed_nothing_hides_no_other() -> None:
    """As one that was not run."""
    seen = result(one("leaked"), controls=[control(), control(one("leaked", 3))])
    assert uncontrolled_measures([seen], owed()) == []
    left = result(one("leaked"), one("lost"), controls=[control(), control(one("leaked", 3))])
    assert uncontrolled_measures([left], owed()) == [("lost", NOT_SHOWN)]


def test_what_a_control_turned_red_is_proven_and_the_rest_is_told_with_its_reason() -> None:
    seen = result(
        one("leaked"),
        one("not_released"),
        one("nodes_killed"),
        controls=[control(one("leaked", 3))],
    )
    assert uncontrolled_measures([seen], owed(nodes_killed="it is our own fault")) == [
        ("not released", NOT_SHOWN),
        ("nodes killed", "it is our own fault"),
    ]


def test_a_control_of_another_probe_of_the_row_counts() -> None:
    probes = [
        result(one("leaked"), controls=[control(one("leaked", 3))]),
        result(one("leaked"), one("not_removed"), controls=[control(one("not_removed", 1))]),
    ]
    assert uncontrolled_measures(probes, owed()) == []


@pytest.mark.parametrize("caught", [False, None])
def test_a_control_that_was_not_caught_proves_nothing(caught: bool | None) -> None:
    seen = result(one("leaked"), controls=[control(one("leaked", 3), caught=caught)])
    assert uncontrolled_measures([seen], []) == [("leaked", NOT_SHOWN)]


def test_a_control_whose_measure_passed_is_not_caught_whatever_it_says() -> None:
    said = control(one("leaked", 0))
    assert (said.caught, said.verdict, said.proves) == (True, Verdict.UNPROVEN, [])
    seen = result(one("leaked"), controls=[said])
    assert seen.verdict is Verdict.UNPROVEN
    assert uncontrolled_measures([seen], []) == [("leaked", NOT_SHOWN)]


def test_a_measure_that_only_informs_needs_no_control() -> None:
    informs = Measurement(name="lag", value=1.0, judged=False)
    seen = result(one("leaked"), informs, controls=[control(one("leaked", 3))])
    assert uncontrolled_measures([seen], []) == []


def test_without_any_observed_measure_nothing_is_said() -> None:
    seen = result(one("leaked"), controls=[Control(name="c", fault="f", caught=True)])
    assert uncontrolled_measures([seen], []) == []
    assert uncontrolled_measures([], []) == []


def test_a_control_whose_measure_passed_is_no_caught_fault_in_words_either() -> None:
    """A record may be written by hand: what it says of itself does not count."""
    limit = Limit(high=1, because="as agreed")
    passed = Measurement(name="leaked", value=0, limit=limit)
    control = Control(name="c", fault="a leak", caught=True, saw="it", observed=[passed])
    assert control.verdict is Verdict.UNPROVEN
    missed = (
        "the test did not find the planted fault, so the test proves nothing. "
        "Fault: a leak. Observed with the fault: it"
    )
    assert control.sentence() == missed
    result = ProbeResult(
        probe="p", criterion="GANG", claim="it holds", state="finished", seconds=1,
        measurements=[passed], controls=[control],
    )  # fmt: skip
    assert result.verdict is Verdict.UNPROVEN
    assert result.problems() == [control.sentence()]
