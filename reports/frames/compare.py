"""Compares two runs, as tables and as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reports.acceptance import AcceptanceSummary, any_ran
from reports.frames.measurements import COLUMNS, csv_text, json_rows, typed_frame
from reports.groups import group_pairs
from reports.measurement import Verdict, title_of
from reports.numbers import number
from reports.record import RunRecord
from reports.regressions import NOISE_FACTOR
from reports.sanitize import one_line, probe_words
from reports.text import TextFormatter

if TYPE_CHECKING:
    from pandas import DataFrame, Series


KEY = ["criterion", "probe", "measure", "subject", "occurrence"]
VERDICT = "verdict"  # measure of the rows of criteria; they have no probe
NOISE_RULE = (
    "noise is 2 * sqrt(s1^2 + s2^2), where s1 and s2 are the spreads of the two values; it is "
    "unknown for a single sample or without a spread"
)
KINDS = NEW_FAILURES, FIXED, OTHER_VERDICT, WORSE, MISSING, UNCLEAR, BETTER, NEW = (
    "New failures",
    "Fixed",
    "Other verdict",  # for example PASS to MARGINAL; FAIL to UNPROVEN is not fixed
    "Worse beyond noise",
    "No longer measured",
    "Different, not judged",  # noise or direction unknown, words, other units
    "Better",
    "Newly measured",
)  # changes of a verdict first
SAME = ""  # equal, or different within noise
RANKING = (*KINDS, SAME)
ONE_SIDED = MISSING, NEW  # runs of other sizes have many, which say only that
MAX_ONE_SIDED = 10  # of them that are listed


@dataclass(frozen=True)
class Comparison:
    """Runs compared with the first of them.

    `summaries` are the runs, `notes` the reasons why they may not be comparable. `tables` has a
    frame for each run, all with one row per measure and the same index (KEY). Their columns are
    those of `RunRecord.frame()`, then `change` (percent of the first run's value), `noise` (in
    `unit`), `better` (1 if more is better, -1 if less, 0 if not known) and `kind` (one of KINDS,
    or SAME). Rows of a measure that a run does not have are missing values. The first rows are
    those of the first kind.
    """

    summaries: Sequence[AcceptanceSummary]
    notes: list[str]
    tables: list[DataFrame]

    @property
    def kinds(self) -> Series:
        """First of KINDS that a row has in any run."""
        return first_kind(self.tables).map(dict(enumerate(RANKING)))

    @property
    def changes(self) -> dict[str, list[str]]:
        """Sentences on the last run by kind; kinds without any change are left out."""
        first, last = self.tables[0], self.tables[-1]
        rows = zip(last.kind, first.index, table_rows(first), table_rows(last), strict=True)
        told = ((k, _sentence(key, old, new)) for k, key, old, new in rows if k not in (NEW, SAME))
        found = group_pairs(told)
        return {kind: found[kind] for kind in KINDS if kind in found}

    @property
    def before(self) -> dict[str, Verdict]:
        """Verdicts of the first run by criterion."""
        return {row.criterion.id: row.verdict for row in self.summaries[0].rows}


def compare(run: AcceptanceSummary, baseline: AcceptanceSummary) -> Comparison:
    """Compare `run` with `baseline`."""
    return compare_runs([baseline, run], ["the baseline run", "the present run"])


def compare_runs(summaries: Sequence[AcceptanceSummary], names: Sequence[str]) -> Comparison:
    """Compare each run with the first. `names` are what the notes call the runs."""
    frames = [_keyed_frame(summary) for summary in summaries]
    index = frames[0].index
    for frame in frames[1:]:
        index = index.union(frame.index, sort=False)
    aligned = [frame.reindex(index) for frame in frames]
    tables = [_with_changes(aligned[0], frame) for frame in aligned]
    order = first_kind(tables).sort_values(kind="stable").index
    notes = list(_notes(summaries, names))
    return Comparison(summaries, notes, [table.loc[order] for table in tables])


def first_kind(tables: Sequence[DataFrame]) -> Series:
    """Return the least place in RANKING that a row has in any run."""
    import pandas as pd

    places = {kind: place for place, kind in enumerate(RANKING)}
    return pd.concat([table.kind.map(places) for table in tables], axis=1).min(axis=1)


def table_rows(table: DataFrame) -> Iterator[Any]:
    """Yield the rows of a table as named tuples, without their key."""
    return iter(table.itertuples(index=False))


def _keyed_frame(summary: AcceptanceSummary) -> DataFrame:
    """Return the criteria and measurements of a run by KEY; equal ones are counted in time.

    What a part of the suite left out is no failure of it; what a stopped run left out may be one.
    """
    import pandas as pd

    record = summary.record
    is_part = bool(record.partial) and record.state == "finished"
    criteria = [
        {
            "criterion": row.criterion.id,
            "measure": VERDICT,
            "value_text": row.verdict.value,
            "judged": True,
            "verdict": row.verdict.value,
            "note": row.problem,
        }
        for row in summary.rows
        if not is_part or any_ran(row.results)
    ]
    frames = [typed_frame(criteria, COLUMNS), record.frame()]
    frame = pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True)
    frame["occurrence"] = frame.groupby(KEY[:-1], sort=False).cumcount()
    return frame.set_index(KEY)


def _with_changes(first: DataFrame, now: DataFrame) -> DataFrame:
    """Add the change against the first run; the index of both is the same."""
    better = _better_direction(now)
    better = better.where(better != 0, _better_direction(first))
    gain = (now.value - first.value).where(now.unit == first.unit)
    noise = NOISE_FACTOR * (_known_spread(first) ** 2 + _known_spread(now) ** 2) ** 0.5
    change = 100 * gain / first.value.abs().where(first.value != 0)
    kind = _kinds(first, now, gain, noise, better)
    return now.assign(change=change, noise=noise, better=better, kind=kind)


def _kinds(
    first: DataFrame, now: DataFrame, gain: Series, noise: Series, better: Series
) -> list[str]:
    """Classify each row by the first case that holds."""
    import numpy as np

    had, has = first.value_text.notna(), now.value_text.notna()
    before, after = first.verdict.cat.codes, now.verdict.cat.codes  # -1: not judged, or missing
    accepted = after.between(0, Verdict.MARGINAL.rank)
    was_accepted = before <= Verdict.MARGINAL.rank
    both_judged = (before >= 0) & (after >= 0)
    equal = (gain == 0) | (gain.isna() & (_words(first) == _words(now)))
    judgeable = gain.notna() & noise.notna()
    within = judgeable & (gain.abs() <= noise)
    cases = {
        "absent": (~had & ~has, SAME),
        "failing": (~had & (after == Verdict.FAIL.rank), NEW_FAILURES),
        "new": (~had, NEW),
        "gone": (~has, first.judged.map({True: MISSING, False: SAME})),
        "failed": ((after > before) & ~accepted, NEW_FAILURES),
        "fixed": (~was_accepted & accepted, FIXED),
        "other": (both_judged & (before != after), OTHER_VERDICT),
        "same": (equal | within, SAME),
        "beyond": (judgeable & ~within & (better != 0), np.where(gain * better > 0, BETTER, WORSE)),
    }
    conditions = [condition for condition, _ in cases.values()]
    return list(np.select(conditions, [kind for _, kind in cases.values()], UNCLEAR))


def _words(frame: DataFrame) -> Series:
    """Return the values as text without the number of samples; "" for what was not measured."""
    text = frame.value_text.fillna("").str.replace(r" \(n=\d+\)$", "", regex=True)
    return text.where(~text.str.match(r"not measured(?: \(|$)"), "")


def _known_spread(frame: DataFrame) -> Series:
    """Return the spreads; missing where it is that of a single sample."""
    return frame.spread.where(frame.n.isna() | (frame.n > 1).fillna(value=True))


def _better_direction(frame: DataFrame) -> Series:
    """Return 1 if more is better, -1 if less is better, 0 if the limit does not show it."""
    return frame.low.notna().astype(int) - frame.high.notna().astype(int)


def _sentence(key: tuple[Any, ...], old: Any, new: Any) -> str:
    """Format a change: `FABRIC: busbw on cluster: 371 GB/s -> 41.2 GB/s (-88.9 %)`."""
    criterion, probe, measure, subject, _ = key
    if measure == VERDICT and not probe:  # the row of a criterion
        if new.kind == MISSING:
            return f"{criterion}: the criterion is no longer measured"
        was = old.value_text if isinstance(old.value_text, str) else Verdict.UNPROVEN.value
        reason = f": {new.note}" if new.kind == NEW_FAILURES else ""
        return f"{criterion}: was {was}, is {new.value_text}{reason}"
    what = f"{criterion}: {title_of(measure)} on {subject}"
    if new.kind == MISSING:
        return f"{what}, was {old.value_text}"
    text = f"{what}: {old.value_text} -> {new.value_text}"
    details = [percent_text(new.change)] if new.change == new.change else []
    if new.kind == UNCLEAR and details and new.noise != new.noise:
        details.append("noise unknown")
    return f"{text} ({'; '.join(details)})" if details else text


def measure_labels(table: DataFrame) -> list[str]:
    """Return what a person calls each row: measure, subject, and the probe where it is ambiguous.

    The subject is left out if it is the cluster.
    """
    ambiguous = table[["criterion", "measure", "subject"]].duplicated(keep=False)
    rows = zip(table.measure, table.subject, table.probe, ambiguous, strict=True)
    return [
        title_of(measure)
        + (f" on {subject}" if subject not in ("", "cluster") else "")
        + (f" ({probe_words(probe)})" if shared else "")
        for measure, subject, probe, shared in rows
    ]


def percent_text(change: float) -> str:
    """Format a change in percent, to a hundredth: `+3.02 %`."""
    return f"{'+' if change > 0 else ''}{number(round(change, 2))} %"


def _notes(summaries: Sequence[AcceptanceSummary], names: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why runs may not be comparable with the first one."""
    first = summaries[0].record
    for summary, name in zip(summaries, names, strict=True):
        record = summary.record
        for key, of in DIFFERENCES.items():
            if of(record) != of(first):
                yield f"{name} has a different {key} than {names[0]}: {of(record)}, not {of(first)}"
        if bool(record.rehearsal) != bool(first.rehearsal):
            kinds = {True: "a rehearsal", False: "not a rehearsal"}
            is_one = bool(record.rehearsal)
            yield f"{name} is {kinds[is_one]}, {names[0]} is {kinds[not is_one]}"
        if record.state != "finished":
            yield f"{name} did not finish (state: {record.state})"
        if record.partial:
            yield f"{name} is PARTIAL: {record.partial}"
        yield from (f"{name}: {sentence}" for sentence in summary.integrity.sentences)


def _suite(record: RunRecord) -> str:
    keys = ("seatrial", "seatrial_commit", "seatrial_sources")
    return " ".join(str(record.versions.get(key, ""))[:12] for key in keys).strip() or "unknown"


def _contract(record: RunRecord) -> str:
    return f"{record.contract.name} @ {record.contract.sha256[:12] or 'no hash'}"


DIFFERENCES = {
    "cluster": lambda record: record.cluster_name,
    "number of nodes": lambda record: len(record.node_names),
    "tier": lambda record: record.tier,
    "contract": _contract,
    "version of the suite": _suite,
}


ID_COLUMNS, LEAST_LABEL = 7, 14  # of the criterion, and of the measure with its subject
LEAST_VALUE, CHANGE_COLUMNS = 9, 13  # `41.2 GB/s`, and `-88.9 % worse`
MOST_VALUE = 14  # columns: a longer value is mostly a word
MAX_ROWS = 40  # of a kind in a terminal; CSV and JSON have all
# Of a change; a change of the verdict shows the new verdict.
SIGNS = {WORSE: "worse", MISSING: "missing", UNCLEAR: "?", BETTER: "better", NEW: "new", SAME: "="}
SPREAD = re.compile(r" \+/- \S+| \(n=\d+\)$")
CSV_COLUMNS = ["value", "value_text", "verdict"]


def run_letters(count: int) -> list[str]:
    """Return short names of the compared runs: A, B, ... and R27 after Z."""
    return [chr(ord("A") + i) if i < 26 else f"R{i + 1}" for i in range(count)]


def comparison_lines(
    comparison: Comparison, fmt: TextFormatter, *, every: bool = False
) -> Iterator[str]:
    """Yield the lines of a comparison: the runs, notes, and a table, the most serious rows first.

    The table has the first run and as many others as fit the width. More runs get more tables.
    Many measures that only one run has are only counted, unless `every` row is asked for.
    """
    letters = run_letters(len(comparison.summaries))
    for letter, summary in zip(letters, comparison.summaries, strict=True):
        record = summary.record
        about = f"{record.cluster_name}, tier {record.tier}, {record.contract.name}"
        yield from fmt.wrap(f"{record.id} ({about}): {summary.headline}", f"{letter:3} ", " " * 4)
    for note in comparison.notes:
        yield from fmt.wrap(note, "note: ")
    yield from fmt.wrap(NOISE_RULE, "")
    room = fmt.width - ID_COLUMNS - LEAST_LABEL - LEAST_VALUE - 2
    at_once = max(1, room // (LEAST_VALUE + CHANGE_COLUMNS + 2))
    for start in range(1, len(letters), at_once):
        yield ""
        runs = range(start, min(start + at_once, len(letters)))
        yield from _table_lines(comparison, runs, fmt, every=every)


def _table_lines(
    comparison: Comparison, runs: range, fmt: TextFormatter, *, every: bool
) -> Iterator[str]:
    """Yield one table: the first run and `runs`; rows that are the same are only counted."""
    letters = run_letters(len(comparison.summaries))
    names = [name for run in runs for name in (letters[run], f"{letters[run]} against A")]
    columns = _column_widths(len(runs), fmt.width)
    by_kind: dict[str, list[list[str]]] = {kind: [] for kind in (*KINDS, SAME)}
    tables = [comparison.tables[0], *(comparison.tables[run] for run in runs)]
    labels = measure_labels(tables[0].index.to_frame(index=False))
    criteria = tables[0].index.get_level_values("criterion")
    for criterion, label, *found in zip(criteria, labels, *map(table_rows, tables), strict=True):
        kinds = [row.kind for row in found[1:]]
        worst = next((kind for kind in KINDS if kind in kinds), SAME)
        changes = [cell for row in found[1:] for cell in (_value(row), _change(row))]
        by_kind[worst].append([criterion, label, _value(found[0]), *changes])
    yield table_line(["", "", "A", *names], columns, fmt)
    for kind in KINDS:
        if rows := by_kind[kind]:
            if kind in ONE_SIDED and len(rows) > MAX_ONE_SIDED and not every:
                yield f"{kind} ({len(rows)}): --all shows them"
                continue
            yield f"{kind} ({len(rows)})"
            yield from (table_line(cells, columns, fmt) for cells in rows[:MAX_ROWS])
            if len(rows) > MAX_ROWS:
                yield f"  and {len(rows) - MAX_ROWS} more: --csv and --json list all"
    yield f"{len(by_kind[SAME])} of {len(tables[0])} rows are the same or differ within noise"


def _column_widths(runs: int, width: int) -> list[int]:
    """Divide the width; a third of what is spare goes to the values, the rest to the measures."""
    fixed = ID_COLUMNS + 2 + runs * (CHANGE_COLUMNS + 2)
    spare = max(0, width - fixed - LEAST_LABEL - (runs + 1) * LEAST_VALUE)
    value = min(MOST_VALUE, LEAST_VALUE + spare // (3 * (runs + 1)))
    label = max(1, width - fixed - (runs + 1) * value)
    return [ID_COLUMNS, label, value, *[value, CHANGE_COLUMNS] * runs]


def _value(row: Any) -> str:
    """Return the value, a number without its spread; "-" if the run does not have the measure."""
    if not isinstance(row.value_text, str):
        return "-"
    return SPREAD.sub("", row.value_text) if row.value == row.value else row.value_text


def _change(row: Any) -> str:
    """Return `-88.9 % worse`, or `-88.9 % FAIL` if the verdict changed."""
    if not row.kind and not isinstance(row.value_text, str):
        return ""
    change = percent_text(row.change) if row.change == row.change and row.kind != SAME else ""
    return f"{change} {SIGNS.get(row.kind, row.verdict)}".strip()


def table_line(cells: Sequence[object], columns: Sequence[int], fmt: TextFormatter) -> str:
    """Write cells in columns; one that is too long loses its end, the second one its middle."""
    first, second, *others = cells
    shown = [first, cut_middle(fmt.plain(second), columns[1]), *others]
    return " ".join(fmt.fit(cell, n) for cell, n in zip(shown, columns, strict=True)).rstrip()


def cut_middle(text: str, columns: int) -> str:
    """Cut a measure with its subject in the middle: the end shows which node or pair it is."""
    end = (columns - 3) // 2
    if len(text) <= columns or end < 1:
        return text
    return f"{text[: columns - 3 - end]}...{text[-end:]}"


def comparison_csv(comparison: Comparison) -> str:
    """Write one row per measure; each run has columns that begin with its letter and id."""
    wide = comparison.tables[0].index.to_frame(index=False)
    units = [table.unit for table in comparison.tables]
    known = [[one for one in row if isinstance(one, str)] for row in zip(*units, strict=True)]
    wide["unit"] = [row[0] if row else "" for row in known]
    letters = run_letters(len(comparison.tables))
    for index, (letter, table) in enumerate(zip(letters, comparison.tables, strict=True)):
        about = f"{letter} {comparison.summaries[index].record.id}"
        for name in CSV_COLUMNS:
            wide[f"{about} {name}"] = table[name].array
        for name in ("change", "noise", "kind") if index else ():
            title = {"change": "change in percent"}.get(name, name)
            wide[f"{about} {title}"] = table[name].array
    return csv_text(wide)


def comparison_json(comparison: Comparison) -> str:
    """Write the runs, the notes, and one object per measure with an entry for each run."""
    letters = run_letters(len(comparison.tables))
    runs = []
    for letter, summary in zip(letters, comparison.summaries, strict=True):
        record = summary.record
        about = {"id": record.id, "cluster": record.cluster_name, "started": record.started}
        about |= {"tier": record.tier, "contract": record.contract.name}
        shown = {key: one_line(text) for key, text in about.items()}
        decision = {"decision": summary.word, "exit_code": summary.exit_code}
        runs.append({"name": letter, **shown, **decision})
    columns = ["value", "value_text", "unit", "n", "spread", "verdict", "change", "noise", "kind"]
    keys = json_rows(comparison.tables[0].index.to_frame(index=False)[KEY])
    found = [json_rows(table[columns]) for table in comparison.tables]
    measures = [
        {**key, "runs": dict(zip(letters, entries, strict=True))}
        for key, *entries in zip(keys, *found, strict=True)
    ]
    notes = [one_line(note) for note in comparison.notes]
    found_all = {"runs": runs, "notes": notes, "noise": NOISE_RULE, "measures": measures}
    return json.dumps(found_all, indent=1)
