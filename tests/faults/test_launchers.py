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

import pytest

from reference_trainer.launchers import LAUNCHERS
from tests.lab.lab import Lab
from tests.lab.node import REPO

pytestmark = pytest.mark.soak
KNOBS = "--steps 8 --dim 32 --seq 32 --save-every 2 --keep-last 9 --pace-s 0.4"


def events(path: Path) -> list[dict]:
    """The whole lines of a journal."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def kill_in_step(lab: Lab, out: Path, rank: int, step: int) -> None:
    """SIGKILL a rank once it has begun a step, by the pid and host that its journal gives."""
    journal, deadline = out / f"metrics.rank{rank}.jsonl", time.monotonic() + 120
    while not any(e["event"] == "begin" and e["step"] >= step for e in events(journal)):
        assert time.monotonic() < deadline, "the step never began"
        time.sleep(0.05)
    start = events(journal)[0]
    lab.node(start["host"]).run("kill", "-9", str(start["pid"]))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_comes_back_under_each_launcher(lab: Lab, launcher: str) -> None:
    home = lab.home / "shared" / f"launched-{launcher}"
    inside = f"/shared/launched-{launcher}"
    words = f"--workers 4 --launcher {launcher} {KNOBS} --out {inside}/out --checkpoints {inside}/c"
    log, head = lab.home / "shared" / f"launched-{launcher}.log", lab.nodes[0]
    with log.open("w") as said:
        child = subprocess.Popen(
            head.command(
                *[sys.executable, "-m", "reference_trainer", "launch", *words.split()],
                cwd=str(REPO),
            ),
            env=head.environment(),
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        kill_in_step(lab, home / "out", 3, 5)
        assert child.wait(timeout=180) == 0, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    starts = [e for e in events(home / "out/metrics.rank3.jsonl") if e["event"] == "start"]
    assert [start["start_step"] for start in starts] == [0, 4]
    result = json.loads((home / "out/result.rank0.json").read_text())
    assert [step["step"] for step in result["steps"]] == [5, 6, 7, 8]
