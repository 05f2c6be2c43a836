"""Faults that probes inject.  Each proves that it happened, and clears up after itself."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from probes.cluster.node_affinity import pinned
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.worker import Place

LOOK_SECONDS = 0.02  # from one look at a journal to the next


class Hand:
    """An actor on the victim's node that sends one process a signal, at once or at its moment."""

    def aim(self, pid: int) -> tuple[int, float]:
        """(When the process started, for a pid alone may be handed on; the time by this clock)."""
        return _started(pid), time.time()

    def lurk(
        self, pid: int, started: int, number: int, journal: Path, event: str, step: int
    ) -> tuple[bool, float]:
        """Wait for the moment in the victim's own journal, then strike.

        It is read here, on the victim's node: what it wrote to a network file system may take
        long to be seen elsewhere.  (False, 0) when the victim ends before its moment.
        """
        if not self.await_(pid, started, journal, event, step):
            return False, 0.0
        return self.strike(pid, started, number)

    def await_(self, pid: int, started: int, journal: Path, event: str, step: int) -> bool:
        """Whether the victim came to its moment."""
        while event and not _due(_life(read_lines(journal), pid), event, step):
            if _started(pid) != started:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def strike(self, pid: int, started: int, number: int) -> tuple[bool, float]:
        """Send the signal; (proven to have had its effect, when by this node's clock).

        The effect of SIGKILL is that the process is gone, of SIGSTOP that it is stopped.  Of any
        other signal only that it was sent can be said here: the rest is the victim's affair.
        """
        at = time.time()
        if started < 0 or _started(pid) != started:
            return False, at
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False, at
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


def _life(lines: list[dict[str, Any]], pid: int) -> list[dict[str, Any]]:
    """What a journal says of the process with this id, last; nothing before it has begun."""
    starts = [at for at, line in enumerate(lines) if line["event"] == "start"]
    return lines[starts[-1] :] if starts and lines[starts[-1]]["pid"] == pid else []


def _due(lines: list[dict[str, Any]], event: str, step: int) -> bool:
    return any(line["event"] == event and line["step"] >= step for line in lines)


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

    The moment is the first `event` of step `step` or later in the rank's journal
    (`<out>/metrics.rank<r>.jsonl`); with no event, at once.  `count` is how often the signal is
    proven to have had its effect, `sent` when by the driver's clock, `at` when by the victim's,
    `victim` who, `error` why it could not be done.
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
        self._started, self._ahead = -1, 0.0  # how far the victim's clock is ahead of the driver's
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def aim(self, gang: Gang) -> None:
        """Put a hand on the victim's node, and let it wait for the moment.

        Where that cannot be done the run goes on, unstruck, and `error` says why.
        """
        import ray

        self.victim = gang.places[self.rank]
        try:
            self._arm(gang)
        except ray.exceptions.RayError as error:
            self.error = str(error).splitlines()[0]
            return
        self._thread.start()

    def _arm(self, gang: Gang) -> None:
        import ray

        assert self.victim is not None
        self._hand = pinned(Hand, self.victim.node).remote()
        self._started, _ = ray.get(self._hand.aim.remote(self.victim.pid), timeout=60)
        asked = time.time()  # again, now that the hand is there: this takes a moment only
        _, there = ray.get(self._hand.aim.remote(self.victim.pid), timeout=60)
        self._ahead = there - (asked + time.time()) / 2

    def _watch(self) -> None:
        import ray

        try:
            struck, self.at = self._act()
        except ray.exceptions.RayError as error:
            if not self._stop.is_set():
                self.error = str(error).splitlines()[0]
            return
        self.count += int(struck)
        self.sent = self.at - self._ahead if self.at else 0.0

    def _act(self) -> tuple[bool, float]:
        """Wait for the moment and do it; (proven to have happened, when by the victim's clock)."""
        import ray

        assert self.victim is not None
        blow = self._hand.lurk.remote(
            self.victim.pid, self._started, self.number, self.journal, self.event, self.step
        )
        struck, at = ray.get(blow)  # bounded by the victim's life, and by `close`
        return bool(struck), float(at)

    def whom(self, names: dict[str, str]) -> str:
        """Who was to be struck, in words; `names` are the nodes'."""
        node = names.get(self.victim.node, "?") if self.victim else "?"
        return f"rank {self.rank} on {node}"

    def close(self) -> None:
        """Stop watching and take the hand away."""
        import ray

        self._stop.set()
        if self._hand is not None:
            ray.kill(self._hand)
        if self._thread.is_alive():
            self._thread.join(timeout=30)


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
