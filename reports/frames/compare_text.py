"""Writes compared runs as text for a terminal, as CSV, and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from reports.frames.compare import (
    BETTER,
    KEY,
    KINDS,
    MISSING,
    NEW,
    NOISE_RULE,
    SAME,
    UNCLEAR,
    WORSE,
    Comparison,
    measure_labels,
    percent_text,
    table_rows,
)
from reports.frames.measurements import csv_text, json_rows
from reports.sanitize import one_line
from reports.text import TextFormatter

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


def comparison_lines(comparison: Comparison, fmt: TextFormatter) -> Iterator[str]:
    """Yield the lines of a comparison: the runs, notes, and a table, the most serious rows first.

    The table has the first run and as many others as fit the width. More runs get more tables.
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
        yield from _table_lines(comparison, range(start, min(start + at_once, len(letters))), fmt)


def _table_lines(comparison: Comparison, runs: range, fmt: TextFormatter) -> Iterator[str]:
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
            yield f"{kind} ({len(rows)})"
            yield from (table_line(cells, columns, fmt) for cells in rows[:MAX_ROWS])
            if len(rows) > MAX_ROWS:
                yield f"  and {len(rows) - MAX_ROWS} more: --csv and --json have all"
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
    wide["unit"] = [next(filter(_is_text, row), "") for row in zip(*units, strict=True)]
    letters = run_letters(len(comparison.tables))
    for number, (letter, table) in enumerate(zip(letters, comparison.tables, strict=True)):
        about = f"{letter} {comparison.summaries[number].record.id}"
        for name in CSV_COLUMNS:
            wide[f"{about} {name}"] = table[name].array
        for name in ("change", "noise", "kind") if number else ():
            title = {"change": "change in percent"}.get(name, name)
            wide[f"{about} {title}"] = table[name].array
    return csv_text(wide)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def comparison_json(comparison: Comparison) -> str:
    """Write the runs, the notes, and one object per measure with an entry for each run."""
    letters = run_letters(len(comparison.tables))
    runs = [
        {
            "name": letter,
            "id": one_line(summary.record.id),
            "cluster": one_line(summary.record.cluster_name),
            "started": one_line(summary.record.started),
            "tier": one_line(summary.record.tier),
            "contract": one_line(summary.record.contract.name),
            "decision": summary.word,
            "exit_code": summary.exit_code,
        }
        for letter, summary in zip(letters, comparison.summaries, strict=True)
    ]
    columns = ["value", "value_text", "unit", "n", "spread", "verdict", "change", "noise", "kind"]
    keys = json_rows(comparison.tables[0].index.to_frame(index=False)[KEY])
    found = [json_rows(table[columns]) for table in comparison.tables]
    measures = [
        {**key, "runs": dict(zip(letters, entries, strict=True))}
        for key, *entries in zip(keys, *found, strict=True)
    ]
    notes = [one_line(note) for note in comparison.notes]
    return json.dumps(
        {"runs": runs, "notes": notes, "noise": NOISE_RULE, "measures": measures}, indent=1
    )
