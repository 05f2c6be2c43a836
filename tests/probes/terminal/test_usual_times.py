"""Usual times are those of docs/develop/measurements.md, and are shown only of such runs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from probes.check.owed import RUN_S, usual_seconds
from probes.check.registry import CRITERIA, all_probes
from probes.session.terminal import estimate_probe, estimate_run
from reports.record import TIERS
from tests.support.paths import REPO

QUICK = [duty.criterion for duty in all_probes() if duty.tier == "quick"]


def test_the_times_are_those_of_the_page() -> None:
    text = (REPO / "docs" / "develop" / "measurements.md").read_text()
    table = text.partition("| usual seconds |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([A-Za-z ]+) \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    page = {name: tuple(map(int, seconds)) for name, *seconds in rows}
    run = page.pop("complete run")
    assert run == (RUN_S["quick"], RUN_S["standard"])
    timed = {id: row.usual_s for id, row in CRITERIA.items() if row.usual_s}
    assert page == {id: (one["quick"], one["standard"]) for id, one in timed.items()}
    assert all(one.keys() == RUN_S.keys() < {*TIERS} for one in timed.values())


def test_the_usual_time_of_a_part() -> None:
    assert usual_seconds("quick", ["GANG", "FABRIC"]) == 53
    assert usual_seconds("quick", [*CRITERIA]) == RUN_S["quick"]
    assert usual_seconds("quick", ["HOSTS"]) is None, "not timed alone"
    assert usual_seconds("soak", ["GANG"]) is None
    assert usual_seconds("soak", [*CRITERIA]) is None


def run_of(nodes: int = 4, rehearsal: str = "a lab", tier: str = "quick") -> Any:
    cluster = SimpleNamespace(rehearsal=rehearsal, nodes=[None] * nodes)
    return SimpleNamespace(cluster=cluster, tier=tier)


@pytest.mark.parametrize(
    ("run", "criteria", "seconds"),
    [
        (run_of(), QUICK, RUN_S["quick"]),
        (run_of(), ["FABRIC"], 26),
        (run_of(nodes=8), ["FABRIC"], None),
        (run_of(rehearsal=""), ["FABRIC"], None),
        (run_of(), ["GANG"], None),
        (run_of(tier="standard"), QUICK, None),
        (SimpleNamespace(cluster=None, tier="quick"), ["FABRIC"], None),
    ],
    ids=["complete", "one row", "larger", "GPUs", "one of three probes", "other tier", "unjoined"],
)
def test_a_run_like_no_other_has_no_estimate(
    run: Any, criteria: list[str], seconds: int | None
) -> None:
    assert estimate_run(run, criteria) == seconds


def test_the_usual_time_of_a_probe() -> None:
    timed = {f"probes/{one.probe}": one.usual_s for one in all_probes()}
    assert any(timed.values())
    assert {name: estimate_probe(run_of(), name) for name in timed} == timed
    name = next(name for name, seconds in timed.items() if seconds)
    assert estimate_probe(run_of(nodes=8), name) is None, "a larger rehearsal"
    assert estimate_probe(run_of(), "/home/own/test_own.py::test_own") is None
