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
from tests.faults.launching import launched
from tests.faults.left import leftovers
from tests.lab.lab import Lab

pytestmark = pytest.mark.soak
CONFIG = TrainConfig(
    steps=8, dim=32, seq=32, save_every=2, keep_last=9, pace_s=0.4, checkpoints="x"
)
VICTIM = 3
MENDED = ["attempt", "ready", "lost", "attempt", "mended", "ready", "done"]


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
    start = starts_of(out, VICTIM)[0]
    lab.node(start["host"]).run("kill", "-9", str(start["pid"]))


def starts_of(out: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank's journal says of the beginning of each of its lives."""
    journal = read_lines(out / f"metrics.rank{rank}.jsonl")
    return [event for event in journal if event["event"] == "start"]


def outlived(out: Path) -> list[int]:
    """Ranks that had one process for all their lives."""
    lives = {rank: starts_of(out, rank) for rank in range(4)}
    return [rank for rank, starts in lives.items() if len({start["pid"] for start in starts}) == 1]


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
    out = lab.home / f"shared/{name}/out"
    starts = [start["start_step"] for start in starts_of(out, VICTIM)]
    assert starts == [0, 4]
    if launcher == "gang":
        assert [event["event"] for event in read_lines(out / "attempts.jsonl")] == MENDED
        assert outlived(out)  # those that wait on no socket of the victim's may end too late
        assert VICTIM not in outlived(out)
    assert [step["step"] for step in result["steps"]] == [5, 6, 7, 8]
    hexes = [(step["loss_hex"], step["norm_hex"]) for step in unkilled["steps"][4:]]
    assert [(step["loss_hex"], step["norm_hex"]) for step in result["steps"]] == hexes
    assert result["digest"] == unkilled["digest"]
    held = leftovers(lab.nodes[0])
    assert not held["groups"], held
    assert not held["gpus"], held
