"""Defines GANG: its measures with their limits, its probes, and its controls."""

from __future__ import annotations

from probes.check.criterion import (
    Condition,
    CriterionRow,
    Duty,
    Measure,
    default_measure,
    doubted,
    fixed_measure,
    none_of,
)

SCENE = ("partially_held", "overcommitted", "not_released", "sample_rate", "unregistered_use")
STEADY = (*SCENE, "leaked")
EARLY = ("one bundle early",)
QUEUE, PLACEMENT = "gang/test_gang_queue.py", "gang/test_gang_placement.py"

MEASURES = {
    "partially_held": none_of("samples", "a job must hold all of its accelerators or none"),
    "not_removed": none_of(
        "gangs", "a job that was cancelled, or whose driver died, must give its accelerators back"
    ),
    "lost_while_running": none_of(
        "samples", "a running gang must keep its accelerators while others wait"
    ),
    "blocked_behind": none_of(
        "gangs", "a gang that fits must not wait behind one that does not fit"
    ),
    "placed_in_fragments": none_of(
        "nodes", "STRICT_PACK means one node, even if more is free elsewhere"
    ),
    "never_placed": none_of("gangs", "a gang that fits must be placed in the end"),
    "nodes_killed": doubted(
        fixed_measure("raylets", "the fault must have happened", low=1, high=1)
    ),
    "ray_train_outcome": fixed_measure(
        "", "Ray Train must run once enough accelerators are free", one_of=["finished"]
    ),
    "actors_not_running": none_of("actors", "every actor of a placed gang must run"),
    "losses_not_detected": none_of("nodes", "Ray must detect that a node is lost"),
    "deadlocks": none_of("deadlocks", "jobs with one placement group each cannot block each other"),
    "misplaced": none_of(
        "gangs", "the strategy and the place of each component are part of the request"
    ),
    "placed_concurrently": fixed_measure(
        "gangs", "of two gangs that each need 75 %, exactly one fits", low=1, high=1
    ),
    "sample_rate": doubted(
        fixed_measure("Hz", "a partly held gang must not go unseen between two samples", low=20)
    ),
    "placement_delay": default_measure(
        "s",
        "Ray retries a waiting gang every 1 s and its loop ticks every 1 s; the limit adds a margin for load",
        high=5,
        marginal_high=3,
    ),
    "release_time": default_measure(
        "s",
        "Ray frees a dead driver's gang when its connection closes (0.1 s on an idle head); other jobs wait until then",
        high=10,
        marginal_high=5,
    ),
    "large_gang_wait": Measure("s", better="lower"),
    "overcommitted": none_of("samples", "no accelerator may be given to two jobs"),
    "leaked": none_of(
        "GPUs", "accelerators that no gang holds must be free; otherwise they have leaked"
    ),
    "unregistered_use": none_of(
        "GPUs", "Ray gives a GPU that it counts as free to the next job, even if it is in use"
    ),
    "not_released": none_of("GPUs", "accelerators must be free again after their job"),
}

CONTROLS = {
    "naive actors": ("partially_held", "leaked", "not_released", "sample_rate"),
    "two that fit": ("placed_concurrently", "actors_not_running", "overcommitted"),
    "late release": ("never_placed", "blocked_behind", "placement_delay"),
    "a GPU used behind Ray's back": ("unregistered_use",),
    "cancelled in words only": ("not_removed",),
    "gang given back": ("lost_while_running",),
    "driver stopped, not killed": ("not_removed",),
    "two groups per job": ("deadlocks",),
    "PACK passed off as STRICT_PACK": ("placed_in_fragments",),
    "SPREAD passed off as STRICT_PACK": ("misplaced",),
    "one rank astray": ("misplaced",),
    "one bundle early": ("partially_held",),
    "node not lost": ("losses_not_detected",),
}
NO_CONTROL = {
    "nodes_killed": "it shows that the probe's own fault happened",
    "release_time": "accelerators would be held for longer than the limit",
    "large_gang_wait": "accelerators would be held for longer than the limit",
    "ray_train_outcome": "a second job of Ray Train takes half a minute to start",
}
CONDITIONS: dict[str, Condition] = {
    "large_gang_wait": lambda here: bool(here.terms.queue),
    "unregistered_use": lambda here: here.on_gpu,
    "a GPU used behind Ray's back": lambda here: here.on_gpu,
}
DUTIES = (
    Duty(
        "gang/test_gang.py::test_two_gangs_compete_and_one_waits_whole",
        "quick",
        (
            *STEADY,
            *("placed_concurrently", "actors_not_running", "never_placed", "placement_delay"),
        ),
        ("naive actors", "two that fit", "late release", "a GPU used behind Ray's back"),
    ),
    Duty(
        "gang/test_gang.py::test_a_cancelled_gang_leaves_no_trace",
        "quick",
        (*STEADY, "not_removed", "lost_while_running"),
        ("cancelled in words only", "gang given back"),
    ),
    Duty(
        "gang/test_gang.py::test_a_dead_driver_gives_its_gang_back",
        "quick",
        (*STEADY, "not_removed", "lost_while_running", "release_time"),
        ("driver stopped, not killed",),
    ),
    Duty(
        "gang/test_gang.py::test_one_group_per_job_never_deadlocks",
        "standard",
        (*STEADY, "deadlocks", "never_placed", "not_removed"),
        ("two groups per job",),
    ),
    Duty(
        f"{PLACEMENT}::test_fragments_are_not_mistaken_for_room",
        "standard",
        (*STEADY, "placed_in_fragments", "blocked_behind"),
        ("PACK passed off as STRICT_PACK",),
    ),
    Duty(
        f"{PLACEMENT}::test_strategies_hold",
        "standard",
        (*STEADY, "misplaced"),
        ("SPREAD passed off as STRICT_PACK",),
    ),
    Duty(
        f"{PLACEMENT}::test_components_lie_where_they_were_put",
        "standard",
        ("partially_held", "overcommitted", "not_released", "leaked", "misplaced"),
        ("one rank astray",),
    ),
    Duty(
        f"{PLACEMENT}::test_a_lost_node_harms_its_own_gang_only",
        "standard",
        (*STEADY, "nodes_killed", "losses_not_detected", "lost_while_running"),
        (*EARLY, "node not lost"),
    ),
    Duty(
        f"{QUEUE}::test_mixed_gangs_of_twice_the_cluster_all_run",
        "standard",
        (*SCENE, "never_placed"),
        EARLY,
    ),
    Duty(
        f"{QUEUE}::test_a_gang_that_does_not_fit_blocks_nobody",
        "standard",
        (*STEADY, "blocked_behind", "not_removed"),
        EARLY,
    ),
    Duty(
        f"{QUEUE}::test_a_big_gang_under_a_stream_of_small_ones",
        "standard",
        (*SCENE, "large_gang_wait"),
        EARLY,
    ),
    Duty(
        f"{QUEUE}::test_a_storm_of_gangs_leaves_nothing",
        "standard",
        (*SCENE, "never_placed"),
        EARLY,
    ),
    Duty(
        f"{QUEUE}::test_ray_train_waits_as_a_gang",
        "standard",
        (*SCENE, "never_placed", "ray_train_outcome"),
        EARLY,
    ),
)

GANG = CriterionRow(
    title="gang scheduling works under contention",
    how="competing jobs: each has all its accelerators or none, checked at least 20 times a second",
    headlines={"placement_delay": "a waiting gang starts {value} after it can"},
    proven="; no gang held only some of its GPUs",
    measures=MEASURES,
    duties=DUTIES,
    controls=CONTROLS,
    no_control=NO_CONTROL,
    conditions=CONDITIONS,
)
