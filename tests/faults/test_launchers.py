"""The same job under each launcher, one rank killed: it comes back and is the run never killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from probes.faults import read_lines
from reference_trainer.launchers import LAUNCHERS
from tests.faults.conftest import leftovers
from tests.lab.lab import Lab
from tests.lab.node import REPO, SHARED

pytestmark = pytest.mark.soak
KNOBS = "--steps 8 --dim 32 --seq 32 --save-every 2 --keep-last 9 --pace-s 0.4"
VICTIM = 3


def launch(lab: Lab, name: str, launcher: str, kill: int | None = None) -> dict[str, Any]:
    """Rank 0's result of a job of all nodes; one rank is killed when it begins step `kill`."""
    home, log = lab.home / "shared" / name, lab.home / "shared" / f"{name}.log"
    folders = f"--out {SHARED}/{name}/out --checkpoints {SHARED}/{name}/checkpoints"
    words = f"launch --workers 4 --launcher {launcher} {KNOBS} {folders}".split()
    head = lab.nodes[0]
    with log.open("w") as said:
        child = subprocess.Popen(
            head.command(sys.executable, "-m", "reference_trainer", *words, cwd=str(REPO)),
            env=head.environment(),
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        if kill is not None:
            kill_in_step(lab, home / "out", kill)
        assert child.wait(timeout=180) == 0, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return dict(json.loads((home / "out/result.rank0.json").read_text()))


def kill_in_step(lab: Lab, out: Path, step: int) -> None:
    """SIGKILL a rank once it has begun a step, by the pid and host that its journal gives."""
    journal, deadline = out / f"metrics.rank{VICTIM}.jsonl", time.monotonic() + 120
    while not any(e["event"] == "begin" and e["step"] >= step for e in read_lines(journal)):
        assert time.monotonic() < deadline, "the step never began"
        time.sleep(0.05)
    start = read_lines(journal)[0]
    lab.node(start["host"]).run("kill", "-9", str(start["pid"]))


@pytest.fixture(scope="module")
def unkilled(whole_lab: Lab) -> dict[str, Any]:
    """The run that nobody kills."""
    return launch(whole_lab, "unkilled", "gang")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_comes_back_under_each_launcher(
    lab: Lab, unkilled: dict[str, Any], launcher: str
) -> None:
    name = f"launched-{launcher}"
    result = launch(lab, name, launcher, kill=5)
    journal = read_lines(lab.home / f"shared/{name}/out/metrics.rank{VICTIM}.jsonl")
    starts = [event["start_step"] for event in journal if event["event"] == "start"]
    assert starts == [0, 4]
    assert [step["step"] for step in result["steps"]] == [5, 6, 7, 8]
    hexes = [(step["loss_hex"], step["norm_hex"]) for step in unkilled["steps"][4:]]
    assert [(step["loss_hex"], step["norm_hex"]) for step in result["steps"]] == hexes
    assert result["digest"] == unkilled["digest"]
    held = leftovers(lab.nodes[0])
    assert not held["groups"], held
    assert not held["gpus"], held
