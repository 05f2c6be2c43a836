"""`seatrial run` runs the suite's own probes, whatever lies about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probes.check.registry import all_probes

REMOVES = "def pytest_collection_modifyitems(items): items.clear()"


@pytest.mark.parametrize(
    "environment",
    [{}, {"PYTEST_ADDOPTS": "-k no_such_probe"}, {"PYTEST_PLUGINS": "removes"}],
    ids=["conftest of this folder", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"],
)
def test_nothing_of_the_place_takes_a_probe_away(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    for name in ("conftest", "removes"):
        (tmp_path / f"{name}.py").write_text(REMOVES)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -k no_such_probe\n")
    command = [sys.executable, "-m", "probes.cli.main", "run", "--collect-only", "-q"]
    paths = os.pathsep.join([str(Path(__file__).parents[3]), str(tmp_path)])
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{len(all_probes())} tests collected" in done.stdout
    assert "nothing was run: --collect-only proves nothing" in done.stdout


@pytest.mark.parametrize("words", [["--fixtures"], ["--version"], ["--markers"]])
def test_what_runs_nothing_says_so(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "probes.cli.main", "run", "--", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"no test ran: with {words[0]}, pytest only prints" in done.stdout
