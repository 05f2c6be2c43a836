"""This run against a baseline: noise is not called worse, and what is unknown is not claimed."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.acceptance import AcceptanceSummary, load_summary, summarize_acceptance
from reports.frames.compare import (
    BETTER,
    FIXED,
    MISSING,
    NEW,
    NEW_FAILURES,
    OTHER_VERDICT,
    SAME,
    UNCLEAR,
    WORSE,
    Comparison,
    compare,
    compare_runs,
)
from reports.measurement import Limit, Measurement
from reports.page.render import render
from tests.recordings.load import replaced
from tests.support.paths import RECORDINGS

AT_LEAST_1 = Limit(low=1.0, because="agreed for this test")


@cache
def atlas(name: str = "healthy-atlas") -> AcceptanceSummary:
    return load_summary(RECORDINGS / name)


def with_value(value: Any, spread: float | None = 1.0, **bounds: Any) -> AcceptanceSummary:
    limit = Limit(because="agreed for this test", **(bounds or {"low": 1.0}))
    return with_measures([measured(value, spread=spread, limit=limit)])


def measured(value: Any, name: str = "busbw", **others: Any) -> Measurement:
    return Measurement(**{"name": name, "value": value, "unit": "GB/s", **others})


def noted(value: Any, **others: Any) -> Measurement:
    """A measurement that is not judged."""
    return measured(value, judged=False, **others)


def with_measures(measures: list[Measurement]) -> AcceptanceSummary:
    """A run of which FABRIC measured just these."""
    return summarize_acceptance(replaced(atlas().record, "FABRIC", measurements=measures))


def change(old: AcceptanceSummary, new: AcceptanceSummary) -> Comparison:
    return compare(new, old)


def test_a_run_equals_itself() -> None:
    assert compare(atlas(), atlas()).changes == {}


def test_inside_the_noise_is_no_change() -> None:
    assert change(with_value(100.0), with_value(102.8)).changes == {}


def test_beyond_the_noise_is_worse_or_better_by_the_limit() -> None:
    assert set(change(with_value(100.0), with_value(97.0)).changes) == {WORSE}
    assert set(change(with_value(100.0), with_value(103.0)).changes) == {BETTER}
    slower = change(with_value(100.0, high=500.0), with_value(103.0, high=500.0))
    assert set(slower.changes) == {WORSE}


def test_a_side_that_only_one_of_both_tells_counts() -> None:
    """The limit may have been agreed between the two runs."""
    without = with_measures([measured(100.0, spread=1.0, judged=False)])
    assert WORSE in change(without, with_value(97.0)).changes
    assert WORSE in change(with_value(103.0), without).changes


def test_a_partial_run_is_noted() -> None:
    whole = atlas()
    part = summarize_acceptance(whole.record.model_copy(update={"partial": "only FABRIC"}))
    assert compare(part, whole).notes == ["the present run is PARTIAL: only FABRIC"]
    assert compare(whole, part).notes == ["the baseline run is PARTIAL: only FABRIC"]


def test_what_a_part_left_out_did_not_fail() -> None:
    """A run of FABRIC alone after a complete run is no failure of the other criteria."""
    whole, part = atlas(), atlas("partial")
    ran = {one.criterion for one in part.record.results if one.state != "not run"}
    found = compare(part, whole)
    assert {row.criterion.id for row in part.rows} > ran
    assert NEW_FAILURES not in found.changes
    gone = [line for line in found.changes[MISSING] if "criterion is no longer measured" in line]
    assert len(gone) == len({row.criterion.id for row in part.rows} - ran)
    back = compare(whole, part)
    assert FIXED not in back.changes
    stopped = part.record.model_copy(update={"state": "interrupted"})
    lost = compare(summarize_acceptance(stopped), whole)
    assert {*criteria_of(lost, NEW_FAILURES)} == {row.criterion.id for row in part.rows} - ran


def test_a_number_beside_a_word_is_not_compared() -> None:
    old, new = (with_measures([measured(v, spread=1.0, judged=False)]) for v in ("fast", 97.0))
    assert kinds_of(change(old, new)) == {"busbw cluster": UNCLEAR}


def test_without_a_side_nothing_is_claimed() -> None:
    both = {"low": 1.0, "high": 500.0}
    found = change(with_value(100.0, **both), with_value(150.0, **both))
    assert set(found.changes) == {UNCLEAR}


@pytest.mark.parametrize(("old", "new"), [(None, 1.0), (1.0, None), (None, None)])
def test_without_spread_only_the_ratio_is_given(old: float | None, new: float | None) -> None:
    found = change(with_value(100.0, old), with_value(50.0, new))
    assert set(found.changes) == {UNCLEAR}
    assert "(-50 %; noise unknown)" in found.changes[UNCLEAR][0]


def test_from_zero_has_no_percent() -> None:
    old, new = (with_measures([measured(value, judged=False)]) for value in (0, 5.0))
    assert change(old, new).changes[UNCLEAR] == ["FABRIC: busbw on cluster: 0 GB/s -> 5 GB/s"]


def test_words_that_changed_are_shown() -> None:
    old, new = (with_measures([measured(v, judged=False)]) for v in ("NET/IB", "NET/Socket"))
    found = change(old, new)
    assert any("NET/IB" in line and "NET/Socket" in line for line in found.changes[UNCLEAR])


def test_new_failures_and_fixed() -> None:
    found = compare(atlas("tcp-fallback"), atlas())
    changed = ["FABRIC", "SCALING", "RESTART"]
    assert criteria_of(found, NEW_FAILURES) == changed
    assert (
        "FABRIC: busbw on cluster: 376 +/- 4.1 GB/s (n=20) -> 41.2 +/- 4.1 GB/s (n=20)"
        in "\n".join(found.changes[NEW_FAILURES])
    )
    back = compare(atlas(), atlas("tcp-fallback"))
    assert criteria_of(back, FIXED) == changed


def criteria_of(found: Comparison, kind: str) -> list[str]:
    """The criteria whose own verdict is of a kind."""
    return [line.split(":")[0] for line in found.changes[kind] if ": was " in line]


def test_what_is_no_longer_proven_to_fail_is_not_fixed() -> None:
    found = compare(atlas("control-missed"), atlas("waived-fail"))
    assert not any("FABRIC: was" in line for line in found.changes.get(FIXED, []))
    assert any("was FAIL, is UNPROVEN" in line for line in found.changes[OTHER_VERDICT])


def test_what_is_no_longer_measured_is_said() -> None:
    found = compare(atlas("not-run"), atlas())
    assert any("LAUNCH: time to first step" in line for line in found.changes[MISSING])
    assert any(line.startswith("LAUNCH: was PASS") for line in found.changes[NEW_FAILURES])


def test_a_criterion_that_is_gone_is_said() -> None:
    record = atlas().record
    kept = [one for one in record.contract.criteria if one.id != "LAUNCH"]
    results = [one for one in record.results if one.criterion != "LAUNCH"]
    contract = record.contract.model_copy(update={"criteria": kept})
    without = record.model_copy(update={"contract": contract, "results": results})
    found = compare(summarize_acceptance(without), atlas())
    assert "LAUNCH: the criterion is no longer measured" in found.changes[MISSING]


def test_another_version_of_the_suite_is_noted() -> None:
    record = atlas().record
    older = record.model_copy(update={"versions": {"seatrial": "0.0.9"}})
    unknown = record.model_copy(update={"versions": {}})
    (note,) = compare(summarize_acceptance(unknown), summarize_acceptance(older)).notes
    names = ("the present run", "the baseline run")
    assert (
        note
        == f"{names[0]} has a different version of the suite than {names[1]}: unknown, not 0.0.9"
    )


def test_runs_that_cannot_be_compared_are_noted() -> None:
    notes = compare(atlas("healthy-lab"), atlas("killed-run")).notes
    words = ["cluster", "number of nodes", "contract", "rehearsal", "interrupted", "end is missing"]
    assert [word for word in words if any(word in note for note in notes)] == words


def test_the_page_shows_it() -> None:
    page = render(atlas("tcp-fallback"), None, atlas())
    assert "since baseline" in page
    assert "New failures (9)" in page
    assert "was MARGINAL" in page


def kinds_of(found: Comparison) -> dict[str, str]:
    """The kind of each measure of FABRIC in the last run, by name and subject."""
    table = found.tables[-1].reset_index()
    rows = table[(table.criterion == "FABRIC") & (table.probe != "")]
    return dict(zip(rows.measure + " " + rows.subject, rows.kind, strict=True))


def test_the_spread_of_a_single_sample_is_no_noise() -> None:
    limit = Limit(low=1.0, because="agreed for this test")
    old, new = (
        with_measures([measured(value, spread=1.0, samples=samples, limit=limit)])
        for value, samples in ((100.0, 20), (50.0, 1))
    )
    assert kinds_of(change(old, new)) == {"busbw cluster": UNCLEAR}
    assert kinds_of(change(old, with_value(50.0, 1.0))) == {"busbw cluster": WORSE}
    two = with_measures([measured(50.0, spread=1.0, samples=2, limit=limit)])
    assert kinds_of(change(old, two)) == {"busbw cluster": WORSE}


def test_more_samples_do_not_make_the_noise_smaller() -> None:
    """A spread is what one run observed, not the error of its mean."""
    old, new = (
        with_measures([measured(value, spread=1.0, samples=10_000)]) for value in (100.0, 102.0)
    )
    assert kinds_of(change(old, new)) == {"busbw cluster": SAME}


def test_one_node_more_that_fails_is_a_new_failure_of_a_criterion_that_failed_before() -> None:
    limit = Limit(low=50.0, because="agreed for this test")
    values = [(10.0, 90.0, 90.0), (10.0, 10.0, 90.0)]
    old, new = (
        with_measures([measured(v, subject=f"n{i}", limit=limit) for i, v in enumerate(of_run)])
        for of_run in values
    )
    assert kinds_of(change(old, new)) == {
        "busbw n1": NEW_FAILURES,
        "busbw n0": SAME,
        "busbw n2": SAME,
    }
    assert kinds_of(change(new, old))["busbw n1"] == FIXED


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (measured(5.0), None, MISSING),
        (noted(5.0), None, SAME),
        (None, measured(5.0), NEW),
        (None, measured(0.5, limit=AT_LEAST_1), NEW_FAILURES),
        (measured(None), measured(None, note="no link"), SAME),
        (noted(float("nan")), noted(float("nan")), SAME),
        (noted("rdma", samples=3), noted("rdma", samples=4), SAME),
        (noted("rdma"), noted("tcp"), UNCLEAR),
        (noted(True), noted(False), UNCLEAR),
        (noted(5.0), noted(5.0, unit="MB/s"), UNCLEAR),
        (noted(5.0), noted(None), UNCLEAR),
        (noted(5.0), measured(0.5, limit=AT_LEAST_1), NEW_FAILURES),
        (noted(5.0), measured(5.0, limit=AT_LEAST_1), SAME),
    ],
)  # fmt: skip
def test_each_kind(old: Measurement | None, new: Measurement | None, kind: str) -> None:
    runs = [with_measures([one] if one else []) for one in (old, new)]
    assert kinds_of(change(*runs)) == {"busbw cluster": kind}


def test_a_verdict_that_is_neither_failed_nor_fixed_is_named() -> None:
    limits = [Limit(low=1.0, marginal_low=m, because="agreed") for m in (None, 200.0)]
    old, new = (with_measures([measured(100.0, limit=limit)]) for limit in limits)
    assert kinds_of(change(old, new)) == {"busbw cluster": OTHER_VERDICT}


def test_a_warning_that_is_gone_is_another_verdict() -> None:
    limit = Limit(low=1.0, marginal_low=200.0, because="agreed for this test")
    warned = with_measures([measured(100.0, spread=1.0, limit=limit)])
    assert kinds_of(change(warned, with_value(300.0))) == {"busbw cluster": OTHER_VERDICT}
    assert kinds_of(change(with_value(300.0), warned)) == {"busbw cluster": OTHER_VERDICT}


def test_a_small_gain_beyond_the_noise_is_better() -> None:
    found = change(with_value(100.0, 0.01), with_value(100.5, 0.01))
    assert kinds_of(found) == {"busbw cluster": BETTER}


def test_repeated_measures_are_compared_in_the_order_of_time() -> None:
    old = with_measures([measured(1.0), measured(2.0)])
    new = with_measures([measured(1.0), measured(3.0)])
    table = change(old, new).tables[-1].reset_index()
    shown = table[table.measure == "busbw"].set_index("occurrence").kind.to_dict()
    assert shown == {0: SAME, 1: UNCLEAR}


@pytest.mark.parametrize("names", [("empty", "empty"), ("empty", "healthy-atlas")])
def test_runs_without_common_measures(names: tuple[str, str]) -> None:
    found = compare_runs([atlas(name) for name in names], ["A", "B"])
    rows = [row for table in found.tables for row in table.kind]
    assert set(rows) <= {SAME, NEW, FIXED}
    assert (names[0] == names[1]) == (set(rows) == {SAME})


def test_a_run_with_neither_criteria_nor_measures() -> None:
    bare = atlas("empty").record
    contract = bare.contract.model_copy(update={"criteria": []})
    summary = summarize_acceptance(bare.model_copy(update={"contract": contract, "results": []}))
    assert compare(summary, summary).changes == {}
    assert compare(summary, atlas()).changes.keys() == {MISSING}


def test_a_thousand_subjects() -> None:
    limit = Limit(low=1.0, because="agreed for this test")
    old, new = (
        with_measures(
            [measured(v + i, subject=f"n{i}", spread=1.0, limit=limit) for i in range(1000)]
        )
        for v in (5000.0, 4000.0)
    )
    assert set(kinds_of(change(old, new)).values()) == {WORSE}
    assert len(change(old, new).changes[WORSE]) == 1000


NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**300), 10**300)
VALUES = st.none() | st.booleans() | NUMBERS | st.text(max_size=20)
LIMITS = st.builds(
    Limit,
    low=st.none() | st.floats(-1e9, 1e9),
    high=st.none() | st.floats(-1e9, 1e9),
    because=st.just("agreed for this test"),
)
MEASURES = st.lists(
    st.builds(
        Measurement,
        name=st.sampled_from(["busbw", "latency", "verdict"]),
        value=VALUES,
        unit=st.sampled_from(["GB/s", "", "ratio"]),
        subject=st.text(max_size=5),
        limit=st.none() | LIMITS,
        judged=st.booleans(),
        spread=st.none() | st.floats(0, 1e300),
        samples=st.none() | st.integers(-1, 10**30),
    ),
    max_size=12,
)
steady = settings(derandomize=True, deadline=None, max_examples=10)


@steady
@given(MEASURES)
def test_a_run_against_itself_shows_no_change(measures: list[Measurement]) -> None:
    run = with_measures(measures)
    found = compare_runs([run, run, run], ["A", "B", "C"])
    assert {kind for table in found.tables for kind in table.kind} == {SAME}
    assert found.changes == {}
    assert found.notes == []


@steady
@given(MEASURES, MEASURES, st.randoms(use_true_random=False))
def test_the_order_of_measures_does_not_matter(
    old: list[Measurement], new: list[Measurement], random: Random
) -> None:
    """Only that of equal ones does: they are compared in the order of time."""
    keep = {(m.name, m.subject): m for m in new}
    moved = list(keep.values())
    random.shuffle(moved)
    before = with_measures(old)
    straight = kinds_of(change(before, with_measures([*keep.values()])))
    assert kinds_of(change(before, with_measures(moved))) == straight


@steady
@given(MEASURES, MEASURES)
def test_what_is_worse_one_way_is_better_the_other_way(
    old: list[Measurement], new: list[Measurement]
) -> None:
    pair = [with_measures([*{(m.name, m.subject): m for m in run}.values()]) for run in (old, new)]
    there, back = change(*pair).tables[-1], change(*reversed(pair)).tables[-1]
    mirror = {WORSE: {BETTER, WORSE}, BETTER: {BETTER, WORSE}, MISSING: {NEW, NEW_FAILURES}}
    for key, kind in there.kind.items():
        if kind in mirror:
            assert back.kind[key] in mirror[kind]
        if kind == WORSE and _same_limits(there.loc[[key]], back.loc[[key]]):
            assert back.kind[key] == BETTER


def _same_limits(one: Any, other: Any) -> bool:
    return bool((one.better == other.better).all())
