"""Findings of SCALING."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

SCALING: dict[str, Entry] = {
    "SCALE-STRAGGLER": Entry(
        "One rank, or one node, makes all others wait.",
        Cause.HARDWARE,
        "Check clocks, temperature, CPU limits and other load on the named node.",
    ),
    "SCALE-SLOW-BASE": Entry(
        "One node alone is slower than its accelerators must be. A fleet that is slow everywhere scales well and is still slow.",
        Cause.HARDWARE,
        "Compare clocks and throttle reasons (`nvidia-smi -q -d CLOCK,PERFORMANCE`), power cap (`-d POWER`) and GPU model of the named nodes with the contract. Look for other load.",
    ),
    "SCALE-SLOW-NODE": Entry(
        "One node computes more slowly than the others, also when it runs alone.",
        Cause.HARDWARE,
        "Compare clocks, power and thermal limits, CPU governor and other load with a healthy node.",
    ),
    "SCALE-THROTTLING": Entry(
        "Compute became slower while the job ran (or links did, if the clock cannot separate the two).",
        Cause.HARDWARE,
        "Check temperature, throttle reasons and fans of the named node over time. If links cannot be separated from compute, check its links too (FABRIC).",
    ),
    "SCALE-DATA": Entry(
        "The job waits for data, on one node or everywhere.",
        Cause.INFRASTRUCTURE,
        "Check storage mounts, loader workers and page cache of the named node. If no node is named, check the shared storage.",
    ),
    "SCALE-CHECKPOINT": Entry(
        "Saves stop training for longer than agreed, or for longer than on one node.",
        Cause.INFRASTRUCTURE,
        "Measure the write rate of the shared file system, first from the named node. If it is as fast as agreed, save checkpoints asynchronously or less often.",
    ),
    "SCALE-JITTER": Entry(
        "Single steps are slow at random, and no single node is to blame.",
        Cause.INFRASTRUCTURE,
        "Look for daemons, interrupts and garbage collection. Check CPU pinning.",
    ),
    "SCALE-LINK": Entry(
        "Links are slower than agreed or than other links, or steps wait longer for them than a replay of their collectives does.",
        Cause.INFRASTRUCTURE,
        "Compare with FABRIC. Check the links of the named nodes; if none is named, those of the nodes added at that size.",
    ),
    "SCALE-NETWORK": Entry(
        "Collective traffic used another network than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        "Export NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (for RDMA also NCCL_IB_HCA) for the fabric before `ray start` on the named nodes. The row FABRIC of this report gives the network that each check saw.",
    ),
    "SCALE-COMMUNICATION": Entry(
        "Communication costs more than the limit allows. Without an agreed line rate, slow links cannot be separated from too few tokens.",
        Cause.UNKNOWN,
        "Agree a line rate in the contract ([cluster] line_rate_gbps) and run again. Compare with FABRIC.",
    ),
    "SCALE-TOKENS": Entry(
        "The batch per GPU is too small: collectives run at their normal speed and still dominate.",
        Cause.APPLICATION,
        "Raise the tokens per GPU to the named number, or shard over fewer ranks.",
    ),
    "SCALE-UNEXPLAINED": Entry(
        "No known cause explains part of the lost time.",
        Cause.UNKNOWN,
        "See the named part of the step. Take a trace of a few steps.",
    ),
    "SCALE-RUNG-FAILED": Entry(
        "The job failed at one size of the ladder. The results of the other sizes stand.",
        Cause.APPLICATION,
        "Read the error of the rank: out of memory, a collective that timed out, a process that died.",
    ),
    "SCALE-RANKS-DISAGREE": Entry(
        "The ranks of one run did not train the same model.",
        Cause.APPLICATION,
        "Check that WORLD_SIZE and MASTER_ADDR are equal on all ranks, and that each RANK is there once. If they are right, read the row FABRIC of this report: a collective may return wrong numbers.",
    ),
    "SCALE-NAN": Entry(
        "The loss became NaN or infinite.",
        Cause.APPLICATION,
        "Check at which size it began. Look for a wrong collective, a learning rate that is too high, or a bad accelerator (`dcgmi diag`).",
    ),
    "SCALE-EFFICIENCY": Entry(
        "Efficiency is below the limit, or close to it. The terms show where the time went.",
        Cause.UNKNOWN,
        "Begin with the largest term. Compare it with the result of FABRIC.",
    ),
}
