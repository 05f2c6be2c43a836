"""Guides, launchers and training jobs as users get them wrong, by family; see `live_faults.py`.

The name of a case is a fault of a plugin of `launchers`.
"""

from __future__ import annotations

from typing import Any

from tests.faults.launchers.injected_faults import (
    Case,
    Family,
    are_all_of,
    are_some_of,
    is_alone,
    leaves_nothing,
)

LAUNCH = "probes/launch/test_launch.py::test_documented_path_starts_a_correct_job"
EVERY_TIME = "probes/launch/test_launch.py::test_the_same_commands_work_every_time"
IN_A_ROW = "probes/launch/test_launch.py::test_eight_jobs_in_a_row_leave_nothing"
LAUNCHERS = "probes/launch/test_launch.py::test_other_launchers_give_each_rank_what_it_needs"
FAILING = "probes/launch/test_failing_job.py::test_a_failing_job_says_why"
FAILURES = "probes/launch/test_failing_job.py::test_other_failures_say_why_and_hold_nothing"
OWN_DISK = "probes/launch/test_failing_job.py::test_a_job_goes_on_from_one_nodes_own_disk"
STOPPED = "probes/launch/test_failing_job.py::test_a_stopped_job_leaves_nothing"

# LAUNCH: guides that do not lead a user to a correct job.

ENV = {"LAUNCH-ENV"}
ENDED = {"LAUNCH-ENV", "LAUNCH-FAILED"}
DIED, WRONG = {"exit_code", "wrong_ranks"}, {"wrong_ranks"}
GUIDES = [
    # No rank is announced, so nothing is known of them.
    Case("typo", {"LAUNCH-FAILED"}, [], ["No module named reference_trainr"],
         {"exit_code", "ranks"}, in_make_test=True),
    Case("first-command", {"LAUNCH-FAILED"}, [], ["`seatrial exmaple"], {"exit_code", "ranks"}),
    # The job runs to its end, and so many things are wrong that every measure of it is red.
    Case("everything",
         {*("LAUNCH-ENV", "LAUNCH-WEIGHTS", "LAUNCH-DATA", "LAUNCH-METRICS", "LAUNCH-EXPORT"),
          "LAUNCH-NETWORK"},
         ["rank 3", "node3"], ["rank 3 on node3: the hash of the weights before the first step"],
         {*("wrong_ranks", "ranks_with_other_weights", "ranks_with_other_validation"),
          *("misplaced_samples", "metric_error", "loss_ratio", "wrong_exports", "export_error"),
          "share_on_agreed_network"}),
    # The job runs to its end, and three ranks of four are there: rank 3 is missing.
    Case("one-rank-fewer", ENV, ["rank 3"], ["WORLD_SIZE is 3. Expected: 4"],
         {"ranks", "wrong_ranks"}),
    # Every rank says what it lacks, and ends.
    Case("no-rank", ENDED, ["node3"], ["RANK not set"], DIED),
    Case("no-world-size", ENDED, ["rank 3"], ["WORLD_SIZE not set"], DIED),
    Case("no-local-rank", ENDED, ["rank 3"], ["LOCAL_RANK not set"], DIED),
    Case("no-master-addr", ENDED, ["rank 3"], ["MASTER_ADDR not set"], DIED),
    Case("no-master-port", ENDED, ["rank 3"], ["MASTER_PORT not set"], DIED),
    # The trainer needs none of these, and a user's own job may.
    Case("no-local-world-size", ENV, ["rank 3"], ["LOCAL_WORLD_SIZE not set"], WRONG),
    Case("no-node-rank", ENV, ["node3"], ["NODE_RANK not set"], WRONG),
    Case("wrong-local-rank", ENV, ["node3"], ["LOCAL_RANK is 7. Expected: 0 (the node"], WRONG),
    Case("wrong-local-world-size", ENV, ["node3"], ["LOCAL_WORLD_SIZE is 4"], WRONG),
    Case("wrong-node-rank", ENV, ["node3"], ["NODE_RANK is 0 on 4 nodes"], WRONG),
    Case("wrong-group-rank", ENV, ["node3"], ["GROUP_RANK is 9. Expected: 0 to 3"], WRONG),
    Case("wrong-world-size", ENDED, ["rank 0"], ["WORLD_SIZE is 3"], DIED),
    Case("loopback-master", ENDED, ["rank 3"], ["MASTER_ADDR is 127."], DIED),
    Case("no-environment", ENV, ["node3"], ["MYJOB_STAGE not set"], WRONG),
    Case("weights", {"LAUNCH-WEIGHTS"}, ["node3"], ["rank 3 on node3"],
         {"ranks_with_other_weights"}),
    Case("samples", {"LAUNCH-DATA"}, ["rank 0", "rank 3"], ["the same samples"],
         {"misplaced_samples"}),
    Case("repeat", {"LAUNCH-DATA"}, ["rank 3"], ["on a sample that it had already used"],
         {"misplaced_samples"}),
    Case("validation", {"LAUNCH-DATA"}, ["node3"], ["validation data"],
         {"ranks_with_other_validation"}),
    Case("metrics", {"LAUNCH-METRICS"}, [], ["off the mean of its ranks"], {"metric_error"}),
    Case("loss", {"LAUNCH-METRICS"}, [], ["Expected: it falls clearly"], {"loss_ratio"}),
    Case("export", {"LAUNCH-EXPORT"}, ["rank 3"], ["rank 0, rank 1, rank 2, rank 3"],
         {"wrong_exports"}),
    Case("corrupt", {"LAUNCH-EXPORT"}, [], ["Expected: the same model"], {"export_error"}),
    Case("other-network", {"LAUNCH-NETWORK"}, ["node0", "node3"], ["eth0 sent"],
         {"share_on_agreed_network"}),
]  # fmt: skip
JOBS = [
    Case("swallowed", {"LAUNCH-ERROR"}, [], ["ended with exit code 0"],
         {"hidden_errors"}),
    Case("into-a-file", {"LAUNCH-ERROR"}, [], ["do not name the error, the rank, the host"],
         {"facts_missing_from_error"}),
    Case("clears-tmp", {"LAUNCH-RESUME"}, ["rank 3", "node3"],
         ["rank 3 on node0, node1, node2, node3: began at step 0"], {"ranks_not_resumed"},
         arguments=[OWN_DISK, "--tier", "standard"]),
]  # fmt: skip

# GANG: launchers as users get them wrong.

EITHER = ["job A", "job B"]  # both asked at once: one of them is the one that waits
NODES = [f"node{at}" for at in range(4)]  # where something is not free
SPARES = [f"spare{at}" for at in range(1, 5)]
STUCK, LEFT, ALIVE = "GANG-STUCK", "GANG-LEAK", "GANG-NOT-REMOVED"
GANG = [
    Case("leak", {LEFT}, NODES, ["1 of 4 GPUs"], {"leaked", "not_released"},
         scenario="cancelled", in_make_test=True),
    Case("deaf", {ALIVE}, ["job B"], ["still existed"], {"not_removed"}, scenario="cancelled"),
    Case("early", {"GANG-PARTIAL"}, EITHER, ["held 1 of 3"], {"partially_held"},
         scenario="two_gangs"),
    Case("orphaned", {ALIVE, LEFT}, ["job B", *NODES], ["held by gang A-1"],
         {"not_removed", "not_released"}, scenario="driver"),
    Case("fussy", {STUCK}, [], ["Ray did not place"], {"never_placed"},
         scenario="two_gangs"),
    Case("fussy", {"GANG-BLOCKED"}, [], ["accelerators were free"], {"blocked_behind"},
         scenario="blocks_nobody"),
    Case("halves", {"GANG-PARTIAL", STUCK}, EITHER, ["held 2 of 4"],
         {"deadlocks", "partially_held", "never_placed"}, scenario="one_group"),
    Case("scattered", {"GANG-MISPLACED"}, [], ["node"], {"placed_in_fragments"},
         scenario="fragments"),
    Case("swapped", {"GANG-MISPLACED"}, [], ["'rollout' rank 0"], {"misplaced"},
         scenario="components"),
    *(
        Case("careless", {STUCK, LEFT}, NODES, ["Ray never placed"],
             {"never_placed", "not_released"}, scenario=scenario)
        for scenario in ("mixed", "storm")
    ),
    Case("endless", {STUCK}, [], ["after the small gangs ended"], {"never_placed"},
         scenario="big_gang"),
    Case("greedy", {STUCK}, [], ["Ray did not place Ray Train"],
         {"never_placed", "ray_train_outcome"}, scenario="ray_train"),
    Case("deaf", {STUCK, "GANG-NODE-LOSS", ALIVE}, ["job A", "job B", *SPARES], ["RESCHEDULING"],
         {"never_placed", "not_removed"}, scenario="lost_node"),
    Case("shaken", {"GANG-BLOCKED", STUCK, "GANG-NODE-LOSS"}, ["job A", "job B", *SPARES],
         ["accelerators were free"], {"blocked_behind", "never_placed"}, scenario="lost_node"),
    Case("restless", {"GANG-LOST-ACCELERATORS"}, ["job A"], ["lacked accelerators in"],
         {"lost_while_running"}, scenario="cancelled"),
    Case("sluggish", {"GANG-SLOW"}, [], ["the placement of gang"], {"placement_delay"},
         scenario="two_gangs"),
    Case("unmanned", {"GANG-NO-ACTORS"}, EITHER, ["1 of 3 actors"], {"actors_not_running"},
         scenario="two_gangs"),
    Case("modest", {"GANG-PARTIAL"}, EITHER, ["only 2 accelerators. Expected: 3"],
         {"placed_concurrently"}, scenario="two_gangs"),
    Case("stubborn", {ALIVE}, EITHER, ["still existed"], {"not_removed"}, scenario="one_group"),
]  # fmt: skip
# Two nodes of two accelerators, where strategies differ and fragments are real ones.
PAIRS: dict[str, Any] = {"nodes": 2, "name": "pairs", "gpus": 2}
FRAGMENTS = [
    Case("scattered", {"GANG-MISPLACED", "GANG-BLOCKED"}, [], ["room for all of it"],
         {"placed_in_fragments", "blocked_behind"}, scenario="fragments"),
]  # fmt: skip

# RESTART: training jobs as users get them wrong.

TWICE, NOTICE, UPLOAD = "killed-in-a-step-then", "told-to-leave", "killed-in-an-upload"
UNEQUAL, DIFFERENT = {"RESTART-UNEQUAL"}, {"unequal_steps", "final_state"}
ENDS, LOST = {"outcome", "attempts"}, {"RESTART-STEPS-LOST"}
# Rank 3 is the victim both times; any of the others' processes that ended in time goes on.
OUTLIVED = ["rank 0", "rank 1", "rank 2"]
RESTART = [
    *(
        Case(name, UNEQUAL, suspects, [says], DIFFERENT, scenario=scenario)
        for name, scenario, suspects, says in (
            ("forgets-rng", TWICE, [], "step 5"),
            ("forgets-data", TWICE, [], "step 5"),
            ("forgets-optimizer", TWICE, [], "step 5: hash of the"),
            ("forgets-all", TWICE, [], "step 5"),
            ("forgets-peer", NOTICE, [], "step 7"),
            ("unstaged", UPLOAD, [], "step 5"),
            ("remembers", TWICE, OUTLIVED, "step 5"),
            ("forgets-rng", "a-node-to-spare", [], "step 5"),
            ("forgets-rng", "two-nodes", [], "step 5"),
            ("typed-forgets-rng", "same_command", [], "step 5"),
            ("forgets-rng", "punished", [], "rank"),
        )
    ),
    Case("miscalculates", {"RESTART-NONDETERMINISTIC"}, ["rank 2"], ["rank 2, step 1"], DIFFERENT,
         scenario="repeated"),
    Case("shrunk", UNEQUAL, [], ["have different samples"], {"samples_differ", "drift"},
         scenario="fewer"),
    Case("prunes-first", LOST, [], ["cost 8 steps. Expected: at most 4"],
         {"resumed_from", "steps_lost"}, scenario="killed-in-a-commit"),
    Case("silent", {"RESTART-UNREPORTED"}, [], ["its log has no reason"],
         {"refusals_explained"}, scenario="newest-bit-flipped"),
    Case("never-saves", LOST, [], ["cost 6 steps. Expected: at most 4"], {"steps_lost"},
         scenario=TWICE),
    Case("gives-up", {"RESTART-NOT-RECOVERED"}, [], ["attempt 1 of 1"], ENDS, scenario=TWICE),
    Case("gives-up-early", {"RESTART-NOT-RECOVERED"}, [], ["attempt 2 of 2"], ENDS,
         scenario="killed-while-it-restarts"),
    Case("never-gives-up", {"RESTART-ATTEMPTS"}, [], ["made 3 attempts. Expected: 2"], ENDS,
         scenario="attempts-used-up"),
    Case("needs-a-checkpoint", {"RESTART-NOT-RECOVERED"}, [],
         ["there is no checkpoint to resume from"], ENDS, scenario="killed-before"),
    Case("hasty", LOST, [], ["cost 1 step. Expected: at most 0"],
         {"resumed_from", "steps_lost"}, scenario=NOTICE),
    Case("heedless", {"RESTART-ATTEMPTS"}, [], ["made 1 attempt. Expected: 2"], {"attempts"},
         scenario=NOTICE),
    Case("no-heartbeat", {"RESTART-SLOW"}, [], ["recovery time: detection 6"], {"recovery_time"},
         scenario="stopped-not-killed"),
    Case("gives-up", {"RESTART-NOT-RECOVERED"}, [], ["1 attempts were lost"], {"runs_lost"},
         scenario="punished"),
    Case("keeps-its-gang", {"RESTART-LEAK"}, [], ["1 placement group left"],
         {"not_released"}, scenario=TWICE),
    Case("keeps-its-gang", {"RESTART-NOT-RECOVERED", "RESTART-LEAK"}, [], ["already exists"],
         {"outcome", "unreported_waits", "not_released"}, scenario="no-node"),
    Case("stuck", {"RESTART-LEAK"}, ["rank 1", "node0"], ["has ended: rank 1 on node0"],
         {"still_running"}, scenario="raylet-killed"),
    Case("reuses-its-gang", {"RESTART-LEAK"}, [],
         ["while the run waited for a node, it held 1 of 2"],
         {"held_while_waiting", "not_released"}, scenario="no-node"),
    Case("brittle", {"RESTART-NOT-RECOVERED"}, [], ["a full disk ended the run"], {"outcome"},
         scenario="full_disk"),
    Case("careless", {"RESTART-TORN"}, ["rank 3"], ["committed step-8"],
         {"saves_refused", "saved_after"}, scenario="full_disk"),
]  # fmt: skip

RESTART_OF_PAIRS = [
    Case("one-at-a-time", {"RESTART-ATTEMPTS"}, [], ["ranks 2, 3 died on node1; ranks [2, 3] were"],
         {"attempts"}, scenario="node-killed"),
    Case("one-at-a-time", near=("RESTART.outcome", "RESTART.attempts"), scenario=TWICE),
]  # fmt: skip

JOB_FAMILIES: dict[str, tuple[Family, list[Case]]] = {
    "guides": (
        Family("LAUNCH", "guides", [LAUNCH], plugin="faulty_guide", suspected=are_all_of,
               also=(leaves_nothing,)),
        GUIDES,
    ),
    "jobs": (
        Family("LAUNCH", "launch", [FAILING], plugin="faulty_guide", suspected=are_all_of,
               also=(leaves_nothing,)),
        JOBS,
    ),
    "gang": (
        Family("GANG", "gang", ["probes/gang", "--tier", "standard"], plugin="faulty_launcher",
               suspected=are_some_of, also=(is_alone, leaves_nothing)),
        GANG,
    ),
    "pairs": (
        Family("GANG", "gang", ["probes/gang", "--tier", "standard"], PAIRS,
               plugin="faulty_launcher", suspected=are_some_of, also=(is_alone, leaves_nothing)),
        FRAGMENTS,
    ),
    "restart": (
        Family("RESTART", "restart", ["probes/restart", "--tier", "soak"], plugin="faulty_run",
               suspected=are_some_of, also=(is_alone, leaves_nothing)),
        RESTART,
    ),
    "restart-pairs": (
        Family("RESTART", "restart", ["probes/restart", "--tier", "standard"], PAIRS,
               plugin="faulty_run", suspected=are_some_of, also=(is_alone, leaves_nothing)),
        RESTART_OF_PAIRS,
    ),
}  # fmt: skip
