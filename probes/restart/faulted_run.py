"""One run that meets faults, and what is seen of it: its lives, how it came back, what it cost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.unique_token import make_unique_token
from probes.faults.injection import (
    Fault,
    FaultedRun,
    FaultInjector,
    FaultScenario,
    split_by_attempt,
)
from probes.faults.process_faults import ProcessFault, read_journal
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.launchers import train_rank
from reference_trainer.launch.supervisor import Attempt, Timeouts, supervise

GANG_NAME = f"seatrial-restart-{make_unique_token()}"  # of the gangs' placement groups
# A process that does not answer for so long is taken for stopped: long for a busy machine.
TIMEOUTS = Timeouts(answer=8)


def faulted_config(config: TrainConfig, scenario: FaultScenario, folder: Path) -> TrainConfig:
    """Give a run under this scenario its folders, and what the scenario changes."""
    out, checkpoints = str(folder / "out"), str(folder / "checkpoints")
    return dataclasses.replace(config, out=out, checkpoints=checkpoints, **scenario.changes)


def run_with_faults(
    config: TrainConfig,
    scenario: FaultScenario,
    folder: Path,
    *,
    gang: Callable[[], Gang],
    victim: int,
    setup: Callable[[Gang], None] = lambda gang: None,
    make_fault: Callable[[Path, int, Fault], FaultInjector] = ProcessFault,
) -> FaultedRun:
    """Run it under a supervisor, in a `gang()` that it mends or replaces, a fault in each attempt.

    The first gang does what `setup` says first: starting one is what takes time.  `make_fault`
    makes the injector of a fault, in the run's folder, for the rank `victim`.
    """
    injectors = [make_fault(folder / "out", victim, fault) for fault in scenario.faults]
    scheduler = FaultScheduler(injectors, setup)
    try:
        results, attempts, error = _run_supervised(
            gang, faulted_config(config, scenario, folder), scenario.restarts, scheduler
        )
    finally:
        for injector in injectors:
            injector.close()
    return FaultedRun(
        scenario=scenario,
        injectors=injectors,
        results=results,
        attempts=attempts,
        error=error,
        journals=split_by_attempt(read_journal(folder / "out", victim)),
        setup_s=scheduler.setup_s,
    )


def _run_supervised(
    gang: Callable[[], Gang], config: TrainConfig, restarts: int, on_start: FaultScheduler
) -> tuple[list[dict[str, Any]], list[Attempt], str]:
    """(Results, none where it did not end; its attempts; why it did not end)."""
    limits: dict[str, Any] = {"restarts": restarts, "timeout": 300, "timeouts": TIMEOUTS}
    try:
        return *supervise(gang, train_rank, config, on_start=on_start, **limits), ""
    except GangError as error:
        return [], list(error.attempts), str(error)


@dataclass
class FaultScheduler:
    """Arms the injector of each attempt; `setup_s` are the seconds of what is done before all."""

    injectors: list[FaultInjector]
    setup: Callable[[Gang], None]
    setup_s: float = 0.0

    def __call__(self, gang: Gang, attempt: int) -> None:
        if attempt == 1:
            start = time.monotonic()
            self.setup(gang)
            self.setup_s = time.monotonic() - start
        if attempt <= len(self.injectors):
            self.injectors[attempt - 1].arm(gang)


@dataclass(frozen=True)
class RecoveryCosts:
    """What a fault cost, in seconds.  None: it was not seen.

    detect: from the signal to the supervisor's knowledge of it, on the driver's clock; reschedule:
    from there to a gang that is ready, same clock; init: from the new process's start to its first
    step's end, on its node's clock; redo: of the steps that were done before.
    """

    detect: float | None
    reschedule: float | None
    init: float | None
    redo: float


def recovery_costs(run: FaultedRun, index: int) -> RecoveryCosts:
    """Take apart what the fault of this number (from 0) cost."""
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
    """Compute the effective training time ratio: seconds of steps that count, over the run's.

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
