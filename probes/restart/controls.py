"""The controls of RESTART: resumes with one thing wrong, and a gang that is left on purpose."""

from __future__ import annotations

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.faults.orphaned_ranks import describe_orphans, find_orphans, rank_processes
from probes.restart.equality import unequal_steps
from probes.restart.faulted_run import GANG_NAME
from probes.restart.reference_run import (
    NEWEST,
    NO_REFERENCE_RUN,
    WRONG_RESUMES,
    ReferenceRun,
    results_or_error,
)
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.supervisor import Attempt


def control_wrong_resume(original: ReferenceRun, measure: Recorder) -> None:
    """Controls: resumes of the run never killed that get one thing wrong."""
    for part, fault in WRONG_RESUMES.items():
        results, error = results_or_error(original.wrong_resumes.get(part, NO_REFERENCE_RUN))
        unequal = [] if error else unequal_steps(original.results, results, NEWEST + 1)
        caught = None if error else bool(unequal)
        saw = str(unequal[0]) if unequal else error or "no unequal step"
        measure.control(f"resume forgets: {part}", fault, caught=caught, saw=saw)


def control_intact_checkpoint(original: ReferenceRun, measure: Recorder) -> None:
    """Control: a checkpoint without damage is judged as if it had one."""
    results, error = results_or_error(original.wrong_resumes.get("rng", NO_REFERENCE_RUN))
    start_steps = {result["start_step"] for result in results}
    fault = f"a resume from an untouched step-{NEWEST} is judged as if that had been damaged"
    caught = None if error else NEWEST in start_steps
    saw = error or f"it began after step {max(start_steps)}"
    measure.control("an untouched one taken for damaged", fault, caught=caught, saw=saw)


def control_leaked_group(cluster: Cluster, gang: Gang, measure: Recorder) -> None:
    """Control: a gang of one, of the run's name, that is there on purpose.

    To be called when all is judged: where the run has leaked, there may be no room for it.
    """
    caught = None
    try:
        with gang:
            sizes = cluster.groups_named(GANG_NAME)
            known = rank_processes(None, [Attempt(places=gang.places, started=0.0)])
            running, _ = find_orphans(cluster, known, seconds=0)
            caught = sizes == [1] and len(running) == 1
            ranks = describe_orphans(running)
            saw = f"{len(sizes)} placement groups that hold {sum(sizes)}; {ranks}"
    except GangError as error:
        saw = str(error)
    fault = "a gang of the same name holds one accelerator and runs while what is left is counted"
    measure.control("left behind on purpose", fault, caught=caught, saw=saw)
