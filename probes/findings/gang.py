"""Findings of GANG: faults when jobs compete."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

GANG: dict[str, Entry] = {
    "GANG-PARTIAL": Entry(
        "A job held part of its accelerators while it waited for the rest.",
        Cause.INFRASTRUCTURE,
        "Launch with one placement group per job, never with single actors.",
    ),
    "GANG-STUCK": Entry(
        "Neither of two competing gangs was placed, or the waiting gang was not placed after the release.",
        Cause.NO_PROGRESS,
        "Find a placement group in state RESCHEDULING (`ray list placement-groups`) and remove it.",
    ),
    "GANG-NOT-REMOVED": Entry(
        "A gang remained after it was cancelled, or after its driver died.",
        Cause.INFRASTRUCTURE,
        "Remove it (`ray list placement-groups`, then ray.util.remove_placement_group). Read the GCS log for the dead job.",
    ),
    "GANG-LEAK": Entry(
        "Accelerators were not free although no job should hold them.",
        Cause.INFRASTRUCTURE,
        "Find actors and tasks that hold them (`ray list actors`, `ray list tasks`), and workers that did not end. Ray 2.60 can leak an actor that is killed while it gets a worker (`Mismatched ActorID` in gcs_server.out). Ray frees it when that job ends.",
    ),
    "GANG-UNREGISTERED": Entry(
        "Processes use GPUs that Ray counts as free.",
        Cause.APPLICATION,
        "End them (`nvidia-smi` on the named node), or make their launcher request num_gpus from Ray. Otherwise Ray gives the same GPU to another job.",
    ),
    "GANG-BLOCKED": Entry(
        "A gang that fits was not placed, because another gang waits.",
        Cause.NO_PROGRESS,
        "Remove the placement group in state RESCHEDULING or PENDING that came before it. Make launchers remove their group when a node is lost.",
    ),
    "GANG-NODE-LOSS": Entry(
        "Ray places no gang while a gang that lost a node still exists (known of Ray 2.60).",
        Cause.INFRASTRUCTURE,
        "Make every launcher remove its group when a node is lost, and ask for a new one with a bounded wait.",
    ),
    "GANG-MISPLACED": Entry(
        "A gang, or a component of a job, is not where it was requested.",
        Cause.INFRASTRUCTURE,
        "Compare `ray status` and the node's labels with the strategy. Check that each rank owns the accelerator it was given.",
    ),
    "GANG-LOST-ACCELERATORS": Entry(
        "A running gang lost accelerators without an injected fault.",
        Cause.INFRASTRUCTURE,
        "Find what removed its placement group: read its launcher's log, and the GCS log at that moment. A launcher may give up its gang only when its own nodes or ranks are lost.",
    ),
    "GANG-SLOW": Entry(
        "A gang was placed later than agreed. Or the accelerators of a job whose driver process died were freed later than agreed.",
        Cause.INFRASTRUCTURE,
        "Check the load of the head node and the number of placement groups (`ray list placement-groups`). Ray's head does this work alone.",
    ),
    "GANG-OVERCOMMIT": Entry(
        "An accelerator was given to two jobs: more accelerators were in use on a node than the node has.",
        Cause.INFRASTRUCTURE,
        "Compare the resources of the node in `ray list nodes` with its hardware. Restart Ray there with the right --num-gpus.",
    ),
    "GANG-NO-ACTORS": Entry(
        "A gang was placed, but not all of its actors ran.",
        Cause.INFRASTRUCTURE,
        "Check the state of the actors (`ray list actors`) and the raylet's log on the named nodes. Workers may not start there.",
    ),
    "GANG-LOSS-NOT-DETECTED": Entry(
        "A node was lost, and Ray did not detect it in time.",
        Cause.INFRASTRUCTURE,
        "Check the head's health checks (RAY_health_check_period_ms, RAY_health_check_failure_threshold) and the GCS log.",
    ),
}
