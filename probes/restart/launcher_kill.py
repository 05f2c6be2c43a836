"""Kills the launcher itself, and runs the same command again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from probes.cluster.cluster import ROOT, Cluster
from probes.faults.injection import FaultedRun, FaultInjector, FaultScenario, split_by_attempt
from probes.faults.process_faults import read_journal, read_json_lines
from probes.restart.faulted_run import GANG_NAME, faulted_config
from reference_trainer.config import TrainConfig
from reference_trainer.launch.supervisor import Attempt
from reference_trainer.options import cli_options

FREE_SECONDS = 15  # limit for Ray to remove a dead driver's gang
RUN_SECONDS = 180  # limit of a command: ten steps of 1 s, a start, and a busy machine


class LauncherProcess:
    """Process of `python -m reference_trainer launch`, killed when the block ends."""

    def __init__(self, cluster: Cluster, config: TrainConfig) -> None:
        self.cleanup = cluster.cleanup
        self.log_path = Path(str(config.out)) / f"said-{time.time_ns()}.txt"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        options = ["--workers", str(cluster.size), "--name", GANG_NAME, *cli_options(config)]
        with self.log_path.open("w") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "reference_trainer", "launch", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=ROOT,
                env={
                    **os.environ,
                    "RAY_ADDRESS": cluster.address,
                    # Otherwise Ray waits 30 s for a killed ray:// client to reconnect.
                    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "0",
                },
            )
        self.cleanup.register("process", str(self.child.pid))

    def __enter__(self) -> LauncherProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone."""
        self.child.kill()
        self.child.wait(timeout=10)
        self.cleanup.unregister("process", str(self.child.pid))

    def output(self) -> str:
        """Read all that the command has printed so far, including its ranks' log lines."""
        return self.log_path.read_text(errors="replace")

    def wait(self) -> int | None:
        """Wait until the command ends; return its exit code, or None after RUN_SECONDS."""
        try:
            return self.child.wait(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            return None


class LauncherKill(FaultInjector):
    """Injector that kills a launcher when its log shows `step`, as ProcessFault kills a rank."""

    def __init__(self, rank: int, step: int) -> None:
        self.rank, self.step = rank, step

    def arm(self, target: LauncherProcess) -> None:
        """Select the command to kill."""
        self.command = target

    def wait(self) -> None:
        """Wait for the step and kill the command.  Do nothing if the command ends first."""
        deadline = time.monotonic() + RUN_SECONDS
        pattern = re.compile(rf"\bstep {self.step}/")
        while not pattern.search(self.command.output()):
            if self.command.child.poll() is not None or time.monotonic() > deadline:
                return
            time.sleep(0.05)
        if self.command.child.poll() is None:
            self.sent = time.time()
            self.command.kill()
            self.count = int(self.command.child.returncode == -signal.SIGKILL)

    def close(self) -> None:
        """Kill the command if it still runs."""
        self.command.kill()

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Name the launcher as the target."""
        return "the launcher"


def run_kill_rerun(
    cluster: Cluster, config: TrainConfig, scenario: FaultScenario, folder: Path
) -> tuple[FaultedRun, int]:
    """Run the command, kill it, wait until its gang is gone, and run it again.

    Returns the observed run, and how many groups the killed command still had after at most 15 s.
    """
    out, victim = folder / "out", cluster.size - 1
    config = faulted_config(config, scenario, folder)
    kill = LauncherKill(victim, scenario.faults[0].step)
    with LauncherProcess(cluster, config) as first:
        kill.arm(first)
        kill.wait()
    groups, ended = _wait_until_free(cluster), time.time()
    with LauncherProcess(cluster, config) as second:
        exit_code = second.wait()
    last_line = (second.output().strip().splitlines() or ["it printed nothing"])[-1]
    run = FaultedRun(
        scenario=scenario,
        injectors=[kill],
        results=_read_results(out, cluster.size) if exit_code == 0 else [],
        attempts=_read_attempts(read_json_lines(out / "attempts.jsonl"), ended),
        error=f"the same command ended with {exit_code}: {last_line}",
        journals=split_by_attempt(read_journal(out, victim)),
    )
    return run, groups


def _read_attempts(events: list[dict[str, Any]], killed_at: float) -> list[Attempt]:
    """Read the attempts of both commands from their event log.

    An attempt that the log does not end was ended by the kill, at `killed_at`.
    """
    attempts: list[Attempt] = []
    for event in events:
        if event["event"] == "attempt":
            if attempts and not attempts[-1].ended:
                attempts[-1].ended, attempts[-1].reason = killed_at, "the launcher was killed"
            attempts.append(Attempt(places=[], started=event["t"]))
        elif event["event"] == "ready":
            attempts[-1].ready = event["t"]
        elif event["event"] not in ("mended", "removed"):  # these begin the next attempt
            attempts[-1].ended, attempts[-1].reason = event["t"], str(event.get("reason", ""))
    return attempts


def _wait_until_free(cluster: Cluster) -> int:
    """Wait at most 15 s until the command has no placement group; return how many are left."""
    deadline = time.monotonic() + FREE_SECONDS
    while (groups := len(cluster.groups_named(GANG_NAME))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return groups


def _read_results(out: Path, size: int) -> list[dict[str, Any]]:
    files = [out / f"result.rank{rank}.json" for rank in range(size)]
    return [json.loads(file.read_text(encoding="ascii")) for file in files if file.exists()]
