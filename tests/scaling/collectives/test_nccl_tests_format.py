"""nccl-tests' sizes and document."""

from __future__ import annotations

import pytest

from scaling.collectives.line_rate import format_table, parse_size, results_document
from scaling.collectives.sweep import summarise
from tests.scaling.collectives.test_sweep import ALL_REDUCE, sweep


def test_the_document_has_the_keys_of_nccl_tests_and_no_environment() -> None:
    found = results_document(summarise([sweep(0, [1e-3]), sweep(1, [1e-3])]), ALL_REDUCE, 2)
    (result,) = found["results"]
    assert list(result)[:5] == ["size", "count", "type", "redop", "root"]
    assert result["in_place"]["time"] == pytest.approx(1000, rel=1e-9)
    assert result["in_place"]["rank_times"] == pytest.approx([1000, 1000], rel=1e-9)
    assert {"alg_bw", "bus_bw", "nwrong"} <= set(result["in_place"])
    assert result["out_of_place"] is None  # torch has no such all-reduce
    assert "env" not in found


def test_the_table_has_a_line_for_each_size_and_says_what_was_wrong() -> None:
    rows = summarise([sweep(0, [1e-3]), sweep(1, [1e-3])])
    table = format_table(rows, ALL_REDUCE)
    (line,) = [line for line in table.splitlines() if not line.startswith("#")]
    size, count, kind, redop, root, *numbers = line.split()
    assert (int(size), int(count)) == (rows[0]["size"], rows[0]["count"])
    assert (kind, redop, root) == ("float", "sum", "-1")
    assert numbers[:4] == ["N/A"] * 4
    assert float(numbers[4]) == 1000.0
    assert table.endswith("# Out of bounds values : 0 OK\n")


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("4K", 4096), ("64m", 64 << 20), ("1G", 1 << 30)]
)
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "8X", "-"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_size(text)
