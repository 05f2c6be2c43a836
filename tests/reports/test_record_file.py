"""A record.json without its run folder: never verified, never accepted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from reports import read_run
from reports.acceptance import load_summary, summarize_acceptance
from reports.record import SCHEMA
from reports.run_folder.event_log import UnreadableRun
from reports.run_folder.fold import ALONE
from tests.support.paths import RECORDINGS
from tests.support.run_folders import read_lines, without_chain, write_lines

START = f'"id": "x", "schema_version": "{SCHEMA}"'  # of a record, as JSON
GOLDENS = RECORDINGS.parent / "goldens"
RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The record of a run that is accepted, without its folder."""
    return Path(shutil.copy(GOLDENS / "healthy-atlas" / "record.json", tmp_path))


def edited(path: Path, **changes: Any) -> Path:
    """The record with other values of its first keys."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_record_alone_is_that_of_its_folder(run: Path, tmp_path: Path) -> None:
    whole = load_summary(run)
    found = load_summary(Path(shutil.copy(GOLDENS / run.name / "record.json", tmp_path)))
    assert found.record.results == whole.record.results
    assert found.rows == whole.rows
    assert found.record.frame().equals(whole.record.frame())


def test_a_run_that_is_accepted_is_not_by_its_record_alone(alone: Path) -> None:
    assert load_summary(RECORDINGS / "healthy-atlas").exit_code == 0
    found = load_summary(alone)
    assert (found.exit_code, found.word) == (20, "NOT ACCEPTED")
    assert found.reasons == [f"the run cannot be verified: {ALONE}"]
    assert (found.integrity.events, found.integrity.head) == (0, "")


def test_a_notebook_cannot_miss_it(alone: Path) -> None:
    record = read_run(str(alone))
    assert record.unverified == [ALONE]
    found = summarize_acceptance(record)
    assert (found.exit_code, found.reasons) == (20, [f"the run cannot be verified: {ALONE}"])
    assert read_run(RECORDINGS / "healthy-atlas").unverified == []


def test_a_failure_stays_a_failure(tmp_path: Path) -> None:
    path = shutil.copy(GOLDENS / "tcp-fallback" / "record.json", tmp_path)
    assert load_summary(Path(path)).exit_code == 1


def test_verdicts_are_computed_from_values_and_limits(alone: Path) -> None:
    data = json.loads(alone.read_text())
    for result in data["results"]:
        result["measurements"] = [m | {"value": 0.1} for m in result["measurements"] if m["limit"]]
    found = load_summary(edited(alone, results=data["results"]))
    assert found.exit_code == 1


def test_what_a_record_owes_and_lacks_is_unproven(alone: Path) -> None:
    results = json.loads(alone.read_text())["results"]
    found = load_summary(edited(alone, results=results[1:]))
    assert "not run" in {result.state for result in found.record.results}


def test_a_record_in_its_folder_is_refused_because_the_folder_can_be_verified(
    tmp_path: Path,
) -> None:
    run = shutil.copytree(RECORDINGS / "healthy-atlas", tmp_path / "run")
    for folder in (run, run / "evidence"):
        shutil.copy(GOLDENS / "healthy-atlas" / "record.json", folder)
        with pytest.raises(UnreadableRun, match="is in a run folder: give the folder"):
            read_run(folder / "record.json")


def test_a_folder_that_was_changed_is_refused(tmp_path: Path) -> None:
    run = shutil.copytree(RECORDINGS / "healthy-atlas", tmp_path / "run")
    log = run / "events.jsonl"
    log.write_text(log.read_text().replace("375", "376"))
    with pytest.raises(UnreadableRun, match="does not verify"):
        read_run(run)


def test_what_cannot_be_verified_of_a_folder_is_told_too() -> None:
    assert read_run(RECORDINGS / "killed-run").unverified == [
        "its end is missing (the last event, and SHA256SUMS)"
    ]


def test_a_folder_without_a_chain_is_a_problem_since_all_have_one(tmp_path: Path) -> None:
    run = shutil.copytree(RECORDINGS / "healthy-atlas", tmp_path / "run")
    (run / "SHA256SUMS").unlink(missing_ok=True)
    write_lines(run, without_chain(read_lines(run)))
    problem = "events.jsonl: line 1 has event number None, expected 1"
    assert load_summary(run).integrity.problems[0] == problem


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "found invalid JSON"),
        ("{", "found invalid JSON"),
        ("[" * 100_000, "found invalid JSON"),
        ('{"results": NaN}', "found invalid JSON"),
        ('{"results": [], "id": ' + "9" * 400 + "}", "found invalid JSON"),
        ("[]", "found different JSON"),
        ("{}", "found different JSON"),
        ('{"results": {}}', "found different JSON"),
        ('{"results": [3]}', "found different JSON"),
        ('{"results": []}', "schema unknown"),
        (f'{{"results": [], {START}, "tier": 3}}', "does not fit schema"),
        ('{"results": [], "schema_version": "1.4"}', "schema 1.4"),
        ('{"results": [], "schema_version": "2.0"}', "schema 2.0"),
        (f'{{"results": [{{"probe": [], "series": 3}}], {START}}}', "does not fit schema"),
        (f'{{"results": [{{"measurements": ["x"]}}], {START}}}', "does not fit schema"),
        (f'{{"results": [{{"findings": 5}}], {START}}}', "does not fit schema 1.5: .*int"),
    ],
)
def test_what_is_no_record_is_refused_in_one_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(UnreadableRun, match=sentence):
        read_run(path)


def test_links_and_unknown_keys_are_refused(alone: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(alone)
    with pytest.raises(UnreadableRun, match="cannot be read"):
        read_run(link)
    with pytest.raises(UnreadableRun, match="does not fit schema"):
        read_run(edited(alone, verdict="PASS"))
