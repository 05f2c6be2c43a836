"""The history of runs: every run is listed, and a drift is no noise."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports.acceptance import AcceptanceSummary, load_summary, summarize_acceptance
from reports.frames.history import (
    BETTER,
    DIFFERS,
    LEAST_EARLIER,
    STEADY,
    TOO_FEW,
    WORSE,
    FoundRun,
    History,
    build_history,
    drift_bounds,
    history_lines,
    median_slope,
)
from reports.measurement import Limit, Measurement
from reports.run_folder.event_log import find_runs
from reports.run_folder.integrity import Integrity
from reports.text import TextFormatter
from tests.recordings.load import replaced
from tests.support.paths import RECORDINGS

LOW, HIGH = Limit(low=1e-6, because="agreed"), Limit(high=1e6, because="agreed")
GOLDENS = RECORDINGS.parent / "goldens"


def run_of(number: int, measures: Sequence[Measurement], **facts: Any) -> AcceptanceSummary:
    """The run of a day, of which FABRIC measured just these."""
    record = load_summary(RECORDINGS / "healthy-atlas").record
    started = f"2026-11-{number + 1:02}T22:17:03.120Z"
    changes = {"id": f"run{number}", "started": started, "head": f"{number}", **facts}
    others = [result for result in record.results if result.criterion == "FABRIC"]
    record = record.model_copy(update={**changes, "results": others})
    return summarize_acceptance(replaced(record, "FABRIC", measurements=[*measures]))


def history_of(values: Sequence[Any], **facts: Any) -> History:
    """The history of runs that measured one thing."""
    runs = [
        run_of(day, [Measurement(name="busbw", value=v, **facts)]) for day, v in enumerate(values)
    ]
    return build_history(FoundRun(Path(run.record.id), run) for run in runs)


def trend_of(values: Sequence[Any], **facts: Any) -> dict[str, Any]:
    (trend,) = history_of(values, **facts).trends.to_dict("records")
    return {str(name): value for name, value in trend.items()}


def test_a_trend_has_first_last_median_and_change_per_run() -> None:
    trend = trend_of([10.0, 12.0, 14.0, 16.0, 18.0, 40.0], unit="GB/s")
    assert [trend[name] for name in ("runs", "first", "last", "median")] == [6, 10, 40, 15]
    assert trend["change_per_run"] == 2, "one value at the end does not make the slope"
    assert (trend["unit"], trend["cluster"], trend["rehearsal"]) == ("GB/s", "atlas", False)


@pytest.mark.parametrize(
    ("last", "limit", "drift"),
    [
        (100.2, LOW, STEADY),
        (50.0, LOW, WORSE),
        (150.0, LOW, BETTER),
        (50.0, HIGH, BETTER),
        (150.0, HIGH, WORSE),
        (150.0, None, DIFFERS),
        (150.0, Limit(low=1.0, high=1e6, because="agreed"), DIFFERS),
    ],
)
def test_a_drift_is_named_by_the_direction_of_the_limit(
    last: float, limit: Limit | None, drift: str
) -> None:
    earlier = [99.8, 100.0, 100.1, 99.9, 100.3, 100.0]
    assert trend_of([*earlier, last], limit=limit)["drift"] == drift


def test_drifts_come_first_and_the_most_serious_before_the_others() -> None:
    lasts = {
        "steady": (100.0, LOW),
        "up": (150.0, LOW),
        "other": (150.0, None),
        "down": (50.0, LOW),
    }
    runs = [
        run_of(
            day,
            [
                Measurement(name=name, value=last if day == 6 else 100.0 + day / 100, limit=limit)
                for name, (last, limit) in lasts.items()
            ],
        )
        for day in range(7)
    ]
    trends = build_history(FoundRun(Path(run.record.id), run) for run in runs).trends
    assert list(zip(trends.measure, trends.drift, strict=True)) == [
        ("down", WORSE),
        ("other", DIFFERS),
        ("up", BETTER),
        ("steady", STEADY),
    ]


def test_few_runs_have_no_drift() -> None:
    steady = [100.0, 100.1, 99.9, 100.2, 99.8]
    assert len(steady) == LEAST_EARLIER
    assert trend_of([*steady[:-1], 1.0], limit=LOW)["drift"] == TOO_FEW
    assert trend_of([*steady, 1.0], limit=LOW)["drift"] == WORSE


def test_the_noise_of_the_last_run_is_no_drift() -> None:
    values = [100.0] * 6 + [101.0]
    assert trend_of(values, limit=LOW)["drift"] == BETTER, "values that never changed have no noise"
    assert trend_of(values, limit=LOW, spread=0.6)["drift"] == STEADY
    assert trend_of(values, limit=LOW, spread=0.4)["drift"] == BETTER


def test_an_outlier_among_the_earlier_runs_hides_nothing() -> None:
    values = [100.0, 100.1, 5000.0, 99.9, 100.2, 99.8, 100.1, 90.0]
    assert trend_of(values, limit=LOW)["drift"] == WORSE


@pytest.mark.parametrize("earlier", [5, 6, 8, 12, 20, 60])
def test_of_steady_measures_two_in_a_hundred_are_accused_at_most(earlier: int) -> None:
    """And 30 times their noise is nearly always seen, also after the least number of runs."""
    series = np.random.default_rng(7).standard_normal((earlier + 1, 20_000))
    low, high = drift_bounds(series[:-1])
    steady, drifted = series[-1], series[-1] + 30
    assert ((steady < low) | (steady > high)).mean() < 0.02
    assert ((drifted < low) | (drifted > high)).mean() > 0.95


def test_the_slope_is_the_median_of_all_slopes() -> None:
    assert median_slope(np.array([1.0])) is None
    assert median_slope(np.array([1.0, 4.0])) == 3
    assert median_slope(np.array([0.0, 1.0, 2.0, 300.0])) == 50.5


def test_only_runs_of_one_cluster_and_kind_are_a_trend() -> None:
    one = [Measurement(name="busbw", value=1.0)]
    runs = [
        run_of(0, one),
        run_of(1, one, cluster={"name": "other"}),
        run_of(2, one, rehearsal="an embedded cluster"),
        run_of(3, [Measurement(name="busbw", value=1.0, unit="MB/s")]),
    ]
    trends = build_history(FoundRun(Path("x"), run) for run in runs).trends
    assert list(trends.runs) == [1, 1, 1, 1]


def test_words_and_nan_have_no_trend_and_the_last_of_a_repeated_measure_counts() -> None:
    assert not len(history_of(["rdma", None, float("nan"), True]).trends)
    twice = [Measurement(name="busbw", value=v) for v in (1.0, 2.0)]
    trends = build_history([FoundRun(Path("x"), run_of(0, twice))]).trends
    assert list(trends["last"]) == [2]


def test_a_thousand_subjects() -> None:
    runs = [
        run_of(
            day, [Measurement(name="rate", value=float(i), subject=f"n{i}") for i in range(1000)]
        )
        for day in range(7)
    ]
    trends = build_history(FoundRun(Path("x"), run) for run in runs).trends
    assert (len(trends), set(trends.drift)) == (1000, {STEADY})


def test_each_run_that_is_not_counted_has_its_reason() -> None:
    one = [Measurement(name="busbw", value=1.0)]
    counted = run_of(0, one)
    changed = summarize_acceptance(run_of(1, one).record, Integrity(problems=["a file is missing"]))
    found = [
        FoundRun(Path("b/copy"), counted),
        FoundRun(Path("z"), problem="z is not a run folder"),
        FoundRun(Path("c"), changed),
        FoundRun(Path("d"), run_of(2, one, judged_again="run0")),
        FoundRun(Path("a"), counted),
        FoundRun(Path("e"), run_of(3, one, head="")),
        FoundRun(Path("f"), run_of(3, one, head="")),
        FoundRun(Path("g"), run_of(4, one, id="run3", head="")),
    ]
    past = build_history(found)
    notes = dict(zip(past.runs.path, past.runs.note, strict=True))
    assert notes == {
        "a": "",
        "b/copy": "it is another copy of the same run",
        "c": "it does not verify (a file is missing)",
        "d": "it is run run0, judged again",
        "e": "",
        "f": "it is another copy of the same run",
        "g": "",
        "z": "z is not a run folder",
    }
    assert list(past.runs[past.runs.counted].path) == ["a", "e", "g"]
    assert list(past.runs.path)[-1] == "z", "what cannot be read has no time"
    assert list(past.trends.runs) == [3]
    text = "\n".join(history_lines(past, TextFormatter(80)))
    assert text.count("not counted: ") == 5


def test_only_what_drifts_is_listed_unless_all_is_asked_for() -> None:
    fmt, steady = TextFormatter(80), history_of([1.0, 2.0, 3.0])
    lines = list(history_lines(steady, fmt))
    assert " ".join(lines[-2:]) == (
        "atlas: 0 of 1 measures drifted. Drift is shown after 6 runs. --all lists all measures."
    )
    assert not [line for line in lines if line.startswith("FABRIC")]
    assert [line for line in history_lines(steady, fmt, every=True) if line.startswith("FABRIC")]
    drifts = history_of([100.0, 100.0, 101.0, 99.0, 100.0, 100.0, 5.0], limit=LOW)
    assert [line for line in history_lines(drifts, fmt) if line.startswith("FABRIC")]


def test_the_columns_of_a_criterion_cannot_hide_those_of_the_run() -> None:
    summary = run_of(0, [])
    results = [r.model_copy(update={"criterion": "counted"}) for r in summary.record.results]
    bad = summarize_acceptance(summary.record.model_copy(update={"results": results}))
    past = build_history([FoundRun(Path("x"), bad)])
    assert past.runs.counted.tolist() == [True]
    assert "counted" in past.criteria


def test_runs_are_found_at_any_depth_and_not_looked_into(tmp_path: Path) -> None:
    shutil.copytree(RECORDINGS / "healthy-atlas", tmp_path / "a" / "b" / "run")
    (tmp_path / "a" / "b" / "run" / "evidence" / "record.json").write_text("{}")
    (tmp_path / "alone").mkdir()
    shutil.copy(GOLDENS / "empty" / "record.json", tmp_path / "alone")
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "SHA256SUMS").write_text("")
    (tmp_path / "none").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    names = [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)]
    assert names == ["a/b/run", "alone/record.json", "lost"]
    assert find_runs(tmp_path / "a" / "b" / "run") == [tmp_path / "a" / "b" / "run"]
    assert find_runs(tmp_path / "missing") == [tmp_path / "missing"]


def test_without_any_number_the_text_says_so() -> None:
    past = build_history([FoundRun(Path("x"), problem="no run")])
    lines = list(history_lines(past, TextFormatter(80)))
    assert lines[-1] == "no run has a measured number, so there is no trend"


def test_hostile_names_stay_in_their_columns() -> None:
    hostile = load_summary(RECORDINGS / "hostile")
    past = build_history([FoundRun(RECORDINGS / "hostile", hostile)])
    lines = list(history_lines(past, TextFormatter(80)))
    assert max(map(len, lines)) <= 80
    assert not any("\x1b" in line or "\u202e" in line for line in lines)
    assert not any(line.startswith("ACCEPTED") for line in lines)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            80,
            [
                "started (UTC)    run                       tier     decision         F S G L R H",
                "2026-11-01 22:17 run0                      quick    NOT ACCEPTED     ✓ ? ? ? ? ?",
                "                          runs first      median     last       per run  drift",
                "FABRIC  busbw             6    10 GB/s    15 GB/s    40 GB/s    +13.3 %  steady",
            ],
        ),
        (
            60,
            [
                "started (UTC)    run        tier     decision         F S G L R H",
                "2026-11-01 22:17 run0       quick    NOT ACCEPTED     ✓ ? ? ? ? ?",
                "          runs first      median     last       per run  drift",
                "FABRIC  . 6    10 GB/s    15 GB/s    40 GB/s    +13.3 %  steady",
            ],
        ),
    ],
)
def test_the_name_of_a_run_and_of_a_measure_have_the_width_that_is_left(
    width: int, expected: list[str]
) -> None:
    past = history_of([10.0, 12.0, 14.0, 16.0, 18.0, 40.0], unit="GB/s", limit=LOW)
    lines = list(history_lines(past, TextFormatter(width), every=True))
    assert lines[-11:-9] + lines[-2:] == expected


@pytest.mark.parametrize(
    ("subjects", "more"), [(60, []), (62, ["and 2 more: --csv trends lists all"])]
)
def test_a_terminal_has_sixty_trends_and_the_number_of_the_others(
    subjects: int, more: list[str]
) -> None:
    rates = [Measurement(name="rate", value=1.0, subject=f"n{i}") for i in range(subjects)]
    past = build_history([FoundRun(Path("x"), run_of(0, rates))])
    lines = list(history_lines(past, TextFormatter(80), every=True))
    assert [line for line in lines if "more" in line] == more
