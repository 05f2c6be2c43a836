"""Scenarios of RESTART, and its controls."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from probes.check.judging import plant
from probes.check.recorder import Recorder, Trial
from probes.cluster.cluster import Cluster
from probes.cluster.kept_gang import GANG_NAME
from probes.faults.process_faults import Fault, describe_orphans, find_orphans, rank_processes
from probes.requirements import ASYNC_SAVES
from probes.restart import criterion as check
from probes.restart import judge, reference_run
from probes.restart.faulted_run import FaultedRun, FaultScenario
from probes.restart.other_ranks import NodeLoss
from probes.restart.reference_run import NEWEST, NO_REFERENCE_RUN, ReferenceRun, results_or_error
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.supervisor import Attempt
from reports.numbers import quantity

# Longer than the supervisor takes to see the loss and to end the survivors.  Otherwise survivors
# could commit what all ranks have written.
COMMIT_STALL = f"commit:rank=0:seconds=8:from={NEWEST}:to={NEWEST}"
SCENARIOS = [
    FaultScenario(
        name="killed-in-a-step-then-in-a-save",
        summary="SIGKILL in a step, and in the next attempt between a save's data and its commit",
        faults=(Fault("begin", 7), Fault("written", NEWEST)),
        changes={"stall": COMMIT_STALL},
    ),
    FaultScenario(
        name="node-killed",
        summary="SIGKILL in a step of all ranks of one node at once",
        faults=(Fault("begin", 7, whole_node=True),),
    ),
    FaultScenario(
        name="stopped-not-killed",
        summary="SIGSTOP in a step: no socket closes, so only a missing heartbeat shows the stop",
        faults=(Fault("begin", 7, signal.SIGSTOP),),
    ),
    FaultScenario(
        name="told-to-leave",
        summary="SIGTERM, as before a preemption: the run saves and exits, and no step is lost",
        faults=(Fault("begin", 6, signal.SIGTERM),),
        resume_step=6,
        max_lost=0,
    ),
    FaultScenario(
        name="killed-in-an-upload",
        summary="SIGKILL while a save is written in the background",
        faults=(Fault("save-returned", NEWEST),),
        max_lost=reference_run.MAX_STEPS_LOST["async"],
        changes={"save_mode": "async", "stall": COMMIT_STALL.replace("commit", "upload")},
    ),
    FaultScenario(
        name="killed-in-a-commit",
        summary="SIGKILL of rank 0 between a save's manifest and the rename that commits it",
        faults=(Fault("sealed", NEWEST),),
        victim=0,
        changes={"stall": COMMIT_STALL.replace("commit", "rename")},
    ),
    FaultScenario(
        name="killed-before-the-first-checkpoint",
        summary="SIGKILL in step 2: the run logs that it starts from the beginning",
        faults=(Fault("begin", 2),),
        resume_step=0,
    ),
    FaultScenario(
        name="killed-while-it-restarts",
        summary="SIGKILL in a step, and again as soon as the next attempt starts",
        faults=(Fault("begin", 7), Fault("")),
    ),
    FaultScenario(
        name="attempts-used-up",
        summary="SIGKILL in every attempt: after two attempts the run gives up and leaves nothing",
        faults=(Fault("begin", 5), Fault("begin", 5)),
        restarts=1,
        gives_up=True,
    ),
]
NODE_LOSSES = [
    NodeLoss(
        name="no-node-to-spare",
        summary="a node is lost and no spare is left: the run holds nothing, and logs its wait",
        faults=(Fault("begin", 7),),
        spare_count=2,
        must_wait=True,
        timed=False,
    ),
    NodeLoss(
        name="a-node-to-spare",
        summary="a node is lost and a spare node is left",
        faults=(Fault("begin", 7),),
        spare_count=3,
    ),
    NodeLoss(
        name="raylet-killed",
        summary="SIGKILL of Ray's raylet on a node: the rank on that node must end, too",
        faults=(Fault("begin", 5),),
        spare_count=3,
        whole_node=False,
        changes={"pace_s": 1.5},  # a rank takes some seconds to see that its raylet is gone
    ),
    NodeLoss(
        name="two-nodes-at-once",
        summary="all nodes of the run are lost at once, and spare nodes are left",
        faults=(Fault("begin", 7),),
        spare_count=4,
        kills=2,
    ),
]
LAUNCHER_KILLED = FaultScenario(
    name="launcher-killed",
    summary="the launcher is killed (SIGKILL), and the same command is run again",
    faults=(Fault("step", 5),),
    changes={"pace_s": 1.0},  # a launcher logs its ranks' steps late, and they must still run
    resume_step=None,
    timed=False,
)


def params_by_tier(cases: Iterable[Any], quick: int = 0, standard: int | None = None) -> list[Any]:
    """Mark each case with its tier: the first `quick` cases run in every tier.

    Cases up to number `standard` (None: all) also run in the standard tier, the rest only in soak.
    Cases with background saves need ASYNC_SAVES.
    """
    ordered = list(cases)
    end = len(ordered) if standard is None else standard
    params = []
    for i, case in enumerate(ordered):
        marks = [] if i < quick else [pytest.mark.tier("standard" if i < end else "soak")]
        if getattr(case, "changes", {}).get("save_mode") == "async":
            marks.append(pytest.mark.needs(ASYNC_SAVES))
        params.append(pytest.param(case, id=getattr(case, "name", case), marks=marks))
    return params


def control_wrong_resume(original: ReferenceRun, measure: Recorder) -> None:
    """Check that resumes with one error, and a run whose loss explodes, are detected."""
    for part, fault in reference_run.WRONG_RESUMES.items():
        results, error = results_or_error(original.wrong_resumes.get(part, NO_REFERENCE_RUN))
        found = reference_run.compare_steps([] if error else original.results, results, NEWEST + 1)
        judge_wrong = partial(judge.report_unequal, found, original, results)
        saw = str(found.unequal[0]) if found.unequal else "no unequal step"
        plant(measure, f"resume forgets: {part}", fault, judge_wrong, unable=error, saw=saw)
    exploded, error = results_or_error(original.exploded or NO_REFERENCE_RUN)
    fault = "the run is trained with a learning rate so high that its loss explodes"
    plant(measure, check.EXPLODING_LOSS, fault, partial(judge.judge_losses, exploded), unable=error)


def control_run(original: ReferenceRun, run: FaultedRun, measure: Recorder) -> None:
    """Run the controls of a run with injected faults."""
    if not run.scenario.gives_up:
        control_wrong_resume(original, measure)
    control_other_scenario(run, measure)


def control_other_scenario(run: FaultedRun, measure: Recorder) -> None:
    """Check that the run fails when it is judged by another scenario.

    That scenario expects the opposite end, a resume from step STEPS, and at most -1 lost steps.
    """
    scenario = run.scenario
    other = dataclasses.replace(
        scenario, gives_up=not scenario.gives_up, resume_step=reference_run.STEPS, max_lost=-1
    )
    judged = dataclasses.replace(run, scenario=other)

    def judge_other(trial: Trial) -> None:
        judge.judge_completion(judged, trial)
        judge.judge_resume(judged, trial)

    fault = "the result of the run is compared with the expected outcome of another scenario"
    plant(measure, check.ANOTHER_SCENARIO, fault, judge_other)


def control_intact_checkpoint(original: ReferenceRun, measure: Recorder) -> None:
    """Check that a resume from an undamaged checkpoint fails the judge of damaged ones."""
    results, error = results_or_error(original.wrong_resumes.get("rng", NO_REFERENCE_RUN))
    fault = f"step-{NEWEST} is not damaged, so the run resumes from it"
    judge_intact = partial(judge.judge_refusal, "untouched", original, results)
    plant(measure, check.UNTOUCHED_ONE_TAKEN_FOR_DAMAGED, fault, judge_intact, unable=error)


def control_roomy_disk(original: ReferenceRun, measure: Recorder) -> None:
    """Check that a run without a full disk fails the judge of full disks."""
    fault = "the disk never gets full, so no save fails"
    judge_roomy = partial(judge.judge_full_disk, original, original.results)
    plant(measure, check.DISK_THAT_WAS_NOT_FULL, fault, judge_roomy)


def control_leaked_group(cluster: Cluster, gang: Gang, measure: Recorder) -> list[int]:
    """Check that a gang of one rank with the run's name is found as a leak.

    Returns the number of bundles that each of its placement groups holds.  Call it after all
    judging: a run that leaked may leave no room for this gang.
    """
    fault = "a gang with the run's name still runs and holds one accelerator"
    trial = measure.trial()
    try:
        with gang:
            sizes = cluster.groups_named(GANG_NAME)
            known = rank_processes(None, [Attempt(places=gang.places, started=0.0)])
            running, unasked = find_orphans(cluster, known, seconds=0)
            judge.judge_left_behind(len(sizes), "still held", trial)
            judge.judge_orphans(running, unasked, known, trial)
            located = sizes == [1] and len(running) == 1
            held = f"{quantity(len(sizes), 'placement groups')}, {quantity(sum(sizes), 'bundles')}"
            saw = f"{held} still held; {describe_orphans(running)}"
    except GangError as error:
        measure.control(check.LEFT_BEHIND_ON_PURPOSE, fault, None, saw=str(error))
        return []
    measure.control(check.LEFT_BEHIND_ON_PURPOSE, fault, trial, located=located, saw=saw)
    return sizes
