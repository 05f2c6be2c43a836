"""The measurements of a run as a pandas frame, and frames as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from reports.measurement import Measurement, Verdict
from reports.numbers import finite_number
from reports.sanitize import csv_cell, one_line

if TYPE_CHECKING:
    from pandas import DataFrame

TIME = "datetime64[ms, UTC]"
VERDICT = "verdict"  # ordered categories, from PASS to FAIL
# Column -> dtype. Text is "" where there is none; a number is NaN, or <NA> in `n`.
COLUMNS = {
    **dict.fromkeys(["run", "cluster"], "str"),
    "started": TIME,
    **dict.fromkeys(["criterion", "probe", "measure", "subject"], "str"),
    "value": "float64",
    **dict.fromkeys(["value_text", "unit"], "str"),
    "n": "Int64",
    **dict.fromkeys(["spread", "low", "high"], "float64"),
    **dict.fromkeys(["one_of", "limit", "because"], "str"),
    **dict.fromkeys(["derived", "judged"], "bool"),
    "verdict": VERDICT,
    **dict.fromkeys(["note", "where"], "str"),
}
MAX_COUNT = 2**63 - 1  # what Int64 holds: a record from elsewhere may have any number
BOM = "\ufeff"  # Excel reads a CSV without it in the code page of its country


def measurement_frame(
    run: dict[str, Any], nodes: Sequence[str], rows: Iterable[tuple[str, str, Measurement]]
) -> DataFrame:
    """Build the frame of one run, a row per measurement, in the order they were made.

    `run` has the values of `run`, `cluster` and `started`. `nodes` are the names of the nodes.
    `rows` are (criterion, probe, measurement).

    `value`, `spread` (a half-width), `low` and `high` are in `unit`; a `ratio` is a share of 1.
    `value` is NaN if nothing was measured or a word was, which `value_text` has. `n` is the number
    of samples. `low` and `high` are the hard bounds, `limit` has the text of the report. `derived`
    is true if the limit was not agreed. `verdict` is missing if `judged` is false. `where` names
    the nodes that the subject names, with commas. `started` is in UTC, NaT if it is no time.
    """
    patterns = [rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in sorted(nodes, reverse=True)]
    named = re.compile("|".join(patterns))
    return typed_frame([{**run, **_row(*row, named)} for row in rows], COLUMNS)


def _row(criterion: str, probe: str, m: Measurement, nodes: re.Pattern[str]) -> dict[str, Any]:
    limit = m.limit
    as_they_are = ("subject", "value_text", "unit", "spread", "judged", "note")
    return {
        "criterion": criterion,
        "probe": probe,
        "measure": m.name,
        **{name: getattr(m, name) for name in as_they_are},
        "value": finite_number(m.value),
        "n": m.samples if m.samples is not None and abs(m.samples) <= MAX_COUNT else None,
        "low": limit and limit.low,
        "high": limit and limit.high,
        "one_of": ", ".join(limit.one_of or []) if limit else "",
        "limit": str(limit) if limit else "",
        "because": limit.because if limit else "",
        "derived": bool(limit and limit.derived),
        "verdict": m.verdict.value if m.verdict else None,
        "where": ", ".join(filter(None, dict.fromkeys(nodes.findall(m.subject)))),
    }


def typed_frame(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> DataFrame:
    """Build a frame with exactly these columns and dtypes, also without any row.

    The dtype `str` is pandas' own for text, whose values are never missing.
    """
    import pandas as pd

    def column(name: str, dtype: str) -> Any:
        values = [row.get(name) for row in rows]
        if dtype == TIME:
            texts = pd.Series(values, dtype=object)
            return pd.to_datetime(texts, utc=True, errors="coerce", format="ISO8601").astype(TIME)
        if dtype == VERDICT:
            return pd.Categorical(values, [verdict.value for verdict in Verdict], ordered=True)
        if dtype == "str":  # a lone surrogate, which JSON can hold, is no text
            values = [str(v or "").encode("utf-8", "replace").decode() for v in values]
        return pd.Series(values, dtype=dtype)

    return pd.DataFrame({name: column(name, dtype) for name, dtype in columns.items()})


def csv_text(frame: DataFrame) -> str:
    """Write a frame as CSV that a spreadsheet opens as it is: UTF-8 with BOM, numbers as numbers.

    Text is cleaned, and no cell or header is read as a formula. A missing value is an empty cell.
    """
    shown = frame.copy()
    for name in shown.columns:
        column = shown[name]
        if str(column.dtype) == TIME:
            shown[name] = column.dt.strftime("%Y-%m-%dT%H:%M:%S.%f").str[:-3] + "Z"
        elif column.dtype.kind == "O" and str(column.dtype) != "category":
            cells = {text: csv_cell(text) for text in column.dropna().unique()}  # texts repeat
            shown[name] = column.map(cells)
    shown.columns = [csv_cell(name) for name in shown.columns]
    return BOM + shown.to_csv(index=False, lineterminator="\n")


def json_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as JSON objects: cleaned text, null for what is missing."""
    import pandas as pd

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return one_line(value)
        if isinstance(value, pd.Timestamp):
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return None if pd.isna(value) else value

    columns = {name: [plain(v) for v in frame[name].tolist()] for name in frame.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
