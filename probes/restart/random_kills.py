"""Kills random ranks at random moments, again and again, for a given time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.faults.injection import SAVE_EVERY, Fault, FaultedRun, FaultInjector, FaultScenario
from probes.faults.process_faults import ProcessFault
from probes.findings import finding
from probes.restart.equality import StepComparison, compare_attempts, compare_steps
from probes.restart.faulted_run import GANG_NAME, run_with_faults
from probes.restart.judge import report_unequal
from probes.restart.reference_run import MAX_STEPS_LOST, ReferenceRun
from reference_trainer.telemetry.injected_delay import STAGES
from reports.measurement import Limit

SOAK_STEPS, SOAK_SECONDS = 60, 600
MAX_FAULTS = 60  # faults of one run; its last attempt is not killed
# Longest time from a gang's start to its kill (s): it reaches imports, first collectives, a load,
# steps and saves.
DELAY_SECONDS = 20
# A save is short here and would rarely be killed: each of its parts is delayed by 0.15 s.
SAVE_STALLS = ",".join(f"{moment}:rank=0:seconds=0.15" for moment in STAGES)
SUMMARY = "SIGKILL of a random rank at a random moment, again and again"
SCENARIOS = [
    FaultScenario(
        name=f"punished-{mode}",
        summary=SUMMARY,
        faults=(Fault(""),) * MAX_FAULTS,
        restarts=MAX_FAULTS,
        changes={"save_mode": mode, "stall": SAVE_STALLS},
    )
    for mode in MAX_STEPS_LOST
]


class RandomKill(ProcessFault):
    """Injector that kills a rank `delay_s` seconds after its gang starts, up to `deadline`."""

    def __init__(self, out: Path, rank: int, delay_s: float, deadline: float) -> None:
        super().__init__(out, rank, Fault(""))
        self.delay_s, self.deadline = delay_s, deadline

    def wait(self) -> None:
        """Wait `delay_s` seconds, then kill the rank."""
        if not self._stop.wait(self.delay_s) and time.monotonic() < self.deadline:
            super().wait()


def run_random_kills(
    cluster: Cluster, original: ReferenceRun, folder: Path, seconds: float, seed: int
) -> list[FaultedRun]:
    """Start runs and kill their ranks until `seconds` have passed; let the last run finish."""
    rng, deadline = random.Random(seed), time.monotonic() + seconds

    def make_fault(out: Path, victim: int, fault: Fault) -> RandomKill:
        return RandomKill(out, rng.randrange(cluster.size), rng.uniform(0, DELAY_SECONDS), deadline)

    runs: list[FaultedRun] = []
    while time.monotonic() < deadline:
        run = run_with_faults(
            original.slow_config,
            SCENARIOS[len(runs) % len(SCENARIOS)],
            folder / f"run-{len(runs)}",
            gang=lambda: cluster.gang(name=GANG_NAME),
            victim=0,
            make_fault=make_fault,
        )
        runs.append(run)
    return runs


def injectors_of(runs: Sequence[FaultedRun]) -> list[FaultInjector]:
    """List the injectors of all runs."""
    return [injector for run in runs for injector in run.injectors]


def count_kills(runs: Sequence[FaultedRun]) -> int:
    """Count the kills that are proven."""
    return sum(injector.count for injector in injectors_of(runs))


def unexplained_losses(runs: Sequence[FaultedRun]) -> list[str]:
    """List why attempts were lost that no kill explains.

    Per run it lists one reason for each lost attempt in excess of the kills, latest first.
    """
    reasons: list[str] = []
    for run in runs:
        lost = [attempt.reason for attempt in run.attempts[:-1]]
        reasons += lost[::-1][: max(0, len(lost) - count_kills([run]))]
    return reasons


def compare_with(runs: Sequence[FaultedRun], original: ReferenceRun) -> StepComparison:
    """Compare rank 0 of every attempt, and all ranks of the last one, with the original."""
    found = StepComparison()
    for run in runs:
        if run.results:
            first = run.results[0]["start_step"] + 1
            found += compare_steps(original.results, run.results, first)
        found += compare_attempts(run, original.results[0], len(run.journals))
    return found


def judge_kills(
    runs: Sequence[FaultedRun], original: ReferenceRun, seconds: float, measure: Recorder
) -> None:
    """Judge that ranks were killed, and that the runs survived it.

    It measures kills (at least one a minute), unexplained failures, lost runs, and lost steps.  It
    also reports steps that differ from the original.
    """
    because = f"a rank runs for up to {DELAY_SECONDS} s, and a new one takes as long to start"
    measure("kills", count_kills(runs), limit=Limit(low=seconds / 60, because=because))
    unexplained, errors = unexplained_losses(runs), [run.error for run in runs if not run.results]
    measure("unexplained_failures", len(unexplained))
    if unexplained:
        statement = f"{len(unexplained)} attempts failed without an injected kill. In their runs: "
        measure.explain(finding("RESTART-ATTEMPTS", statement + "; ".join(unexplained)))
    measure("runs_lost", len(errors), samples=len(runs))
    if errors:
        measure.explain(finding("RESTART-NOT-RECOVERED", errors[0]))
    for mode, bound in MAX_STEPS_LOST.items():
        of_mode = [run for run in runs if run.scenario.changes["save_mode"] == mode]
        lost = max((steps for run in of_mode for steps in run.steps_lost), default=None)
        limit = Limit(high=bound, because=f"it saves every {SAVE_EVERY} steps")
        measure("steps_lost", lost, limit=limit, on=f"{mode} saves")  # None: rank 0 never died
        if lost is not None and lost > bound:
            statement = f"with {mode} saves {lost} steps were lost. Expected: at most {bound}"
            measure.explain(finding("RESTART-STEPS-LOST", statement))
    results = [result for run in runs for result in run.results]
    report_unequal(compare_with(runs, original), original, results, measure)


def control_unexplained_kills(
    runs: Sequence[FaultedRun], original: ReferenceRun, measure: Recorder
) -> None:
    """Check that the same runs fail when their kills and results are removed."""
    trial = measure.trial()
    spoilt = [replace(run, injectors=[], results=[], error="taken away") for run in runs]
    judge_kills(spoilt, original, SOAK_SECONDS, trial)
    fault = "the kills and the results are removed from the observations"
    measure.control("kills taken away", fault, trial)
