"""Rows of healthy runs: the order of the runs, and that a bad run is a row as well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from probes.contract.contract import load
from tests.lab import healthy
from tests.support.paths import REPO

HEADER = healthy.TABLE.read_text().split("|---")[0] + "|---|---|---|---|---|---|---|---|---|\n"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty table in a folder of its own, on a host that is idle."""
    path = tmp_path / "docs" / "rows.md"
    path.parent.mkdir()
    path.write_text(HEADER)
    monkeypatch.setattr(healthy, "TABLE", path)
    monkeypatch.setattr(healthy, "REPO", tmp_path)
    monkeypatch.setattr(healthy, "wait_until_idle", lambda: 0.1)
    return path


def row_after(table: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> tuple[list[str], int]:
    """Run `script` in place of the suite; return the last row's cells and the exit code."""
    monkeypatch.setattr(healthy, "command_of", lambda *_: [sys.executable, "-c", script])
    ended = CliRunner().invoke(healthy.main, ["--kind", "lab", "--runs", "1"])
    return [cell.strip() for cell in table.read_text().splitlines()[-1].split("|")[1:-1]], (
        ended.exit_code
    )


def test_each_size_comes_in_turn_and_once_with_load() -> None:
    plans = [healthy.plan_run("lab", number) for number in range(18)]
    assert [plan.nodes for plan in plans[:7]] == [3, 4, 5, 6, 7, 8, 3]
    assert sorted(plan.nodes for plan in plans if plan.busy) == [3, 4, 5, 6, 7, 8]
    assert {healthy.plan_run("local", number).nodes for number in range(6)} == {4}


def test_the_command_is_the_users() -> None:
    words = " ".join(healthy.command_of(healthy.plan_run("lab", 1), Path("runs/x"))[2:])
    assert words == (
        "tests.lab --name healthy run --nodes 4 -- "
        "pytest probes --cluster auto --contract lab --run-dir runs/x"
    )
    large = " ".join(healthy.command_of(healthy.plan_run("lab", 3), Path("runs/x")))
    assert "--nodes 6 -- pytest probes --cluster auto --contract tests/lab/large-lab.toml" in large
    words = " ".join(healthy.command_of(healthy.plan_run("local", 0), Path("runs/x"))[2:])
    assert words == "pytest probes --cluster local:4 --contract local --run-dir runs/x"


def test_a_large_lab_differs_in_its_steps_alone() -> None:
    small, large = load("lab"), load(str(REPO / healthy.LARGE_CONTRACT))
    longer = small.cluster.model_copy(update={"pace_seconds": 0.4})
    assert large.cluster == longer
    speeds = {"tokens_per_s"}
    for id, limits in small.limits.items():
        same = {name for name, one in limits.items() if str(one) == str(large.limits[id][name])}
        assert set(limits) - same <= speeds
    of_pace = 256 / 0.4  # tokens of a step
    limit = large.limits["SCALING"]["tokens_per_s"]
    assert of_pace / 2 < (limit.low or 0) < (limit.marginal_low or 0) < of_pace


@pytest.mark.parametrize("code", [0, 1, 3, 20])
def test_a_run_of_any_verdict_is_a_row(
    table: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    cells, ended = row_after(table, monkeypatch, f"raise SystemExit({code})")
    assert ended == 1, "without a record nothing is accepted"
    assert cells[1:8] == ["unknown", "lab", "3", "none (0.10)", "no record", str(code), "none"]


@pytest.mark.parametrize(("verdict", "code", "ended"), [
    ("REHEARSAL PASSED", 0, 0), ("NOT ACCEPTED (rehearsal)", 0, 1), ("ACCEPTED", 3, 1),
    ("ACCEPTED (PARTIAL)", 0, 1),
])  # fmt: skip
def test_the_record_and_the_exit_code_must_both_accept(
    table: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, code: int, ended: int
) -> None:
    monkeypatch.setattr(healthy, "read_verdict", lambda _: (verdict, "FAB-SLOW"))
    cells, found = row_after(table, monkeypatch, f"raise SystemExit({code})")
    assert (cells[5:8], found) == ([verdict, str(code), "FAB-SLOW"], ended)


def test_rows_are_counted_by_kind(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (3, 4, 5):
        assert row_after(table, monkeypatch, "")[0][3] == str(size)
    assert (healthy.count_rows("lab"), healthy.count_rows("local")) == (3, 0)
    assert "one busy process" in table.read_text().splitlines()[-1]


def test_a_run_that_hangs_is_ended_and_is_a_row(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healthy, "RUN_SECONDS", 0.5)
    cells, ended = row_after(table, monkeypatch, "import time; time.sleep(60)")
    assert (cells[6], ended) == ("-15", 1)


def test_load_that_is_not_ours_is_said() -> None:
    assert healthy.describe_load(False, 2.3) == "none, foreign (2.30)"
    assert healthy.describe_load(True, 0.2) == "one busy process (0.20)"
