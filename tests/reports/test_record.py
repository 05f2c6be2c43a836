"""The rules of the verdict: what is not shown does not pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reports.acceptance import summarize_acceptance
from reports.measurement import Limit, Measurement, Verdict
from reports.numbers import number
from reports.record import (
    ContractFacts,
    Control,
    Criterion,
    ProbeResult,
    RunProblem,
    RunRecord,
    node_facts,
)

# The same examples each time, and no clock: a busy machine is no bug.
steady = settings(derandomize=True, deadline=None)
BECAUSE = "agreed for this test"
CAUGHT = Control(name="c", fault="cable pulled", caught=True, saw="0 GB/s")
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
verdicts = st.sampled_from(list(Verdict))


def limit(**bounds: Any) -> Limit:
    return Limit(because=BECAUSE, **bounds)


def good(value: Any = 10, **bounds: Any) -> Measurement:
    return Measurement(
        name="busbw", value=value, unit="GB/s", limit=limit(**(bounds or {"low": 1}))
    )


def result(*measurements: Measurement, **fields: Any) -> ProbeResult:
    given_fields = {"state": "finished", "controls": [CAUGHT], **fields}
    return ProbeResult(
        probe="p", criterion="FABRIC", measurements=list(measurements), **given_fields
    )


OWED = {"probe": "p", "criterion": "FABRIC", "tier": "quick"}
AGREED = ContractFacts(name="c", criteria=[])


def run(
    *results: ProbeResult,
    state: str = "finished",
    agreed: ContractFacts = AGREED,
    more: dict[str, Any] | None = None,
    **criterion: Any,
) -> RunRecord:
    rows = [Criterion(id="FABRIC", title="RDMA is in use", how="all-reduce", **criterion)]
    return RunRecord(
        id="r",
        started="2026-11-20T22:17:03.120Z",
        command="pytest probes",
        tier="quick",
        state=state,
        contract=agreed.model_copy(update={"criteria": rows}),
        results=list(results),
        **{"owed": [OWED], **(more or {})},
    )


def test_order_of_the_verdicts() -> None:
    ranks = [Verdict(word).rank for word in ("PASS", "MARGINAL", "UNPROVEN", "FAIL")]
    assert ranks == [0, 1, 2, 3]


@steady
@given(st.lists(verdicts))
def test_folding_takes_the_worst_and_nothing_is_unproven(parts: list[Verdict]) -> None:
    folded = Verdict.worst(parts)
    assert folded is (max(parts, key=lambda v: v.rank) if parts else Verdict.UNPROVEN)


@steady
@given(st.lists(verdicts, min_size=1), verdicts)
def test_one_more_part_never_makes_it_better(parts: list[Verdict], more: Verdict) -> None:
    assert Verdict.worst([*parts, more]).rank >= Verdict.worst(parts).rank


@steady
@given(finite, finite, finite)
def test_a_limit_passes_only_what_is_inside(value: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    verdict = limit(low=low, high=high).judge(value)
    assert (verdict is Verdict.PASS) == (low <= value <= high)


@steady
@given(finite, finite, finite)
def test_the_marginal_band_only_lowers(value: float, low: float, marginal: float) -> None:
    plain = limit(low=low).judge(value)
    banded = limit(low=low, marginal_low=marginal).judge(value)
    assert banded.rank >= plain.rank
    assert (banded is Verdict.FAIL) == (plain is Verdict.FAIL)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, "10", "", "nan"])
def test_what_is_no_number_never_meets_a_bound(value: Any) -> None:
    assert limit(low=0).judge(value) is Verdict.UNPROVEN
    assert limit(high=1e9).judge(value) is Verdict.UNPROVEN
    assert good(value, low=0).verdict is Verdict.UNPROVEN


def test_words_must_be_one_of_those_allowed() -> None:
    road = limit(one_of=["NET/IB"])
    assert road.judge("NET/IB") is Verdict.PASS
    assert road.judge("NET/Socket") is Verdict.FAIL
    assert road.judge(None) is Verdict.UNPROVEN
    assert limit(one_of=[]).judge("anything") is Verdict.FAIL


def test_a_limit_without_bound_proves_nothing() -> None:
    assert limit().judge(10) is Verdict.UNPROVEN
    assert limit(marginal_low=5).judge(10) is Verdict.UNPROVEN


@pytest.mark.parametrize("bound", [math.nan, math.inf, -math.inf])
def test_a_bound_that_every_value_meets_is_refused(bound: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        limit(low=bound)


def test_a_bound_beside_words_is_refused_because_it_would_be_ignored() -> None:
    with pytest.raises(ValidationError, match="not both"):
        limit(low=340, one_of=["NET/IB"])


def test_a_limit_needs_its_reason() -> None:
    with pytest.raises(ValidationError):
        Limit(low=1, because="")


def test_judged_without_limit_is_unproven() -> None:
    one = Measurement(name="busbw", value=376.0, unit="GB/s")
    assert one.verdict is Verdict.UNPROVEN
    assert "none was agreed" in one.sentence()


def test_an_informing_measurement_judges_nothing() -> None:
    one = Measurement(name="rate", value=1.0, judged=False)
    assert one.verdict is None
    assert result(one).verdict is Verdict.UNPROVEN


def test_nan_is_kept_as_no_value_and_said() -> None:
    one = good(math.nan)
    assert one.value is None
    assert "the value was nan" in one.sentence()
    assert Measurement.model_validate_json(one.model_dump_json()) == one


def test_a_missed_bound_never_reads_as_met() -> None:
    one = good(0.8996, low=0.9)
    assert one.verdict is Verdict.FAIL
    assert "0.8996" in one.sentence()
    close = Limit(low=0.01, unit="GB/s", because="agreed")  # which other unit its value is shown in
    missed = Measurement(name="busbw", value=0.0099999, unit="GB/s", limit=close)
    assert missed.verdict is Verdict.FAIL
    assert missed.short_text == "9.9999 MB/s"


@pytest.mark.parametrize(
    ("value", "low", "text"),
    [
        (41.25, 41.25, "41.2"),
        (41.25, 30, "41.2"),
        (29.999, 30, "29.999"),
        (0.123456789012, 0.123456789013, "0.123456789"),  # no digits more
    ],
)
def test_more_than_three_digits_are_shown_only_near_a_bound(
    value: float, low: float, text: str
) -> None:
    assert good(value, low=low).short_text == f"{text} GB/s"


@steady
@given(finite, finite)
def test_a_missed_bound_is_seen_in_the_digits(value: float, low: float) -> None:
    one = good(value, low=low)
    if one.verdict is Verdict.FAIL and abs(value - low) > 1e-5 * max(abs(value), abs(low)):
        assert number(low) != one.value_text.split(" ")[0]


@pytest.mark.parametrize(
    ("control", "verdict"),
    [
        ([], Verdict.UNPROVEN),
        ([Control(name="c", fault="f", caught=False)], Verdict.UNPROVEN),
        ([Control(name="c", fault="f", caught=None)], Verdict.UNPROVEN),
        ([CAUGHT, Control(name="d", fault="f", caught=False)], Verdict.UNPROVEN),
        ([CAUGHT], Verdict.PASS),
    ],
)
def test_a_pass_needs_every_control_caught(control: list[Control], verdict: Verdict) -> None:
    one = result(good(), controls=control)
    assert one.verdict is verdict
    assert bool(one.problems()) == (verdict is not Verdict.PASS)


def test_a_note_does_not_hide_that_something_was_judged() -> None:
    note = Measurement(name="algbw", value=7.0, judged=False)
    assert result(good(), note).problems() == []
    assert result(note).problems() == ["nothing was measured"]


@pytest.mark.parametrize("state", ["skipped", "error", "interrupted", "Finished", ""])
def test_a_probe_that_did_not_finish_is_no_proof(state: str) -> None:
    one = result(good(), state=state)
    assert one.verdict is Verdict.UNPROVEN
    assert one.problems()


def test_a_failure_outranks_a_missing_control_and_an_error() -> None:
    assert result(good(0, low=1), controls=[], state="error").verdict is Verdict.FAIL


def test_a_finding_changes_no_verdict() -> None:
    finding = {"code": "FAB-TCP", "statement": "TCP", "remedy": "use RDMA"}
    assert result(good(), findings=[finding]).verdict is result(good()).verdict


TEARDOWN = {"kind": "teardown", "where": "p", "text": "3 GPUs were not given back"}
REHEARSED = AGREED.model_copy(update={"rehearsal": True})


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (run(result(good())), 0),
        (run(result(good(3, low=1, marginal_low=5))), 0),
        (run(result(good(0))), 1),
        (run(result(good()), state="interrupted"), 2),
        (run(result(good()), state="running"), 2),
        (run(result(good(0)), state="interrupted"), 2),
        (run(), 20),
        (run(result()), 20),
        (run(result(good(), controls=[])), 20),
        (run(result(good()), required=False), 20),
        (run(result(good(0)), required=False), 1),
        (run(result(good()), more={"partial": "only GANG"}), 20),
        (run(result(good(0)), more={"partial": "only GANG"}), 1),
        (run(result(good()), more={"owed": []}), 20),
        (run(result(good()), more={"problems": [TEARDOWN]}), 3),
        (run(result(good(0)), more={"problems": [TEARDOWN]}), 1),
        (run(result(good()), more={"problems": [TEARDOWN]}, state="interrupted"), 2),
        (run(result(), more={"problems": [TEARDOWN]}), 3),
        (run(result(good()), more={"rehearsal": "emulated"}), 20),
        (run(result(good()), more={"rehearsal": "emulated"}, agreed=REHEARSED), 0),
        (run(result(good()), agreed=AGREED.model_copy(update={"agreed": False})), 20),
        (run(result(good(0)), agreed=AGREED.model_copy(update={"agreed": False})), 1),
    ],
)
def test_exit_codes(record: RunRecord, code: int) -> None:
    assert summarize_acceptance(record).exit_code == code


def test_nothing_required_is_not_everything_proven() -> None:
    empty = run().model_copy(update={"contract": ContractFacts(name="c", criteria=[])})
    assert summarize_acceptance(empty).decision is Verdict.UNPROVEN
    assert summarize_acceptance(empty).exit_code == 20


def test_a_failure_outside_the_contract_still_fails() -> None:
    stray = result(good(0)).model_copy(update={"criterion": "STORAGE"})
    assert summarize_acceptance(run(result(good()), stray)).exit_code == 1


def test_one_good_result_does_not_cover_a_bad_one_of_the_same_criterion() -> None:
    assert run(result(good(0)), result(good())).verdict("FABRIC") is Verdict.FAIL


def test_a_measure_that_was_not_compared_concerns_its_own_criterion_alone() -> None:
    gate = AGREED.model_copy(update={"baseline": {"FABRIC.busbw": 2.0}})
    other = result(good()).model_copy(update={"criterion": "GANG"})
    found = run(result(good()), other, agreed=gate)
    assert found.verdict("FABRIC") is Verdict.UNPROVEN
    assert found.verdict("GANG") is Verdict.PASS


@pytest.mark.parametrize(("seconds", "fits"), [(0, True), (0.5, True), (-0.5, False)])
def test_no_time_is_below_zero(seconds: float, fits: bool) -> None:
    for make in (
        lambda: run(result(good(), seconds=seconds)),
        lambda: run(result(good()), more={"full_run_s": seconds}),
    ):
        if fits:
            assert make()
            continue
        with pytest.raises(ValidationError, match="greater than or equal to 0"):
            make()


@steady
@given(st.one_of(finite, st.integers(), st.booleans(), st.text(max_size=20), st.none()))
def test_a_record_survives_json(value: Any) -> None:
    try:
        one = run(result(good(value)))
    except ValidationError:
        return  # lone surrogates: no JSON can hold them, so they are refused at the door
    assert RunRecord.model_validate_json(one.model_dump_json()) == one


@steady
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_number_shows_every_float(value: float) -> None:
    assert number(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1184, "0.118"),
        (376.0, "376"),
        (41.25, "41.2"),
        (0.0, "0"),
        (True, "True"),
        (-0.5, "-0.500"),
        (1e-9, "1e-09"),
        (66685012, "66685012"),
    ],
)
def test_number_has_three_digits(value: Any, text: str) -> None:
    assert number(value) == text


def test_only_facts_of_nodes_name_nodes() -> None:
    nodes = [{"name": "n0"}, {"name": ""}, {"name": 7}, {"host": "n9"}, "n5", {"name": "n1"}]
    record = run(result(good()), more={"cluster": {"name": "atlas", "nodes": nodes}})
    assert record.node_names == ["n0", "n1"]
    assert node_facts(record.cluster) == [node for node in nodes if isinstance(node, dict)]
    assert record.cluster_name == "atlas"
    for other in ({}, {"name": "", "nodes": {"n0": {}}}, {"nodes": "n0"}):
        record = run(result(good()), more={"cluster": other})
        assert (record.cluster_name, record.node_names) == ("unknown", [])
        assert node_facts(record.cluster) == []


@pytest.mark.parametrize(
    ("kind", "text"), [("teardown", "clean-up failed in a: b"), ("disk", "disk error in a: b")]
)
def test_a_problem_outside_the_tests_is_one_line(kind: str, text: str) -> None:
    assert RunProblem(kind=kind, where="a", text="b").sentence() == text
