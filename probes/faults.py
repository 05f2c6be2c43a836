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

    def ready(self) -> bool:
        """Answers once the actor is placed."""
        return True

    def kill(self, pid: int, number: int) -> bool:
        """Send the signal; True when the process was there before and is gone after."""
        os.kill(pid, number)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if not _alive(pid):
                return True
            time.sleep(0.01)
        return False


def _alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class KillWorker:
    """Kills one rank of a gang in the middle of a step, once.

    Follows the rank's journal (`<out>/metrics.rank<r>.jsonl`) and strikes when the given step has
    begun.  `count` is how many processes are proven dead, `at` when (epoch s), `victim` who.
    """

    def __init__(self, out: Path, rank: int, step: int, number: int = signal.SIGKILL) -> None:
        self.journal, self.rank, self.step = out / f"metrics.rank{rank}.jsonl", rank, step
        self.number = number
        self.count, self.at, self.error = 0, 0.0, ""
        self.victim: Place | None = None
        self._hand: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def aim(self, gang: Gang) -> None:
        """Put a hand on the victim's node and wait for the step."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.victim = gang.places[self.rank]
        there = NodeAffinitySchedulingStrategy(self.victim.node, soft=False)
        self._hand = ray.remote(Hand).options(num_cpus=0, scheduling_strategy=there).remote()
        ray.get(self._hand.ready.remote(), timeout=60)
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
        self.at = time.time()
        try:
            dead = ray.get(self._hand.kill.remote(self.victim.pid, self.number), timeout=20)
            self.count += int(bool(dead))
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
