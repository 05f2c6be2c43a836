"""Findings of RESTART."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

RESTART: dict[str, Entry] = {
    "RESTART-NO-FOLDER": Entry(
        "No folder is visible on every node, so a checkpoint cannot be read after a restart.",
        Cause.INFRASTRUCTURE,
        "Mount a shared file system on every node and name it in the contract: [cluster] shared.",
    ),
    "RESTART-UNEQUAL": Entry(
        "The resumed run differs from the run that was never killed.",
        Cause.APPLICATION,
        "Save and restore random generators, data position, optimizer and step. Look at the first unequal step.",
    ),
    "RESTART-NONDETERMINISTIC": Entry(
        "Two undisturbed runs on the same accelerators differ.",
        Cause.HARDWARE,
        "Look for a kernel that is not deterministic. Otherwise test the accelerators of the named ranks for silent data corruption (`dcgmi diag -r 3`).",
    ),
    "RESTART-NAN": Entry(
        "The loss became NaN or infinite.",
        Cause.APPLICATION,
        "Find the first such step in the series and compare it with the run that was never killed. If only the killed run has it, the restored state is wrong.",
    ),
    "RESTART-DAMAGED-LOADED": Entry(
        "A damaged checkpoint, or one of another run, was loaded.",
        Cause.APPLICATION,
        "Store size and sha256 of every file with the checkpoint. Check them before anything is loaded.",
    ),
    "RESTART-UNREPORTED": Entry(
        "A checkpoint was skipped, and the run did not log why.",
        Cause.APPLICATION,
        "Log each checkpoint that is not loaded, with the reason. It explains why steps were lost.",
    ),
    "RESTART-STEPS-LOST": Entry(
        "More steps were lost than lie between two saves.",
        Cause.APPLICATION,
        "Find the step at which the run resumed. Check that newer checkpoints are complete and visible on every node.",
    ),
    "RESTART-TORN": Entry(
        "A save that failed on one rank was committed.",
        Cause.APPLICATION,
        "Gather the status of every rank before the commit. Commit nothing if one has failed.",
    ),
    "RESTART-ATTEMPTS": Entry(
        "The number of attempts does not match the number of injected faults.",
        Cause.APPLICATION,
        "Read the reasons of the attempts. Too few: a fault went unnoticed. Too many: an attempt failed without an injected fault, or nothing limits them.",
    ),
    "RESTART-SLOW": Entry(
        "The run recovered later than agreed.",
        Cause.NO_PROGRESS,
        "Check which part took the time: detecting the loss (heartbeats), waiting for resources, or starting.",
    ),
    "RESTART-LEAK": Entry(
        "A run that has ended, or that waits for resources, still holds accelerators or still runs.",
        Cause.APPLICATION,
        "Remove the placement group however the run ends (`ray list placement-groups` names it). End a rank when its raylet ends.",
    ),
    "RESTART-NOT-RECOVERED": Entry(
        "The run did not recover by itself.",
        Cause.NO_PROGRESS,
        "Read the attempts. Check for free resources for a new gang, and for a checkpoint that verifies.",
    ),
}
