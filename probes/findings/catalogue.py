"""The catalogue of findings: what is wrong, whose affair it is, what to do.

Each entry is documented by `seatrial explain CODE`, and in docs/findings.md.
"""

from __future__ import annotations

from probes.findings.fabric import FABRIC, Entry
from probes.findings.gang import GANG
from reports.record import Cause

CATALOGUE: dict[str, Entry] = {
    "HOST-MISSING": Entry(
        "Fewer nodes are alive than were ordered.",
        Cause.INFRASTRUCTURE,
        "look at the named nodes' power and `ray start` log; then run `ray start --address=...` there",
    ),
    "HOST-EXTRA": Entry(
        "More nodes or GPUs are in the cluster than were ordered.",
        Cause.INFRASTRUCTURE,
        "remove the extra node, or agree a new contract: results would not be of the ordered cluster",
    ),
    "HOST-GPUS": Entry(
        "A node counts other accelerators than were ordered.",
        Cause.HARDWARE,
        "compare `nvidia-smi -L` on the named node with the order; restart Ray there once it is right",
    ),
    "HOST-VERSIONS": Entry(
        "Python, Ray, torch or the driver is not the same everywhere.",
        Cause.INFRASTRUCTURE,
        "use one image on all nodes and for the driver, then restart Ray",
    ),
    "HOST-SHARED": Entry(
        "A node does not see the shared folder.",
        Cause.INFRASTRUCTURE,
        "mount the shared file system on the named node at the agreed path",
    ),
    "HOST-HEAD": Entry(
        "Ray's head stopped answering while probes ran; Ray ends every driver that waits for it.",
        Cause.INFRASTRUCTURE,
        "look at gcs_server.out and `dmesg` (out of memory?) on the head node, then run it all again",
    ),
    "HOST-SILENT": Entry(
        "Ray counts a node as alive, but no worker answers there.",
        Cause.INFRASTRUCTURE,
        "look at the raylet's and the runtime environment agent's log on the named node",
    ),
    **FABRIC,
    **GANG,
    "LAUNCH-FAILED": Entry(
        "A documented command failed.",
        Cause.INFRASTRUCTURE,
        "read the transcript; a user would be stuck at this line",
    ),
    "LAUNCH-ENV": Entry(
        "A rank lacks a rendezvous variable, or has a wrong or inconsistent one.",
        Cause.APPLICATION,
        "let the launcher set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT on every rank",
    ),
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
    "RESTART-UNREPEATABLE": Entry(
        "Two runs that nobody disturbed, on the same accelerators, differ.",
        Cause.HARDWARE,
        "look for a kernel that is not deterministic, else test the accelerators of the named ranks "
        "for silent data corruption (`dcgmi diag -r 3`)",
    ),
    "RESTART-TRUSTED": Entry(
        "A damaged or foreign checkpoint was loaded.",
        Cause.APPLICATION,
        "keep the size and sha256 of every file beside it, and check them before anything is loaded",
    ),
    "RESTART-SILENT": Entry(
        "A checkpoint was passed over, and the run does not say why.",
        Cause.APPLICATION,
        "log each checkpoint that is not loaded with the reason: whoever finds steps lost needs it",
    ),
    "RESTART-LOST": Entry(
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
    "RESTART-DEAD": Entry(
        "The run did not come back by itself.",
        Cause.NO_PROGRESS,
        "read the attempts: was there room for a new gang, and a checkpoint that verifies?",
    ),
    "SCALE-STRAGGLER": Entry(
        "One rank, or one node, keeps all others waiting.",
        Cause.HARDWARE,
        "look at clocks, thermals, CPU limits and other load on the named node",
    ),
    "SCALE-SLOW-NODE": Entry(
        "One node computes more slowly than the others, alone too.",
        Cause.HARDWARE,
        "compare clocks, power and thermal limits, CPU governor and other load with a sound node",
    ),
    "SCALE-SLOWING": Entry(
        "Compute became slower while the job ran; or links, where the clock does not tell waits from compute.",
        Cause.HARDWARE,
        "look at temperature, throttle reasons and fans of the named node over time; where links are not told apart, at its links too (FABRIC)",
    ),
    "SCALE-DATA": Entry(
        "The job waits for data, of one node or everywhere.",
        Cause.INFRASTRUCTURE,
        "look at storage mounts, loader workers and page cache of the named node",
    ),
    "SCALE-CHECKPOINT": Entry(
        "Saves hold up training for longer than agreed, or for longer than on one node.",
        Cause.INFRASTRUCTURE,
        "measure the shared file system's write rate, from the named node first; save in the background or less often",
    ),
    "SCALE-JITTER": Entry(
        "Single steps take far longer, on changing nodes.",
        Cause.INFRASTRUCTURE,
        "look for daemons, interrupts, garbage collection and CPU pinning",
    ),
    "SCALE-LINK": Entry(
        "Links are slower than agreed, or than others, or steps wait longer for them than collectives replayed without the trainer.",
        Cause.INFRASTRUCTURE,
        "compare with FABRIC; look at the links of the named nodes, else of those that were added at that rung",
    ),
    "SCALE-NETWORK": Entry(
        "The bytes of collectives took another network than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        "export NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME (or NCCL_IB_HCA) for the fabric before `ray start` on the named nodes; FABRIC shows which witness saw what",
    ),
    "SCALE-COMMUNICATION": Entry(
        "Communication costs more than the limit allows; without an agreed line rate slow links and too few tokens are not told apart.",
        Cause.UNKNOWN,
        "agree a line rate in the contract ([cluster] line_rate_gbps) and run again; compare with FABRIC",
    ),
    "SCALE-TOKENS": Entry(
        "Too few tokens per GPU and step for collectives that are as replayed.",
        Cause.APPLICATION,
        "raise the tokens per GPU to the figure that is named, or shard less widely",
    ),
    "SCALE-UNEXPLAINED": Entry(
        "Part of the loss has no cause that was looked for.",
        Cause.UNKNOWN,
        "see the segment that is named; take a trace of a few steps",
    ),
    "SCALE-RUNG": Entry(
        "The job failed on a rung of the ladder; what was measured on the others stands.",
        Cause.APPLICATION,
        "read the rank's error: memory, a collective that timed out, a process that died",
    ),
    "SCALE-APART": Entry(
        "The ranks of a rung did not train one model.",
        Cause.APPLICATION,
        "compare WORLD_SIZE, RANK and MASTER_ADDR of its ranks; look for a collective that returns wrong numbers (FABRIC)",
    ),
    "SCALE-NAN": Entry(
        "The loss was no number.",
        Cause.APPLICATION,
        "see on which rung it began: a wrong collective, a learning rate, a bad accelerator (`dcgmi diag`)",
    ),
    "SCALE-LOSS": Entry(
        "Efficiency is under the limit, or nearly; the terms say where the time went.",
        Cause.UNKNOWN,
        "begin with the largest term; compare it with the fabric's result",
    ),
}
