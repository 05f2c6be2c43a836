"""The punisher: kills a random rank at a random moment, again and again, for a given time."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.faults.process_faults import ProcessFault
from probes.findings import finding
from probes.restart.equality import unequal_steps
from probes.restart.faulted_run import GANG_NAME, Fault, FaultedRun, FaultScenario, run_with_faults
from probes.restart.reference_run import MAX_STEPS_LOST, SAVE_EVERY, ReferenceRun
from reference_trainer.launch.supervisor import Attempt
from reference_trainer.telemetry.injected_delay import STAGES
from reports.record import Limit

SOAK_STEPS, SOAK_SECONDS = 60, 600
MAX_FAULTS = 60  # blows that one run meets; the last life is left alone
# From the gang's start: into the imports, the first collectives, a load, steps, saves.
DELAY_SECONDS = 20
# A save is small here and would hardly be met: each of its parts lasts a moment longer.
SAVE_STALLS = ",".join(f"{moment}:rank=0:seconds=0.15" for moment in STAGES)
SUMMARY = "SIGKILL of a random rank at a random moment, again and again"


class RandomKill(ProcessFault):
    """Strikes a rank so many seconds after its gang is there, unless the time is up by then."""

    def __init__(self, out: Path, rank: int, delay_s: float, deadline: float) -> None:
        super().__init__(out, rank, event="")
        self.delay_s, self.deadline = delay_s, deadline

    def _watch(self) -> None:
        if not self._stop.wait(self.delay_s) and time.monotonic() < self.deadline:
            super()._watch()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomKillResult:
    """What the runs of one punishment came to."""

    runs: list[FaultedRun]

    @property
    def attempts(self) -> list[Attempt]:
        """Of all runs."""
        return [attempt for run in self.runs for attempt in run.attempts]

    @property
    def kills(self) -> int:
        """Proven ones."""
        return sum(injector.count for run in self.runs for injector in run.injectors)

    @property
    def unexplained(self) -> list[str]:
        """Why attempts were lost that no kill accounts for, of each run as many as there are."""
        reasons: list[str] = []
        for run in self.runs:
            lost = [attempt.reason for attempt in run.attempts[:-1]]
            unexplained = len(lost) - sum(injector.count for injector in run.injectors)
            reasons += lost[::-1][: max(0, unexplained)]
        return reasons

    @property
    def errors(self) -> list[str]:
        """Why ranks could not be struck."""
        injectors = [injector for run in self.runs for injector in run.injectors]
        return [injector.error for injector in injectors if injector.error]

    @property
    def run_errors(self) -> list[str]:
        """Why runs did not come to their end."""
        return [run.error for run in self.runs if not run.results]

    def max_lost(self, mode: str) -> int | None:
        """The most steps that a kill has cost runs of this save mode; None: rank 0 never died."""
        runs = [run for run in self.runs if run.scenario.changes["save_mode"] == mode]
        points = [point for run in runs for point in run.resume_points]
        return max((done - start["start_step"] for done, start in points), default=None)

    @property
    def digests(self) -> set[str]:
        """Of the parameters at the end, of every rank of every run."""
        return {result["digest"] for run in self.runs for result in run.results}

    def find_unequal(self, original: ReferenceRun) -> list[str]:
        """Steps of any life of rank 0, or of all ranks' last, that are not the original's."""
        unequal = []
        for run in self.runs:
            if run.results:
                first = run.results[0]["start_step"] + 1
                unequal += unequal_steps(original.results, run.results, first)
            unequal += run.find_unequal(original.results[0], len(run.journals))
        return [str(step) for step in unequal]


def run_random_kills(
    cluster: Cluster, original: ReferenceRun, folder: Path, seconds: float, seed: int
) -> RandomKillResult:
    """Run after run, each killed until it ends, until the time is up; the last is let go on."""
    rng, deadline = random.Random(seed), time.monotonic() + seconds
    config = original.slow_config
    scenarios = [
        FaultScenario(
            name=f"punished-{mode}",
            summary=SUMMARY,
            faults=(Fault(""),) * MAX_FAULTS,
            restarts=MAX_FAULTS,
            changes={"save_mode": mode, "stall": SAVE_STALLS},
        )
        for mode in MAX_STEPS_LOST
    ]

    def make_fault(out: Path, fault: Fault) -> ProcessFault:
        return RandomKill(out, rng.randrange(cluster.size), rng.uniform(0, DELAY_SECONDS), deadline)

    runs: list[FaultedRun] = []
    while time.monotonic() < deadline:
        run = run_with_faults(
            config,
            scenarios[len(runs) % len(scenarios)],
            folder / f"run-{len(runs)}",
            gang=lambda: cluster.gang(name=GANG_NAME),
            victim=0,
            make_fault=make_fault,
        )
        runs.append(run)
    return RandomKillResult(runs=runs)


def judge_kills(
    soak: RandomKillResult, original: ReferenceRun, seconds: float, measure: Recorder
) -> None:
    """That it was killed once a minute and more, and that no run was lost, late, or another one."""
    because = f"a rank may live for {DELAY_SECONDS} s, and a new one takes as long to start"
    measure("kills", soak.kills, limit=Limit(low=seconds / 60, because=because))
    measure("unprovoked", len(soak.unexplained))
    if soak.unexplained:
        statement = f"{len(soak.unexplained)} attempts were lost unstruck; in their runs: "
        measure.explain(finding("RESTART-ATTEMPTS", statement + "; ".join(soak.unexplained)))
    measure("runs_lost", len(soak.run_errors), samples=len(soak.runs))
    if soak.run_errors:
        measure.explain(finding("RESTART-DEAD", soak.run_errors[0]))
    for mode, bound in MAX_STEPS_LOST.items():
        lost, because = soak.max_lost(mode), f"it saves every {SAVE_EVERY} steps"
        measure("steps_lost", lost, limit=Limit(high=bound, because=because), on=f"{mode} saves")
    unequal = soak.find_unequal(original)
    measure("unequal_steps", len(unequal))
    equal = soak.digests == {result["digest"] for result in original.results}
    ended = "equal" if equal else "unequal"
    measure("final_state", ended if soak.digests else None, note="no run came to its end")
    if unequal:
        measure.explain(finding("RESTART-UNEQUAL", unequal[0]))
