"""Follows measures over many runs, and chooses the run that others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.acceptance import AcceptanceSummary, load_summary
from reports.frames.compare import measure_labels, percent_text, table_line
from reports.frames.measurements import TIME, typed_frame
from reports.measurement import Verdict
from reports.numbers import quantity
from reports.record import RunRecord
from reports.regressions import NOISE_FACTOR, values_of
from reports.run_folder.event_log import FILE, RECORD, UnreadableRun, find_runs
from reports.text import STYLES, TextFormatter

if TYPE_CHECKING:
    from numpy import ndarray
    from pandas import DataFrame


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


def read_found(path: Path, read: Callable[[Path], AcceptanceSummary] = load_summary) -> FoundRun:
    """Read a run that was found by `read`; one that cannot be read has the reason."""
    try:
        return FoundRun(path, read(path))
    except (UnreadableRun, OSError) as error:
        return FoundRun(path, problem=str(error))


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
            yield f"it does not verify ({problems[0]})"
        elif record.judged_again:
            yield f"it is run {record.judged_again}, judged again"
        elif identity in seen:
            yield "it is another copy of the same run"
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
    gain = (last.value - middle) * (int(last.low == last.low) - int(last.high == last.high))
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


STARTED, TIER, DECISION, LEAST_RUN = 16, 8, 16, 10  # columns; the run has what is left
TRENDS = ["runs", "first", "median", "last", "per run", "drift"]
TREND_WIDTHS = [7, 0, 4, 10, 10, 10, 8, 7]  # of criterion, measure (what is left), and TRENDS
MAX_CRITERIA = 8  # columns of verdicts: a run has 6, and a few outside its contract
MAX_TRENDS = 60  # of a cluster in a terminal; the CSV has all


def history_lines(history: History, fmt: TextFormatter, *, every: bool = False) -> Iterator[str]:
    """Yield a line per run, oldest first, then one for each measure that drifts, or for `every`."""
    yield from _run_lines(history, fmt)
    trends = history.trends
    for (cluster, rehearsal), table in trends.groupby(TREND_KEY[:2], sort=False):
        drifted = table[table.drift.isin(DRIFTS)]
        name = f"{cluster}{' (rehearsal)' if rehearsal else ''}"
        text = f"{name}: {len(drifted)} of {len(table)} measures drifted"
        needs = f"Drift is shown after {LEAST_EARLIER + 1} runs."
        more = "" if every else " --all lists all measures."
        yield ""
        yield from fmt.wrap(f"{text}. {needs}{more}", "")
        yield from _trend_lines(table if every else drifted, fmt)
    if not len(trends):
        yield "no run has a measured number, so there is no trend"


def _run_lines(history: History, fmt: TextFormatter) -> Iterator[str]:
    criteria = history.criteria[:MAX_CRITERIA]
    names = [fmt.plain(name) or "?" for name in criteria]
    signs = {verdict.value: STYLES[verdict][0 if fmt.unicode else 1] for verdict in Verdict}
    yield from fmt.wrap(", ".join(f"{name[:1]} {name}" for name in names) or "none", "criteria: ")
    yield from fmt.wrap(", ".join(f"{sign} {name}" for name, sign in signs.items()), "verdicts: ")
    fixed = STARTED + TIER + DECISION + 3 + 2 * len(criteria)
    widths = [STARTED, max(LEAST_RUN, fmt.width - fixed), TIER, DECISION, *[1] * len(criteria)]
    titles = ["started (UTC)", "run", "tier", "decision"]
    yield table_line([*titles, *(name[:1] for name in names)], widths, fmt)
    for row in history.runs.to_dict("records"):
        time = row["started"]
        started = time.strftime("%Y-%m-%d %H:%M") if time == time else "-"
        cells = [started, row["run"], row["tier"], row["decision"] or "not read"]
        cells += [signs.get(row[verdict_column(name)], "") for name in criteria]
        yield table_line(cells, widths, fmt)
        if row["note"]:
            note = row["note"] if row["counted"] else f"not counted: {row['note']}"
            yield from fmt.wrap(note, "    ")


def _trend_lines(table: Any, fmt: TextFormatter) -> Iterator[str]:
    if not len(table):
        return
    spare = fmt.width - sum(TREND_WIDTHS) - len(TREND_WIDTHS) + 1
    widths = [TREND_WIDTHS[0], max(1, spare), *TREND_WIDTHS[2:]]
    yield table_line(["", "", *TRENDS], widths, fmt)
    labels = measure_labels(table)[:MAX_TRENDS]
    for label, row in zip(labels, table.head(MAX_TRENDS).itertuples(index=False), strict=True):
        values = [quantity(value, row.unit) for value in (row.first, row.median, row.last)]
        share = row.change_per_run / abs(row.median) if row.median else float("nan")
        change = percent_text(100 * share) if share == share else "-"
        drift = row.drift if row.drift != TOO_FEW else "-"
        yield table_line([row.criterion, label, row.runs, *values, change, drift], widths, fmt)
    if len(table) > MAX_TRENDS:
        yield f"and {len(table) - MAX_TRENDS} more: --csv trends lists all"


@dataclass(frozen=True)
class Baseline:
    """The run to compare with; `problem` is why no measure can be held to it, "" if all can.

    `anchor` is the first accepted run of a folder: else each run could be a little worse.
    """

    summary: AcceptanceSummary | None = None
    problem: str = ""
    anchor: RunRecord | None = None

    def event(self, tolerances: Mapping[str, float]) -> dict[str, Any]:
        """Return what a run records of it: its id, and the values that are compared."""
        if self.summary is None:
            return {"baseline_problem": self.problem} if self.problem else {}
        record = self.summary.record
        found = values_of(record.results, tolerances)
        if self.anchor and self.anchor.id != record.id:
            found += values_of(self.anchor.results, tolerances, self.anchor.id)
        about = {"baseline": record.id, "baseline_problem": self.problem}
        return {**about, "baseline_values": [one.model_dump(mode="json") for one in found]}


def is_run(path: Path) -> bool:
    """Return whether a path is a run, and not a folder of runs."""
    return path.is_file() or (path / FILE).is_file() or (path / RECORD).is_file()


def choose_baseline(path: Path, now: RunRecord) -> Baseline:
    """Choose the baseline of the run `now`.  Raises UnreadableRun for one run that is unreadable.

    In a folder, the newest run of the same cluster that can be compared is chosen.
    """
    if is_run(path):
        summary = load_summary(path)
        return Baseline(summary, why_unsound(summary, now))
    found = [one for run in find_runs(path) if (one := read_found(run).summary)]
    same = [one for one in found if one.record.cluster_name == now.cluster_name]
    same = [one for one in same if one.record.id != now.id]
    same.sort(key=lambda one: one.record.started, reverse=True)
    if sound := [one for one in same if not why_unsound(one, now)]:
        accepted = [one.record for one in sound if one.exit_code == 0]
        return Baseline(sound[0], anchor=next(reversed(accepted), None))
    if not same:
        return Baseline(problem=f"no earlier run of cluster {now.cluster_name} in {path}")
    return Baseline(same[0], why_unsound(same[0], now))


def why_unsound(before: AcceptanceSummary, now: RunRecord) -> str:
    """Return why a run is no baseline of the run `now`; "" if it is one."""
    record = before.record
    nodes, present = len(record.node_names), len(now.node_names)
    reasons = {
        "is this run": record.id == now.id,
        "does not verify": bool(before.integrity.problems),
        f"did not finish (state: {record.state})": record.state != "finished",
        "failed": before.decision is Verdict.FAIL,
        "cannot be verified": bool(before.integrity.doubts or record.unverified),
        "had errors outside its tests": bool(record.problems),
        f"is PARTIAL ({record.partial})": bool(record.partial),
        # Otherwise each run may be as much worse than the last as its noise hides.
        "is worse than its own baseline": bool(record.regressions) and not record.baseline_problem,
        f"is of cluster {record.cluster_name}, but this run is of {now.cluster_name}": (
            record.cluster_name != now.cluster_name
        ),
        f"has {nodes} nodes, but this run has {present}": nodes != present,
        "is a rehearsal, but this run is not": bool(record.rehearsal) and not now.rehearsal,
        "is not a rehearsal, but this run is": bool(now.rehearsal) and not record.rehearsal,
    }
    reason = next((text for text, holds in reasons.items() if holds), "")
    return f"run {record.id} {reason}" if reason else ""
