"""The same job under each launcher, one rank killed: it comes back and is the run never killed."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probes.faults.process_faults import read_json_lines
from reference_trainer.config import TrainConfig
from reference_trainer.launch.launchers import LAUNCHERS
from tests.faults.launchers.launch import launched
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.faults import inject
from tests.lab.lab import Lab

pytestmark = pytest.mark.soak(criterion="restart")
CONFIG = TrainConfig(
    steps=8, dim=32, seq=32, save_every=2, keep_last=9, pace_s=0.4, checkpoints="x"
)
VICTIM = 3
MENDED = ["attempt", "ready", "lost", "attempt", "repaired", "ready", "done"]


def launch(lab: Lab, name: str, launcher: str, kill: int | None = None) -> dict[str, Any]:
    """Rank 0's result of a job of all nodes; one rank is killed when it begins step `kill`."""
    with launched(lab, name, CONFIG, "--launcher", launcher) as out:
        if kill is not None:
            start = in_step(out, VICTIM, kill)
            lab.node(start["host"]).run("kill", "-9", str(start["pid"]))
    return dict(json.loads((out / "result.rank0.json").read_text()))


def in_step(out: Path, rank: int, step: int) -> dict[str, Any]:
    """Where a rank is, by its journal (host and pid), once it has begun a step."""
    journal, deadline = out / f"metrics.rank{rank}.jsonl", time.monotonic() + 120
    while not any(e["event"] == "begin" and e["step"] >= step for e in read_json_lines(journal)):
        assert time.monotonic() < deadline, "the step never began"
        time.sleep(0.05)
    return starts_of(out, rank)[0]


def starts_of(out: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank's journal says of the beginning of each of its lives."""
    journal = read_json_lines(out / f"metrics.rank{rank}.jsonl")
    return [event for event in journal if event["event"] == "start"]


def outlived(out: Path) -> list[int]:
    """Ranks that had one process for all their lives."""
    lives = {rank: starts_of(out, rank) for rank in range(4)}
    return [rank for rank, starts in lives.items() if len({start["pid"] for start in starts}) == 1]


def same_from_step_5(result: dict[str, Any], unkilled: dict[str, Any]) -> None:
    """Bit by bit."""
    assert [step["step"] for step in result["steps"]] == [5, 6, 7, 8]
    hexes = [(step["loss_hex"], step["norm_hex"]) for step in unkilled["steps"][4:]]
    assert [(step["loss_hex"], step["norm_hex"]) for step in result["steps"]] == hexes
    assert result["digest"] == unkilled["digest"]


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
        assert [event["event"] for event in read_json_lines(out / "attempts.jsonl")] == MENDED
        assert outlived(out)  # those that wait on no socket of the victim's may end too late
        assert VICTIM not in outlived(out)
    same_from_step_5(result, unkilled)
    nothing_left(lab)


class Enough(Exception):
    """The job has come far enough: its launcher is killed now."""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_that_is_killed_leaves_nothing(lab: Lab, launcher: str) -> None:
    config = replace(CONFIG, steps=200)
    words = ["--launcher", launcher]
    with suppress(Enough), launched(lab, f"orphan-{launcher}", config, *words) as out:
        in_step(out, VICTIM, 3)
        raise Enough
    nothing_left(lab)


def test_a_node_that_loses_its_power_is_done_without(lab: Lab) -> None:
    """It closes no socket, as a raylet that is killed does: nobody is told."""
    words = ["--launcher", "gang", "--workers", "3"]
    with launched(lab, "three-ranks", CONFIG, *words) as whole:
        pass
    with launched(lab, "powerless", CONFIG, *words) as out:
        host = in_step(out, 2, 5)["host"]
        assert host != lab.nodes[0].name
        inject(lab, "kill-node", host)
    starts = starts_of(out, 2)
    assert [start["start_step"] for start in starts] == [0, 4]
    assert starts[1]["host"] != host
    told = [json.loads((folder / "result.rank0.json").read_text()) for folder in (out, whole)]
    same_from_step_5(*told)
