"""The frame of a run, and its CSV: read again by pandas and by Python's csv."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reports.acceptance import load_summary
from reports.frames.measurements import BOM, COLUMNS, csv_text, json_rows, typed_frame
from reports.measurement import Limit, Measurement
from reports.record import RunRecord
from reports.sanitize import csv_cell
from tests.recordings.load import replaced
from tests.support.paths import RECORDINGS

RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))
every_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
LIMIT = Limit(low=340.0, unit="GB/s", because="85 % of 400 GB/s", source="derived")


def record_of(*measures: Measurement) -> RunRecord:
    """A run of which FABRIC measured just these, on 8 nodes atlas01 to atlas08."""
    record = load_summary(RECORDINGS / "healthy-atlas").record
    others = [result for result in record.results if result.criterion == "FABRIC"]
    return replaced(
        record.model_copy(update={"results": others}), "FABRIC", measurements=[*measures]
    )


def row_of(**facts: Any) -> dict[str, Any]:
    """The only row of a run with one measurement."""
    (row,) = record_of(Measurement(**facts)).frame().to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_every_column_of_a_measurement() -> None:
    row = row_of(
        name="busbw", value=376, unit="GB/s", subject="atlas01 - atlas02", limit=LIMIT,
        spread=4.1, samples=20, note="as seen",
    )  # fmt: skip
    assert row == {
        "run": "2026-11-20T221703Z-atlas",
        "cluster": "atlas",
        "started": pd.Timestamp("2026-11-20T22:17:03.120Z"),
        "criterion": "FABRIC",
        "probe": "probes/fabric/test_fabric.py::test_allreduce_runs_at_line_rate",
        "measure": "busbw",
        "subject": "atlas01 - atlas02",
        "value": 376.0,
        "value_text": "376 +/- 4.1 GB/s (n=20)",
        "unit": "GB/s",
        "n": 20,
        "spread": 4.1,
        "low": 340.0,
        "high": row["high"],
        "one_of": "",
        "limit": ">= 340 GB/s",
        "because": "85 % of 400 GB/s",
        "derived": True,
        "judged": True,
        "verdict": "PASS",
        "note": "as seen",
        "where": "atlas01, atlas02",
    }
    assert math.isnan(row["high"])


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        (None, None, "not measured"),
        (math.nan, None, "not measured (the value was nan)"),
        (math.inf, None, "not measured (the value was inf)"),
        ("rdma", None, "rdma"),
        (True, None, "True"),
        (0, 0.0, "0"),
        (10**300, 1e300, "1" + "0" * 300),
        (10**400, None, "1" + "0" * 400),
        (-1.5, -1.5, "-1.5"),
    ],
)
def test_a_value_is_a_number_or_missing(value: Any, number: float | None, text: str) -> None:
    row = row_of(name="x", value=value)
    assert row["value"] == number if number is not None else math.isnan(row["value"])
    assert row["value_text"] == text


def test_the_verdict_is_ordered_and_missing_where_nothing_is_judged() -> None:
    frame = record_of(
        Measurement(name="good", value=400.0, limit=LIMIT),
        Measurement(name="bad", value=1.0, limit=LIMIT),
        Measurement(name="unknown", limit=LIMIT),
        Measurement(name="noted", value=1.0, judged=False),
    ).frame()
    assert list(frame[frame.verdict > "MARGINAL"].measure) == ["bad", "unknown"]
    assert frame.verdict.isna().tolist() == [False, False, False, True]
    assert frame.verdict.max() == "FAIL"


@pytest.mark.parametrize(
    ("subject", "nodes"),
    [
        ("cluster", ""),
        ("rank 3 (atlas02) in optimizer", "atlas02"),
        ("atlas02 -> atlas01", "atlas02, atlas01"),
        ("atlas011 and atlas01.example.org", "atlas01"),
        ("batlas01, atlas01-b, atlas01", "atlas01"),
    ],
)
def test_where_names_the_nodes_of_the_subject(subject: str, nodes: str) -> None:
    assert row_of(name="x", subject=subject)["where"] == nodes


@every_run
def test_every_frame_has_the_documented_dtypes(run: Path) -> None:
    record = load_summary(run).record
    frame = record.frame()
    assert len(frame) == sum(len(result.measurements) for result in record.results)
    empty = typed_frame([], COLUMNS)
    assert frame.dtypes.equals(empty.dtypes) or not len(frame)
    kinds = {name: str(frame[name].dtype) for name in frame}
    assert [kinds[name] for name in ("value", "spread", "low", "high")] == ["float64"] * 4
    assert [kinds[name] for name in ("n", "derived", "judged", "started", "verdict")] == [
        *("Int64", "bool", "bool", "datetime64[ms, UTC]", "category"),
    ]
    assert not frame[[name for name, dtype in COLUMNS.items() if dtype == "str"]].isna().any().any()


def read_by_csv(text: str) -> list[dict[str, str]]:
    """Read as Excel does: the mark at the start is no part of the first header."""
    return list(csv.DictReader(io.StringIO(text.removeprefix(BOM))))


@every_run
def test_csv_has_every_measurement_for_pandas_and_csv(run: Path) -> None:
    frame = load_summary(run).record.frame()
    text = csv_text(frame)
    assert text.encode().startswith(b"\xef\xbb\xbfrun,cluster,started,")
    rows = read_by_csv(text)
    assert len(rows) == len(frame)
    assert all(row.keys() == COLUMNS.keys() for row in rows)
    again = pd.read_csv(io.BytesIO(text.encode()), parse_dates=["started"], encoding="utf-8-sig")
    for name in ("value", "spread", "low", "high"):
        assert again[name].astype(float).equals(frame[name]), "a number is a number"
    assert list(again.n.dropna()) == list(frame.n.dropna())
    if len(frame):
        assert list(again.started) == list(frame.started)
        assert [row["because"] for row in rows] == [csv_cell(text) for text in frame.because]


def test_text_that_looks_like_a_formula_is_inert_and_a_negative_number_stays_one() -> None:
    record = record_of(
        Measurement(name="=1+1", value=-5.0, unit="@x", subject="+a", note="-b", judged=False),
        Measurement(name="x", value="=cmd|'/C calc'!A0", judged=False),
    )
    first, second = read_by_csv(csv_text(record.frame()))
    assert float(first["value"]) == -5
    assert [first[name] for name in ("measure", "subject", "note", "unit", "value_text")] == [
        *("'=1+1", "'+a", "'-b", "'@x", "'-5 @x"),
    ]
    assert second["value_text"].startswith("'=")


def test_the_hostile_recording_has_no_formula_in_any_cell() -> None:
    text = csv_text(load_summary(RECORDINGS / "hostile").record.frame())
    cells = [cell for row in csv.reader(io.StringIO(text.removeprefix(BOM))) for cell in row]
    assert any(cell.startswith("'=") for cell in cells), "the recording is hostile"
    signs = ("=", "+", "-", "@", "\t", "\r")
    assert not [cell for cell in cells if cell.startswith(signs) and not is_number(cell)]


def is_number(cell: str) -> bool:
    """Whether a cell is a number alone."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_a_header_from_outside_is_inert_too() -> None:
    frame = typed_frame([], {"=1+1": "str"})
    assert csv_text(frame) == f"{BOM}'=1+1\n"


def test_lone_surrogates_huge_counts_and_no_time_are_no_reason_to_fail() -> None:
    odd = Measurement(name="\ud800", value="\udfff", samples=10**30, judged=False)
    record = record_of(odd).model_copy(update={"started": "soon", "cluster": {"nodes": "none"}})
    row = record.frame().iloc[0]
    assert (row.measure, row.cluster) == ("?", "unknown")
    assert row[["n", "started"]].isna().all()
    (shown,) = read_by_csv(csv_text(record.frame()))
    assert (shown["n"], shown["started"]) == ("", "")


def test_json_has_null_for_what_is_missing() -> None:
    (row,) = json_rows(record_of(Measurement(name="a\nb", judged=False)).frame())
    assert (row["measure"], row["value"], row["n"], row["verdict"]) == ("a b", None, None, None)
    assert row["started"] == "2026-11-20T22:17:03.120Z"
