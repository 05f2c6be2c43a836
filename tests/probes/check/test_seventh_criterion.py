"""A criterion is a folder: three files are collected, owed, judged, explained and documented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probes.check.registry import CRITERIA
from tests.support.paths import REPO
from tests.support.scratch_suite import run_probes, run_python
from tests.support.stand_in import agreed_for

CRITERION = '''
"""Declares CLOCKS, a criterion of a test."""

from __future__ import annotations

from probes.check.declarations import (
    TASKS, Check, ControlRow, CriterionRow, Probe, default_check, ordered,
)

LATE_CLOCKS = default_check("late_clocks", "clocks", "a late clock confuses a log", high=0)
ORDERED_CLOCKS = Check(
    "ordered_clocks", "clocks", from_run="[cluster] rails", when=ordered("rails"),
    no_control="the contract of this test orders none",
)
STOPPED_CLOCK = ControlRow("stopped clock", LATE_CLOCKS)
PROBES = (
    Probe(
        "test_clocks.py::test_clocks_are_right", tier="quick", checks=(LATE_CLOCKS, ORDERED_CLOCKS),
        controls=(STOPPED_CLOCK,), disturbs=(TASKS,),
    ),
)
CRITERION = CriterionRow(
    title="clocks are right", how="each clock is read", where="one task on each node",
    needs=("a clock",), headlines={LATE_CLOCKS: "{value} are late"},
)
'''
TEST = '''
"""Tests that clocks are right."""

import pytest

from probes.check.judging import plant
from probes.clocks.criterion import LATE_CLOCKS, STOPPED_CLOCK
from probes.findings import finding

LATE = 0


def judge_clocks(late, measure):
    measure(LATE_CLOCKS, late, on="n0")
    if late:
        measure.explain(finding("CLOCK-LATE", f"n0: {late} clocks are late", ["n0"]))


@pytest.mark.criterion("CLOCKS")
def test_clocks_are_right(cluster, measure):
    """No clock is late."""
    judge_clocks(LATE, measure)
    plant(measure, STOPPED_CLOCK, "the clock of n0 stands", lambda trial: judge_clocks(1, trial))
'''
FINDINGS = """
[about]
heading = "CLOCKS"
place = 99
made_by = "CLOCKS (probes/clocks)"

[CLOCK-LATE]
meaning = "A clock is late."
cause = "HARDWARE"
severity = "degrades"
order = "Set the clock of {node}"
steps = [{ command = "date", means = "Another time than on other nodes: set it." }]
mended = "No clock is late."
remedy = "Set the clock of the named node."
"""


@pytest.fixture
def clocks(scratch: Path) -> Path:
    """The suite with a seventh criterion, and a contract that agrees on it alone."""
    folder = scratch / "probes" / "clocks"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""CLOCKS: clocks of nodes."""\n')
    (folder / "criterion.py").write_text(CRITERION.lstrip())
    (folder / "test_clocks.py").write_text(TEST.lstrip())
    (folder / "findings.toml").write_text(FINDINGS.lstrip())
    assert "CLOCKS" not in CRITERIA
    (scratch / "agreed.toml").write_text(agreed_for("CLOCKS"))
    return scratch


def read_record(folder: Path) -> dict:  # type: ignore[type-arg]
    return json.loads((folder / "run" / "record.json").read_text())


def run_clocks(folder: Path) -> tuple[str, dict]:  # type: ignore[type-arg]
    done = run_probes(folder, "--contract", "agreed.toml", "--only", "CLOCKS")
    assert done.returncode in (1, 20), done.stdout + done.stderr  # a part of a run
    return done.stdout, read_record(folder)


def test_it_is_collected_owed_judged_and_seen_to_fail(clocks: Path) -> None:
    text, record = run_clocks(clocks)
    (owed,) = [one for one in record["owed"] if one["criterion"] == "CLOCKS"]
    assert owed["probe"] == "probes/clocks/test_clocks.py::test_clocks_are_right"
    assert (owed["measures"], owed["controls"]) == (["late_clocks"], ["stopped clock"])
    (result,) = [one for one in record["results"] if one["criterion"] == "CLOCKS"]
    assert [one["value"] for one in result["measurements"]] == [0]
    (control,) = result["controls"]
    assert control["caught"] is True
    assert "1 clock are late on n0" in control["saw"]
    assert "CLOCKS" in text
    page = (clocks / "run" / "report.html").read_text()
    assert "Clocks are right" in page


def test_its_fault_is_named(clocks: Path) -> None:
    file = clocks / "probes" / "clocks" / "test_clocks.py"
    file.write_text(file.read_text().replace("LATE = 0", "LATE = 2"))
    text, record = run_clocks(clocks)
    sentence = "2 clocks are late on n0. Expected: 0 clocks (a late clock confuses a log)"
    assert sentence in " ".join(text.split())
    (result,) = [one for one in record["results"] if one["criterion"] == "CLOCKS"]
    assert [one["code"] for one in result["findings"]] == ["CLOCK-LATE"]
    page = (clocks / "run" / "report.html").read_text()
    assert "Set the clock of n0" in page


def test_without_its_probe_it_is_unproven(clocks: Path) -> None:
    run_probes(clocks, "--contract", "agreed.toml", "-k", "not clocks_are_right and not gang")
    record = read_record(clocks)
    (owed,) = [one for one in record["owed"] if one["criterion"] == "CLOCKS"]
    assert owed["measures"] == ["late_clocks"]


def test_commands_and_docs_know_it(clocks: Path) -> None:
    plan = run_python(clocks, "-m", "probes.cli.main", "plan", "--contract", "agreed.toml")
    assert "CLOCKS  clocks are right" in plan.stdout
    assert "test_clocks_are_right" in plan.stdout
    explained = run_python(clocks, "-m", "probes.cli.main", "explain", "CLOCK-LATE")
    assert "A clock is late." in explained.stdout
    (clocks / "tests").symlink_to(REPO / "tests")
    code = "from tests.project.measures_page import write_measures; print(write_measures())"
    pages = run_python(clocks, "-c", code)
    assert "late_clocks" in pages.stdout, pages.stderr
