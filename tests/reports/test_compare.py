"""This run against a baseline: noise is not called worse, and what is unknown is not claimed."""

from __future__ import annotations

from typing import Any

import pytest

from reports.acceptance import AcceptanceSummary, load_summary, summarize_acceptance
from reports.compare import (
    BETTER,
    FIXED,
    MISSING,
    NEW_FAILURES,
    UNCLEAR,
    WORSE,
    Comparison,
    compare,
    comparison_lines,
)
from reports.measurement import Limit, Measurement
from reports.page.render import render
from tests.recordings.load import replaced
from tests.support.paths import RECORDINGS


def atlas(name: str = "healthy-atlas") -> AcceptanceSummary:
    return load_summary(RECORDINGS / name)


def with_value(value: Any, spread: float | None = 1.0, **bounds: Any) -> AcceptanceSummary:
    limit = Limit(because="agreed for this test", **(bounds or {"low": 1.0}))
    one = Measurement(name="busbw", value=value, unit="GB/s", spread=spread, limit=limit)
    return summarize_acceptance(replaced(atlas().record, "FABRIC", measurements=[one]))


def change(old: AcceptanceSummary, new: AcceptanceSummary) -> Comparison:
    return compare(new, old)


def test_a_run_equals_itself() -> None:
    found = compare(atlas(), atlas())
    assert found.changes == {}
    assert list(comparison_lines(found))[-1] == "  no change beyond noise"


def test_inside_the_noise_is_no_change() -> None:
    assert change(with_value(100.0), with_value(102.8)).changes == {}


def test_beyond_the_noise_is_worse_or_better_by_the_limit() -> None:
    assert set(change(with_value(100.0), with_value(97.0)).changes) == {WORSE}
    assert set(change(with_value(100.0), with_value(103.0)).changes) == {BETTER}
    slower = change(with_value(100.0, high=500.0), with_value(103.0, high=500.0))
    assert set(slower.changes) == {WORSE}


def test_a_side_that_only_one_of_both_tells_counts() -> None:
    """The limit may have been agreed between the two runs."""
    slow = Measurement(name="busbw", value=100.0, unit="GB/s", spread=1.0)
    without = summarize_acceptance(replaced(atlas().record, "FABRIC", measurements=[slow]))
    assert WORSE in change(without, with_value(97.0)).changes
    assert WORSE in change(with_value(103.0), without).changes


def test_a_partial_run_is_noted() -> None:
    whole = atlas()
    part = summarize_acceptance(whole.record.model_copy(update={"partial": "only FABRIC"}))
    assert compare(part, whole).notes == ["the present run is PARTIAL: only FABRIC"]
    assert compare(whole, part).notes == ["the baseline run is PARTIAL: only FABRIC"]


def test_many_changes_of_a_kind_are_cut_and_counted() -> None:
    diff = Comparison("before", [], {WORSE: ["a", "b", "c"]}, {})
    assert list(comparison_lines(diff, 3)) == [
        *("change since before", f"  {WORSE} (3)", "    a", "    b", "    c"),
    ]
    assert list(comparison_lines(diff, 2))[-1] == "    and 1 more"


def test_a_number_beside_a_word_is_not_compared() -> None:
    assert UNCLEAR in change(with_value("fast"), with_value(97.0)).changes


def test_without_a_side_nothing_is_claimed() -> None:
    both = {"low": 1.0, "high": 500.0}
    found = change(with_value(100.0, **both), with_value(150.0, **both))
    assert set(found.changes) == {UNCLEAR}


@pytest.mark.parametrize(("old", "new"), [(None, 1.0), (1.0, None), (None, None)])
def test_without_spread_only_the_ratio_is_given(old: float | None, new: float | None) -> None:
    found = change(with_value(100.0, old), with_value(50.0, new))
    assert set(found.changes) == {UNCLEAR}
    assert "0.500 x; no spread, so noise is unknown" in found.changes[UNCLEAR][0]


def test_from_zero_has_no_ratio() -> None:
    assert "from 0" in change(with_value(0, None), with_value(5.0, None)).changes[UNCLEAR][0]


def test_words_that_changed_are_shown() -> None:
    found = change(with_value("NET/IB"), with_value("NET/Socket"))
    assert any("NET/IB" in line and "NET/Socket" in line for line in found.changes[UNCLEAR])


def test_new_failures_and_fixed() -> None:
    found = compare(atlas("tcp-fallback"), atlas())
    changed = ["FABRIC", "SCALING", "RESTART"]
    assert [line.split(":")[0] for line in found.changes[NEW_FAILURES]] == changed
    back = compare(atlas(), atlas("tcp-fallback"))
    assert [line.split(":")[0] for line in back.changes[FIXED]] == changed


def test_what_is_no_longer_proven_to_fail_is_not_fixed() -> None:
    found = compare(atlas("control-missed"), atlas("waived-fail"))
    assert not any("FABRIC" in line for line in found.changes.get(FIXED, []))
    assert any("was FAIL, is UNPROVEN" in line for line in found.changes[UNCLEAR])


def test_what_is_no_longer_measured_is_said() -> None:
    found = compare(atlas("not-run"), atlas())
    assert any("LAUNCH: time to first step" in line for line in found.changes[MISSING])
    assert any(line.startswith("LAUNCH: was PASS") for line in found.changes[NEW_FAILURES])


def test_runs_that_cannot_be_compared_are_noted() -> None:
    notes = compare(atlas("healthy-lab"), atlas("killed-run")).notes
    assert len(notes) == 3


def test_the_page_shows_it() -> None:
    page = render(atlas("tcp-fallback"), None, atlas())
    assert "since baseline" in page
    assert "New failures (3)" in page
    assert "was MARGINAL" in page
