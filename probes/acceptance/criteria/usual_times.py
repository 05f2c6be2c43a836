"""Usual times of the probes in the rehearsal lab, from docs/reference/measurements.md.

Nothing was measured on GPUs: there every time is another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from probes.acceptance.criteria import CRITERIA

SOURCE = "docs/reference/measurements.md"
LAB = "a lab of 4 nodes"
# Seconds by tier and criterion.  What is missing was not measured alone.
CRITERION_S: dict[str, dict[str, int]] = {
    "quick": {"FABRIC": 58, "GANG": 27, "LAUNCH": 62, "RESTART": 72, "SCALING": 63},
    "standard": {"FABRIC": 58, "GANG": 155, "LAUNCH": 291, "RESTART": 250, "SCALING": 81},
}
RUN_S = {"quick": 350, "standard": 850}  # seconds of a complete run, by tier
# Seconds of each probe, in the tier that it belongs to; of all cases of it together.
PROBE_S: dict[str, int] = {
    "hosts/test_hosts.py::test_hosts_are_what_was_ordered": 1,
    "hosts/network/test_names.py::test_nodes_reach_each_other_by_name_and_port": 2,
    "hosts/test_closing.py::test_hosts_stay_healthy_to_the_end": 1,
    "hosts/system/test_system.py::test_jobs_get_the_limits_they_need": 2,
    "hosts/storage/test_storage.py::test_all_nodes_use_the_shared_folder_at_once": 7,
    "hosts/compute/test_work.py::test_each_gpu_computes_rightly_and_as_fast_as_the_others": 7,
    "hosts/exposure/test_exposure.py::test_entrances_keep_to_the_authentication": 2,
    "fabric/test_fabric.py::test_allreduce_takes_the_fabric_at_line_rate": 52,
    "gang/test_gang.py::test_two_gangs_compete_and_one_waits_whole": 18,
    "gang/test_gang.py::test_a_cancelled_gang_leaves_no_trace": 3,
    "gang/test_gang.py::test_a_dead_driver_gives_its_gang_back": 3,
    "gang/test_gang.py::test_one_group_per_job_never_deadlocks": 8,
    "gang/test_gang_placement.py::test_fragments_are_not_mistaken_for_room": 3,
    "gang/test_gang_placement.py::test_strategies_hold": 2,
    "gang/test_gang_placement.py::test_components_lie_where_they_were_put": 5,
    "gang/test_gang_placement.py::test_a_lost_node_harms_its_own_gang_only": 23,
    "gang/test_gang_queue.py::test_mixed_gangs_of_twice_the_cluster_all_run": 4,
    "gang/test_gang_queue.py::test_a_gang_that_does_not_fit_blocks_nobody": 2,
    "gang/test_gang_queue.py::test_a_big_gang_under_a_stream_of_small_ones": 65,
    "gang/test_gang_queue.py::test_a_storm_of_gangs_leaves_nothing": 71,
    "gang/test_gang_queue.py::test_ray_train_waits_as_a_gang": 26,
    "restart/test_restart.py::test_killed_run_resumes_as_if_never_killed": 55,
    "restart/test_restart.py::test_a_run_can_be_repeated": 1,
    "restart/test_restart.py::test_a_damaged_checkpoint_is_refused": 1,
    "restart/test_restart.py::test_the_same_command_goes_on_after_a_killed_launcher": 29,
    "restart/test_restart.py::test_a_full_disk_costs_a_save_and_not_the_run": 1,
    "restart/test_restart_other_ranks.py::test_a_lost_node_is_done_without": 34,
    "restart/test_restart_other_ranks.py::test_a_punished_run_is_the_run_never_killed": 670,
    "restart/test_restart_other_ranks.py::test_fewer_ranks_go_on_with_the_same_samples": 15,
    "scaling/test_scaling.py::test_each_node_adds_its_share": 63,
    "launch/test_launch.py::test_documented_path_starts_a_correct_job": 46,
    "launch/test_failing_job.py::test_a_failing_job_says_why": 16,
    "launch/test_stopped_job.py::test_a_stopped_job_leaves_nothing": 30,
    "launch/test_other_failures.py::test_other_failures_say_why_and_hold_nothing": 124,
    "launch/test_every_time.py::test_the_same_commands_work_every_time": 42,
    "launch/test_own_disk.py::test_a_job_goes_on_from_one_nodes_own_disk": 32,
    "launch/test_in_a_row.py::test_eight_jobs_in_a_row_leave_nothing": 123,
    "launch/test_launchers.py::test_other_launchers_give_each_rank_what_it_needs": 65,
}
LAB_NODES = range(3, 6)  # sizes of a rehearsal that takes about as long


def usual_seconds(tier: str, criteria: Collection[str]) -> int | None:
    """Return the usual seconds of these criteria together; None where it was not measured."""
    if set(criteria) == set(CRITERIA):
        return RUN_S.get(tier)
    known = CRITERION_S.get(tier, {})
    return sum(known[id] for id in criteria) if set(criteria) <= known.keys() else None


def disturbed_seconds(probes: Iterable[str]) -> int | None:
    """Return the usual seconds of these probes together; None where one was not measured."""
    names = {probe.partition("[")[0] for probe in probes}
    return sum(PROBE_S[name] for name in names) if names <= PROBE_S.keys() else None


def usual_full_run(tier: str, nodes: int) -> int | None:
    """Return the usual seconds of a complete rehearsal on so many nodes; None if not measured."""
    return RUN_S.get(tier) if nodes in LAB_NODES else None
