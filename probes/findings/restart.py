"""Findings of RESTART."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

RESTART: dict[str, Entry] = {
    "RESTART-NO-FOLDER": Entry(
        "No folder is seen by every node, so a checkpoint cannot be read after a restart.",
        Cause.INFRASTRUCTURE,
        "mount a shared file system everywhere and name it in the contract: [cluster] shared",
    ),
    "RESTART-UNEQUAL": Entry(
        "The resumed run is not the run that was never killed.",
        Cause.APPLICATION,
        "save and restore generators, data position, optimizer and step; see the first unequal step",
    ),
    "RESTART-NONDETERMINISTIC": Entry(
        "Two runs that nobody disturbed, on the same accelerators, differ.",
        Cause.HARDWARE,
        "look for a kernel that is not deterministic, else test the accelerators of the named ranks "
        "for silent data corruption (`dcgmi diag -r 3`)",
    ),
    "RESTART-NAN": Entry(
        "The loss is no number any more.",
        Cause.APPLICATION,
        "look at the first such step in the series: compare it with the run never killed; where only "
        "the killed run has it, what was restored is wrong",
    ),
    "RESTART-DAMAGED-LOADED": Entry(
        "A damaged or foreign checkpoint was loaded.",
        Cause.APPLICATION,
        "keep the size and sha256 of every file beside it, and check them before anything is loaded",
    ),
    "RESTART-UNREPORTED": Entry(
        "A checkpoint was passed over, and the run does not say why.",
        Cause.APPLICATION,
        "log each checkpoint that is not loaded with the reason: whoever finds steps lost needs it",
    ),
    "RESTART-STEPS-LOST": Entry(
        "More steps were lost than lie between two saves.",
        Cause.APPLICATION,
        "see where the run began again: are newer checkpoints whole, and does every node see them?",
    ),
    "RESTART-TORN": Entry(
        "A save that failed on a rank was committed.",
        Cause.APPLICATION,
        "gather every rank's status before the commit, and commit nothing when one has failed",
    ),
    "RESTART-ATTEMPTS": Entry(
        "The run took more or fewer attempts than the faults it met.",
        Cause.APPLICATION,
        "read the attempts' reasons: too few, and a fault or a notice went unheeded; too many, and "
        "a gang was lost that nobody struck, or nothing bounds them",
    ),
    "RESTART-SLOW": Entry(
        "The run came back later than agreed.",
        Cause.NO_PROGRESS,
        "see which part took the time: seeing the loss (heartbeats), finding room, or starting",
    ),
    "RESTART-LEAK": Entry(
        "A run that has ended, or that waits for room, still holds accelerators, or still runs.",
        Cause.APPLICATION,
        "remove the placement group in whatever way the run ends; `ray list placement-groups` names it; a rank must end when its raylet does",
    ),
    "RESTART-NOT-RECOVERED": Entry(
        "The run did not come back by itself.",
        Cause.NO_PROGRESS,
        "read the attempts: was there room for a new gang, and a checkpoint that verifies?",
    ),
}
