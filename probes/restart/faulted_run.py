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

from probes.faults.process_faults import Strike, read_lines
from probes.restart.equality import Unequal, unequal_steps
from probes.restart.reference_run import SAVE_EVERY
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.launchers import rank
from reference_trainer.launch.supervisor import Attempt, Patience, supervise
from reference_trainer.telemetry.injected_delay import parse_stalls

NAME = f"seatrial-restart-{os.getpid()}"  # of the gangs' placement groups
# A process that does not answer for so long is taken for stopped: long for a busy machine.
PATIENCE = Patience(answer=8)
DONE = ("saving", "step")  # a rank's events that show that it has done a step


@dataclass(frozen=True)
class Blow:
    """A signal to the victim, at the first `event` of its journal of this step or later.

    Each attempt meets the next blow.  No event: as soon as the gang is there.
    """

    event: str = "begin"
    step: int = 0
    number: int = signal.SIGKILL


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What the run meets, and what is expected of it.

    `resumes` is the step that its last life begins after (None: the newest that was saved), `lost`
    the most steps that one blow may cost.  `dies`: its attempts are used up.  `timed`: how long it
    took to come back is the run's own doing, and can be seen by one clock.  `victim` is a rank, or
    -1 for the last.
    """

    name: str
    words: str
    blows: tuple[Blow, ...]
    resumes: int | None = SAVE_EVERY
    lost: int = SAVE_EVERY
    restarts: int = 3
    dies: bool = False
    timed: bool = True
    victim: int = -1
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        """How many it takes."""
        return len(self.blows) + (not self.dies)

    def held(self, step: int) -> float:
        """Seconds for which planted delays hold up a save of this step."""
        stalls = parse_stalls(self.changes.get("stall", ""))
        return sum(stall.seconds for stall in stalls if stall.covers(step))

    @property
    def held_beside(self) -> bool:
        """Whether saves are held up while steps go on, so that nobody knows who waited for that."""
        return bool(self.changes.get("stall")) and self.changes.get("save_mode") == "async"


@dataclass(kw_only=True)
class Voyage:
    """A run under a scenario: its results in order of rank (none: it did not end), and how."""

    scenario: Scenario
    strikes: list[Any]  # Strike, or what is like one
    results: list[dict[str, Any]]
    attempts: list[Attempt]
    error: str
    lives: list[list[dict[str, Any]]]  # the victim's journal, cut at each "start"
    aside: float = 0.0  # seconds for which its first gang did something else first

    @property
    def cuts(self) -> list[tuple[int, dict[str, Any]]]:
        """For each life after the first: the last step that was done before, and its "start".

        A step is done when its save begins: whoever dies in that save has done it in vain.
        """
        cuts, done = [], 0
        for life in self.lives:
            if life is not self.lives[0]:
                cuts.append((done, life[0]))
            done = max([done, *(e["step"] for e in life if e["event"] in DONE)])
        return cuts

    @property
    def saved(self) -> int:
        """The newest step that the victim knew to be saved before its last life; 0 for none."""
        before = [event for life in self.lives[:-1] for event in life]
        return max((event["step"] for event in before if event["event"] == "saved"), default=0)

    def unequal(self, reference: dict[str, Any], lives: int) -> list[Unequal]:
        """Steps of the victim's first so many lives that differ from its rank's `reference`."""
        whole, found = {step["step"]: step for step in reference["steps"]}, []
        for at in range(lives):
            lived = self.steps(at)
            wanted = [whole[step["step"]] for step in lived if step["step"] in whole]
            found += unequal_steps(
                [{**reference, "steps": wanted}], [{**reference, "steps": lived}]
            )
        return found

    @property
    def all_struck(self) -> bool:
        """Whether every blow happened: else nothing is known of what it would have led to."""
        return all(strike.count for strike in self.strikes)

    def steps(self, life: int) -> list[dict[str, Any]]:
        """The "step" events of a life."""
        return [event for event in self.lives[life] if event["event"] == "step"]

    def seconds(self, life: int) -> dict[int, tuple[float, float]]:
        """By step of a life: its own seconds, and those for which its save was held on purpose.

        In the background nobody knows who waited for that: all seconds are the step's.
        """
        saved = {event["step"] for event in self.lives[life] if event["event"] == "saving"}
        known = not self.scenario.held_beside
        held = {step: self.scenario.held(step) for step in saved if known}
        steps = {event["step"]: event["seconds"] for event in self.steps(life)}
        return {step: (s - held.get(step, 0.0), held.get(step, 0.0)) for step, s in steps.items()}


def sail(
    config: TrainConfig,
    scenario: Scenario,
    folder: Path,
    *,
    gang: Callable[[], Gang],
    victim: int,
    before: Callable[[Gang], None] = lambda gang: None,
    arm: Callable[[Path, Blow], Strike] | None = None,
) -> Voyage:
    """Run it under a supervisor, in a `gang()` that it mends or replaces, with each attempt's blow.

    The first gang does what `before` says first: starting one is what takes time.  `arm` makes the
    strike of a blow, in the run's folder; without it, a signal to the rank `victim`.
    """
    out = folder / "out"
    config = dataclasses.replace(
        config, out=str(out), checkpoints=str(folder / "checkpoints"), **scenario.changes
    )
    arm = arm or (lambda out, blow: Strike(out, victim, blow.event, blow.step, blow.number))
    strikes = [arm(out, blow) for blow in scenario.blows]
    results: list[dict[str, Any]] = []
    error, aim = "", Aim(strikes, before)
    try:
        results, attempts = supervise(
            gang,
            rank,
            config,
            restarts=scenario.restarts,
            timeout=300,
            patience=PATIENCE,
            on_start=aim,
        )
    except GangError as lost:
        error, attempts = str(lost), list(lost.attempts)
    finally:
        for strike in strikes:
            strike.close()
    return Voyage(
        scenario=scenario,
        strikes=strikes,
        results=results,
        attempts=attempts,
        error=error,
        lives=lives(read_lines(out / f"metrics.rank{victim}.jsonl")),
        aside=aim.aside,
    )


@dataclass
class Aim:
    """Aims the blow of each attempt; `aside` are the seconds of what is done before the first."""

    strikes: list[Strike]
    before: Callable[[Gang], None]
    aside: float = 0.0

    def __call__(self, gang: Gang, attempt: int) -> None:
        if attempt == 1:
            began = time.monotonic()
            self.before(gang)
            self.aside = time.monotonic() - began
        if attempt <= len(self.strikes):
            self.strikes[attempt - 1].aim(gang)


def lives(journal: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """A rank's journal, one list for each life, which begins with "start".

    Before and after are told apart by the victim's own journal, not by two machines' clocks.
    """
    found: list[list[dict[str, Any]]] = []
    for event in journal:
        if event["event"] == "start":
            found.append([])
        if found:
            found[-1].append(event)
    return found


@dataclass(frozen=True)
class Costs:
    """What a blow cost, in seconds.  None: it was not seen.

    detect: from the signal to the supervisor's knowledge of it, on the driver's clock; reschedule:
    from there to a gang that is ready, same clock; init: from the new process's start to its first
    step's end, on its node's clock; redo: of the steps that were done before.
    """

    detect: float | None
    reschedule: float | None
    init: float | None
    redo: float


def costs(voyage: Voyage, blow: int) -> Costs:
    """What the blow of this number (from 0) cost."""
    strike, attempts = voyage.strikes[blow], voyage.attempts
    ended = attempts[blow].ended if blow < len(attempts) and strike.sent else 0.0
    ready = attempts[blow + 1].ready if blow + 1 < len(attempts) else None
    init, redo = None, 0.0
    if blow + 1 < len(voyage.lives):
        done, start = voyage.cuts[blow]
        steps = voyage.steps(blow + 1)
        if steps and start["up_s"] is not None:
            init = start["up_s"] + steps[0]["t"] - start["t"]
        own = voyage.seconds(blow + 1)
        redo = sum(seconds for step, (seconds, _) in own.items() if step <= done)
    return Costs(
        detect=ended - strike.sent if ended else None,
        reschedule=ready - ended if ready and ended else None,
        init=init,
        redo=redo,
    )


def ettr(voyage: Voyage) -> float | None:
    """Effective training time ratio: seconds of the steps that count, over the whole run's.

    A step counts once, as it was done last.  Meta RSC, arXiv 2410.21680, section 3.  What saves
    were held up on purpose is neither; None where nobody knows how much of that was waited for.
    """
    if not voyage.attempts or not voyage.results or voyage.scenario.held_beside:
        return None
    each = [voyage.seconds(life) for life in range(len(voyage.lives))]
    last = {step: seconds for steps in each for step, (seconds, _) in steps.items()}
    held = sum(planted for steps in each for _, planted in steps.values())
    wall = voyage.attempts[-1].ended - voyage.attempts[0].started - voyage.aside - held
    return sum(last.values()) / wall
