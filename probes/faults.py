"""Faults that probes inject.  Each proves that it happened, and clears up after itself."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from reference_trainer.gang import Gang, Place


class Hand:
    """An actor on the victim's node that kills one process when told to."""

    def aim(self, pid: int) -> int:
        """When the process started (clock ticks since boot): a pid alone may be handed on."""
        return _started(pid)

    def kill(self, pid: int, started: int, number: int) -> tuple[bool, float]:
        """Send the signal; (proven dead, when by this node's clock)."""
        if _started(pid) != started:
            return False, time.time()
        at = time.time()
        os.kill(pid, number)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if _started(pid) != started:
                return True, at
            time.sleep(0.01)
        return False, at


def _started(pid: int) -> int:
    """Start time of a process that runs, in clock ticks since boot; -1 for none or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] == "Z" else int(fields[19])


class KillWorker:
    """Kills one rank of a gang in the middle of a step, once.

    Follows the rank's journal (`<out>/metrics.rank<r>.jsonl`) and strikes when the given step has
    begun.  `count` is how many processes are proven dead, `at` when (by the victim's clock),
    `victim` who, `error` why it could not be done.
    """

    def __init__(self, out: Path, rank: int, step: int, number: int = signal.SIGKILL) -> None:
        self.journal, self.rank, self.step = out / f"metrics.rank{rank}.jsonl", rank, step
        self.number = number
        self.count, self.at, self.error = 0, 0.0, ""
        self.victim: Place | None = None
        self._hand: Any = None
        self._started = -1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def aim(self, gang: Gang) -> None:
        """Put a hand on the victim's node and wait for the step."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.victim = gang.places[self.rank]
        there = NodeAffinitySchedulingStrategy(self.victim.node, soft=False)
        self._hand = ray.remote(Hand).options(num_cpus=0, scheduling_strategy=there).remote()
        self._started = ray.get(self._hand.aim.remote(self.victim.pid), timeout=60)
        self._thread.start()

    def _watch(self) -> None:
        import ray

        assert self.victim is not None
        while not self._stop.wait(0.02):
            if any(
                e["event"] == "begin" and e["step"] >= self.step for e in read_lines(self.journal)
            ):
                break
        else:
            return
        strike = self._hand.kill.remote(self.victim.pid, self._started, self.number)
        try:
            dead, self.at = ray.get(strike, timeout=20)
            self.count += int(dead)
        except ray.exceptions.RayError as error:
            self.error = str(error).splitlines()[0]

    def close(self) -> None:
        """Stop watching and take the hand away."""
        import ray

        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        if self._hand is not None:
            ray.kill(self._hand)

    def __enter__(self) -> KillWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON lines file that may be growing; none when it is not there yet."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    found = []
    for line in lines[:-1]:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # a killed process left half a line
            continue
    return found
