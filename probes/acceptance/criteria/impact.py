"""Declares what each criterion needs of a cluster, and what each of its probes disturbs there.

`seatrial plan` prints both.  A test finds a probe that declares nothing.
"""

from __future__ import annotations

TASKS = "runs short tasks on each node"
ALL_GPUS = "takes all GPUs: other jobs wait"
TRAFFIC = "fills the fabric with traffic"
MANY_GROUPS = "creates many placement groups, which load Ray's head"
SPARE_RAYLETS = "adds raylets of its own to the cluster, and kills them"
KILLS_RANKS = "kills or stops ranks of its own jobs"
CHECKPOINTS = "writes checkpoints into the shared folder, and removes them"
COMPETING = (ALL_GPUS, "starts jobs that compete for GPUs, and cancels them")
RESTARTED = (ALL_GPUS, KILLS_RANKS, CHECKPOINTS)
# Of each criterion.
GPUS_FREE = "all GPUs free: with another job on them, probes are UNPROVEN or wait"

NEEDS: dict[str, tuple[str, ...]] = {  # the first says where the probes run
    "HOSTS": (
        "one worker on each node, and one for each GPU",
        "permission of workers to read NVML; root is not needed",
        "the contract's shared folder, which each node may write",
    ),
    "FABRIC": (
        "one rank for each GPU, on all nodes",
        "2 nodes; 3 to compare links",
        "permission of workers to open RDMA devices and lock memory, where RDMA is agreed",
    ),
    "GANG": ("gangs of all sizes, on all nodes", "2 GPUs"),
    "LAUNCH": (
        "a shell on this host, and one rank for each GPU",
        "Ray's dashboard, which takes the job",
    ),
    "RESTART": (
        "one rank for each GPU, on all nodes",
        "a shared folder that all nodes see",
    ),
    "SCALING": (
        "one rank for each GPU, on 1, 2, 4, 8 ... nodes in turn",
        "2 nodes",
        "a shared folder that all nodes see, from tier standard on",
    ),
}

DISTURBS: dict[str, tuple[str, ...]] = {  # by file and function, for all cases of it
    "hosts/test_hosts.py::test_hosts_are_what_was_ordered": (
        TASKS,
        "runs DCGM's diagnostics, where the contract orders them",
    ),
    "hosts/network/test_names.py::test_nodes_reach_each_other_by_name_and_port": (
        TASKS,
        "opens ports on each node for some seconds",
    ),
    "hosts/test_closing.py::test_hosts_stay_healthy_to_the_end": (TASKS,),
    "hosts/system/test_system.py::test_jobs_get_the_limits_they_need": (
        TASKS,
        "contacts the targets of `egress`, and reads `model_files`, where the contract lists them",
    ),
    "hosts/storage/test_storage.py::test_all_nodes_use_the_shared_folder_at_once": (
        "writes and reads files in the shared folder from all nodes at once, and removes them",
    ),
    "hosts/compute/test_work.py::test_each_gpu_computes_rightly_and_as_fast_as_the_others": (
        ALL_GPUS,
    ),
    "hosts/compute/test_work.py::test_no_gpu_slows_down_under_load": (
        ALL_GPUS,
        "loads all GPUs for a minute, and for ten in tier soak",
    ),
    "hosts/exposure/test_exposure.py::test_entrances_keep_to_the_authentication": (
        TASKS,
        "sends requests without a token to Ray's entrances, and one harmless job",
    ),
    "fabric/test_fabric.py::test_allreduce_takes_the_fabric_at_line_rate": (
        ALL_GPUS,
        TRAFFIC,
        "forces traffic onto the control network, which Ray uses too",
    ),
    "gang/test_gang.py::test_two_gangs_compete_and_one_waits_whole": COMPETING,
    "gang/test_gang.py::test_a_cancelled_gang_leaves_no_trace": COMPETING,
    "gang/test_gang.py::test_a_dead_driver_gives_its_gang_back": (
        *COMPETING,
        "kills drivers of its own jobs",
    ),
    "gang/test_gang.py::test_one_group_per_job_never_deadlocks": COMPETING,
    "gang/test_gang_placement.py::test_fragments_are_not_mistaken_for_room": COMPETING,
    "gang/test_gang_placement.py::test_strategies_hold": COMPETING,
    "gang/test_gang_placement.py::test_components_lie_where_they_were_put": COMPETING,
    "gang/test_gang_placement.py::test_a_lost_node_harms_its_own_gang_only": (
        *COMPETING,
        SPARE_RAYLETS,
    ),
    "gang/test_gang_queue.py::test_mixed_gangs_of_twice_the_cluster_all_run": COMPETING,
    "gang/test_gang_queue.py::test_a_gang_that_does_not_fit_blocks_nobody": COMPETING,
    "gang/test_gang_queue.py::test_a_big_gang_under_a_stream_of_small_ones": (
        *COMPETING,
        MANY_GROUPS,
    ),
    "gang/test_gang_queue.py::test_a_storm_of_gangs_leaves_nothing": (*COMPETING, MANY_GROUPS),
    "gang/test_gang_queue.py::test_ray_train_waits_as_a_gang": COMPETING,
    "launch/test_launch.py::test_documented_path_starts_a_correct_job": (
        ALL_GPUS,
        "submits jobs as a user of its own, each of twenty training steps",
    ),
    "launch/test_failing_job.py::test_a_failing_job_says_why": (
        ALL_GPUS,
        "submits a job of its own that fails",
    ),
    "launch/test_stopped_job.py::test_a_stopped_job_leaves_nothing": (
        ALL_GPUS,
        "stops a job of its own while it trains",
    ),
    "launch/test_other_failures.py::test_other_failures_say_why_and_hold_nothing": (
        ALL_GPUS,
        "submits jobs of its own that fail, one of them after a minute of silence",
    ),
    "launch/test_own_disk.py::test_a_job_goes_on_from_one_nodes_own_disk": (
        ALL_GPUS,
        "writes small checkpoints to /tmp of each node, and removes them",
    ),
    "launch/test_launchers.py::test_other_launchers_give_each_rank_what_it_needs": (
        ALL_GPUS,
        "submits jobs of its own, whose results go to the shared folder",
    ),
    "launch/test_in_a_row.py::test_eight_jobs_in_a_row_leave_nothing": (
        ALL_GPUS,
        "submits eight jobs of its own, one after the other",
    ),
    "launch/test_every_time.py::test_the_same_commands_work_every_time": (
        ALL_GPUS,
        "holds back all accelerators of one node, twice",
    ),
    "restart/test_restart.py::test_killed_run_resumes_as_if_never_killed": RESTARTED,
    "restart/test_restart.py::test_a_run_can_be_repeated": (ALL_GPUS, CHECKPOINTS),
    "restart/test_restart.py::test_the_same_command_goes_on_after_a_killed_launcher": (
        *RESTARTED,
        "kills the launcher of its own job",
    ),
    "restart/test_restart.py::test_a_damaged_checkpoint_is_refused": (
        ALL_GPUS,
        CHECKPOINTS,
        "damages copies of its own checkpoints",
    ),
    "restart/test_restart.py::test_a_full_disk_costs_a_save_and_not_the_run": (
        ALL_GPUS,
        CHECKPOINTS,
        "lets a save of its own job fail as on a full disk; no disk is filled",
    ),
    "restart/test_restart_other_ranks.py::test_a_lost_node_is_done_without": (
        *RESTARTED,
        SPARE_RAYLETS,
    ),
    "restart/test_restart_other_ranks.py::test_a_punished_run_is_the_run_never_killed": (
        *RESTARTED,
        "kills for ten minutes",
    ),
    "restart/test_restart_other_ranks.py::test_fewer_ranks_go_on_with_the_same_samples": (
        ALL_GPUS,
        CHECKPOINTS,
    ),
    "scaling/test_scaling.py::test_each_node_adds_its_share": (
        ALL_GPUS,
        TRAFFIC,
        "writes checkpoints into the shared folder, from tier standard on",
    ),
}


def disturbances_of(probe: str) -> tuple[str, ...]:
    """Return what a probe disturbs; `probe` is as in Duty, with or without its case."""
    return DISTURBS[probe.partition("[")[0]]
