"""This run against a baseline: noise is not called worse, and what is unknown is not claimed."""

from __future__ import annotations

from typing import Any

import pytest

from reports.compare import Comparison, compare, comparison_lines
from reports.page.render import render
from reports.record import Limit, Measurement, RunRecord
from reports.store import load
from tests.recordings.load import replaced
from tests.support.paths import RECORDINGS


def atlas(name: str = "healthy-atlas") -> RunRecord:
    return load(RECORDINGS / name)


def with_value(value: Any, spread: float | None = 1.0, **bounds: Any) -> RunRecord:
    limit = Limit(because="agreed for this test", **(bounds or {"low": 1.0}))
    one = Measurement(name="busbw", value=value, unit="GB/s", spread=spread, limit=limit)
    return replaced(atlas(), "FABRIC", measurements=[one])


def change(old: RunRecord, new: RunRecord) -> Comparison:
    return compare(new, old)


def test_a_run_equals_itself() -> None:
    found = compare(atlas(), atlas())
    assert found.sections() == []
    assert list(comparison_lines(found))[-1] == "  no change beyond noise"


def test_inside_the_noise_is_no_change() -> None:
    assert change(with_value(100.0), with_value(102.8)).sections() == []


def test_beyond_the_noise_is_worse_or_better_by_the_limit() -> None:
    assert change(with_value(100.0), with_value(97.0)).worse
    assert change(with_value(100.0), with_value(103.0)).better
    slower = change(with_value(100.0, high=500.0), with_value(103.0, high=500.0))
    assert slower.worse
    assert not slower.better


def test_without_a_side_nothing_is_claimed() -> None:
    both = {"low": 1.0, "high": 500.0}
    found = change(with_value(100.0, **both), with_value(150.0, **both))
    assert found.unclear
    assert not found.worse + found.better


@pytest.mark.parametrize(("old", "new"), [(None, 1.0), (1.0, None), (None, None)])
def test_without_spread_only_the_ratio_is_given(old: float | None, new: float | None) -> None:
    found = change(with_value(100.0, old), with_value(50.0, new))
    assert not found.worse + found.better
    assert "0.500 x; no spread, so noise is unknown" in found.unclear[0]


def test_from_zero_has_no_ratio() -> None:
    assert "from 0" in change(with_value(0, None), with_value(5.0, None)).unclear[0]


def test_words_that_changed_are_shown() -> None:
    found = change(with_value("NET/IB"), with_value("NET/Socket"))
    assert any("NET/IB" in line and "NET/Socket" in line for line in found.unclear)


def test_new_failures_and_fixed() -> None:
    found = compare(atlas("tcp-fallback"), atlas())
    assert [line.split(":")[0] for line in found.new_failures] == ["FABRIC", "SCALING", "RESTART"]
    back = compare(atlas(), atlas("tcp-fallback"))
    assert [line.split(":")[0] for line in back.fixed] == ["FABRIC", "SCALING", "RESTART"]


def test_what_is_no_longer_proven_to_fail_is_not_fixed() -> None:
    found = compare(atlas("control-missed"), atlas("waived-fail"))
    assert not any("FABRIC" in line for line in found.fixed)
    assert any("was FAIL, is UNPROVEN" in line for line in found.unclear)


def test_what_is_no_longer_measured_is_said() -> None:
    found = compare(atlas("not-run"), atlas())
    assert any("LAUNCH: time to first step" in line for line in found.missing)
    assert any(line.startswith("LAUNCH: was PASS") for line in found.new_failures)


def test_runs_that_cannot_be_compared_are_noted() -> None:
    notes = compare(atlas("healthy-lab"), atlas("killed-run")).notes
    assert len(notes) == 3


def test_the_page_shows_it() -> None:
    page = render(atlas("tcp-fallback"), None, atlas())
    assert "vs baseline" in page
    assert "New failures (3)" in page
    assert "was MARGINAL" in page
