"""The launcher itself is killed, and the same command is typed again."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from probes.acceptance.measure import Ledger
from probes.cluster.cluster import ROOT, Cluster
from probes.faults.process_faults import read_lines
from probes.findings import finding
from probes.restart.faulted_run import NAME, Scenario, Voyage, lives
from reference_trainer.config import TrainConfig
from reference_trainer.launch.supervisor import Attempt
from reference_trainer.options import arguments

FREE_SECONDS = 15  # for Ray to take a dead driver's gang back
RUN_SECONDS = 180


class Command:
    """`python -m reference_trainer launch`, as a process of its own, gone after the block."""

    def __init__(self, cluster: Cluster, config: TrainConfig) -> None:
        self.keeper = cluster.keeper
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
                cwd=ROOT,
                env={
                    **os.environ,
                    "RAY_ADDRESS": cluster.address,
                    # Over ray:// a killed client is otherwise waited for, half a minute.
                    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "0",
                },
            )
        self.keeper.keep("process", str(self.child.pid))

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.child.kill()
        self.child.wait(timeout=10)
        self.keeper.forget("process", str(self.child.pid))

    def said(self) -> str:
        """All that it has said so far, its ranks' log lines among it."""
        return self.words.read_text(errors="replace")

    def end(self) -> int | None:
        """Wait for its end; the exit code, None when it took too long."""
        try:
            return self.child.wait(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            return None


class Cut:
    """A blow to a command, as a Strike is one to a rank: when its log shows a step."""

    def __init__(self, rank: int, step: int, command: Command) -> None:
        self.rank, self.step, self.command = rank, step, command
        self.count, self.at, self.sent, self.error = 0, 0.0, 0.0, ""

    def strike(self) -> None:
        """Wait for the moment and kill the command; does nothing when it has ended by itself."""
        deadline = time.monotonic() + RUN_SECONDS
        shown = re.compile(rf"\bstep {self.step}/")
        while not shown.search(self.command.said()):
            if self.command.child.poll() is not None or time.monotonic() > deadline:
                return
            time.sleep(0.05)
        if self.command.child.poll() is None:
            self.sent = time.time()
            self.command.kill()
            self.count = int(self.command.child.returncode == -signal.SIGKILL)

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
    config = dataclasses.replace(
        config, out=str(out), checkpoints=str(folder / "checkpoints"), **scenario.changes
    )
    with Command(cluster, config) as first:
        cut = Cut(victim, scenario.blows[0].step, first)
        cut.strike()
    kept, ended = _wait_until_free(cluster), time.time()
    with Command(cluster, config) as again:
        code = again.end()
    last_words = (again.said().strip().splitlines() or ["it said nothing"])[-1]
    voyage = Voyage(
        scenario=scenario,
        strikes=[cut],
        results=_results(out, cluster.size) if code == 0 else [],
        attempts=_attempts(read_lines(out / "attempts.jsonl"), ended),
        error=f"the same command ended with {code}: {last_words}",
        lives=lives(read_lines(out / f"metrics.rank{victim}.jsonl")),
    )
    return voyage, kept


def _attempts(events: list[dict[str, Any]], killed: float) -> list[Attempt]:
    """The attempts of both commands by their event log; the first's last one ended when killed."""
    found: list[Attempt] = []
    for event in events:
        if event["event"] == "attempt":
            if found and not found[-1].ended:
                found[-1].ended, found[-1].reason = killed, "the launcher was killed"
            found.append(Attempt(places=[], started=event["t"]))
        elif event["event"] == "ready":
            found[-1].ready = event["t"]
        elif event["event"] not in ("mended", "removed"):  # how the next attempt has begun
            found[-1].ended, found[-1].reason = event["t"], str(event.get("reason", ""))
    return found


def _wait_until_free(cluster: Cluster) -> int:
    """How many groups the command still has, at the latest after 15 s."""
    deadline = time.monotonic() + FREE_SECONDS
    while (left := len(cluster.groups_named(NAME))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _results(out: Path, size: int) -> list[dict[str, Any]]:
    files = [out / f"result.rank{rank}.json" for rank in range(size)]
    return [json.loads(file.read_text(encoding="ascii")) for file in files if file.exists()]


def judge_left_behind(kept: int, measure: Ledger) -> None:
    """That the killed launcher holds nothing any more."""
    measure("left_behind", kept, on="the killed launcher")
    if kept:
        said = f"{kept} placement groups of the killed launcher are left after {FREE_SECONDS} s"
        measure.explain(finding("RESTART-LEAK", said))
