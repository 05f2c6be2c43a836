"""The controls of RESTART: resumes with one thing wrong, and a gang that is left on purpose."""

from __future__ import annotations

from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.faults.orphaned_ranks import marks, outlived, told
from probes.restart.equality import unequal_steps
from probes.restart.faulted_run import NAME
from probes.restart.judge import NOT_MADE, apart
from probes.restart.reference_run import MISTAKES, NEWEST, Original
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.supervisor import Attempt


def mistakes_are_seen(original: Original, measure: Ledger) -> None:
    """Controls: resumes of the run never killed that get one thing wrong."""
    for what, fault in MISTAKES.items():
        found, error = apart(original.mistaken.get(what, NOT_MADE))
        seen = [] if error else unequal_steps(original.results, found, NEWEST + 1)
        measure.control(
            f"resume forgets: {what}",
            fault,
            caught=None if error else bool(seen),
            saw=str(seen[0]) if seen else error or "no unequal step",
        )


def an_untouched_one_is_seen(original: Original, measure: Ledger) -> None:
    """Control: a checkpoint without damage is judged as if it had one."""
    found, error = apart(original.mistaken.get("rng", NOT_MADE))
    trusted = {result["start_step"] for result in found}
    measure.control(
        "an untouched one taken for damaged",
        f"a resume from an untouched step-{NEWEST} is judged as if that had been damaged",
        caught=None if error else NEWEST in trusted,
        saw=error or f"it began after step {max(trusted)}",
    )


def a_leak_is_seen(cluster: Cluster, gang: Gang, measure: Ledger) -> None:
    """Control: a gang of one, of the run's name, that is there on purpose.

    To be called when all is judged: where the run has leaked, there may be no room for it.
    """
    caught = None
    try:
        with gang:
            held = cluster.groups_named(NAME)
            there = marks(None, [Attempt(places=gang.places, started=0.0)])
            running, _ = outlived(cluster, there, seconds=0)
            caught = held == [1] and len(running) == 1
            saw = f"{len(held)} placement groups that hold {sum(held)}; {told(running)}"
    except GangError as error:
        saw = str(error)
    measure.control(
        "left behind on purpose",
        "a gang of the same name holds one accelerator and runs while what is left is counted",
        caught=caught,
        saw=saw,
    )
