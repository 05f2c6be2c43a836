"""Faults that probes inject.  Each proves that it happened, and clears up after itself."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from probes.pinned import pinned
from reference_trainer.gang import Gang, Place


class Hand:
    """An actor on the victim's node that sends one process a signal when told to."""

    def aim(self, pid: int) -> int:
        """When the process started (clock ticks since boot): a pid alone may be handed on."""
        return _started(pid)

    def strike(self, pid: int, started: int, number: int) -> tuple[bool, float]:
        """Send the signal; (proven to have had its effect, when by this node's clock).

        The effect of SIGKILL is that the process is gone, of SIGSTOP that it is stopped.  Of any
        other signal only that it was sent can be said here: the rest is the victim's affair.
        """
        if _started(pid) != started:
            return False, time.time()
        at = time.time()
        os.kill(pid, number)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if number == signal.SIGKILL:
                done = _started(pid) != started
            else:
                done = number != signal.SIGSTOP or _state(pid) == "T"
            if done:
                return True, at
            time.sleep(0.01)
        return False, at


def offspring(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and len(fields := _stat(int(entry.name))) > 1:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(parents.get(pid, []))
    for child in found:  # grows while it is walked
        found += parents.get(child, [])
    return found


def _started(pid: int) -> int:
    """Start time of a process that runs, in clock ticks since boot; -1 for none or a zombie."""
    fields = _stat(pid)
    return -1 if fields[0] in ("", "Z") else int(fields[19])


def _state(pid: int) -> str:
    """The state's letter, as in proc(5); empty for none."""
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    """What /proc says of a process after its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return [""]


class Strike:
    """Sends one rank of a gang a signal at a given moment, once.

    Follows the rank's journal (`<out>/metrics.rank<r>.jsonl`) from where it stands when aimed, and
    strikes at the first `event` of step `step` or later; with no event, at once.  `count` is how
    often the signal is proven to have had its effect, `sent` when by the driver's clock, `at` when
    by the victim's, `victim` who, `error` why it could not be done.
    """

    def __init__(
        self,
        out: Path,
        rank: int,
        event: str = "begin",
        step: int = 0,
        number: int = signal.SIGKILL,
    ) -> None:
        self.journal, self.rank = out / f"metrics.rank{rank}.jsonl", rank
        self.event, self.step, self.number = event, step, number
        self.count, self.at, self.sent, self.error = 0, 0.0, 0.0, ""
        self.victim: Place | None = None
        self._hand: Any = None
        self._started = -1
        self._seen = 0  # lines of the journal that are of earlier lives
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def aim(self, gang: Gang) -> None:
        """Put a hand on the victim's node and wait for the moment."""
        self.victim = gang.places[self.rank]
        self._arm(gang)
        self._seen = len(read_lines(self.journal))
        self._thread.start()

    def _arm(self, gang: Gang) -> None:
        import ray

        assert self.victim is not None
        self._hand = pinned(Hand, self.victim.node).remote()
        self._started = ray.get(self._hand.aim.remote(self.victim.pid), timeout=60)

    def _act(self) -> tuple[bool, float]:
        """Do it; (proven to have had its effect, when by the victim's clock)."""
        import ray

        assert self.victim is not None
        blow = self._hand.strike.remote(self.victim.pid, self._started, self.number)
        struck, at = ray.get(blow, timeout=20)
        return bool(struck), float(at)

    def _watch(self) -> None:
        import ray

        while self.event and not self._stop.wait(0.02):
            if any(
                line["event"] == self.event and line["step"] >= self.step
                for line in read_lines(self.journal)[self._seen :]
            ):
                break
        if self._stop.is_set():
            return
        self.sent = time.time()
        try:
            struck, self.at = self._act()
            self.count += int(struck)
        except ray.exceptions.RayError as error:
            self.error = str(error).splitlines()[0]

    def whom(self, names: dict[str, str]) -> str:
        """Who was to be struck, in words; `names` are the nodes'."""
        node = names.get(self.victim.node, "?") if self.victim else "?"
        return f"rank {self.rank} on {node}"

    def close(self) -> None:
        """Stop watching and take the hand away."""
        import ray

        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        if self._hand is not None:
            ray.kill(self._hand)

    def __enter__(self) -> Strike:
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
