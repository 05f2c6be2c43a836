"""`seatrial compare` and `seatrial history`, and commands that are given a record alone."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from probes.cli.main import main
from tests.support.paths import RECORDINGS

GOLDENS = RECORDINGS.parent / "goldens"


def seatrial(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The record of a run that is accepted, without its folder."""
    return Path(shutil.copy(GOLDENS / "healthy-atlas" / "record.json", tmp_path))


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        (["healthy-atlas", "healthy-atlas"], 0),
        (["healthy-atlas", "tcp-fallback"], 1),
        (["tcp-fallback", "healthy-atlas"], 0),
        (["healthy-atlas", "healthy-atlas", "tcp-fallback"], 1),
        (["hostile", "healthy-atlas"], 4),
        (["healthy-atlas", "hostile"], 4),
        (["healthy-atlas", "no-such-run"], 4),
        (["healthy-atlas"], 4),
        ([], 4),
    ],
)
def test_the_exit_code_of_compare(
    runs: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RECORDINGS)
    result = seatrial("compare", *runs)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output


def test_compare_prints_csv_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECORDINGS)
    runs = ["healthy-lab", "tcp-fallback"]
    printed = seatrial("compare", *runs, "--csv")
    table = pd.read_csv(io.BytesIO(printed.stdout_bytes), encoding="utf-8-sig")
    assert {"criterion", "measure", "subject"} <= set(table)
    assert "note: B has a different cluster than A: atlas, not lab" in printed.stderr
    assert json.loads(seatrial("compare", *runs, "--json").stdout)["notes"]


def test_json_holds_no_command_for_a_ci_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECORDINGS)
    text = seatrial("compare", "hostile", "hostile", "--json").stdout
    assert "##" not in text
    assert json.loads(text)["runs"]


def test_history_lists_every_run_and_says_why_one_does_not_count(tmp_path: Path) -> None:
    for name in ("healthy-atlas", "hostile"):
        shutil.copytree(RECORDINGS / name, tmp_path / name)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "events.jsonl").write_text("{}\n{}\n")
    result = seatrial("history", tmp_path, "--width", "400")
    assert result.exit_code == 4
    assert "not counted: it does not verify (" in result.output
    assert "torn/events.jsonl line 1 is not a valid JSON event" in result.output
    runs = seatrial("history", tmp_path, "--csv", "runs")
    table = pd.read_csv(io.BytesIO(runs.stdout_bytes), encoding="utf-8-sig")
    assert sorted(table.counted) == [False, False, True]
    assert table.note.notna().sum() >= 2
    assert "FABRIC verdict" in table
    trends = seatrial("history", tmp_path, "--csv", "trends")
    table = pd.read_csv(io.BytesIO(trends.stdout_bytes), encoding="utf-8-sig")
    assert set(table.drift) == {"too few runs"}
    assert table.loc[table.measure == "busbw", "last"].tolist() == [376.0]


def test_history_of_sound_runs_exits_0_and_of_none_refuses(tmp_path: Path) -> None:
    shutil.copytree(RECORDINGS / "healthy-atlas", tmp_path / "run")
    assert seatrial("history", tmp_path).exit_code == 0
    (tmp_path / "none").mkdir()
    for folder in (tmp_path / "none", tmp_path / "run" / "SHA256SUMS"):
        refused = seatrial("history", folder)
        assert refused.exit_code == 4
        assert "Traceback" not in refused.output


def test_a_record_alone_is_reported_and_never_accepted(alone: Path) -> None:
    result = seatrial("report", alone)
    assert result.exit_code == 20, result.output
    words = " ".join(result.output.split())
    assert "NOT ACCEPTED" in words
    assert "cannot be verified: it is a record.json without its run folder" in words
    folder = alone.with_name("record-report")
    assert f"report {folder / 'report.html'}" in result.output
    assert "it is a record.json without its run folder" in (folder / "report.html").read_text()
    assert "head " not in result.output
    assert seatrial("report", alone).exit_code == 20, "its own renderings are written again"
    assert seatrial("show", alone).exit_code == 20


def test_a_record_alone_is_shared_and_a_shared_copy_is_read(alone: Path) -> None:
    assert seatrial("report", alone, "--share").exit_code == 20
    copy = alone.with_name("record-shared") / "record.json"
    assert seatrial("show", copy).exit_code == 20


def test_a_run_that_does_not_verify_is_not_shared(tmp_path: Path) -> None:
    run = shutil.copytree(RECORDINGS / "healthy-atlas", tmp_path / "run")
    (run / "evidence" / "added.txt").write_text("added")
    result = seatrial("report", run, "--share")
    assert result.exit_code == 4
    sentences = [line for line in result.output.splitlines() if "No copy" in line]
    assert len(sentences) == 1
    assert "does not verify" in sentences[0]
    assert not (tmp_path / "run-shared").exists()
    assert seatrial("report", run).exit_code == 4, "its page may be looked at"


def test_a_record_alone_is_compared_and_in_the_history(alone: Path) -> None:
    result = seatrial("compare", RECORDINGS / "healthy-atlas", alone)
    assert result.exit_code == 0
    assert "note: B: the run cannot be verified: it is a record" in " ".join(result.output.split())
    past = seatrial("history", alone.parent)
    assert past.exit_code == 0
    assert "cannot be verified: it is a record.json without its run folder" in " ".join(
        past.output.split()
    )


@pytest.mark.parametrize(
    "command",
    [
        ["rejudge", "RECORD", "--contract", "h100-ndr400"],
        ["scaling", "report", "RECORD"],
        ["sign", "RECORD", "--as", "customer", "--key", "KEY", "--decision", "accepted"],
        ["verify", "RECORD", "--signers", "KEY"],
    ],
)
def test_what_needs_a_run_folder_refuses_a_record(
    command: list[str], alone: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    key = tmp_path / "elsewhere" / "key"
    key.write_text("provider ssh-ed25519 AAAA\n")
    words = [{"RECORD": str(alone), "KEY": str(key)}.get(word, word) for word in command]
    result = seatrial(*words)
    assert result.exit_code in (4, 20), result.output
    assert "Traceback" not in result.output
    assert "VERIFIED: unchanged" not in result.output
