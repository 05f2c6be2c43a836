"""One fault injection: what is done and when, who does it, and the run that meets it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any, Protocol

from reference_trainer.launch.supervisor import Attempt
from reference_trainer.telemetry.injected_delay import parse_delays

SAVE_EVERY = 4  # steps of a run that meets faults from one save to the next: two saves in ten steps
DONE_EVENTS = ("saving", "step")  # a rank's events that show that it has done a step


@dataclass(frozen=True)
class Fault:
    """A signal to the victim, at the first `event` of its journal of this step or later.

    Each attempt meets the next fault.  No event: as soon as the gang is there.
    """

    event: str = "begin"
    step: int = 0
    signum: int = signal.SIGKILL


class FaultInjector(Protocol):
    """Does one fault to one run, once, and proves that it happened.

    `rank` is the victim, `count` how often the fault is proven to have had its effect, `sent` when
    by the driver's clock, `injected_at` when by the victim's, `error` why it could not be done.
    """

    rank: int
    count: int = 0
    injected_at: float = 0.0
    sent: float = 0.0
    error: str = ""

    def arm(self, target: Any) -> None:
        """Aim at what is to meet the fault: a gang, or a process."""

    def wait(self) -> None:
        """Wait for the moment and do it; does nothing when the victim ends before."""

    def close(self) -> None:
        """Stop waiting, and clear up."""

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Tell who was to meet the fault, in words; `node_names` are by Ray's id."""


@dataclass(frozen=True, kw_only=True)
class FaultScenario:
    """What the run meets, and what is expected of it.

    `resume_step` is the step that its last life begins after (None: the newest that was saved),
    `max_lost` the most steps that one fault may cost.  `gives_up`: its attempts are used up.
    `timed`: how long it took to come back is the run's own doing, and can be seen by one clock.
    `victim` is a rank, or -1 for the last.
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
        """Sum the seconds for which planted delays hold up a save of this step."""
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
    injectors: list[FaultInjector]
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
    def steps_lost(self) -> list[int]:
        """How many steps were done in vain before each life after the first."""
        return [done - start["start_step"] for done, start in self.resume_points]

    @property
    def last_saved(self) -> int:
        """The newest step that the victim knew to be saved before its last life; 0 for none."""
        events = [event for journal in self.journals[:-1] for event in journal]
        return max((event["step"] for event in events if event["event"] == "saved"), default=0)

    @property
    def all_injected(self) -> bool:
        """Whether every fault happened: else nothing is known of what it would have led to."""
        return all(injector.count for injector in self.injectors)

    def step_events(self, attempt: int) -> list[dict[str, Any]]:
        """List the "step" events of a life."""
        return [event for event in self.journals[attempt] if event["event"] == "step"]

    def step_seconds(self, attempt: int) -> dict[int, tuple[float, float]]:
        """Give each step of a life its own seconds, and those its save was held on purpose.

        In the background nobody knows who waited for that: all seconds are the step's.
        """
        saved = {event["step"] for event in self.journals[attempt] if event["event"] == "saving"}
        known = not self.scenario.stalls_in_background
        held = {step: self.scenario.stall_seconds(step) for step in saved if known}
        steps = {event["step"]: event["seconds"] for event in self.step_events(attempt)}
        return {step: (s - held.get(step, 0.0), held.get(step, 0.0)) for step, s in steps.items()}


def split_by_attempt(journal: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Cut a rank's journal into one list for each life, which begins with "start".

    Before and after are told apart by the victim's own journal, not by two machines' clocks.
    """
    attempts: list[list[dict[str, Any]]] = []
    for event in journal:
        if event["event"] == "start":
            attempts.append([])
        if attempts:
            attempts[-1].append(event)
    return attempts
