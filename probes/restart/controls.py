"""Controls of RESTART: resumes with one error, and a gang that is left on purpose.

The probe's own judges and limits judge each of them.
"""

from __future__ import annotations

import dataclasses

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.faults.injection import FaultedRun
from probes.faults.orphaned_ranks import describe_orphans, find_orphans, rank_processes
from probes.restart.equality import compare_steps
from probes.restart.faulted_run import GANG_NAME
from probes.restart.judge import (
    judge_completion,
    judge_full_disk,
    judge_left_behind,
    judge_losses,
    judge_orphans,
    judge_refusal,
    judge_resume,
    report_unequal,
)
from probes.restart.reference_run import (
    NEWEST,
    NO_REFERENCE_RUN,
    STEPS,
    WRONG_RESUMES,
    ReferenceRun,
    results_or_error,
)
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.supervisor import Attempt


def control_wrong_resume(original: ReferenceRun, measure: Recorder) -> None:
    """Check that resumes with one error, and a run whose loss explodes, are detected."""
    for part, fault in WRONG_RESUMES.items():
        results, error = results_or_error(original.wrong_resumes.get(part, NO_REFERENCE_RUN))
        name, trial = f"resume forgets: {part}", measure.trial()
        if error:
            measure.control(name, fault, None, saw=error)
            continue
        found = compare_steps(original.results, results, NEWEST + 1)
        report_unequal(found, original, results, trial)
        saw = str(found.unequal[0]) if found.unequal else "no unequal step"
        measure.control(name, fault, trial, saw=saw)
    results, error = results_or_error(original.exploded or NO_REFERENCE_RUN)
    trial = measure.trial()
    fault = "the run is trained with a learning rate so high that its loss explodes"
    judge_losses(results, trial)
    measure.control("exploding loss", fault, None if error else trial, saw=error)


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
        scenario, gives_up=not scenario.gives_up, resume_step=STEPS, max_lost=-1
    )
    trial, judged = measure.trial(), dataclasses.replace(run, scenario=other)
    judge_completion(judged, trial)
    judge_resume(judged, trial)
    fault = "the result of the run is compared with the expected outcome of another scenario"
    measure.control("another scenario", fault, trial)


def control_intact_checkpoint(original: ReferenceRun, measure: Recorder) -> None:
    """Check that a resume from an undamaged checkpoint fails the judge of damaged ones."""
    results, error = results_or_error(original.wrong_resumes.get("rng", NO_REFERENCE_RUN))
    name = "an untouched one taken for damaged"
    fault = f"a resume from an intact step-{NEWEST} is judged as if that had been damaged"
    trial = measure.trial()
    if not error:
        judge_refusal("untouched", original, results, trial)
    measure.control(name, fault, None if error else trial, saw=error)


def control_roomy_disk(original: ReferenceRun, measure: Recorder) -> None:
    """Check that a run without a full disk fails the judge of full disks."""
    trial = measure.trial()
    judge_full_disk(original, original.results, trial)
    fault = "the run whose disk was never full is judged as if a save had met a full disk"
    measure.control("a disk that was not full", fault, trial)


def control_leaked_group(cluster: Cluster, gang: Gang, measure: Recorder) -> list[int]:
    """Check that a gang of one rank with the run's name is found as a leak.

    Returns the number of bundles that each of its placement groups holds.  Call it after all
    judging: a run that leaked may leave no room for this gang.
    """
    fault = "a gang of the same name holds one accelerator and runs while leftovers are counted"
    trial = measure.trial()
    try:
        with gang:
            sizes = cluster.groups_named(GANG_NAME)
            known = rank_processes(None, [Attempt(places=gang.places, started=0.0)])
            running, unasked = find_orphans(cluster, known, seconds=0)
            judge_left_behind(len(sizes), "are left", trial)
            judge_orphans(running, unasked, known, trial)
            located = sizes == [1] and len(running) == 1
            ranks = describe_orphans(running)
            saw = f"{len(sizes)} placement groups that hold {sum(sizes)}; {ranks}"
    except GangError as error:
        measure.control("left behind on purpose", fault, None, saw=str(error))
        return []
    measure.control("left behind on purpose", fault, trial, located=located, saw=saw)
    return sizes
