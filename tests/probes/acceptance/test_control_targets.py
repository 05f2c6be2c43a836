"""Which measures controls are for: each measure has one, or a reason; each counts for its own."""

from __future__ import annotations

import pytest

from probes.check.recorder import Trial, is_red
from probes.check.registry import CRITERIA, all_probes
from reports.measurement import Limit, Measurement, Verdict
from tests.support.controls import LOUD, MemoryRecorder, bad_value, recorder

EACH = [
    (row, name, target)
    for row in CRITERIA
    for name in CRITERIA[row].controls
    for target in CRITERIA[row].controls[name]
]


@pytest.mark.parametrize("row", CRITERIA)
def test_each_measure_has_a_control_or_the_reason_why_it_has_none(row: str) -> None:
    controlled = {target for targets in CRITERIA[row].controls.values() for target in targets}
    assert controlled | CRITERIA[row].no_control.keys() == CRITERIA[row].measures.keys()
    always = {target for one in CRITERIA[row].planted if not one.when for target in one.fails}
    assert not always & CRITERIA[row].no_control.keys()
    assert all(len(reason.split()) > 4 for reason in CRITERIA[row].no_control.values())


def test_the_controls_are_those_that_runs_owe() -> None:
    owed = {(duty.criterion, name) for duty in all_probes() for name in duty.controls}
    assert owed == {(row, name) for row in CRITERIA for name in CRITERIA[row].controls}


def filled(measure: MemoryRecorder, name: str, sound: str = "") -> Trial:
    """A trial in which all measures of a control fail, but the one that is sound."""
    trial = measure.trial()
    for target in CRITERIA[measure.criterion].controls[name]:
        limit = measure.contract.limit(measure.criterion, target) or LOUD
        value = bad_value(limit)
        if target == sound:
            limit, value = Limit(high=1e9, because="whatever it is"), 1
        trial(target, value, limit=limit)
    return trial


@pytest.mark.parametrize(("row", "name", "target"), EACH)
def test_a_control_counts_only_where_each_of_its_measures_failed(
    row: str, name: str, target: str
) -> None:
    measure = recorder(row)
    measure.control(name, "a fault", filled(measure, name))
    measure.control(name, "a fault", filled(measure, name, sound=target))
    whole, blind = measure.result("finished", 1.0).controls
    assert (whole.caught, blind.caught) == (True, False)
    assert set(whole.proves) == {*CRITERIA[row].controls[name]}
    assert (blind.proves, blind.verdict) == ([], Verdict.UNPROVEN)


def test_a_measure_that_the_control_never_measured_is_not_caught() -> None:
    measure = recorder("GANG")
    measure.control("cancelled in words only", "a fault", measure.trial())
    (missed,) = measure.result("finished", 1.0).controls
    assert missed.caught is False
    assert "nothing was measured with the planted fault" in missed.saw


def test_a_fault_that_was_seen_elsewhere_is_not_caught() -> None:
    measure = recorder("GANG")
    trial = filled(measure, "two groups per job")
    measure.control("two groups per job", "a fault", trial, located=False)
    assert measure.result("finished", 1.0).controls[0].caught is False


def test_what_could_not_be_planted_was_not_run() -> None:
    measure = recorder("GANG")
    measure.control("two groups per job", "a fault", None, saw="no room")
    (missed,) = measure.result("finished", 1.0).controls
    assert (missed.caught, missed.saw, missed.observed) == (None, "no room", [])


def test_what_cannot_be_turned_red_here_is_left_out() -> None:
    measure = recorder("FABRIC")
    trial = filled(measure, "wrong network", sound="busbw")
    measure.control("wrong network", "a fault", trial, without={"busbw", "log_errors"})
    (caught,) = measure.result("finished", 1.0).controls
    assert caught.caught
    assert not {"busbw", "log_errors"} & {*caught.proves}


def test_a_control_that_is_for_nothing_here_is_not_caught() -> None:
    measure = recorder("GANG")
    trial = filled(measure, "two groups per job")
    measure.control("two groups per job", "a fault", trial, without={"deadlocks"})
    assert measure.result("finished", 1.0).controls[0].caught is None


@pytest.mark.parametrize(
    ("one", "red"),
    [
        ({"value": 1.0}, False),  # no limit
        ({"value": None, "note": "5 samples a second"}, False),
        ({"value": 5.0, "limit": Limit(low=20, because="twenty")}, True),
        ({"value": 25.0, "limit": Limit(low=20, because="twenty")}, False),
        ({"limit": Limit(low=20, because="twenty"), "note": "5 samples a second"}, True),
        ({"limit": Limit(low=20, because="twenty")}, False),  # it does not say what contradicts it
    ],
)
def test_what_is_doubted_is_red_where_it_says_why(one: dict[str, object], red: bool) -> None:
    assert is_red("GANG", Measurement(name="sample_rate", **one)) is red  # type: ignore[arg-type]


def test_what_is_not_doubted_is_red_where_it_fails_alone() -> None:
    limit = Limit(high=0, because="none")
    unknown = Measurement(name="leaked", limit=limit, note="nobody looked")
    assert not is_red("GANG", unknown)
    assert is_red("GANG", Measurement(name="leaked", limit=limit, value=1))


def test_a_trial_writes_nothing_and_has_no_control_of_its_own() -> None:
    measure = recorder("GANG")
    trial = measure.trial()
    trial("leaked", 1)
    trial.keep("x.json", {}, caption="c")
    trial.series("x", {})
    trial.covered("nothing")
    trial.progress("nothing")
    assert measure.result("finished", 1.0).measurements == []
    with pytest.raises(TypeError, match="inside a control"):
        trial.control("naive actors", "a fault", trial)
