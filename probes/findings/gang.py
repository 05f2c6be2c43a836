"""Findings of GANG: faults when jobs compete."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause, Severity

GANG: dict[str, Entry] = {
    "GANG-PARTIAL": Entry(
        "A job held part of its accelerators while it waited for the rest.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Launch each job with one placement group",
        {
            "head$ ray list placement-groups --limit 1000": "No group of the job: its launcher asks for single actors. Change it to one group for the whole job.",
            'head$ ray list actors --filter "state=ALIVE" --limit 1000': "Actors without placement_group_id that hold GPUs: these are the ones.",
        },
        "At no sample a job holds a part of its accelerators.",
        "Launch with one placement group per job, never with single actors.",
    ),
    "GANG-STUCK": Entry(
        "Neither of two competing gangs was placed, or the waiting gang was not placed after the release.",
        Cause.NO_PROGRESS,
        Severity.BLOCKS,
        "Remove the placement group that blocks the others",
        {
            'head$ ray list placement-groups --filter "state=RESCHEDULING"': "A group is listed: remove it by ray.util.remove_placement_group. None: go on.",
            "head$ ray status": "Demands that stay, with enough free GPUs: read the log. Too few free GPUs: find who holds them.",
            "head$ ray logs cluster gcs_server.out --tail 200": "Messages about placement groups that fail again and again: report them to Ray.",
        },
        "The waiting gang is placed as soon as there is room.",
        "Find a placement group in state RESCHEDULING (`ray list placement-groups`) and remove it.",
    ),
    "GANG-NOT-REMOVED": Entry(
        "A gang remained after it was cancelled, or after its driver died.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Remove the gang that outlived its job",
        {
            'head$ ray list placement-groups --filter "state=CREATED"': "The group of job {job}: remove it by ray.util.remove_placement_group.",
            "head$ ray list jobs": "The job still RUNNING: its driver is alive. Stop it with `ray job stop`. Not running: a fault of Ray, read the GCS log.",
        },
        "No placement group is left after a job has ended.",
        "Remove it (`ray list placement-groups`, then ray.util.remove_placement_group). Read the GCS log for the dead job.",
    ),
    "GANG-LEAK": Entry(
        "Accelerators were not free although no job should hold them.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Free the accelerators that no job uses",
        {
            'head$ ray list actors --filter "state=ALIVE" --limit 1000': "An actor of a job that ended: kill it, or end its job.",
            'head$ ray list tasks --filter "state=RUNNING"': "A task of a job that ended: end its job.",
            'head$ ray logs cluster gcs_server.out --tail 500 | grep "Mismatched ActorID"': "A line: Ray 2.60 leaked an actor. It frees it when that job ends.",
        },
        "All accelerators are free when no job runs.",
        "Find actors and tasks that hold them (`ray list actors`, `ray list tasks`), and workers that did not end. Ray 2.60 can leak an actor that is killed while it gets a worker (`Mismatched ActorID` in gcs_server.out). Ray frees it when that job ends.",
    ),
    "GANG-UNREGISTERED": Entry(
        "Processes use GPUs that Ray counts as free.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "End the processes that use GPUs of {nodes} without Ray",
        {
            "nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory,process_name --format=csv": "Each line is a process. Not a worker of Ray: end it, or start it through Ray with num_gpus.",
            "ps -eo pid,user,lstart,args | grep -v ray": "Who started it and when.",
        },
        "No process uses a GPU that Ray counts as free.",
        "End them (`nvidia-smi` on the named node), or make their launcher request num_gpus from Ray. Otherwise Ray gives the same GPU to another job.",
    ),
    "GANG-BLOCKED": Entry(
        "A gang that fits was not placed, because another gang waits.",
        Cause.NO_PROGRESS,
        Severity.BLOCKS,
        "Remove the gang that others wait behind",
        {
            'head$ ray list placement-groups --filter "state=RESCHEDULING"': "A group that lost a node: remove it. Its launcher must do that by itself.",
            'head$ ray list placement-groups --filter "state=PENDING"': "A group that can never fit: remove it.",
        },
        "A gang that fits is placed while another one waits.",
        "Remove the placement group in state RESCHEDULING or PENDING that came before it. Make launchers remove their group when a node is lost.",
    ),
    "GANG-NODE-LOSS": Entry(
        "Ray places no gang while a gang that lost a node still exists (known of Ray 2.60).",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Make every launcher remove its gang when a node is lost",
        {
            'head$ ray list placement-groups --filter "state=RESCHEDULING"': "A group is listed: it blocks all others. Remove it, then correct its launcher.",
            "head$ ray list nodes": "DEAD nodes: start Ray there again.",
        },
        "Another gang is placed soon after the harmed one was removed.",
        "Make every launcher remove its group when a node is lost, and ask for a new one with a bounded wait.",
    ),
    "GANG-MISPLACED": Entry(
        "A gang, or a component of a job, is not where it was requested.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Place each gang where it was requested",
        {
            "head$ ray list placement-groups --detail --format yaml": "Compare bundles and nodes with the strategy that the job asked for.",
            "head$ ray list nodes --detail --format yaml": "Compare resources and labels of the nodes with the hardware. Wrong: restart Ray there.",
        },
        "Each rank runs on the node and accelerator that its gang was given.",
        "Compare `ray status` and the node's labels with the strategy. Check that each rank owns the accelerator it was given.",
    ),
    "GANG-LOST-ACCELERATORS": Entry(
        "A running gang lost accelerators without an injected fault.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Find what took accelerators from the running gang",
        {
            "head$ ray list nodes": "A DEAD node: the gang lost it. None: its launcher or another job removed the group.",
            "head$ ray logs cluster gcs_server.out --tail 500": "The removal of the placement group, with its time and its job.",
        },
        "A running gang keeps all its accelerators in every sample.",
        "Find what removed its placement group: read its launcher's log, and the GCS log at that moment. A launcher may give up its gang only when its own nodes or ranks are lost.",
    ),
    "GANG-SLOW": Entry(
        "A gang was placed later than agreed. Or the accelerators of a job whose driver process died were freed later than agreed.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Relieve Ray's head, so that gangs are placed in time",
        {
            "head$ top -b -n 1 | head -n 20": "gcs_server near 100 %: the head is overloaded. Give it more CPUs, or move other programs away.",
            "head$ ray list placement-groups --limit 1000": "Hundreds of groups: remove those that are not needed.",
        },
        "Waiting gangs are placed within the agreed time.",
        "Check the load of the head node and the number of placement groups (`ray list placement-groups`). Ray's head does this work alone.",
    ),
    "GANG-OVERCOMMIT": Entry(
        "An accelerator was given to two jobs: more accelerators were in use on a node than the node has.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Correct the number of GPUs that Ray counts on {nodes}",
        {
            "nvidia-smi -L": "Fewer GPUs than `ray list nodes` gives for this node: restart Ray with the right --num-gpus.",
            "head$ ray list nodes --detail --format yaml": "Resources of the node. Two nodes of the same address: two raylets run on one machine.",
        },
        "No accelerator is held by two jobs.",
        "Compare the resources of the node in `ray list nodes` with its hardware. Restart Ray there with the right --num-gpus.",
    ),
    "GANG-NO-ACTORS": Entry(
        "A gang was placed, but not all of its actors ran.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Find why workers do not start",
        {
            'head$ ray list actors --filter "state=PENDING_CREATION" --detail': "The node and the reason of each. A runtime environment that fails: correct it.",
            "head$ ray logs cluster raylet.out --tail 200 --node-ip {ray_address}": "Errors when a worker starts: memory, files, Python environment.",
        },
        "All actors of a placed gang run.",
        "Check the state of the actors (`ray list actors`) and the raylet's log on the named nodes. Workers may not start there.",
    ),
    "GANG-LOSS-NOT-DETECTED": Entry(
        "A node was lost, and Ray did not detect it in time.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Let Ray detect lost nodes in time",
        {
            'head$ pgrep -o gcs_server | xargs -I % cat /proc/%/environ | tr "\\0" "\\n" | grep health_check': "A long period or a high threshold: lower RAY_health_check_period_ms or RAY_health_check_failure_threshold, then restart the head.",
            'head$ ray logs cluster gcs_server.out --tail 500 | grep -i "health check"': "When Ray noticed the loss. Never: report it to Ray.",
        },
        "Ray lists a killed node as DEAD within the agreed time.",
        "Check the head's health checks (RAY_health_check_period_ms, RAY_health_check_failure_threshold) and the GCS log.",
    ),
}
