"""The row of a sweep that is judged, and where an element is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.collectives.line_rate import format_table, results_document
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.sweep import plateau_row, summarise


def test_the_plateau_is_judged_and_not_the_average() -> None:
    rows = summarise([sweep(0, [1e-3, 2e-3]), sweep(1, [1e-3, 4e-3])])
    assert plateau_row(rows)["size"] == 1 << 14
    assert plateau_row(rows)["seconds"] == pytest.approx(3e-3)
    assert plateau_row(rows)["samples"] == 6
    assert plateau_row(rows)["low"] < plateau_row(rows)["busbw"] < plateau_row(rows)["high"]
    assert plateau_row(rows)["rank_cv"] == pytest.approx(1 / 3)
    assert plateau_row(rows)["spread"] == pytest.approx(
        (plateau_row(rows)["high"] - plateau_row(rows)["low"]) / 2
    )
    assert len(format_table(rows, ALL_REDUCE).splitlines()) == 6


def test_each_rank_is_shown_with_its_longest_call() -> None:
    one = sweep(0, [1e-3])
    one["rows"][0]["times"] = [1e-3, 5e-3, 2e-3]
    assert summarise([one, sweep(1, [4e-3])])[0]["rank_worst"] == [5e-3, 4e-3]


def test_one_size_that_was_disturbed_does_not_decide_but_two_do() -> None:
    rows = [{"size": 1 << power, "busbw": 10.0} for power in range(3, 27)]
    rows[-1]["busbw"] = 5.0
    assert plateau_row(rows)["busbw"] == 10.0
    rows[-3]["busbw"] = 6.0
    assert plateau_row(rows)["busbw"] == 6.0
    assert plateau_row(rows[:1])["size"] == 8


def test_a_wrong_element_names_rank_and_offset() -> None:
    rows = summarise([sweep(0, [1e-3]), sweep(1, [1e-3], wrong=2)])
    assert rows[0]["wrong"] == 2
    assert rows[0]["first_wrong"] == [(1, 3)]
    assert results_document(rows, ALL_REDUCE, 2)["out_of_bounds"] == {"count": 2, "okay": False}
    assert format_table(rows, ALL_REDUCE).endswith("\n# Out of bounds values : 2 FAILED\n")
    sound = format_table(summarise([sweep(0, [1e-3])]), ALL_REDUCE)
    assert sound.endswith("\n# Out of bounds values : 0 OK\n")


ALL_REDUCE = OPERATIONS["all_reduce"]


def sweep(rank: int, seconds: list[float], wrong: int = 0) -> dict[str, Any]:
    rows = [
        {"size": 1 << (10 + 4 * at), "count": 1 << (8 + 4 * at), "elements": 9,
         "placement": "in_place", "times": [t, t, t], "calls": 5, "slowest": t, "wrong": 0,
         "first_wrong": None}
        for at, t in enumerate(seconds)
    ]  # fmt: skip
    rows[-1] |= {"wrong": wrong, "first_wrong": 3 if wrong else None}
    return {"rank": rank, "ranks": 2, "backend": "gloo", "operation": "all_reduce", "rows": rows}
