"""Writes the history of runs as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reports.frames.compare import measure_labels, percent_text
from reports.frames.compare_text import table_line
from reports.frames.history import (
    DRIFTS,
    LEAST_EARLIER,
    TOO_FEW,
    TREND_KEY,
    History,
    verdict_column,
)
from reports.measurement import Verdict
from reports.numbers import quantity
from reports.text import STYLES, TextFormatter

STARTED, TIER, DECISION, LEAST_RUN = 16, 8, 16, 10  # columns; the run has what is left
TRENDS = ["runs", "first", "median", "last", "per run", "drift"]
TREND_WIDTHS = [7, 0, 4, 10, 10, 10, 8, 7]  # of criterion, measure (what is left), and TRENDS
MAX_CRITERIA = 8  # columns of verdicts: a run has 6, and a few outside its contract
MAX_TRENDS = 60  # of a cluster in a terminal; the CSV has all


def history_lines(history: History, fmt: TextFormatter) -> Iterator[str]:
    """Yield a line per run, oldest first, and then a line per measure, drifts first."""
    yield from _run_lines(history, fmt)
    trends = history.trends
    for (cluster, rehearsal), table in trends.groupby(TREND_KEY[:2], sort=False):
        drifted = int(table.drift.isin(DRIFTS).sum())
        yield ""
        yield from fmt.wrap(
            f"{cluster}{' (rehearsal)' if rehearsal else ''}: {drifted} of {len(table)} measures "
            f"drifted. A trend needs {LEAST_EARLIER + 1} runs.",
            "",
        )
        yield from _trend_lines(table, fmt)
    if not len(trends):
        yield "no run has a number: there is no trend"


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
        started = (
            row["started"].strftime("%Y-%m-%d %H:%M") if row["started"] == row["started"] else "-"
        )
        cells = [started, row["run"], row["tier"], row["decision"] or "not read"]
        yield table_line(
            [*cells, *(signs.get(row[verdict_column(name)], "") for name in criteria)], widths, fmt
        )
        if row["note"]:
            yield from fmt.wrap(
                row["note"] if row["counted"] else f"not counted: {row['note']}", "    "
            )


def _trend_lines(table: Any, fmt: TextFormatter) -> Iterator[str]:
    spare = fmt.width - sum(TREND_WIDTHS) - len(TREND_WIDTHS) + 1
    widths = [TREND_WIDTHS[0], max(1, spare), *TREND_WIDTHS[2:]]
    yield table_line(["", "", *TRENDS], widths, fmt)
    shown = table.head(MAX_TRENDS)
    labels = measure_labels(table)[:MAX_TRENDS]
    for label, row in zip(labels, shown.itertuples(index=False), strict=True):
        values = [quantity(value, row.unit) for value in (row.first, row.median, row.last)]
        share = row.change_per_run / abs(row.median) if row.median else float("nan")
        change = percent_text(100 * share) if share == share else "-"
        drift = row.drift if row.drift != TOO_FEW else "-"
        yield table_line([row.criterion, label, row.runs, *values, change, drift], widths, fmt)
    if len(table) > MAX_TRENDS:
        yield f"and {len(table) - MAX_TRENDS} more: --csv trends has all"
