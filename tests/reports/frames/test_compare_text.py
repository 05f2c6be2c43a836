"""The compared runs as text, CSV and JSON: read again by pandas, csv and json."""

from __future__ import annotations

import csv
import io
import json

import pandas as pd
import pytest

from reports.acceptance import AcceptanceSummary, load_summary, summarize_acceptance
from reports.frames.compare import (
    MAX_ROWS,
    Comparison,
    compare_runs,
    comparison_csv,
    comparison_json,
    comparison_lines,
    cut_middle,
    run_letters,
    table_line,
    table_rows,
)
from reports.frames.measurements import BOM
from reports.measurement import Limit, Measurement
from reports.text import TextFormatter
from tests.recordings.load import replaced
from tests.support.paths import RECORDINGS


def compared(*names: str) -> Comparison:
    runs = [load_summary(RECORDINGS / name) for name in names]
    return compare_runs(runs, run_letters(len(runs)))


def lines_of(comparison: Comparison, width: int = 80) -> list[str]:
    return list(comparison_lines(comparison, TextFormatter(width)))


def test_two_runs_are_one_table_with_changed_verdicts_first() -> None:
    lines = lines_of(compared("healthy-atlas", "tcp-fallback"))
    titles = ["New failures (9)", "No longer measured (4)", "Newly measured (6)"]
    assert [line for line in lines if line in titles] == titles
    (row,) = [line for line in lines if "busbw" in line]
    assert row.split() == ["FABRIC", "busbw", "376", "GB/s", "41.2", "GB/s", "-89.0", "%", "FAIL"]
    assert lines[lines.index(titles[0]) + 1].split() == [
        "FABRIC",
        "verdict",
        "PASS",
        "FAIL",
        "FAIL",
    ]
    assert lines[-1] == "21 of 40 rows are the same or differ within noise"


HEAD = "                                       A             B             B against A"
WIDE_HEAD = f"{'':58}A              B              B against A"
LETTERS = "A   ", "B   ", "note"


@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (
            80,
            [
                HEAD,
                "FABRIC  busbw                          376 GB/s      41.2 GB/s     -89.0 % FAIL",
                "FABRIC  slowest pair o...s01 - atlas07 -             1.27 %        FAIL",
                "RESTART recovery time                  11.6 s        -             missing",
                "FABRIC  slowest pair o...s01 - atlas02 -             99.7 %        new",
            ],
        ),
        (
            101,
            [
                WIDE_HEAD,
                f"{'FABRIC  busbw':58}376 GB/s       41.2 GB/s      -89.0 % FAIL",
                f"{'FABRIC  slowest pair on atlas01 - atlas07':58}{'-':15}1.27 %         FAIL",
            ],
        ),
        (
            60,
            [
                "                           A         B         B against A",
                "FABRIC  busbw              376 GB/s  41.2 GB/s -89.0 % FAIL",
                "FABRIC  slowest ...atlas07 -         1.27 %    FAIL",
                "RESTART unequal steps      0 steps   not me... UNPROVEN",
            ],
        ),
    ],
)
def test_columns_share_the_width(width: int, rows: list[str]) -> None:
    lines = lines_of(compared("healthy-atlas", "tcp-fallback"), width)
    assert [row for row in rows if row not in lines] == []
    runs, rest = lines[: lines.index("")], lines[lines.index("") :]
    assert rest[1] == rows[0]
    assert all(line.startswith((*LETTERS, "    ", "noise", "has")) for line in runs[:5])
    assert not any(line.startswith("     ") for line in runs)


@pytest.mark.parametrize(("width", "heads"), [(79, 2), (80, 1), (250, 1)])
def test_two_runs_are_beside_each_other_where_they_have_room(width: int, heads: int) -> None:
    lines = lines_of(compared("healthy-atlas", "tcp-fallback", "retried"), width)
    assert len([line for line in lines if line.split()[:1] == ["A"] and "against" in line]) == heads


@pytest.mark.parametrize(("runs", "tables"), [(2, 1), (3, 1), (4, 2), (8, 4)])
def test_every_width_is_kept_and_every_run_is_shown(runs: int, tables: int) -> None:
    names = ["healthy-lab", "hostile", "healthy-atlas", "tcp-fallback", "empty", "retried",
             "killed-run", "not-run"][:runs]  # fmt: skip
    comparison = compared(*names)
    lines = lines_of(comparison)
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if line.split()[:1] == ["A"] and "against" in line]
    assert len(heads) == tables
    shown = " ".join(heads)
    assert all(f"{letter} against A" in shown for letter in run_letters(runs)[1:])
    wide = lines_of(comparison, 250)
    assert len([line for line in wide if line.split()[:1] == ["A"] and "against" in line]) == 1


def test_what_makes_runs_not_comparable_is_named_before_the_table() -> None:
    lines = lines_of(compared("healthy-lab", "killed-run"), 200)
    before = lines[: lines.index("")]
    for words in (
        "note: B has a different cluster than A: atlas, not lab",
        "note: B did not finish (state: interrupted)",
    ):
        assert any(line.startswith(words) for line in before)


def test_many_measures_that_one_run_has_are_counted() -> None:
    """Runs of other sizes differ in as many as they have nodes."""
    record = load_summary(RECORDINGS / "healthy-atlas").record
    limit = Limit(low=1.0, because="agreed for this test")

    def run(nodes: int) -> AcceptanceSummary:
        each = [
            Measurement(name="rate", value=2, subject=f"n{i}", limit=limit) for i in range(nodes)
        ]
        return summarize_acceptance(replaced(record, "FABRIC", measurements=each))

    comparison = compare_runs([run(20), run(9)], ["A", "B"])
    lines = lines_of(comparison)
    assert "No longer measured (11): --all shows them" in lines
    assert not [line for line in lines if "rate on n15" in line]
    every = list(comparison_lines(comparison, TextFormatter(80), every=True))
    assert "No longer measured (11)" in every
    assert [line for line in every if "rate on n15" in line]


def test_a_run_that_lacks_a_measure_as_the_first_does_shows_no_change() -> None:
    lines = lines_of(compared("healthy-atlas", "healthy-atlas", "tcp-fallback"), 250)
    (row,) = [line for line in lines if "slowest pair on atlas01 - atlas07" in line]
    assert row.partition("atlas07")[2].split() == ["-", "-", "1.27", "%", "FAIL"]


def test_long_lists_are_cut_and_counted() -> None:
    record = load_summary(RECORDINGS / "healthy-atlas").record
    limit = Limit(low=1.0, because="agreed for this test")

    def run(value: float) -> AcceptanceSummary:
        many = [
            Measurement(name="rate", value=value, subject=f"n{i}", spread=0.1, limit=limit)
            for i in range(1000)
        ]
        return summarize_acceptance(replaced(record, "FABRIC", measurements=many))

    comparison = compare_runs([run(100.0), run(90.0)], ["A", "B"])
    lines = lines_of(comparison)
    assert "Worse beyond noise (1000)" in lines
    assert f"  and {1000 - MAX_ROWS} more: --csv and --json list all" in lines
    assert comparison_csv(comparison).count("Worse beyond noise") == 1000
    assert len(json.loads(comparison_json(comparison))["measures"]) > 1000


def test_csv_has_a_row_per_measure_and_columns_per_run() -> None:
    comparison = compared("healthy-atlas", "tcp-fallback", "hostile")
    text = comparison_csv(comparison)
    rows = list(csv.DictReader(io.StringIO(text.removeprefix(BOM))))
    assert len(rows) == len(comparison.tables[0])
    (busbw,) = [row for row in rows if row["measure"] == "busbw"]
    first, second = "A 2026-11-20T221703Z-atlas", "B 2026-11-21T081500Z-atlas"
    assert (float(busbw[f"{first} value"]), float(busbw[f"{second} value"])) == (376, 41.2)
    assert float(busbw[f"{second} change in percent"]) == pytest.approx(-89.04, abs=0.01)
    assert (busbw["unit"], busbw[f"{second} kind"]) == ("GB/s", "New failures")
    later = [row for row in rows if not row[f"{first} value"] and row[f"{second} value"]]
    assert {row["unit"] for row in later if "slowest" in row["measure"]} == {"ratio"}
    again = pd.read_csv(io.BytesIO(text.encode()), encoding="utf-8-sig")
    assert again[f"{first} value"].dtype == float
    cells = [*rows[0], *(cell for row in rows for cell in row.values())]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]


def test_json_has_an_entry_for_each_run() -> None:
    found = json.loads(comparison_json(compared("healthy-atlas", "tcp-fallback", "hostile")))
    assert [run["name"] for run in found["runs"]] == ["A", "B", "C"]
    assert [run["exit_code"] for run in found["runs"]] == [0, 1, 4]
    assert any("C has a different cluster" in note for note in found["notes"])
    (busbw,) = [one for one in found["measures"] if one["measure"] == "busbw"]
    assert busbw["runs"]["B"]["change"] == pytest.approx(-89.04, abs=0.01)
    assert busbw["runs"]["C"]["value_text"] is None
    assert "\x1b" not in json.dumps(found, ensure_ascii=False)


def test_a_measure_of_two_probes_has_the_name_of_each() -> None:
    record = load_summary(RECORDINGS / "healthy-atlas").record
    first = record.results_of("GANG")[0]
    second = first.model_copy(update={"probe": "probes/gang/test_gang.py::test_cancelled_jobs"})
    both = summarize_acceptance(record.model_copy(update={"results": [first, second]}))
    none = summarize_acceptance(record.model_copy(update={"results": []}))
    text = "\n".join(lines_of(compare_runs([both, none], ["A", "B"]), 160))
    assert "partially held (cancelled jobs)" in text
    assert "partially held (gangs hold all or nothing)" in text


def test_the_middle_of_a_long_name_is_cut() -> None:
    assert cut_middle("slowest pair on atlas01 - atlas07", 20) == "slowest p... atlas07"
    assert cut_middle("short", 20) == "short"
    assert cut_middle("longer", 4) == "longer"


def test_a_line_without_a_cell_for_each_column_is_refused() -> None:
    assert table_line(["a", "b"], [3, 3], TextFormatter(80)).split() == ["a", "b"]
    with pytest.raises(ValueError, match="longer"):
        table_line(["a", "b"], [3, 3, 3], TextFormatter(80))


def test_a_row_of_a_table_has_its_columns_and_not_its_key() -> None:
    (table, _) = compared("healthy-atlas", "tcp-fallback").tables
    assert [*next(table_rows(table))._fields] == [*table.columns]
