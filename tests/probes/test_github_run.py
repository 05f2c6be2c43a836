"""A run on GitHub Actions writes the step summary and annotations; its verdict stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.acceptance import load_summary
from reports.formats.github import list_annotations, step_summary
from tests.support.stand_in import CAUGHT, GOOD, PROBE, STAND_IN

pytest_plugins = ["pytester"]


@pytest.fixture
def ended(pytester: pytest.Pytester) -> Any:
    """Run one probe that proves GANG; (lines that it printed, exit code)."""

    def run(plant: str = "") -> tuple[list[str], int]:
        pytester.makeconftest(STAND_IN + plant)
        pytester.makepyfile(test_probe=PROBE.format(criterion="GANG", body=f"{GOOD}\n    {CAUGHT}"))
        options = ["--cluster", "auto", "--contract", "lab", "--run-dir", "run"]
        result = pytester.runpytest_subprocess(*options, "-p", "no:cacheprovider")
        return result.stdout.lines, int(result.ret)

    return run


def commands(lines: list[str]) -> list[str]:
    """What the runner takes for a command: it looks at the start of each line."""
    return [line for line in lines if line.lstrip().startswith("::")]


def test_a_run_on_github_says_what_its_record_says(
    ended: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pytester.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    lines, code = ended()
    assert code == 20
    summary = load_summary(pytester.path / "run")
    assert commands(lines) == list_annotations(summary)
    assert path.read_text() == step_summary(summary)


def test_a_summary_that_cannot_be_written_changes_no_verdict(
    ended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "missing/summary.md")
    lines, code = ended()
    assert code == 20
    assert len([line for line in lines if "not written (No such file or directory)" in line]) == 1


def test_elsewhere_a_run_prints_no_commands(
    ended: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path = pytester.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    lines, code = ended()
    assert (code, commands(lines), path.exists()) == (20, [], False)


def test_a_run_whose_end_cannot_be_written_is_shown_too(
    ended: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    plant = """
import errno, reports.run_folder.store
def full(*a, **k): raise OSError(errno.ENOSPC, "No space left on device")
reports.run_folder.event_log.write_checksums = full
"""
    lines, code = ended(plant)
    assert code == 3
    assert commands(lines) == list_annotations(load_summary(pytester.path / "run"))
    assert "because the disk was full" in commands(lines)[0]
