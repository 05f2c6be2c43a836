"""The generated pages are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.findings import CATALOGUE, read_groups
from tests.project.hosts_page import HOSTS_PAGE, hosts_faults
from tests.project.pages import FINDINGS, PAGES
from tests.support.seen import read_sights

LEAST_FAULTS = 60  # HOSTS has about 30 measures, most of them with two ways to fail


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_what_the_code_gives(page: Path) -> None:
    assert page.read_text() == PAGES[page](), "run `make docs`"


def test_hosts_has_been_seen_failing_often() -> None:
    faults, live = hosts_faults(read_sights())
    assert faults >= LEAST_FAULTS
    assert f"{faults} faults" in HOSTS_PAGE.read_text()
    assert 0 < live < faults


def test_every_code_has_its_place_once() -> None:
    codes = [code for group in read_groups().values() for code in group.entries]
    assert codes == [*CATALOGUE]
    assert all(FINDINGS.read_text().count(f"### {code}\n") == 1 for code in CATALOGUE)
