"""The generated pages are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.check.registry import CRITERIA
from probes.contract.derived_limits import DERIVED_EFFICIENCY
from probes.contract.limits import MIN_SHARE, OF_REACHED
from probes.findings import CATALOGUE, read_groups
from probes.restart.other_ranks import MARGIN
from reports.numbers import percent
from tests.project.measures_page import read_self_tests
from tests.project.pages import FINDINGS, PAGES
from tests.support.seen import is_live, read_sights

LEAST_FAULTS = 60  # HOSTS has about 30 measures, most of them with two ways to fail


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_what_the_code_gives(page: Path) -> None:
    assert page.read_text() == PAGES[page](), "run `make docs`"


def test_hosts_has_been_seen_failing_often() -> None:
    sights = read_sights()
    faults = [t for t, one in sights.items() if any(n.startswith("HOSTS.") for n in one.red)]
    assert len(faults) >= LEAST_FAULTS
    assert 0 < sum(map(is_live, faults)) < len(faults)


def test_every_code_has_its_place_once() -> None:
    codes = [code for group in read_groups().values() for code in group.entries]
    assert codes == [*CATALOGUE]
    assert all(FINDINGS.read_text().count(f"### {code}\n") == 1 for code in CATALOGUE)


def test_each_self_test_has_its_line() -> None:
    lines = read_self_tests()
    assert {id: [*told] for id, told in lines.items()} == {
        id: [*row.controls] for id, row in CRITERIA.items()
    }


def test_what_holds_without_a_limit_is_what_the_code_derives() -> None:
    def without(id: str, name: str) -> str:
        return CRITERIA[id].measures[name].without_limit

    assert without("FABRIC", "busbw").startswith(f"{percent(MIN_SHARE)} of the line rate")
    assert percent(MIN_SHARE) in CRITERIA["FABRIC"].how
    assert without("SCALING", "mfu").startswith(f"{percent(OF_REACHED[0])} of the MFU")
    assert DERIVED_EFFICIENCY.low is not None
    assert without("SCALING", "efficiency").endswith(percent(DERIVED_EFFICIENCY.low))
    assert CRITERIA["RESTART"].measures["drift"].from_run.startswith(f"{MARGIN} times")
