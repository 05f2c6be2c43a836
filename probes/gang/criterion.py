"""Declares GANG: its checks with their limits, its controls, and its probes."""

from __future__ import annotations

# fmt: off
# isort: off
from functools import partial

from probes.check.declarations import (
    ALL_GPUS, ON_GPU, ONE_NODE, SPARE_RAYLETS, Check, ControlRow, CriterionRow, OnOneNode, Probe,
    default_check, fixed_check, none_of, ordered,
)

MANY_GROUPS = "creates many placement groups, which puts load on Ray's head node"
COMPETING = (ALL_GPUS, "starts jobs that compete for GPUs, and cancels them")

PARTIALLY_HELD = none_of(
    "partially_held", "samples", "a job must hold all of its accelerators or none",
    failing="a waiting job held only a part of its GPUs in {value}",
)
NOT_REMOVED = none_of(
    "not_removed", "gangs",
    "Ray must free the accelerators of a job that was cancelled, or whose Ray driver process died",
    failing="{value} still existed after the end of the job",
)
LOST_WHILE_RUNNING = none_of(
    "lost_while_running", "samples", "a running gang must keep its accelerators while others wait",
    failing="a running job was without some of its GPUs in {value}",
)
BLOCKED_BEHIND = none_of(
    "blocked_behind", "gangs", "a gang that fits must not wait behind one that does not fit",
    failing="{value} with enough free GPUs waited behind another gang",
)
PLACED_IN_FRAGMENTS = none_of(
    "placed_in_fragments", "nodes", "STRICT_PACK requires one node, even if only several nodes together have enough free GPUs",
    when=~ONE_NODE, failing="a job that had to wait for room on one node was placed on {value}",
)
NEVER_PLACED = none_of(
    "never_placed", "gangs", "every gang that fits must be placed",
    failing="{value} with enough free GPUs never started",
)
NODES_KILLED = fixed_check(
    "nodes_killed", "raylets", "the probe must kill one raylet", low=1, high=1, doubted=True,
    no_control="this measure itself shows that the fault was planted",
)
RAY_TRAIN_OUTCOME = fixed_check(
    "ray_train_outcome", "", "Ray Train must run once enough accelerators are free",
    one_of=['finished'], no_control="a second Ray Train job takes half a minute to start",
    failing="outcome of a Ray Train job: {value}",
)
ACTORS_NOT_RUNNING = none_of(
    "actors_not_running", "actors", "every actor of a placed gang must run",
    failing="{value} of a placed job did not run",
)
LOSSES_NOT_DETECTED = none_of(
    "losses_not_detected", "nodes", "Ray must detect that a node is lost",
    failing="Ray did not detect the loss of {value}",
)
DEADLOCKS = none_of(
    "deadlocks", "deadlocks", "jobs with one placement group each cannot block each other",
    failing="jobs wait for each other's GPUs: {value}",
)
MISPLACED = none_of(
    "misplaced", "gangs", "a job must get the placement that it requested",
    depends=("components", "parallel",), failing="Ray did not place {value} as requested",
)
PLACED_CONCURRENTLY = fixed_check(
    "placed_concurrently", "gangs", "each gang needs 75 % of the free accelerators, so only one of the two fits", low=1,
    high=1, failing="of two jobs that do not fit together, Ray placed {value}",
)
SAMPLE_RATE = fixed_check(
    "sample_rate", "Hz", "with fewer samples a second, seatrial could miss a gang that holds only a part of its GPUs", low=20,
    doubted=True,
)
PLACEMENT_DELAY = default_check(
    "placement_delay", "s",
    "Ray retries a waiting gang every 1 to 2 s; the limit adds a margin for load", high=5, marginal_high=3,
)
RELEASE_TIME = default_check(
    "release_time", "s",
    "other jobs wait until Ray frees the gang of a dead driver, which takes 0.1 s on an idle head node", high=10, marginal_high=5,
    no_control="a self-test would hold accelerators for longer than the limit",
    failing="the GPUs of a dead job are free only after {value}",
)
LARGE_GANG_WAIT = Check(
    "large_gang_wait", "s", better="lower", when=ordered("queue"),
    without_limit="UNPROVEN if the contract has `queue`, else only noted",
    no_control="a self-test would hold accelerators for longer than the limit",
    failing="a large job waits {value} behind small ones",
)
OVERCOMMITTED = none_of(
    "overcommitted", "samples", "no accelerator may be given to two jobs",
    failing="one GPU was held by two jobs in {value}",
)
LEAKED = none_of(
    "leaked", "GPUs", "accelerators that no gang holds must be free; otherwise they have leaked",
    failing="GPUs that no job holds are not free: {value}",
)
UNREGISTERED_USE = none_of(
    "unregistered_use", "GPUs",
    "Ray gives a GPU that it counts as free to the next job, even if it is in use", when=ON_GPU,
    failing="GPUs that Ray counts as free are in use{on}: {value}",
)
NOT_RELEASED = none_of(
    "not_released", "GPUs", "all accelerators must be free after the jobs have ended",
    failing="GPUs are still held after their job ended: {value}",
)

SCENE = (PARTIALLY_HELD, OVERCOMMITTED, NOT_RELEASED, SAMPLE_RATE, UNREGISTERED_USE)
STEADY = (*SCENE, LEAKED)

NAIVE_ACTORS = ControlRow("naive actors", PARTIALLY_HELD, LEAKED, NOT_RELEASED, SAMPLE_RATE)
TWO_THAT_FIT = ControlRow("two that fit", PLACED_CONCURRENTLY, ACTORS_NOT_RUNNING, OVERCOMMITTED)
LATE_RELEASE = ControlRow("late release", NEVER_PLACED, BLOCKED_BEHIND, PLACEMENT_DELAY)
GPU_USED_BEHIND_RAYS_BACK = ControlRow("a GPU used behind Ray's back", UNREGISTERED_USE)
CANCELLED_IN_WORDS_ONLY = ControlRow("cancelled in words only", NOT_REMOVED)
GANG_GIVEN_BACK = ControlRow("gang given back", LOST_WHILE_RUNNING)
DRIVER_STOPPED_NOT_KILLED = ControlRow("driver stopped, not killed", NOT_REMOVED)
TWO_GROUPS_PER_JOB = ControlRow("two groups per job", DEADLOCKS)
PACK_PASSED_OFF_AS_STRICT_PACK = ControlRow("PACK passed off as STRICT_PACK", PLACED_IN_FRAGMENTS)
SPREAD_PASSED_OFF_AS_STRICT_PACK = ControlRow(
    "SPREAD passed off as STRICT_PACK", MISPLACED, when=~ONE_NODE,
)
PACK_PASSED_OFF_AS_STRICT_SPREAD = ControlRow(
    "PACK passed off as STRICT_SPREAD", MISPLACED, when=ONE_NODE,
)
ONE_RANK_ASTRAY = ControlRow("one rank astray", MISPLACED)
ONE_BUNDLE_EARLY = ControlRow("one bundle early", PARTIALLY_HELD)
ONE_BUNDLE_EARLY_ON_ONE_NODE = ControlRow(
    "one bundle early, on the only node", PARTIALLY_HELD, when=ONE_NODE,
)
NODE_NOT_LOST = ControlRow("node not lost", LOSSES_NOT_DETECTED)

competing = partial(Probe, disturbs=COMPETING)

PROBES = (
    competing(
        "test_gang.py::test_two_gangs_compete_and_one_waits_whole",
        tier="quick", usual_s=18,
        checks=(*STEADY, PLACED_CONCURRENTLY, ACTORS_NOT_RUNNING, NEVER_PLACED, PLACEMENT_DELAY),
        controls=(NAIVE_ACTORS, TWO_THAT_FIT, LATE_RELEASE, GPU_USED_BEHIND_RAYS_BACK),
    ),
    competing(
        "test_gang.py::test_a_cancelled_gang_leaves_no_trace",
        tier="quick", usual_s=3,
        checks=(*STEADY, NOT_REMOVED, LOST_WHILE_RUNNING),
        controls=(CANCELLED_IN_WORDS_ONLY, GANG_GIVEN_BACK),
    ),
    Probe(
        "test_gang.py::test_a_dead_driver_gives_its_gang_back",
        tier="quick", usual_s=3,
        checks=(*STEADY, NOT_REMOVED, LOST_WHILE_RUNNING, RELEASE_TIME),
        controls=(DRIVER_STOPPED_NOT_KILLED,),
        disturbs=(*COMPETING, "kills the Ray driver processes of its own test jobs"),
    ),
    competing(
        "test_gang.py::test_one_group_per_job_never_deadlocks",
        tier="standard", usual_s=8,
        checks=(*STEADY, DEADLOCKS, NEVER_PLACED, NOT_REMOVED),
        controls=(TWO_GROUPS_PER_JOB,),
    ),
    competing(
        "test_gang_placement.py::test_fragments_are_not_mistaken_for_room",
        tier="standard", usual_s=3,
        checks=(*STEADY, PLACED_IN_FRAGMENTS, BLOCKED_BEHIND),
        controls=(PACK_PASSED_OFF_AS_STRICT_PACK, ONE_BUNDLE_EARLY_ON_ONE_NODE),
    ),
    competing(
        "test_gang_placement.py::test_strategies_hold",
        tier="standard", usual_s=2,
        checks=(*STEADY, MISPLACED),
        controls=(SPREAD_PASSED_OFF_AS_STRICT_PACK, PACK_PASSED_OFF_AS_STRICT_SPREAD),
    ),
    competing(
        "test_gang_placement.py::test_components_lie_where_they_were_put",
        tier="standard", usual_s=5,
        checks=(PARTIALLY_HELD, OVERCOMMITTED, NOT_RELEASED, LEAKED, MISPLACED),
        controls=(ONE_RANK_ASTRAY,),
    ),
    Probe(
        "test_gang_placement.py::test_a_lost_node_harms_its_own_gang_only",
        tier="standard", usual_s=23,
        checks=(*STEADY, NODES_KILLED, LOSSES_NOT_DETECTED, LOST_WHILE_RUNNING),
        controls=(ONE_BUNDLE_EARLY, NODE_NOT_LOST),
        disturbs=(*COMPETING, SPARE_RAYLETS),
    ),
    competing(
        "test_gang_queue.py::test_mixed_gangs_of_twice_the_cluster_all_run",
        tier="standard", usual_s=4,
        checks=(*SCENE, NEVER_PLACED),
        controls=(ONE_BUNDLE_EARLY,),
    ),
    competing(
        "test_gang_queue.py::test_a_gang_that_does_not_fit_blocks_nobody",
        tier="standard", usual_s=2,
        checks=(*STEADY, BLOCKED_BEHIND, NOT_REMOVED),
        controls=(ONE_BUNDLE_EARLY,),
    ),
    Probe(
        "test_gang_queue.py::test_a_big_gang_under_a_stream_of_small_ones",
        tier="standard", usual_s=65,
        checks=(*SCENE, LARGE_GANG_WAIT),
        controls=(ONE_BUNDLE_EARLY,),
        disturbs=(*COMPETING, MANY_GROUPS),
    ),
    Probe(
        "test_gang_queue.py::test_a_storm_of_gangs_leaves_nothing",
        tier="standard", usual_s=71,
        checks=(*SCENE, NEVER_PLACED),
        controls=(ONE_BUNDLE_EARLY,),
        disturbs=(*COMPETING, MANY_GROUPS),
    ),
    competing(
        "test_gang_queue.py::test_ray_train_waits_as_a_gang",
        tier="standard", usual_s=26,
        checks=(*SCENE, NEVER_PLACED, RAY_TRAIN_OUTCOME),
        controls=(ONE_BUNDLE_EARLY,),
    ),
)

CRITERION = CriterionRow(
    title="gang scheduling works under contention",
    how="test jobs compete for accelerators: 20 times a second or more, seatrial checks that each job "
    "holds all it needs or none",
    where="gangs of all sizes, on all nodes", needs=("2 GPUs",),
    headlines={PLACEMENT_DELAY: "a job starts {value} after GPUs are free"},
    proven="; no job held only a part of its GPUs", usual_s={"quick": 27, "standard": 155},
    depends=("queue",), least_gpus=2,
    on_one_node=OnOneNode(untested="gangs over several nodes"),
)
