"""The same job under each launcher, one rank killed: it comes back and is the run never killed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from probes.faults import read_lines
from reference_trainer.config import TrainConfig
from reference_trainer.launchers import LAUNCHERS
from tests.faults.conftest import leftovers
from tests.faults.launching import launched
from tests.lab.lab import Lab

pytestmark = pytest.mark.soak
CONFIG = TrainConfig(
    steps=8, dim=32, seq=32, save_every=2, keep_last=9, pace_s=0.4, checkpoints="x"
)
VICTIM = 3


def launch(lab: Lab, name: str, launcher: str, kill: int | None = None) -> dict[str, Any]:
    """Rank 0's result of a job of all nodes; one rank is killed when it begins step `kill`."""
    with launched(lab, name, CONFIG, "--launcher", launcher) as out:
        if kill is not None:
            kill_in_step(lab, out, kill)
    return dict(json.loads((out / "result.rank0.json").read_text()))


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
