"""The benchmark for a GPU that is lent for a short time: rehearsed, so that it runs when it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import REPO

# Each target, the segments, and the profile.
TOLD = (
    *("MFU not known, for the device's peak is not (target >= 50%): NOT met", "(target <= 1: no "),
    *("a step with the clock over one without", "%  backward\n", "%  optimizer\n"),
    *("% of 3 steps in ", "%  aten::mm\n"),
)


@pytest.mark.soak(criterion="scaling")
def test_it_runs_to_its_end_on_a_cpu() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.single_gpu", "--rehearse"],
        cwd=REPO, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "resumed from step 4: 0 of 4 steps unequal, parameters equal" in done.stdout
    assert "# all_reduce over 2 ranks, gloo" in done.stdout
    assert done.stdout.count("a step over a plain loop's") == 2
    assert [word in done.stdout for word in TOLD] == [True] * len(TOLD), done.stdout
    verdicts = [line for line in done.stdout.splitlines() if "(target " in line]
    assert len(verdicts) == 3
    assert all(line.endswith((": met", ": NOT met")) for line in verdicts)
