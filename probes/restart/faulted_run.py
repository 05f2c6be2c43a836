"""One run that meets faults, and what is seen of it: its lives, how it came back, what it cost."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.faults.process_faults import ProcessFault, read_json_lines
from probes.restart.equality import UnequalStep, unequal_steps
from probes.restart.reference_run import SAVE_EVERY
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.launchers import train_rank
from reference_trainer.launch.supervisor import Attempt, Timeouts, supervise
from reference_trainer.telemetry.injected_delay import parse_delays

GANG_NAME = f"seatrial-restart-{os.getpid()}"  # of the gangs' placement groups
# A process that does not answer for so long is taken for stopped: long for a busy machine.
TIMEOUTS = Timeouts(answer=8)
DONE_EVENTS = ("saving", "step")  # a rank's events that show that it has done a step


@dataclass(frozen=True)
class Fault:
    """A signal to the victim, at the first `event` of its journal of this step or later.

    Each attempt meets the next blow.  No event: as soon as the gang is there.
    """

    event: str = "begin"
    step: int = 0
    signum: int = signal.SIGKILL


@dataclass(frozen=True, kw_only=True)
class FaultScenario:
    """What the run meets, and what is expected of it.

    `resumes` is the step that its last life begins after (None: the newest that was saved), `lost`
    the most steps that one blow may cost.  `dies`: its attempts are used up.  `timed`: how long it
    took to come back is the run's own doing, and can be seen by one clock.  `victim` is a rank, or
    -1 for the last.
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
        """How many it takes."""
        return len(self.faults) + (not self.gives_up)

    def stall_seconds(self, step: int) -> float:
        """Seconds for which planted delays hold up a save of this step."""
        stalls = parse_delays(self.changes.get("stall", ""))
        return sum(stall.seconds for stall in stalls if stall.covers_step(step))

    @property
    def stalls_in_background(self) -> bool:
        """Whether saves are held up while steps go on, so that nobody knows who waited for that."""
        return bool(self.changes.get("stall")) and self.changes.get("save_mode") == "async"


@dataclass(kw_only=True)
class FaultedRun:
    """A run under a scenario: its results in order of rank (none: it did not end), and how."""

    scenario: FaultScenario
    injectors: list[Any]  # Strike, or what is like one
    results: list[dict[str, Any]]
    attempts: list[Attempt]
    error: str
    journals: list[list[dict[str, Any]]]  # the victim's journal, cut at each "start"
    setup_s: float = 0.0  # seconds for which its first gang did something else first

    @property
    def resume_points(self) -> list[tuple[int, dict[str, Any]]]:
        """For each life after the first: the last step that was done before, and its "start".

        A step is done when its save begins: whoever dies in that save has done it in vain.
        """
        points, done = [], 0
        for journal in self.journals:
            if journal is not self.journals[0]:
                points.append((done, journal[0]))
            done = max([done, *(e["step"] for e in journal if e["event"] in DONE_EVENTS)])
        return points

    @property
    def last_saved(self) -> int:
        """The newest step that the victim knew to be saved before its last life; 0 for none."""
        events = [event for journal in self.journals[:-1] for event in journal]
        return max((event["step"] for event in events if event["event"] == "saved"), default=0)

    def find_unequal(self, reference: dict[str, Any], attempts: int) -> list[UnequalStep]:
        """Steps of the victim's first so many lives that differ from its rank's `reference`."""
        expected, unequal = {step["step"]: step for step in reference["steps"]}, []
        for attempt in range(attempts):
            steps = self.step_events(attempt)
            references = [expected[step["step"]] for step in steps if step["step"] in expected]
            unequal += unequal_steps(
                [{**reference, "steps": references}], [{**reference, "steps": steps}]
            )
        return unequal

    @property
    def all_injected(self) -> bool:
        """Whether every blow happened: else nothing is known of what it would have led to."""
        return all(injector.count for injector in self.injectors)

    def step_events(self, attempt: int) -> list[dict[str, Any]]:
        """The "step" events of a life."""
        return [event for event in self.journals[attempt] if event["event"] == "step"]

    def step_seconds(self, attempt: int) -> dict[int, tuple[float, float]]:
        """By step of a life: its own seconds, and those for which its save was held on purpose.

        In the background nobody knows who waited for that: all seconds are the step's.
        """
        saved = {event["step"] for event in self.journals[attempt] if event["event"] == "saving"}
        known = not self.scenario.stalls_in_background
        held = {step: self.scenario.stall_seconds(step) for step in saved if known}
        steps = {event["step"]: event["seconds"] for event in self.step_events(attempt)}
        return {step: (s - held.get(step, 0.0), held.get(step, 0.0)) for step, s in steps.items()}


def run_with_faults(
    config: TrainConfig,
    scenario: FaultScenario,
    folder: Path,
    *,
    gang: Callable[[], Gang],
    victim: int,
    setup: Callable[[Gang], None] = lambda gang: None,
    make_fault: Callable[[Path, Fault], ProcessFault] | None = None,
) -> FaultedRun:
    """Run it under a supervisor, in a `gang()` that it mends or replaces, with each attempt's blow.

    The first gang does what `before` says first: starting one is what takes time.  `arm` makes the
    strike of a blow, in the run's folder; without it, a signal to the rank `victim`.
    """
    out = folder / "out"
    config = dataclasses.replace(
        config, out=str(out), checkpoints=str(folder / "checkpoints"), **scenario.changes
    )
    make_fault = make_fault or (lambda out, f: ProcessFault(out, victim, f.event, f.step, f.signum))
    injectors = [make_fault(out, f) for f in scenario.faults]
    results: list[dict[str, Any]] = []
    error, scheduler = "", FaultScheduler(injectors, setup)
    try:
        results, attempts = supervise(
            gang,
            train_rank,
            config,
            restarts=scenario.restarts,
            timeout=300,
            timeouts=TIMEOUTS,
            on_start=scheduler,
        )
    except GangError as gang_error:
        error, attempts = str(gang_error), list(gang_error.attempts)
    finally:
        for injector in injectors:
            injector.close()
    return FaultedRun(
        scenario=scenario,
        injectors=injectors,
        results=results,
        attempts=attempts,
        error=error,
        journals=split_by_attempt(read_json_lines(out / f"metrics.rank{victim}.jsonl")),
        setup_s=scheduler.setup_s,
    )


@dataclass
class FaultScheduler:
    """Aims the blow of each attempt; `aside` are the seconds of what is done before the first."""

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


def split_by_attempt(journal: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """A rank's journal, one list for each life, which begins with "start".

    Before and after are told apart by the victim's own journal, not by two machines' clocks.
    """
    attempts: list[list[dict[str, Any]]] = []
    for event in journal:
        if event["event"] == "start":
            attempts.append([])
        if attempts:
            attempts[-1].append(event)
    return attempts


@dataclass(frozen=True)
class RecoveryCosts:
    """What a blow cost, in seconds.  None: it was not seen.

    detect: from the signal to the supervisor's knowledge of it, on the driver's clock; reschedule:
    from there to a gang that is ready, same clock; init: from the new process's start to its first
    step's end, on its node's clock; redo: of the steps that were done before.
    """

    detect: float | None
    reschedule: float | None
    init: float | None
    redo: float


def recovery_costs(run: FaultedRun, index: int) -> RecoveryCosts:
    """What the blow of this number (from 0) cost."""
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
    return RecoveryCosts(
        detect=ended - injector.sent if ended else None,
        reschedule=ready - ended if ready and ended else None,
        init=init,
        redo=redo,
    )


def ettr(run: FaultedRun) -> float | None:
    """Effective training time ratio: seconds of the steps that count, over the whole run's.

    A step counts once, as it was done last.  Meta RSC, arXiv 2410.21680, section 3.  What saves
    were held up on purpose is neither; None where nobody knows how much of that was waited for.
    """
    if not run.attempts or not run.results or run.scenario.stalls_in_background:
        return None
    by_attempt = [run.step_seconds(attempt) for attempt in range(len(run.journals))]
    last = {step: seconds for steps in by_attempt for step, (seconds, _) in steps.items()}
    stalled = sum(planted for steps in by_attempt for _, planted in steps.values())
    wall = run.attempts[-1].ended - run.attempts[0].started - run.setup_s - stalled
    return sum(last.values()) / wall
