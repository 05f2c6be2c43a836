"""`seatrial show` and `report`: a run again, without its cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from probes.cli.main import main
from tests.support.paths import RECORDINGS
from tests.support.pseudo_terminal import run_on_terminal


def seatrial(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "tcp-fallback"], 1),
        (["show", "tcp-fallback", "--ascii", "--width", "60"], 1),
        (["show", "killed-run"], 2),
        (["show", "hostile"], 4),
        (["show", "no-such-run"], 4),
        (["report", "no-such-run"], 4),
        (["shwo", "healthy-lab"], 4),
        (["show"], 4),
    ],
)
def test_the_exit_code(arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECORDINGS)
    result = seatrial(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has ended."""
    return shutil.copytree(RECORDINGS / "tcp-fallback", tmp_path / "run")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_run_that_has_ended_is_never_changed(run: Path) -> None:
    before = files(run)
    assert seatrial("report", run, "--baseline", RECORDINGS / "healthy-atlas").exit_code == 1
    assert files(run) == before
    page = (run.with_name("run-report") / "report.html").read_text()
    assert "since baseline" in page
    assert 'href="../run/evidence/allreduce.txt"' in page


def test_the_page_of_a_changed_run_says_so_and_lies_beside_it(run: Path) -> None:
    (run / "evidence" / "allreduce.txt").write_text("busbw 375")
    before = files(run)
    result = seatrial("report", run)
    assert result.exit_code == 4
    assert "does not verify: evidence/allreduce.txt is not the file that" in result.output
    assert files(run) == before
    page = (run.with_name("run-report") / "report.html").read_text()
    assert "the run folder does not verify" in page
    assert "DOES NOT VERIFY" in page


def test_a_killed_run_gets_its_renderings(tmp_path: Path) -> None:
    run = shutil.copytree(RECORDINGS / "killed-run", tmp_path / "run")
    assert seatrial("report", run).exit_code == 2
    assert (run / "report.html").exists()
    assert not (run / "SHA256SUMS").exists()


def test_sums_are_checked_by_hand_as_well(run: Path) -> None:
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=run, check=False).returncode == 0


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
    ids=["colours", "empty", "NO_COLOR", "dumb"],
)
def test_colours_are_for_terminals_that_want_them(
    variables: dict[str, str], coloured: bool
) -> None:
    text = run_on_terminal(
        "probes.cli.main", "show", "tcp-fallback", folder=RECORDINGS, **variables
    )
    assert "FAIL" in text
    assert ("\x1b" in text) is coloured


def test_without_a_folder_the_newest_run_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("show", "report"):
        result = CliRunner().invoke(main, [command])
        assert result.exit_code == 4
        assert "no run folder was given, and runs/ has no run. Give the path" in result.output
    for number, name in enumerate(("tcp-fallback", "healthy-atlas", "retried")):
        run = Path(shutil.copytree(RECORDINGS / name, tmp_path / "runs" / name))
        os.utime(run / "events.jsonl", (0, 100 * (number % 2)))
    text = CliRunner().invoke(main, ["show"]).output
    assert "h100-ndr400" in text
    assert "All-reduce runs at 376 GB/s" in text


def test_the_decision_comes_first() -> None:
    text = CliRunner().invoke(main, ["show", str(RECORDINGS / "tcp-fallback")]).output
    assert text.index("NOT ACCEPTED: 3 of 6") < text.index("FAIL      FABRIC")


@pytest.mark.parametrize(("failed", "code"), [(0, 1), (1, 4)])
def test_the_page_is_opened_if_asked_for(
    failed: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(RECORDINGS / "tcp-fallback", tmp_path / "run"))
    opened: list[str] = []
    monkeypatch.setattr("click.launch", lambda path: opened.append(path) or failed)
    result = CliRunner().invoke(main, ["report", str(run), "--open"])
    assert result.exit_code == code
    (page,) = opened
    assert Path(page).read_text().startswith("<!doctype html>")
    assert ("no browser starts here" in result.output) is bool(failed)
