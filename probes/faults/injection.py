"""Defines fault injection: the faults, the scenario, the injector and the result of the run."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any, Protocol

from reference_trainer.launch.supervisor import Attempt
from reference_trainer.telemetry.injected_delay import parse_delays

SAVE_EVERY = 4  # steps between two saves of a fault-injected run: two saves in ten steps
DONE_EVENTS = ("saving", "step")  # journal events which show that a rank has done a step


@dataclass(frozen=True)
class Fault:
    """Signal to the victim, sent at the first `event` of this step or later in its journal.

    Each attempt gets the next fault. An empty `event` means as soon as the gang is ready.
    """

    event: str = "begin"
    step: int = 0
    signum: int = signal.SIGKILL


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

    def arm(self, target: Any) -> None:
        """Aim the fault at `target`: a gang or a process."""

    def wait(self) -> None:
        """Wait for the moment of the fault and inject it; do nothing if the victim ends before."""

    def close(self) -> None:
        """Stop waiting and clean up."""

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Describe the victim in words; `node_names` maps Ray node ids to names."""


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

    def stall_seconds(self, step: int) -> float:
        """Sum the injected delays (s) that hold up a save of this step."""
        stalls = parse_delays(self.changes.get("stall", ""))
        return sum(stall.seconds for stall in stalls if stall.covers_step(step))

    @property
    def stalls_in_background(self) -> bool:
        """Whether injected delays hold up saves in the background, while steps continue.

        Then it is unknown which step waited for the delay.
        """
        return bool(self.changes.get("stall")) and self.changes.get("save_mode") == "async"


@dataclass(kw_only=True)
class FaultedRun:
    """Result of one fault-injected run.

    `results` is ordered by rank, and empty if the run did not finish. `error` is the reason why it
    did not finish.
    """

    scenario: FaultScenario
    injectors: list[FaultInjector]
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
        held = {step: self.scenario.stall_seconds(step) for step in saved if known}
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
