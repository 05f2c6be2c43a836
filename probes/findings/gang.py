"""Findings of GANG: faults when jobs compete."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

GANG: dict[str, Entry] = {
    "GANG-PARTIAL": Entry(
        "A job held part of its gang while it waited for the rest.",
        Cause.INFRASTRUCTURE,
        "launch with one placement group per job, never with single actors",
    ),
    "GANG-STUCK": Entry(
        "Neither of two competing gangs was placed, or the waiting one was not placed after release.",
        Cause.NO_PROGRESS,
        "look for a placement group in state RESCHEDULING (`ray list placement-groups`) and remove it",
    ),
    "GANG-NOT-REMOVED": Entry(
        "A gang stayed after it was cancelled, or after its driver had died.",
        Cause.INFRASTRUCTURE,
        "remove it (`ray list placement-groups`, then ray.util.remove_placement_group); look at the GCS log for the dead job",
    ),
    "GANG-LEAK": Entry(
        "Accelerators were not free though no job should hold them, and no other job was there.",
        Cause.INFRASTRUCTURE,
        "look for actors and tasks that hold them (`ray list actors`, `ray list tasks`) and for workers that did not end; Ray itself (seen in 2.60) can lose one that is killed at the moment it is given a worker (`Mismatched ActorID` in gcs_server.out), until its job ends",
    ),
    "GANG-UNREGISTERED": Entry(
        "Processes use GPUs that Ray counts as free.",
        Cause.APPLICATION,
        "end them (`nvidia-smi` on the named node), or have their launcher ask Ray for num_gpus: else Ray gives the same GPU to another job",
    ),
    "GANG-BLOCKED": Entry(
        "A gang that had room was not placed, because another one waits.",
        Cause.NO_PROGRESS,
        "remove the group in state RESCHEDULING or PENDING that came before it; launchers must do so on node loss",
    ),
    "GANG-NODE-LOSS": Entry(
        "While a gang that lost a node stands, Ray places no other gang (known of Ray 2.60).",
        Cause.INFRASTRUCTURE,
        "have every launcher remove its group on node loss and ask for a new one, with a bounded wait",
    ),
    "GANG-MISPLACED": Entry(
        "A gang, or a component of a job, does not lie where it was asked for.",
        Cause.INFRASTRUCTURE,
        "compare `ray status` and the node's labels with the strategy; check that each rank owns the accelerator it was given",
    ),
    "GANG-LOST-ACCELERATORS": Entry(
        "A gang that ran lost accelerators, though nothing was done to it.",
        Cause.INFRASTRUCTURE,
        "look for what removed its placement group: its launcher's log, and the GCS log at that moment; a launcher may give up its gang only when its own nodes or ranks are lost",
    ),
    "GANG-SLOW": Entry(
        "A gang was placed, or a dead driver's accelerators were free, later than agreed.",
        Cause.INFRASTRUCTURE,
        "look at the head node's load and at how many placement groups there are (`ray list placement-groups`); Ray's control plane does this work alone",
    ),
    "GANG-OVERCOMMIT": Entry(
        "More was held on a node than was free there: an accelerator was promised twice.",
        Cause.INFRASTRUCTURE,
        "compare what the node was started with (`ray list nodes`) with what it has; restart Ray there",
    ),
    "GANG-NO-ACTORS": Entry(
        "A gang was placed, and not all of its actors ran.",
        Cause.INFRASTRUCTURE,
        "look at the actors' state (`ray list actors`) and at the raylet's log on the named nodes: workers may not start there",
    ),
    "GANG-LOSS-NOT-DETECTED": Entry(
        "A node was lost, and Ray did not notice in time.",
        Cause.INFRASTRUCTURE,
        "look at the head's health checks (RAY_health_check_period_ms, RAY_health_check_failure_threshold) and at the GCS log",
    ),
}
