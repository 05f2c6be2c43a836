"""Findings of RESTART."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause, Severity

RESTART: dict[str, Entry] = {
    "RESTART-NO-FOLDER": Entry(
        "No folder is visible on every node, so a checkpoint cannot be read after a restart.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Mount a shared folder on every node",
        {
            "findmnt -T {folder}": "Another file system than on other nodes, or the local disk: mount the shared one.",
            "ls -ld {folder}": "Missing, or not writable for the job's user: correct path and rights.",
        },
        "Each node sees the files of the others in {folder}.",
        "Mount a shared file system on every node and name it in the contract: [cluster] shared.",
    ),
    "RESTART-UNEQUAL": Entry(
        "The resumed run differs from the run that was never killed.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Restore the complete state of the run",
        {
            "ls -l {folder}": "A checkpoint needs a part of every rank: model, optimizer, random generators, data position and step. A part is missing: save it.",
        },
        "Every step after the resume equals the run that was never killed.",
        "Save and restore random generators, data position, optimizer and step. Look at the first unequal step.",
    ),
    "RESTART-NONDETERMINISTIC": Entry(
        "Two undisturbed runs on the same accelerators differ.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Test the accelerators of the ranks that differ",
        {
            "dcgmi diag -r 3": "A test that fails: replace the GPU. All pass: go on.",
            "nvidia-smi -q -d ECC,ROW_REMAPPER": "Uncorrected errors: reset or replace the GPU. None: look for a kernel that is not deterministic.",
        },
        "Two undisturbed runs give the same bits.",
        "Look for a kernel that is not deterministic. Otherwise test the accelerators of the named ranks for silent data corruption (`dcgmi diag -r 3`).",
    ),
    "RESTART-NAN": Entry(
        "The loss became NaN or infinite.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Find why the loss became NaN",
        {
            "dcgmi diag -r 3": "A test that fails: replace the GPU. Only the killed run has NaN: the restored state is wrong.",
        },
        "All losses are finite.",
        "Find the first such step in the series and compare it with the run that was never killed. If only the killed run has it, the restored state is wrong.",
    ),
    "RESTART-DAMAGED-LOADED": Entry(
        "A damaged checkpoint, or one of another run, was loaded.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Verify checkpoints before they are loaded",
        {
            "sha256sum {file}": "Another sum than the one stored with the checkpoint: the loader must refuse it.",
        },
        "A damaged checkpoint is refused, and the previous one is loaded.",
        "Store size and sha256 of every file with the checkpoint. Check them before anything is loaded.",
    ),
    "RESTART-UNREPORTED": Entry(
        "A checkpoint was skipped, and the run did not log why.",
        Cause.APPLICATION,
        Severity.DEGRADES,
        "Log the reason for each checkpoint that is skipped",
        {
            "ls -lt {folder}": "The newest checkpoint that was not loaded. The trainer must log its name with the reason.",
        },
        "The log names each skipped checkpoint with its reason.",
        "Log each checkpoint that is not loaded, with the reason. It explains why steps were lost.",
    ),
    "RESTART-STEPS-LOST": Entry(
        "More steps were lost than lie between two saves.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Save more often, or resume from the newest checkpoint",
        {
            "ls -l {folder}": "Newer complete checkpoints than the one that was loaded: find why they were refused. None: saves fail or are rare.",
            "findmnt -T {folder}": "Run it on each node. Another file system somewhere: that node cannot see the newest checkpoint.",
        },
        "A restart loses at most the steps between two saves.",
        "Find the step at which the run resumed. Check that newer checkpoints are complete and visible on every node.",
    ),
    "RESTART-TORN": Entry(
        "A save that failed on one rank was committed.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Commit a checkpoint only when all ranks have saved",
        {
            "df -h {folder}": "Full: remove old checkpoints. With space: the trainer commits without asking every rank.",
        },
        "A save that fails on one rank is not committed.",
        "Gather the status of every rank before the commit. Commit nothing if one has failed.",
    ),
    "RESTART-ATTEMPTS": Entry(
        "The number of attempts does not match the number of injected faults.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Find the attempts that failed without an injected fault",
        {
            'dmesg -T | grep -iE "xid|oom|killed process"': "A line at the time of an attempt: its reason. None: go on.",
            'head$ ray list actors --filter "state=DEAD" --detail --limit 1000': "death_cause of each rank: out of memory, node lost, killed.",
        },
        "Each failed attempt matches an injected fault.",
        "Read the reasons of the attempts. Too few: a fault went unnoticed. Too many: an attempt failed without an injected fault, or nothing limits them.",
    ),
    "RESTART-SLOW": Entry(
        "The run recovered later than agreed.",
        Cause.NO_PROGRESS,
        Severity.DEGRADES,
        "Shorten the part of the recovery that takes longest",
        {
            "head$ ray status": "Pending demands: the run waits for resources. None: detection or start-up takes the time.",
            'head$ ray logs cluster gcs_server.out --tail 500 | grep -i "health check"': "The time until Ray noticed the loss. Long: lower RAY_health_check_period_ms.",
        },
        "The run trains again within the agreed time.",
        "Check which part took the time: detecting the loss (heartbeats), waiting for resources, or starting.",
    ),
    "RESTART-LEAK": Entry(
        "A run that has ended, or that waits for resources, still holds accelerators or still runs.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Free what the ended run still holds",
        {
            'head$ ray list placement-groups --filter "state=CREATED"': "A group of a run that ended: remove it by ray.util.remove_placement_group.",
            "ps -eo pid,user,lstart,args | grep reference_trainer": "A rank that still runs: end it with `kill PID`. It must end when its raylet ends.",
        },
        "Nothing of a run is left when it has ended.",
        "Remove the placement group however the run ends (`ray list placement-groups` names it). End a rank when its raylet ends.",
    ),
    "RESTART-NOT-RECOVERED": Entry(
        "The run did not recover by itself.",
        Cause.NO_PROGRESS,
        Severity.BLOCKS,
        "Find why the run did not resume",
        {
            "head$ ray status": "Too few free GPUs for a new gang: find who holds them.",
            "ls -l {folder}": "No complete checkpoint: saves fail. One is there: see the attempts for the error.",
        },
        "A killed run resumes by itself and ends.",
        "Read the attempts. Check for free resources for a new gang, and for a checkpoint that verifies.",
    ),
}
