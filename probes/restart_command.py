"""The launcher itself is killed, and the same command is typed again."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from probes.cluster import Cluster
from probes.faults import Strike, read_lines
from probes.restart_run import NAME, Blow, Scenario, Voyage, lives
from reference_trainer.config import TrainConfig
from reference_trainer.options import arguments
from reference_trainer.supervisor import Attempt

FREE_SECONDS = 15  # for Ray to take a dead driver's gang back
RUN_SECONDS = 180


class Command:
    """`python -m reference_trainer launch`, as a process of its own."""

    def __init__(self, cluster: Cluster, config: TrainConfig) -> None:
        self.keeper, self.started = cluster.keeper, time.time()
        self.words = Path(str(config.out)) / f"said-{time.time_ns()}.txt"
        self.words.parent.mkdir(parents=True, exist_ok=True)
        options = ["--workers", str(cluster.size), "--name", NAME, *arguments(config)]
        with self.words.open("w") as said:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "reference_trainer", "launch", *options],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                cwd=Path(__file__).resolve().parents[1],
                env={**os.environ, "RAY_ADDRESS": cluster.address},
            )
        self.keeper.keep("process", str(self.child.pid))

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.child.kill()
        self.child.wait(timeout=10)
        self.keeper.forget("process", str(self.child.pid))

    def end(self) -> int | None:
        """Wait for its end; the exit code, None when it took too long and was killed."""
        try:
            code = self.child.wait(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        return code

    @property
    def last_words(self) -> str:
        """The last line that it said."""
        lines = self.words.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class Cut(Strike):
    """Kills a command when a rank has come so far."""

    def __init__(self, out: Path, rank: int, blow: Blow, command: Command) -> None:
        super().__init__(out, rank, blow.event, blow.step)
        self.command = command

    def wait(self) -> None:
        """Until it is done, or the command has ended by itself."""
        self._thread.start()
        while self._thread.is_alive() and self.command.child.poll() is None:
            time.sleep(0.1)
        self.close()

    def _act(self) -> tuple[bool, float]:
        at = time.time()
        running = self.command.child.poll() is None
        self.command.kill()
        return running, at

    def whom(self, names: dict[str, str]) -> str:
        """The launcher, wherever it runs."""
        return "the launcher"


def twice(
    cluster: Cluster, config: TrainConfig, scenario: Scenario, folder: Path
) -> tuple[Voyage, int]:
    """Type the command, kill it, wait until its gang is gone, and type it again.

    (What was seen of the run, how many groups the dead one still had after 15 s.)
    """
    out, victim = folder / "out", cluster.size - 1
    config = dataclasses.replace(config, out=str(out), checkpoints=str(folder / "checkpoints"))
    first = Command(cluster, config)
    cut = Cut(out, victim, scenario.blows[0], first)
    cut.wait()
    first.kill()
    kept = _wait_until_free(cluster)
    ended = time.time()
    again = Command(cluster, config)
    code = again.end()
    ready = [e["t"] for e in read_lines(out / "attempts.jsonl") if e["event"] == "ready"][1:]
    voyage = Voyage(
        scenario=scenario,
        strikes=[cut],
        results=_results(out, cluster.size) if code == 0 else [],
        attempts=[
            Attempt(
                places=[], started=first.started, ended=ended, reason="the launcher was killed"
            ),
            Attempt(
                places=[], started=again.started, ready=next(iter(ready), None), ended=time.time()
            ),
        ],
        error=f"the same command ended with {code}: {again.last_words}",
        lives=lives(read_lines(out / f"metrics.rank{victim}.jsonl")),
    )
    return voyage, kept


def _wait_until_free(cluster: Cluster) -> int:
    """How many groups the command still has, at the latest after 15 s."""
    deadline = time.monotonic() + FREE_SECONDS
    while (left := len(cluster.groups_named(NAME))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _results(out: Path, size: int) -> list[dict[str, Any]]:
    files = [out / f"result.rank{rank}.json" for rank in range(size)]
    return [json.loads(file.read_text(encoding="ascii")) for file in files if file.exists()]
