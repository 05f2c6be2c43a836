"""Faults of processes: signals that are sent on time, counted, and always undone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from probes.cluster.ask import ask_nodes, on_node
from probes.cluster.cluster import Cluster
from reference_trainer.late import ray
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.supervisor import Attempt
from reference_trainer.launch.worker import RankLocation
from reference_trainer.rank_environment import ranges


@dataclass(frozen=True)
class Fault:
    """Signal to the victim, sent at the first `event` of this step or later in its journal.

    Each attempt gets the next fault. An empty `event` means as soon as the gang is ready. With
    `whole_node` all ranks on the victim's node get the signal, at once.
    """

    event: str = "begin"
    step: int = 0
    signum: int = signal.SIGKILL
    whole_node: bool = False


class FaultInjector(Protocol):
    """Injector of one fault into one run; it proves that the fault took effect.

    `rank` is the victim. `count` is how often the fault provably took effect. `sent` and
    `injected_at` are its time on the driver's clock and on the victim's clock (s, 0 if unknown).
    `error` is the reason why the fault could not be injected.
    """

    rank: int
    count: int = 0
    injected_at: float = 0.0
    sent: float = 0.0
    error: str = ""

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Describe the victim in words; `node_names` maps Ray node ids to names."""


def start_driver(cluster: Cluster, command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a process that is a driver of the cluster; `cluster.cleanup` ends it if we die.

    `options` are those of subprocess.Popen.
    """
    # Otherwise, over ray://, the server waits 30 s for a killed client to reconnect.
    env = {**os.environ, "RAY_ADDRESS": cluster.address, "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "0"}
    child = subprocess.Popen(command, env=env, start_new_session=True, text=True, **options)
    cluster.cleanup.register("process", str(child.pid))
    return child


POLL_SECONDS = 0.02  # between two reads of a journal
EFFECT_SECONDS = 10  # for a signal to take effect: a process in a system call dies late


Target = tuple[int, int]  # process id, start time in clock ticks: pids are reused


class ProcessAgent:
    """Ray actor on the victim's node that injects one fault, at once or at a given event."""

    def find_targets(self, pids: Sequence[int]) -> tuple[list[Target], float]:
        """Return (these processes with their start times, time of this node's clock in s)."""
        return [(pid, start_ticks(pid)) for pid in pids], time.time()

    def wait_and_signal(
        self, targets: Sequence[Target], out: Path, rank: int, fault: Fault
    ) -> tuple[bool, float]:
        """Wait for the fault's event in the journal of the victim, then signal all targets.

        The victim is the first target. Returns (whether the signal took effect on all, when it was
        sent), or (False, 0) if the victim ends before the event. The journal is read here, on the
        victim's node: writes to a network file system may appear late on other nodes.
        """
        if not self.wait_for_event(targets, out, rank, fault):
            return False, 0.0
        return send_signal(targets, fault.signum)

    def wait_for_event(self, targets: Sequence[Target], out: Path, rank: int, fault: Fault) -> bool:
        """Wait for the fault's event; return whether the victim reached it."""
        pid, started = targets[0]
        while fault.event and not any(
            line["event"] == fault.event and line["step"] >= fault.step
            for line in _process_events(read_journal(out, rank), pid)
        ):
            if start_ticks(pid) != started:
                return False
            time.sleep(POLL_SECONDS)
        return True


def _process_events(lines: list[dict[str, Any]], pid: int) -> list[dict[str, Any]]:
    """List the events since the last "start" if that is of this process; otherwise none."""
    starts = [index for index, line in enumerate(lines) if line["event"] == "start"]
    return lines[starts[-1] :] if starts and lines[starts[-1]]["pid"] == pid else []


def send_signal(targets: Sequence[Target], signum: int) -> tuple[bool, float]:
    """Signal all targets at once; return (whether it took effect on all, when by this clock).

    SIGKILL took effect when the process is gone, SIGSTOP when it is stopped. Any other signal
    counts as effective once it is sent, because the reaction is up to the victim. Sends nothing if
    the first target is gone. Another one may end with the first, before its own signal.
    """

    def took_effect(pid: int, started: int) -> bool:
        if signum == signal.SIGKILL:
            return start_ticks(pid) != started
        return signum != signal.SIGSTOP or _read_stat(pid)[0] == "T"

    sent_at = time.time()
    for pid, started in targets:
        try:
            if started < 0 or start_ticks(pid) != started:
                raise ProcessLookupError
            os.kill(pid, signum)
        except ProcessLookupError:
            if (pid, started) == targets[0]:
                return False, sent_at
    deadline = time.monotonic() + EFFECT_SECONDS
    while not (done := all(took_effect(*each) for each in targets)) and time.monotonic() < deadline:
        time.sleep(0.01)  # short, because most signals take effect within it
    return done, sent_at


def descendant_pids(pid: int) -> list[int]:
    """List the pids of all descendants of a process."""
    children_of: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and len(fields := _read_stat(int(entry.name))) > 1:
            children_of.setdefault(int(fields[1]), []).append(int(entry.name))
    pids = list(children_of.get(pid, []))
    for child in pids:  # the list grows during this loop
        pids += children_of.get(child, [])
    return pids


def start_ticks(pid: int) -> int:
    """Read the start time of a process in clock ticks since boot; -1 if it is gone or a zombie."""
    fields = _read_stat(pid)
    return -1 if fields[0] in ("", "Z") else int(fields[19])


def _read_stat(pid: int) -> list[str]:
    """Read the fields of /proc/PID/stat after the name; one empty field if there is no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return [""]


class ProcessFault(FaultInjector):
    """Injector that sends a fault's signal to one rank of a gang, once.

    It sends at the first `event` of the fault's step or later in the rank's journal. Without an
    event it sends at once.
    """

    def __init__(self, out: Path, rank: int, fault: Fault) -> None:
        self.out, self.rank, self.fault = out, rank, fault
        self.victim: RankLocation | None = None
        self._gang: Any = None
        self._agent: Any = None
        self._ranks = [rank]  # all that get the signal; the victim is the first
        self._moment: tuple[Any, ...] = ()  # arguments of the agent's wait_and_signal
        self._offset = 0.0  # seconds that the victim's clock is ahead of the driver's
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.wait, daemon=True)

    def arm(self, target: Gang) -> None:
        """Start an agent on the victim's node and let it wait for the event.

        If the agent cannot start, the run goes on without a fault and `error` gives the reason.
        """
        self._gang, self.victim = target, target.places[self.rank]
        try:
            self._start_agent(target)
        except ray.exceptions.RayError as error:
            self.error = str(error).splitlines()[0]
            return
        self._thread.start()

    def _start_agent(self, gang: Gang) -> None:
        node = gang.places[self.rank].node
        if self.fault.whole_node:
            others = [rank for rank, place in enumerate(gang.places) if place.node == node]
            self._ranks += [rank for rank in others if rank != self.rank]
        pids = [gang.places[rank].pid for rank in self._ranks]
        self._agent = on_node(ProcessAgent, node).remote()
        targets, _ = ray.get(self._agent.find_targets.remote(pids), timeout=60)
        self._moment = targets, self.out, self.rank, self.fault
        start = time.time()  # again: the agent runs now, so this round trip is short
        _, remote_time = ray.get(self._agent.find_targets.remote(pids), timeout=60)
        self._offset = remote_time - (start + time.time()) / 2

    def wait(self) -> None:
        """Wait for the event and inject the fault, unless the victim ends before."""
        try:
            injected, self.injected_at = self._inject()
        except ray.exceptions.RayError as error:
            if not self._stop.is_set():
                self.error = str(error).splitlines()[0]
            return
        self.count += int(injected)
        self.sent = self.injected_at - self._offset if self.injected_at else 0.0
        if self.injected_at and self.victim and self.fault.signum == signal.SIGKILL:
            self._gang.on_kill([self.victim.node], at=self.injected_at)

    def _inject(self) -> tuple[bool, float]:
        """Inject the fault at its event; return (whether it took effect, victim's clock in s)."""
        # No timeout: the call ends when the victim ends, or when `close` kills the agent.
        return ray.get(self._agent.wait_and_signal.remote(*self._moment))

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Name the ranks and their node."""
        node = node_names.get(self.victim.node, "?") if self.victim else "?"
        ranks = "rank" if len(self._ranks) == 1 else "ranks"
        all_of_it = ", all of this node" if self.fault.whole_node else ""
        return f"{ranks} {ranges(self._ranks)} on {node}{all_of_it}"

    def close(self) -> None:
        """Stop waiting and end the agent."""
        self._stop.set()
        if self._agent is not None:
            ray.kill(self._agent)
        if self._thread.is_alive():
            self._thread.join(timeout=30)


def read_journal(out: Path, rank: int) -> list[dict[str, Any]]:
    """Read the journal that a rank of the run in this folder has written so far."""
    return read_json_lines(out / f"metrics.rank{rank}.jsonl")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a JSON lines file that may still grow; none if it is missing."""
    if not path.exists():
        return []
    events = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        with suppress(json.JSONDecodeError):  # a killed process left an incomplete line
            events.append(json.loads(line))
    return events


ProcessKey = tuple[str, int, int]  # host, process id, start time in clock ticks since boot
RankProcesses = dict[ProcessKey, int]  # the rank of each
EXIT_SECONDS = 10  # a rank needs about 2 s to notice that its raylet is gone


def rank_processes(folder: Path | None, attempts: Iterable[Attempt] = ()) -> RankProcesses:
    """Map the process of each rank in `attempts`, and in the journals below `folder`, to its rank.

    A process without a start time (no /proc) is left out, because a later process may have its pid.
    """
    processes: RankProcesses = {}
    for attempt in attempts:
        for rank, place in enumerate(attempt.places):
            if place.born is not None:
                processes[place.host, place.pid, place.born] = rank
    for journal in folder.rglob("metrics.rank*.jsonl") if folder else ():
        for line in read_json_lines(journal):
            if line["event"] == "start" and line["born"] is not None:
                processes[line["host"], line["pid"], line["born"]] = line["rank"]
    return processes


def kill_running(keys: list[ProcessKey], seconds: float) -> tuple[str, list[ProcessKey]]:
    """Wait up to `seconds` for these processes of this host to exit, then SIGKILL the others.

    Returns this host's name and the keys of the processes that were killed.
    """
    host, deadline = socket.gethostname(), time.monotonic() + seconds

    def find_running() -> list[ProcessKey]:
        return [key for key in keys if key[0] == host and start_ticks(key[1]) == key[2]]

    while (alive := find_running()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for _, pid, _ in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return host, alive


def find_orphans(
    cluster: Cluster, processes: RankProcesses, seconds: float = EXIT_SECONDS
) -> tuple[RankProcesses, list[str]]:
    """Find the known processes that still run after `seconds` more seconds, and kill them.

    Returns ({process: rank}, hosts that could not be asked).
    """
    keys = list(processes)
    answers = list(cluster.on_each_node(kill_running, keys, seconds).values())
    # Spare raylets run on the head node, which may not be among the participating nodes.
    if cluster.head_node_id not in {node["id"] for node in cluster.nodes}:
        asked = ask_nodes(kill_running, {cluster.head_node_id: (keys, seconds)})
        answers += asked.values.values()  # without one, its host counts as not asked
    orphans = sorted({key for _, running in answers for key in running})
    hosts = {host for host, _ in answers}
    return {key: processes[key] for key in orphans}, sorted({key[0] for key in processes} - hosts)


def describe_orphans(running: RankProcesses) -> str:
    """Format processes as `rank 1 on node1, process 4711; ...`."""
    rows = [(rank, host, pid) for (host, pid, _), rank in running.items()]
    return "; ".join(f"rank {rank} on {host}, process {pid}" for rank, host, pid in rows)
