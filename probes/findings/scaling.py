"""Findings of SCALING."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

SCALING: dict[str, Entry] = {
    "SCALE-STRAGGLER": Entry(
        "One rank, or one node, keeps all others waiting.",
        Cause.HARDWARE,
        "look at clocks, thermals, CPU limits and other load on the named node",
    ),
    "SCALE-SLOW-BASE": Entry(
        "One node alone is slower than its accelerators must be: a fleet that is slow everywhere scales well, and is slow.",
        Cause.HARDWARE,
        "on the named nodes compare clocks and throttle reasons (`nvidia-smi -q -d CLOCK,PERFORMANCE`), power cap (`-d POWER`) and GPU model with what was ordered; look for other load",
    ),
    "SCALE-SLOW-NODE": Entry(
        "One node computes more slowly than the others, alone too.",
        Cause.HARDWARE,
        "compare clocks, power and thermal limits, CPU governor and other load with a sound node",
    ),
    "SCALE-THROTTLING": Entry(
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
    "SCALE-RUNG-FAILED": Entry(
        "The job failed on a rung of the ladder; what was measured on the others stands.",
        Cause.APPLICATION,
        "read the rank's error: memory, a collective that timed out, a process that died",
    ),
    "SCALE-RANKS-DISAGREE": Entry(
        "The ranks of a rung did not train one model.",
        Cause.APPLICATION,
        "compare WORLD_SIZE, RANK and MASTER_ADDR of its ranks; look for a collective that returns wrong numbers (FABRIC)",
    ),
    "SCALE-NAN": Entry(
        "The loss was no number.",
        Cause.APPLICATION,
        "see on which rung it began: a wrong collective, a learning rate, a bad accelerator (`dcgmi diag`)",
    ),
    "SCALE-EFFICIENCY": Entry(
        "Efficiency is under the limit, or nearly; the terms say where the time went.",
        Cause.UNKNOWN,
        "begin with the largest term; compare it with the fabric's result",
    ),
}
