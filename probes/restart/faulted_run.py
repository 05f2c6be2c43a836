"""Runs training with injected faults, and measures how it recovered and at what cost."""

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
from reference_trainer.launch.gang import Gang, GangError, GangPending
from reference_trainer.launch.launchers import train_rank
from reference_trainer.launch.supervisor import Attempt, Timeouts, supervise

GANG_NAME = f"seatrial-restart-{make_unique_token()}"  # name of the gangs' placement groups
# A process that does not answer for 8 s counts as stopped; a busy machine answers sooner.
TIMEOUTS = Timeouts(answer=8)


def faulted_config(config: TrainConfig, scenario: FaultScenario, folder: Path) -> TrainConfig:
    """Add the run's folders and the scenario's changes to a training configuration."""
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
    """Run training under a supervisor, and inject one fault in each attempt.

    The supervisor repairs or replaces the gang that `gang()` makes.  The first gang runs `setup`
    before the training, because starting a gang is slow.  `make_fault` makes the injector of a
    fault from the run's output folder and the rank `victim`.
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
    """Run training under a supervisor; return (results, attempts, error).

    If the run did not finish, results are empty and error is the reason.  Otherwise error is "".
    Raises GangPending if not even the first attempt had room: other jobs hold the accelerators, and
    nothing is shown of a restart.
    """
    limits: dict[str, Any] = {"restarts": restarts, "timeout": 300, "timeouts": TIMEOUTS}
    try:
        return *supervise(gang, train_rank, config, on_start=on_start, **limits), ""
    except GangError as error:
        if isinstance(error, GangPending) and len(error.attempts) == 1:
            raise
        return [], list(error.attempts), str(error)


@dataclass
class FaultScheduler:
    """Callback that arms the injector of each attempt.

    Before the first attempt it runs `setup`; `setup_s` is the time that took, in seconds.
    """

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
    """Costs of one fault, in seconds.  None: not observed.

    `detect`: from the signal until the supervisor detects it, on the driver's clock.  `reschedule`:
    from then until the new gang is ready, same clock.  `init`: from the new process's start to the
    end of its first step, on its node's clock.  `redo`: time of steps that had been done before.
    """

    detect: float | None
    reschedule: float | None
    init: float | None
    redo: float


def recovery_costs(run: FaultedRun, index: int) -> RecoveryCosts:
    """Compute the cost of fault number `index` (from 0), by phase."""
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
