"""The table of proofs names tests that exist, and has every row."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import REPO

PROOF = (REPO / "docs" / "develop" / "proof.md").read_text()
ROWS = {
    cells[0].strip(): cells[1:]
    for cells in (line.strip("|").split("|") for line in PROOF.splitlines() if line[:2] == "| ")
    if cells[0].strip() != "row"
}
READINESS = (REPO / "docs" / "reference" / "gpu-readiness.md").read_text()
NAMES = sorted(set(re.findall(r"`([^`]+::[^`]+)`", PROOF + READINESS)))


def test_every_row_has_a_test_and_says_how_it_was_seen_failing() -> None:
    numbers = range(1, 35)
    assert list(ROWS) == [*"ABCD", *(f"P{n}" for n in numbers), *(f"F{n}" for n in range(1, 11))]
    for row, (wrong, kept_by, seen) in ROWS.items():
        assert all(text.strip() for text in (wrong, seen)), row
        assert "::test_" in kept_by, row


@pytest.mark.parametrize("name", NAMES)
def test_a_test_that_is_named_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^(async )?def {function}\(", (REPO / file).read_text(), re.M)
