"""nccl-tests' sizes and document."""

from __future__ import annotations

import pytest

from scaling.collectives.line_rate import parse_size, results_document
from scaling.collectives.sweep import summarise
from tests.scaling.collectives.test_sweep import ALL_REDUCE, sweep


def test_the_document_has_the_keys_of_nccl_tests_and_no_environment() -> None:
    found = results_document(summarise([sweep(0, [1e-3]), sweep(1, [1e-3])]), ALL_REDUCE, 2)
    (result,) = found["results"]
    assert list(result)[:5] == ["size", "count", "type", "redop", "root"]
    assert result["in_place"]["time"] == pytest.approx(1000)
    assert {"alg_bw", "bus_bw", "nwrong"} <= set(result["in_place"])
    assert result["out_of_place"] is None  # torch has no such all-reduce
    assert "env" not in found


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("4K", 4096), ("64m", 64 << 20), ("1G", 1 << 30)]
)
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "8X", "-"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_size(text)
