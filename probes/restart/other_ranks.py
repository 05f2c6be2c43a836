"""Runs that go on with other ranks, and runs that are killed at random."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probes.check.declarations import exactly
from probes.check.judging import judge_or_explain, plant
from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.kept_gang import GANG_NAME
from probes.cluster.room import jobs_of_others
from probes.faults.process_faults import Fault, FaultInjector, ProcessFault
from probes.faults.spare_nodes import SpareNodes
from probes.findings import finding, join_names
from probes.restart import criterion as check
from probes.restart import faulted_run, reference_run
from probes.restart.faulted_run import FaultedRun, FaultScenario, run_with_faults
from probes.restart.judge import report_unequal
from probes.restart.reference_run import STEPS, ReferenceRun, Results, StepComparison, small_config
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.launchers import train_rank
from reference_trainer.telemetry.event_log import STAGES
from reports.measurement import Limit, Verdict
from reports.numbers import quantity

RANKS = 2  # each on a node of its own
WAIT_SECONDS = 90  # Ray counts a lost node for 5 health checks of 3 s; the rest is margin


@dataclass(frozen=True, kw_only=True)
class NodeLoss(FaultScenario):
    """Scenario in which `kills` of the run's nodes are lost at once, out of `spare_count` nodes.

    `must_wait`: no node is to spare, so the run must wait until one has come back.  `whole_node` is
    False: only the raylet is killed, and the ranks must end by themselves.
    """

    spare_count: int
    kills: int = 1
    must_wait: bool = False
    whole_node: bool = True


class NodeKill(ProcessFault):
    """Injector that kills the gang's last nodes.  All spare nodes are on the head's machine."""

    def __init__(self, out: Path, spares: SpareNodes, loss: NodeLoss, fault: Fault) -> None:
        super().__init__(out, RANKS - 1, fault)
        self.spares, self.loss = spares, loss
        self.nodes: list[str] = []

    def _start_agent(self, gang: Gang) -> None:
        super()._start_agent(gang)
        lost = gang.places[-self.loss.kills :]
        self.nodes = [self.spares.node_names[place.node] for place in lost]

    def _inject(self) -> tuple[bool, float]:
        import ray

        if not ray.get(self._agent.wait_for_event.remote(*self._moment)):
            return False, 0.0
        return self.spares.kill_nodes(*self.nodes, whole_nodes=self.loss.whole_node)

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Name the spare raylets that were killed."""
        return f"{join_names(self.nodes)}, without a GPU, on the head's machine"


@dataclass
class NodeRepair:
    """Callback (`notify`) for the messages of a gang that waits.

    It stores the message, counts what the gang holds meanwhile, and adds a node.
    """

    cluster: Cluster
    spares: SpareNodes
    loss: NodeLoss
    messages: list[str] = field(default_factory=list)
    held: int | None = None

    def __call__(self, message: str) -> None:
        """Store a gang's message; if the run must wait, count what it holds and add a node."""
        self.messages.append(message)
        if self.loss.must_wait:  # otherwise the wait ends when Ray sees the lost node
            self.held = sum(self.cluster.groups_named(GANG_NAME))
            self.spares.add(1)


@contextmanager
def spare_nodes(cluster: Cluster, count: int, measure: Recorder) -> Iterator[SpareNodes]:
    """Add spare raylets for the block, and remove them afterwards.

    Fails the probe if other jobs run on the cluster.
    """

    if jobs := jobs_of_others(cluster):
        why = f"this test kills nodes, and other jobs run on this cluster ({join_names(jobs)})"
        pytest.fail(f"{why}. Run RESTART again when these jobs have ended", pytrace=False)
    measure.progress(f"restart: {count} spare raylets join the cluster")
    with closing(SpareNodes(cluster, count)) as spares:
        yield spares


def spare_gang(spares: SpareNodes, size: int = RANKS, **options: Any) -> Gang:
    """Make a gang on the spare raylets, one rank on each."""
    strategy = "STRICT_SPREAD"
    return Gang(size, resource=spares.resource, strategy=strategy, timeout=WAIT_SECONDS, **options)


def judge_wait(loss: NodeLoss, repair: NodeRepair, measure: Recorder) -> None:
    """Judge that a run which waits for a node reports it, and holds nothing meanwhile."""
    if not loss.must_wait:
        return
    measure(check.UNREPORTED_WAITS, int(not repair.messages))
    held = f"it held {repair.held} of {RANKS} bundles"
    cause = f"while the run waited for a node, {held}. Expected: none"
    leak, note = finding("RESTART-LEAK", cause), "the run never logged that it waits"
    judge_or_explain(measure, check.HELD_WHILE_WAITING, repair.held, leak, note=note)
    logged = f'"{"; ".join(repair.messages)}"' if repair.messages else "nothing"
    measure.covered(f"while it waited, the run logged {logged}")


def control_silent_wait(loss: NodeLoss, silent: NodeRepair, measure: Recorder) -> None:
    """Check that a gang that holds something and reports nothing fails the judge of waits."""
    fault = f"a waiting gang holds {quantity(silent.held or 0, 'bundles')} and logs nothing"
    plant(measure, check.SILENT_WAIT, fault, partial(judge_wait, loss, silent))


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
    for mode in reference_run.MAX_STEPS_LOST
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
            found += reference_run.compare_steps(original.results, run.results, first)
        found += reference_run.compare_attempts(run, original.results[0], len(run.journals))
    return found


def judge_kills(
    runs: Sequence[FaultedRun], original: ReferenceRun, seconds: float, measure: Recorder
) -> None:
    """Judge that ranks were killed, and that the runs survived it.

    It measures kills (at least one a minute), unexplained failures, lost runs, and lost steps.  It
    also reports steps that differ from the original.
    """
    lasting = f"a rank runs for up to {DELAY_SECONDS} s, and a restart takes as long"
    because = f"one kill a minute: {lasting}"
    measure(check.KILLS, count_kills(runs), limit=Limit(low=seconds / 60, because=because))
    unexplained, errors = unexplained_losses(runs), [run.error for run in runs if not run.results]
    statement = f"attempts that failed without an injected kill: {len(unexplained)}. Reasons: "
    cause = finding("RESTART-ATTEMPTS", statement + "; ".join(unexplained))
    judge_or_explain(measure, check.UNEXPLAINED_FAILURES, len(unexplained), cause)
    cause = finding("RESTART-NOT-RECOVERED", f"a killed run did not finish: {''.join(errors[:1])}")
    judge_or_explain(measure, check.RUNS_LOST, len(errors), cause, samples=len(runs))
    for mode, bound in reference_run.MAX_STEPS_LOST.items():
        of_mode = [run for run in runs if run.scenario.changes["save_mode"] == mode]
        lost = max((steps for run in of_mode for steps in run.steps_lost), default=None)
        every = faulted_run.SAVE_EVERY
        because = f"the run saves every {every} steps, and an async save lasts up to {every} steps"
        limit = Limit(high=bound, because=because)
        cost = f"a kill cost {quantity(lost or 0, 'steps')}. Expected: at most {bound}"
        cause = finding("RESTART-STEPS-LOST", f"with {mode} saves, {cost}")
        failed, on = (lost or 0) > bound, f"{mode} saves"  # None: rank 0 never died
        judge_or_explain(measure, check.STEPS_LOST, lost, cause, failed, limit=limit, on=on)
    results = [result for run in runs for result in run.results]
    report_unequal(compare_with(runs, original), original, results, measure)


def control_unexplained_kills(
    runs: Sequence[FaultedRun], original: ReferenceRun, measure: Recorder
) -> None:
    """Check that the same runs fail when their kills and results are removed."""
    spoilt = [replace(run, injectors=[], results=[], error="taken away") for run in runs]
    fault = "seatrial removes its list of kills, and the results of the runs"
    judge_spoilt = partial(judge_kills, spoilt, original, SOAK_SECONDS)
    plant(measure, check.KILLS_TAKEN_AWAY, fault, judge_spoilt)


MAX_RANKS = 4  # with more, one sample is too small a part of a step to be seen
MARGIN = 3  # rounding differences grow from step to step, faster in some runs than in others


@dataclass(frozen=True, kw_only=True)
class WorldSizeRuns:
    """Four runs of the same samples.

    `full` has all ranks, `fewer` one rank less.  `resumed` has one rank less after step 4.  `late`
    is as `resumed`, but its data begins one sample further on.
    """

    full: Results
    fewer: Results
    resumed: Results
    late: Results


def run_world_sizes(cluster: Cluster, folder: Path) -> WorldSizeRuns:
    """Run all four on at most MAX_RANKS ranks.  Needs at least two ranks."""
    size = min(cluster.size, MAX_RANKS)
    with cluster.gang(size) as gang:
        config = small_config(STEPS, folder / "whole", dropout=0, batch=2 * (size - 1))
        full = gang.run(train_rank, config, timeout=reference_run.TIMEOUT_SECONDS)
        base = replace(config, batch=2 * size, save_every=0)  # equal samples per step
        return WorldSizeRuns(
            full=full,
            fewer=_run_fewer(gang, replace(base, checkpoints=str(folder / "fewer"))),
            resumed=_resume_fewer(gang, base, folder / "resumed"),
            late=_resume_fewer(gang, replace(base, forget="data"), folder / "mistaken"),
        )


def samples_differ(reference: Results, results: Results) -> list[int]:
    """List the steps whose samples, over all ranks in order, differ from the reference."""
    numbers = enumerate(step["step"] for step in results[0]["steps"])
    return [n for at, n in numbers if _sample_ids(results, at) != _sample_ids(reference, n - 1)]


def _sample_ids(results: Results, index: int) -> list[int]:
    return [sample for result in results for sample in result["steps"][index]["ids"]]


def _run_fewer(gang: Gang, config: TrainConfig) -> Results:
    timeout, ranks = reference_run.TIMEOUT_SECONDS, range(gang.size - 1)
    return gang.run(train_rank, config, timeout=timeout, groups=[ranks])


def _resume_fewer(gang: Gang, config: TrainConfig, copy: Path) -> Results:
    """Resume with one rank less, from a copy of the checkpoint of step 4.

    The newer one is left out, so that more steps are compared.
    """
    step = f"step-{faulted_run.SAVE_EVERY}"
    reference_run.link_tree(Path(str(config.checkpoints)) / step, copy / step)
    return _run_fewer(gang, replace(config, checkpoints=str(copy)))


def judge_world_sizes(runs: WorldSizeRuns, measure: Recorder) -> None:
    """Run the control; judge that the smaller run takes the same samples, within the noise."""
    because = f"{MARGIN} times the loss difference of two runs without resume, one with fewer ranks"
    noise = reference_run.loss_distance(runs.full, runs.fewer)  # the two runs that were not resumed
    limit = Limit(high=MARGIN * noise, unit="nats", because=because)
    fault = "the run that is resumed with fewer ranks skips one sample"
    judge_late = partial(_judge_smaller, runs.full, runs.late, limit)
    plant(measure, check.RESUMED_ONE_SAMPLE_FURTHER_ON, fault, judge_late)
    measure.note("noise", noise)
    (start,) = {result["start_step"] for result in runs.resumed}
    given = exactly(faulted_run.SAVE_EVERY, "step", "the run was given this checkpoint")
    measure(check.RESUMED_FROM, start, limit=given)
    _judge_smaller(runs.full, runs.resumed, limit, measure)


def _judge_smaller(full: Results, smaller: Results, limit: Limit, measure: Recorder) -> None:
    """Judge the samples and the loss of a run by fewer ranks."""
    differ = samples_differ(full, smaller)
    measure(check.SAMPLES_DIFFER, len(differ), samples=len(smaller[0]["steps"]))
    drift = reference_run.loss_distance(full, smaller)
    measure(check.DRIFT, drift, limit=limit)
    if differ or limit.judge(drift) is Verdict.FAIL:
        steps = f"these steps have different samples: {join_names(map(str, differ))}"
        difference = steps if differ else f"the loss differs by {drift:.3g} nats from the first run"
        statement = f"after a resume with one rank fewer, {difference}"
        measure.explain(finding("RESTART-UNEQUAL", statement))
