"""The history of runs: one row per run, and the trend of each measure over the runs.

Drift rule. The last value of a measure has drifted if it lies outside

    median +/- (3 + 250 / n^2) x 1.4826 x MAD

of the n earlier values, with n >= 5. MAD is the median of their absolute deviations from their
median. 1.4826 x MAD estimates the standard deviation and ignores single outliers: Rousseeuw and
Croux, "Alternatives to the Median Absolute Deviation", J. Am. Stat. Assoc. 88 (1993) 1273. Three of
them are the strictest of the usual bounds: Leys et al., "Detecting outliers", J. Exp. Soc. Psychol.
49 (2013) 764. For few runs that bound is wrong: of 1,000 steady measures it accuses 152 after 5
runs and 52 after 10, because the MAD of few values is itself uncertain. The term 250 / n^2 corrects
that: simulated with 1,000,000 series for each n from 5 to 100, at most 13 of 1,000 are accused. So
expect a few false ones in a long list. A test repeats the simulation.

The last value has not drifted either while it is within its own noise (see reports/frames/
compare.py). Values that never changed have no MAD: any other value is then a drift.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.acceptance import AcceptanceSummary
from reports.baseline.regressions import NOISE_FACTOR
from reports.frames.measurements import TIME, typed_frame
from reports.run_folder.event_log import FILE
from reports.run_folder.files import SUMS

if TYPE_CHECKING:
    from numpy import ndarray
    from pandas import DataFrame

RECORD = "record.json"
LEAST_EARLIER = 5  # values: of fewer, nothing can be called usual
DEVIATIONS, SMALL_SAMPLE = 3.0, 250.0  # of the drift rule above
MAD_TO_SIGMA = 1.4826  # 1 / the normal distribution's quantile at 3/4
MAX_SLOPE_RUNS = 200  # the newest runs that a slope is taken of: it has a term for each two of them
WORSE, BETTER, DIFFERS, STEADY, TOO_FEW = "worse", "better", "differs", "steady", "too few runs"
DRIFTS = (WORSE, DIFFERS, BETTER)  # the most serious first
RUN_COLUMNS = {
    "started": TIME,
    **dict.fromkeys(["run", "path", "cluster", "tier", "decision"], "str"),
    "exit_code": "Int64",
    "counted": "bool",
    "note": "str",
}
TREND_KEY = ["cluster", "rehearsal", "criterion", "probe", "measure", "subject", "unit"]
TREND_COLUMNS = {
    "cluster": "str",
    "rehearsal": "bool",
    **dict.fromkeys(TREND_KEY[2:], "str"),
    "runs": "int64",
    **dict.fromkeys(["first", "last", "median", "change_per_run", "low", "high"], "float64"),
    "drift": "str",
}


@dataclass(frozen=True)
class FoundRun:
    """A run below a folder: its summary, or the reason why it cannot be read."""

    path: Path
    summary: AcceptanceSummary | None = None
    problem: str = ""


@dataclass(frozen=True)
class History:
    """History of runs. `criteria` are those that have a column of verdicts in `runs`.

    `runs` has one row per run, oldest first, then those that cannot be read. `counted` is true if
    the trends use the run; otherwise `note` says why not. `trends` has one row per measure, drifts
    first: `change_per_run` is the median slope between any two runs (Sen, J. Am. Stat. Assoc. 63
    (1968) 1379), `low` and `high` are the bounds of the drift rule. `drift` is worse, better,
    differs (the limit shows no direction), steady, or too few runs.
    """

    runs: DataFrame
    criteria: list[str]
    trends: DataFrame


def find_runs(root: Path) -> list[Path]:
    """Find run folders and records below a folder, sorted. Links and hidden folders are left out.

    A folder that cannot be listed is one of them, so that its reason is shown.
    """
    denied: list[Path] = []
    found = []
    for folder, names, files in os.walk(root, onerror=lambda e: denied.append(Path(e.filename))):
        names[:] = [name for name in names if not name.startswith(".")]  # a run that still comes
        if FILE in files or SUMS in files:
            found.append(Path(folder))
            names.clear()
        elif RECORD in files:
            found.append(Path(folder) / RECORD)
    return sorted([*found, *denied])


def build_history(found: Iterable[FoundRun]) -> History:
    """Build the history of the runs that were found."""
    import pandas as pd

    ordered = sorted(found, key=_by_time)
    notes = dict(zip(map(id, ordered), _reasons_not_counted(ordered), strict=True))
    read = [(one, one.summary) for one in ordered if one.summary]
    criteria = list(dict.fromkeys(row.criterion.id for _, s in read for row in s.rows))
    columns = RUN_COLUMNS | dict.fromkeys(map(verdict_column, criteria), "str")
    runs = typed_frame([_run_row(one, notes[id(one)]) for one in ordered], columns)
    frames = [_numbers(s) for one, s in read if not notes[id(one)]]
    every = pd.concat(frames, ignore_index=True) if frames else None
    groups = every.groupby(TREND_KEY, sort=False) if every is not None and len(every) else ()
    rows = [dict(zip(TREND_KEY, key, strict=True)) | measure_trend(group) for key, group in groups]
    rows.sort(key=lambda row: DRIFTS.index(row["drift"]) if row["drift"] in DRIFTS else len(DRIFTS))
    return History(runs, criteria, typed_frame(rows, TREND_COLUMNS))


def _by_time(one: FoundRun) -> tuple[bool, str, bool, str]:
    """Sort by start; a run that can be verified comes before a copy of its record."""
    started = one.summary.record.started if one.summary else ""
    return one.summary is None, started, one.path.is_file(), str(one.path)


def _reasons_not_counted(ordered: Sequence[FoundRun]) -> Iterator[str]:
    """Yield for each run why the trends leave it out; "" if they use it."""
    seen = set()
    for one in ordered:
        if one.summary is None:
            yield one.problem
            continue
        record, problems = one.summary.record, one.summary.integrity.problems
        identity = record.head or (record.id, record.started)  # no two runs have the same head
        if problems:
            yield f"does not verify: {problems[0]}"
        elif record.judged_again:
            yield f"the run {record.judged_again}, judged again"
        elif identity in seen:
            yield "another copy of the same run"
        else:
            seen.add(identity)
            yield ""


def _run_row(one: FoundRun, reason: str) -> dict[str, Any]:
    summary = one.summary
    if summary is None:
        return {"run": one.path.name, "path": one.path, "note": reason}
    record = summary.record
    doubts = [f"cannot be verified: {doubt}" for doubt in summary.integrity.doubts]
    return {
        "started": record.started,
        "run": record.id,
        "path": one.path,
        "cluster": record.cluster_name,
        "tier": record.tier,
        "decision": summary.word,
        "exit_code": summary.exit_code,
        "counted": not reason,
        "note": reason or next(iter(doubts), ""),
        **{verdict_column(row.criterion.id): row.verdict.value for row in summary.rows},
    }


def verdict_column(criterion: str) -> str:
    """Return the column of `runs` that has the verdicts of a criterion."""
    return f"{criterion} verdict"


def _numbers(summary: AcceptanceSummary) -> DataFrame:
    """Return the numbers of a run; of a measure that was repeated, the last one."""
    frame = summary.record.frame().assign(rehearsal=bool(summary.record.rehearsal))
    return frame[frame.value.notna()].drop_duplicates(TREND_KEY, keep="last")


def measure_trend(group: DataFrame) -> dict[str, Any]:
    """Compute the trend of one measure from its rows of all runs, oldest first."""
    import numpy as np

    values = group["value"].to_numpy()
    found = {
        "runs": len(values),
        "first": values[0],
        "last": values[-1],
        "median": np.median(values),
        "change_per_run": median_slope(values[-MAX_SLOPE_RUNS:]),
        "drift": TOO_FEW,
    }
    if len(values) <= LEAST_EARLIER:
        return found
    low, high = drift_bounds(values[:-1])
    last, middle = group.iloc[-1], (low + high) / 2
    noise = NOISE_FACTOR * last.spread if last.spread == last.spread else 0.0
    low, high = min(low, middle - noise), max(high, middle + noise)
    better = int(last.low == last.low) - int(last.high == last.high)
    gain = (last.value - middle) * better
    drift = BETTER if gain > 0 else WORSE if gain < 0 else DIFFERS
    steady = low <= last.value <= high
    return found | {"low": low, "high": high, "drift": STEADY if steady else drift}


def drift_bounds(earlier: ndarray) -> tuple[Any, Any]:
    """Return the bounds of the drift rule for earlier values; of a table, for each column."""
    import numpy as np

    middle = np.median(earlier, axis=0)
    sigma = MAD_TO_SIGMA * np.median(abs(earlier - middle), axis=0)
    reach = (DEVIATIONS + SMALL_SAMPLE / len(earlier) ** 2) * sigma
    return middle - reach, middle + reach


def median_slope(values: ndarray) -> float | None:
    """Return the median of the slopes between any two values; None for a single value."""
    import numpy as np

    if len(values) < 2:
        return None
    first, second = np.triu_indices(len(values), 1)
    return float(np.median((values[second] - values[first]) / (second - first)))
