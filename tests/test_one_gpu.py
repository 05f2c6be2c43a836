"""The benchmark for a GPU that is lent for a short time: rehearsed, so that it runs when it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.mark.soak
def test_it_runs_to_its_end_on_a_cpu() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.one_gpu", "--rehearse"],
        cwd=REPO, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "resumed from step 4: 0 of 4 steps unequal, parameters equal" in done.stdout
    assert "# all_reduce over 2 ranks, gloo" in done.stdout
    assert done.stdout.count("a step over a plain loop's") == 2
