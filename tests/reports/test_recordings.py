"""Every recording says what it said when it was put into the museum, in every rendering."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from probes.check.registry import CRITERIA
from probes.toml_tables import read_tables
from reports.acceptance import load_summary
from reports.exports import render_all, write_all
from reports.measurement import Verdict
from reports.page.render import render
from reports.text import acceptance_table
from tests.recordings.generate.cases import exhibits
from tests.recordings.load import write
from tests.support.paths import RECORDINGS

RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))
ACCEPTED = {"healthy-lab", "healthy-atlas"}

every_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)


EXPECTED: dict[str, dict[str, Any]] = read_tables(RECORDINGS.parent / "expected.toml")


def test_each_recording_has_its_expectation_with_the_reason() -> None:
    assert EXPECTED.keys() == {run.name for run in RUNS}
    assert all(len(one["because"].split()) > 3 for one in EXPECTED.values())


@every_run
def test_verdicts(run: Path) -> None:
    summary, expected = load_summary(run), EXPECTED[run.name]
    assert summary.exit_code == expected["exit_code"], expected["because"]
    if summary.exit_code == 4:  # of a folder that does not verify nothing else counts
        return
    verdicts = {row.criterion.id: row.verdict for row in summary.rows}
    not_passed = {id: v.value for id, v in verdicts.items() if v is not Verdict.PASS}
    assert not_passed == expected["not_passed"], expected["because"]
    assert sorted({one.code for one in summary.findings}) == expected.get("findings", [])


@every_run
def test_a_recording_measures_what_criteria_have(run: Path) -> None:
    """Made-up measures would be judged by nothing but themselves."""
    if EXPECTED[run.name]["exit_code"] == 4:
        return
    for result in load_summary(run).record.results:
        row = CRITERIA.get(result.criterion)
        for one in result.measurements:
            if row and one.judged:
                assert one.name in row.measures, one.sentence()
                assert one.unit == row.measures[one.name].unit, one.sentence()


@every_run
def test_only_the_healthy_are_accepted(run: Path) -> None:
    assert (load_summary(run).exit_code == 0) == (run.name in ACCEPTED)
    word = ("ACCEPTED:", "REHEARSAL PASSED:")
    if run.name not in ACCEPTED:
        word = ("NOT ACCEPTED", "INTERRUPTED", "DOES NOT VERIFY")
    assert load_summary(run).headline.startswith(word)


@every_run
def test_renderings(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    summary = load_summary(copy)
    write_all(copy, render_all(copy, summary))
    page = (copy / "report.html").read_text(encoding="utf-8")
    word, _, rest = summary.headline.partition(": ")
    assert re.search(f"</span> {re.escape(word)}(<span class=.why.>[^<]+</span>)?</h1>", page)
    assert rest.split("   ")[0] in page
    for width in (40, 80, 200):
        assert word in acceptance_table(summary, width)


@every_run
def test_the_museum_is_what_its_builder_builds(run: Path, tmp_path: Path) -> None:
    recording = next(one for one in exhibits() if one.name == run.name)
    built = write(recording, tmp_path)
    for name in ("events.jsonl",):
        assert (built / name).read_bytes() == (run / name).read_bytes()


def test_every_exhibit_is_in_the_museum() -> None:
    assert {run.name for run in RUNS} == {recording.name for recording in exhibits()}


def test_a_page_is_the_same_each_time() -> None:
    run = RECORDINGS / "tcp-fallback"
    assert render(load_summary(run), run) == render(load_summary(run), run)


def test_a_record_renders_without_its_folder() -> None:
    page = render(load_summary(RECORDINGS / "tcp-fallback"), None)
    assert "NET/Socket" in page
    assert "missing from the run folder" not in page
