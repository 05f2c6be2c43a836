"""Runs that faults end: killed ranks and launchers, damaged checkpoints."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from probes.cluster.cluster import ROOT, Cluster
from probes.cluster.gpus import COMMAND_END_SECONDS
from probes.cluster.kept_gang import GANG_NAME
from probes.faults import process_faults
from probes.faults.process_faults import Fault, FaultInjector, ProcessFault, start_driver
from reference_trainer.config import TrainConfig, cli_options
from reference_trainer.launch.gang import Gang, GangError, GangPending
from reference_trainer.launch.launchers import train_rank
from reference_trainer.launch.supervisor import Attempt, Timeouts, supervise
from reference_trainer.manifest import NAME, content_sha256
from reference_trainer.telemetry.event_log import NO_DELAYS, parse_delays
from reports.sanitize import last_line

SAVE_EVERY = 4  # steps between two saves of a fault-injected run: two saves in ten steps
DONE_EVENTS = ("saving", "step")  # journal events which show that a rank has done a step


@dataclass(frozen=True, kw_only=True)
class FaultScenario:
    """Faults of one run, and the result that is expected from it.

    `resume_step` is the step after which the last attempt must resume; None means the newest saved
    step. `max_lost` is the largest number of steps that one fault may cost. `gives_up` means that
    the run uses up all its attempts and fails. `timed` means that the recovery time depends on the
    run alone and that one clock can measure it. `victim` is a rank; -1 is the last rank. `changes`
    overrides fields of the run's configuration.
    """

    name: str
    summary: str
    faults: tuple[Fault, ...]
    resume_step: int | None = SAVE_EVERY
    max_lost: int = SAVE_EVERY
    restarts: int = 3
    gives_up: bool = False
    timed: bool = True
    victim: int = -1
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        """Number of attempts that the run needs."""
        return len(self.faults) + (not self.gives_up)

    def stall_seconds(self, step: int, attempt: int) -> float:
        """Sum the injected delays (s) that hold up a save of this step; attempts count from 0.

        An attempt without a fault has none (see FaultScheduler).
        """
        stalls = parse_delays(self.changes.get("stall", "")) if attempt < len(self.faults) else ()
        return sum(stall.seconds for stall in stalls if stall.covers_step(step))

    @property
    def stalls_in_background(self) -> bool:
        """Whether injected delays hold up saves in the background, while steps continue.

        Then it is unknown which step waited for the delay.
        """
        return bool(self.changes.get("stall")) and self.changes.get("save_mode") == "async"


@dataclass
class FaultedRun:
    """Result of one fault-injected run.

    `results` is ordered by rank, and empty if the run did not finish. `error` is the reason why it
    did not finish.
    """

    scenario: FaultScenario
    injectors: Sequence[FaultInjector]
    results: list[dict[str, Any]]
    attempts: list[Attempt]
    error: str
    journals: list[list[dict[str, Any]]]  # the victim's journal, one list per attempt
    setup_s: float = 0.0  # seconds that the first gang spent on setup before the run

    @property
    def resume_points(self) -> list[tuple[int, dict[str, Any]]]:
        """Pairs (last step done before, "start" event), one for each attempt after the first.

        A step is done when its save begins. If the victim dies in that save, the step is lost.
        """
        points, done = [], 0
        for journal in self.journals:
            if journal is not self.journals[0]:
                points.append((done, journal[0]))
            done = max([done, *(e["step"] for e in journal if e["event"] in DONE_EVENTS)])
        return points

    @property
    def steps_lost(self) -> list[int]:
        """Number of steps lost before each attempt after the first."""
        return [done - start["start_step"] for done, start in self.resume_points]

    @property
    def last_saved(self) -> int:
        """Newest step that the victim recorded as saved before its last attempt; 0 if none."""
        events = [event for journal in self.journals[:-1] for event in journal]
        return max((event["step"] for event in events if event["event"] == "saved"), default=0)

    @property
    def all_injected(self) -> bool:
        """Whether every fault took effect. Without that, the run proves nothing about recovery."""
        return all(injector.count for injector in self.injectors)

    def step_events(self, attempt: int) -> list[dict[str, Any]]:
        """List the "step" events of an attempt (numbered from 0)."""
        return [event for event in self.journals[attempt] if event["event"] == "step"]

    def step_seconds(self, attempt: int) -> dict[int, tuple[float, float]]:
        """Return {step: (its own seconds, seconds of injected save delay)} for an attempt.

        For saves in the background it is unknown which step waited for the delay: all seconds are
        the step's own.
        """
        saved = {event["step"] for event in self.journals[attempt] if event["event"] == "saving"}
        known = not self.scenario.stalls_in_background
        held = {step: self.scenario.stall_seconds(step, attempt) for step in saved if known}
        steps = {event["step"]: event["seconds"] for event in self.step_events(attempt)}
        return {step: (s - held.get(step, 0.0), held.get(step, 0.0)) for step, s in steps.items()}


def split_by_attempt(journal: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Split a rank's journal into one list per attempt; each list begins with "start".

    The order in the victim's own journal separates the attempts, not the clocks of two machines.
    """
    attempts: list[list[dict[str, Any]]] = []
    for event in journal:
        if event["event"] == "start":
            attempts.append([])
        if attempts:
            attempts[-1].append(event)
    return attempts


QUICK_CORRUPTIONS = 2  # number of CORRUPTIONS that the quick tier tries


def truncate_data(newest: Path) -> None:
    """Truncate the largest data file to its first half."""
    _halve_file(max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size))


def flip_bit(newest: Path) -> None:
    """Reverse one bit of a number in the middle of the model's largest stored tensor.

    torch loads it without an error.  A tensor is stored as a zip archive.  Its numbers are the
    longest gap between two zip signatures.
    """
    victim, piece = _find_weights(newest)
    content = bytearray(victim.read_bytes())
    signatures = [match.start() for match in re.finditer(rb"PK[\x01-\x08]{2}", content[piece])]
    first, last = max(pairwise(signatures), key=lambda pair: pair[1] - pair[0])
    content[piece.start + (first + last) // 2] ^= 64
    _write_anew(victim, content)


def truncate_metadata(newest: Path) -> None:
    """Truncate `.metadata` to its first half, as after a power loss."""
    _halve_file(newest / ".metadata")


def remove_manifest(newest: Path) -> None:
    """Remove the manifest and keep all data, as if the save ended before its commit."""
    (newest / NAME).unlink()


def change_identity(newest: Path) -> None:
    """Rewrite the manifest with another seed and a right sha256, as another run would have."""
    _rewrite_manifest(
        newest, lambda content: content["identity"].update(seed=content["identity"]["seed"] + 1)
    )


def raise_schema(newest: Path) -> None:
    """Raise the schema number, as if a later version of the trainer had written it."""
    _rewrite_manifest(newest, lambda content: content.update(schema=content["schema"] + 1))


def _rewrite_manifest(newest: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = newest / NAME
    content = json.loads(path.read_text(encoding="ascii"))
    del content["seal"]
    change(content)
    _write_anew(path, json.dumps({**content, "seal": content_sha256(content)}).encode("ascii"))


def _halve_file(victim: Path) -> None:
    content = victim.read_bytes()
    _write_anew(victim, content[: len(content) // 2])


def _write_anew(path: Path, content: bytes | bytearray) -> None:
    """Write a new file in place of this one, which may be a link to the original's."""
    path.unlink()
    path.write_bytes(content)


def _find_weights(newest: Path) -> tuple[Path, slice]:
    """Find the model's largest stored tensor: its file, and its byte range in it."""
    from reference_trainer.checkpoint.checkpointer import PlainReader

    stored = PlainReader(newest).read_metadata().storage_data
    pieces = [entry for index, entry in stored.items() if index.fqn.startswith("model.")]
    largest = max(pieces, key=lambda entry: entry.length)
    file = newest / largest.relative_path
    return file, slice(largest.offset, largest.offset + largest.length)


CORRUPTIONS = {
    "newest-bit-flipped": flip_bit,
    "metadata-torn": truncate_metadata,
    "newest-truncated": truncate_data,
    "newest-not-committed": remove_manifest,
    "of-another-run": change_identity,
    "of-a-later-version": raise_schema,
}


# A process that does not answer for 8 s counts as stopped; a busy machine answers sooner.
TIMEOUTS = Timeouts(answer=8)


def faulted_config(config: TrainConfig, scenario: FaultScenario, folder: Path) -> TrainConfig:
    """Add the run's folders and the scenario's changes to a training configuration."""
    out, checkpoints = str(folder / "out"), str(folder / "checkpoints")
    return replace(config, out=out, checkpoints=checkpoints, **scenario.changes)


def run_with_faults(
    config: TrainConfig,
    scenario: FaultScenario,
    folder: Path,
    *,
    gang: Callable[[], Gang],
    victim: int,
    setup: Callable[[Gang], None] = lambda gang: None,
    make_fault: Callable[[Path, int, Fault], ProcessFault] = ProcessFault,
) -> FaultedRun:
    """Run training under a supervisor, and inject one fault in each attempt.

    The supervisor repairs or replaces the gang that `gang()` makes.  The first gang runs `setup`
    before the training, because starting a gang is slow.  `make_fault` makes the injector of a
    fault from the run's output folder and the rank `victim`.

    If the run did not finish, its results are empty and its error is the reason.  Otherwise the
    error is "".  Raises GangPending if not even the first attempt had room: other jobs hold the
    accelerators, and nothing is shown of a restart.
    """
    injectors = [make_fault(folder / "out", victim, fault) for fault in scenario.faults]
    config, scheduler = faulted_config(config, scenario, folder), FaultScheduler(injectors, setup)
    limits: dict[str, Any] = {"restarts": scenario.restarts, "timeout": 300, "timeouts": TIMEOUTS}
    results, error = list[dict[str, Any]](), ""
    try:
        results, attempts = supervise(gang, train_rank, config, on_start=scheduler, **limits)
    except GangError as failure:
        if isinstance(failure, GangPending) and len(failure.attempts) == 1:
            raise
        attempts, error = list(failure.attempts), str(failure)
    finally:
        for injector in injectors:
            injector.close()
    journals = split_by_attempt(process_faults.read_journal(folder / "out", victim))
    setup_s = scheduler.setup_s
    return FaultedRun(scenario, injectors, results, attempts, error, journals, setup_s)


@dataclass
class FaultScheduler:
    """Callback that arms the injector of each attempt, and ends all delays once none is left.

    Before the first attempt it runs `setup`; `setup_s` is the time that took, in seconds.
    """

    injectors: list[ProcessFault]
    setup: Callable[[Gang], None]
    setup_s: float = 0.0

    def __call__(self, gang: Gang, attempt: int) -> None:
        if attempt == 1:
            start = time.monotonic()
            self.setup(gang)
            self.setup_s = time.monotonic() - start
        if attempt <= len(self.injectors):
            self.injectors[attempt - 1].arm(gang)
        else:
            gang.environment = {**(gang.environment or {}), NO_DELAYS: "1"}


def recovery_costs(run: FaultedRun, index: int) -> dict[str, float | None]:
    """Compute the costs (s) of fault number `index` (from 0), by phase.  None: not observed.

    `detect`: from the signal until the supervisor detects it, on the driver's clock.  `reschedule`:
    from then until the new gang is ready, same clock.  `init`: from the new process's start to the
    end of its first step, on its node's clock.  `redo`: time of steps that had been done before.
    """
    injector, attempts = run.injectors[index], run.attempts
    ended = attempts[index].ended if index < len(attempts) and injector.sent else 0.0
    ready = attempts[index + 1].ready if index + 1 < len(attempts) else None
    init, redo = None, 0.0
    if index + 1 < len(run.journals):
        done, start = run.resume_points[index]
        steps = run.step_events(index + 1)
        if steps and start["up_s"] is not None:
            init = start["up_s"] + steps[0]["t"] - start["t"]
        durations = run.step_seconds(index + 1)
        redo = sum(seconds for step, (seconds, _) in durations.items() if step <= done)
    detect = ended - injector.sent if ended else None
    reschedule = ready - ended if ready and ended else None
    return {"detect": detect, "reschedule": reschedule, "init": init, "redo": redo}


def ettr(run: FaultedRun) -> float | None:
    """Compute the effective training time ratio: seconds of steps that count / wall time.

    A step counts once, as it was done last.  Source: Meta RSC, arXiv 2410.21680, section 3.
    Planted delays of saves are left out of both, and `setup_s` of the wall time.  None if the run
    did not finish.  Also None if saves are delayed in the background, because the steps' share of
    that wait is unknown.
    """
    if not run.attempts or not run.results or run.scenario.stalls_in_background:
        return None
    by_attempt = [run.step_seconds(attempt) for attempt in range(len(run.journals))]
    last = {step: seconds for steps in by_attempt for step, (seconds, _) in steps.items()}
    stalled = sum(planted for steps in by_attempt for _, planted in steps.values())
    wall = run.attempts[-1].ended - run.attempts[0].started - run.setup_s - stalled
    return sum(last.values()) / wall


FREE_SECONDS = 15  # limit for Ray to remove a dead driver's gang
RUN_SECONDS = 180  # limit of a command: ten steps of 1 s, a start, and a busy machine


class LauncherProcess:
    """Process of `python -m reference_trainer launch`, killed when the block ends."""

    def __init__(self, cluster: Cluster, config: TrainConfig) -> None:
        self.cleanup, self.note_kill = cluster.cleanup, cluster.note_kill
        self.log_path = Path(str(config.out)) / f"said-{time.time_ns()}.txt"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        options = ["--workers", str(cluster.size), "--name", GANG_NAME, *cli_options(config)]
        with self.log_path.open("w") as log:
            command = [sys.executable, "-m", "reference_trainer", "launch", *options]
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.child = start_driver(cluster, command, cwd=ROOT, **streams)

    def __enter__(self) -> LauncherProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone.

        Ray ends its ranks then.  A command that has ended has killed them itself.
        """
        if (code := self.child.poll()) != -signal.SIGKILL:  # else it was noted then
            self.note_kill(ago=0.0 if code is None else COMMAND_END_SECONDS)
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

    def __init__(self, command: LauncherProcess, rank: int, step: int) -> None:
        self.command, self.rank, self.step = command, rank, step

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
    with LauncherProcess(cluster, config) as first:
        kill = LauncherKill(first, victim, scenario.faults[0].step)
        kill.wait()
    groups, ended = _wait_until_free(cluster), time.time()
    with LauncherProcess(cluster, config) as second:
        exit_code = second.wait()
    how = "did not end in time" if exit_code is None else f"ended with exit code {exit_code}"
    error = f"the repeated command {how}: {last_line(second.output(), 'it printed nothing')}"
    results = _read_results(out, cluster.size) if exit_code == 0 else []
    attempts = _read_attempts(process_faults.read_json_lines(out / "attempts.jsonl"), ended)
    journals = split_by_attempt(process_faults.read_journal(out, victim))
    return FaultedRun(scenario, [kill], results, attempts, error, journals), groups


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
        elif event["event"] not in ("repaired", "removed"):  # these begin the next attempt
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
