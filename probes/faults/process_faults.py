"""Faults that probes inject.  Each proves that it happened, and clears up after itself."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from probes.cluster.node_affinity import on_node
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.worker import RankLocation

POLL_SECONDS = 0.02  # from one look at a journal to the next


class ProcessAgent:
    """An actor on the victim's node that sends one process a signal, at once or at its moment."""

    def start_time(self, pid: int) -> tuple[int, float]:
        """(When the process started, for a pid alone may be handed on; the time by this clock)."""
        return _start_ticks(pid), time.time()

    def wait_and_signal(
        self, pid: int, started: int, signum: int, journal: Path, event: str, step: int
    ) -> tuple[bool, float]:
        """Wait for the moment in the victim's own journal, then strike.

        It is read here, on the victim's node: what it wrote to a network file system may take
        long to be seen elsewhere.  (False, 0) when the victim ends before its moment.
        """
        if not self.wait_for_event(pid, started, journal, event, step):
            return False, 0.0
        return self.send_signal(pid, started, signum)

    def wait_for_event(self, pid: int, started: int, journal: Path, event: str, step: int) -> bool:
        """Whether the victim came to its moment."""
        while event and not _is_due(_process_events(read_json_lines(journal), pid), event, step):
            if _start_ticks(pid) != started:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def send_signal(self, pid: int, started: int, signum: int) -> tuple[bool, float]:
        """Send the signal; (proven to have had its effect, when by this node's clock).

        The effect of SIGKILL is that the process is gone, of SIGSTOP that it is stopped.  Of any
        other signal only that it was sent can be said here: the rest is the victim's affair.
        """
        sent_at = time.time()
        if started < 0 or _start_ticks(pid) != started:
            return False, sent_at
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            return False, sent_at
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if signum == signal.SIGKILL:
                done = _start_ticks(pid) != started
            else:
                done = signum != signal.SIGSTOP or _process_state(pid) == "T"
            if done:
                return True, sent_at
            time.sleep(0.01)
        return False, sent_at


def _process_events(lines: list[dict[str, Any]], pid: int) -> list[dict[str, Any]]:
    """What a journal says of the process with this id, last; nothing before it has begun."""
    starts = [index for index, line in enumerate(lines) if line["event"] == "start"]
    return lines[starts[-1] :] if starts and lines[starts[-1]]["pid"] == pid else []


def _is_due(lines: list[dict[str, Any]], event: str, step: int) -> bool:
    return any(line["event"] == event and line["step"] >= step for line in lines)


def descendant_pids(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    children_of: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and len(fields := _read_stat(int(entry.name))) > 1:
            children_of.setdefault(int(fields[1]), []).append(int(entry.name))
    pids = list(children_of.get(pid, []))
    for child in pids:  # grows while it is walked
        pids += children_of.get(child, [])
    return pids


def _start_ticks(pid: int) -> int:
    """Start time of a process that runs, in clock ticks since boot; -1 for none or a zombie."""
    fields = _read_stat(pid)
    return -1 if fields[0] in ("", "Z") else int(fields[19])


def _process_state(pid: int) -> str:
    """The state's letter, as in proc(5); empty for none."""
    return _read_stat(pid)[0]


def _read_stat(pid: int) -> list[str]:
    """What /proc says of a process after its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return [""]


class ProcessFault:
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
        signum: int = signal.SIGKILL,
    ) -> None:
        self.journal, self.rank = out / f"metrics.rank{rank}.jsonl", rank
        self.event, self.step, self.signum = event, step, signum
        self.count, self.injected_at, self.sent, self.error = 0, 0.0, 0.0, ""
        self.victim: RankLocation | None = None
        self._agent: Any = None
        self._started, self._offset = -1, 0.0  # how far the victim's clock is ahead of the driver's
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def arm(self, gang: Gang) -> None:
        """Put a hand on the victim's node, and let it wait for the moment.

        Where that cannot be done the run goes on, unstruck, and `error` says why.
        """
        import ray

        self.victim = gang.places[self.rank]
        try:
            self._start_agent(gang)
        except ray.exceptions.RayError as error:
            self.error = str(error).splitlines()[0]
            return
        self._thread.start()

    def _start_agent(self, gang: Gang) -> None:
        import ray

        assert self.victim is not None
        self._agent = on_node(ProcessAgent, self.victim.node).remote()
        self._started, _ = ray.get(self._agent.start_time.remote(self.victim.pid), timeout=60)
        start = time.time()  # again, now that the hand is there: this takes a moment only
        _, remote_time = ray.get(self._agent.start_time.remote(self.victim.pid), timeout=60)
        self._offset = remote_time - (start + time.time()) / 2

    def _watch(self) -> None:
        import ray

        try:
            injected, self.injected_at = self._inject()
        except ray.exceptions.RayError as error:
            if not self._stop.is_set():
                self.error = str(error).splitlines()[0]
            return
        self.count += int(injected)
        self.sent = self.injected_at - self._offset if self.injected_at else 0.0

    def _inject(self) -> tuple[bool, float]:
        """Wait for the moment and do it; (proven to have happened, when by the victim's clock)."""
        import ray

        assert self.victim is not None
        call = self._agent.wait_and_signal.remote(
            self.victim.pid, self._started, self.signum, self.journal, self.event, self.step
        )
        injected, injected_at = ray.get(call)  # bounded by the victim's life, and by `close`
        return bool(injected), float(injected_at)

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Who was to be struck, in words; `names` are the nodes'."""
        node = node_names.get(self.victim.node, "?") if self.victim else "?"
        return f"rank {self.rank} on {node}"

    def close(self) -> None:
        """Stop watching and take the hand away."""
        import ray

        self._stop.set()
        if self._agent is not None:
            ray.kill(self._agent)
        if self._thread.is_alive():
            self._thread.join(timeout=30)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON lines file that may be growing; none when it is not there yet."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    events = []
    for line in lines[:-1]:
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:  # a killed process left half a line
            continue
    return events
