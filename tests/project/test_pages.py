"""The generated pages are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.findings.catalogue import CATALOGUE
from tests.project.pages import FINDINGS, GROUPS, PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_what_the_code_gives(page: Path) -> None:
    assert page.read_text() == PAGES[page](), "run `make docs`"


def test_every_code_has_its_place_once() -> None:
    codes = [code for entries in GROUPS.values() for code in entries]
    assert sorted(codes) == sorted(CATALOGUE)
    assert all(FINDINGS.read_text().count(f"### {code}\n") == 1 for code in CATALOGUE)
