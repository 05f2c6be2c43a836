"""Lists what each tier owes, how long it usually takes, and what it disturbs.

Each criterion writes its part by hand.  It is read before pytest selects anything.  So what is
deselected, ignored, not collected or never recorded is noticed.  A test keeps it equal to what is
collected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from probes.check.criterion import Circumstances, Duty
from probes.check.registry import CRITERIA, RUN_ORDER, is_judged
from probes.contract.terms import ClusterTerms
from reports.record import TIERS, OwedProbe

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
    "hosts/test_hosts.py::test_nodes_reach_each_other_by_name_and_port": 2,
    "hosts/test_hosts.py::test_hosts_stay_healthy_to_the_end": 1,
    "hosts/test_hosts.py::test_jobs_get_the_limits_they_need": 2,
    "hosts/test_hosts.py::test_all_nodes_use_the_shared_folder_at_once": 7,
    "hosts/test_hosts.py::test_each_gpu_computes_rightly_and_as_fast_as_the_others": 7,
    "hosts/test_hosts.py::test_entrances_keep_to_the_authentication": 2,
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
    "restart/test_restart.py::test_a_lost_node_is_done_without": 34,
    "restart/test_restart.py::test_a_punished_run_is_the_run_never_killed": 670,
    "restart/test_restart.py::test_fewer_ranks_go_on_with_the_same_samples": 15,
    "scaling/test_scaling.py::test_each_node_adds_its_share": 63,
    "launch/test_launch.py::test_documented_path_starts_a_correct_job": 46,
    "launch/test_failing_job.py::test_a_failing_job_says_why": 16,
    "launch/test_failing_job.py::test_a_stopped_job_leaves_nothing": 30,
    "launch/test_failing_job.py::test_other_failures_say_why_and_hold_nothing": 124,
    "launch/test_launch.py::test_the_same_commands_work_every_time": 42,
    "launch/test_failing_job.py::test_a_job_goes_on_from_one_nodes_own_disk": 32,
    "launch/test_launch.py::test_eight_jobs_in_a_row_leave_nothing": 123,
    "launch/test_launch.py::test_other_launchers_give_each_rank_what_it_needs": 65,
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


MANY_NODES = 8  # enough that every measure that depends on the number of nodes is owed


DUTIES = tuple(duty for name in RUN_ORDER for duty in CRITERIA[name].duties)


def owed_by(here: Circumstances) -> Iterator[OwedProbe]:
    """Yield the probes that a tier owes, each with what it must record in these circumstances."""
    for duty in DUTIES:
        if TIERS.index(duty.tier) <= TIERS.index(here.tier):
            measures = [
                name
                for name in _owed_names(duty, duty.measures, here)
                if is_judged(duty.criterion, name, here.not_provable)
            ]
            reasons = CRITERIA[duty.criterion].no_control
            yield OwedProbe(
                probe=f"probes/{duty.probe}",
                criterion=duty.criterion,
                tier=duty.tier,
                measures=measures,
                controls=[*_owed_names(duty, duty.controls, here)],
                uncontrolled={name: reasons[name] for name in measures if name in reasons},
            )


def _owed_names(duty: Duty, names: tuple[str, ...], here: Circumstances) -> Iterator[str]:
    for name in names:
        condition = CRITERIA[duty.criterion].conditions.get(name)
        if condition is None or condition(here):
            yield name


def judged_names(tier: str, terms: ClusterTerms, agreed: frozenset[str]) -> set[str]:
    """Return the measures, as SCALING.mfu, that a run of this tier may be judged by."""
    return {
        f"{probe.criterion}.{name}"
        for on_gpu in (False, True)
        for probe in owed_by(
            Circumstances(tier, terms, MANY_NODES, on_gpu, agreed, ranks=2 * MANY_NODES)
        )
        for name in probe.measures
    }


def longer_tier(one: str, other: str) -> str:
    """Return the longer of two tiers, which has all the probes of the shorter."""
    return max(one, other, key=TIERS.index)


def partial_reason(only: Sequence[str], tier: str, agreed_tier: str) -> str:
    """Return why a run was started with less than it owes; "" if it was not."""
    reasons = [f"only {', '.join(only)} was asked for (--only)"] if only else []
    if longer_tier(tier, agreed_tier) != tier:
        reasons.append(f"tier {tier} was run, and the contract asks for tier {agreed_tier}")
    return "; ".join(reasons)


def owed_event(tier: str, agreed_tier: str, only: Sequence[str], **shape: Any) -> dict[str, Any]:
    """Build the data of the event `run_owes`; `shape` is Circumstances without their tier."""
    here = Circumstances(tier=longer_tier(tier, agreed_tier), **shape)
    return {
        "owed": [probe.model_dump() for probe in owed_by(here)],
        "only": list(only),
        "partial": partial_reason(only, tier, agreed_tier),
        "full_run_s": None if here.on_gpu else usual_full_run(agreed_tier, here.nodes),
    }


def has_ip_fabric(fabric: str | None, facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the fabric has IP addresses: always, but for RDMA without any on its ports.

    `facts` are those of a record's nodes.  A record without these facts counts as having addresses.
    """
    try:
        return fabric != "rdma" or any(
            bool(fact["interfaces"].get(port["netdev"], {}).get("address"))
            for fact in facts
            for port in fact["rdma"]
        )
    except (KeyError, TypeError, AttributeError):  # a modified record
        return True


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
    "hosts/test_hosts.py::test_nodes_reach_each_other_by_name_and_port": (
        TASKS,
        "opens ports on each node for some seconds",
    ),
    "hosts/test_hosts.py::test_hosts_stay_healthy_to_the_end": (TASKS,),
    "hosts/test_hosts.py::test_jobs_get_the_limits_they_need": (
        TASKS,
        "contacts the targets of `egress`, and reads `model_files`, where the contract lists them",
    ),
    "hosts/test_hosts.py::test_all_nodes_use_the_shared_folder_at_once": (
        "writes and reads files in the shared folder from all nodes at once, and removes them",
    ),
    "hosts/test_hosts.py::test_each_gpu_computes_rightly_and_as_fast_as_the_others": (ALL_GPUS,),
    "hosts/test_hosts.py::test_no_gpu_slows_down_under_load": (
        ALL_GPUS,
        "loads all GPUs for a minute, and for ten in tier soak",
    ),
    "hosts/test_hosts.py::test_entrances_keep_to_the_authentication": (
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
    "launch/test_failing_job.py::test_a_stopped_job_leaves_nothing": (
        ALL_GPUS,
        "stops a job of its own while it trains",
    ),
    "launch/test_failing_job.py::test_other_failures_say_why_and_hold_nothing": (
        ALL_GPUS,
        "submits jobs of its own that fail, one of them after a minute of silence",
    ),
    "launch/test_failing_job.py::test_a_job_goes_on_from_one_nodes_own_disk": (
        ALL_GPUS,
        "writes small checkpoints to /tmp of each node, and removes them",
    ),
    "launch/test_launch.py::test_other_launchers_give_each_rank_what_it_needs": (
        ALL_GPUS,
        "submits jobs of its own, whose results go to the shared folder",
    ),
    "launch/test_launch.py::test_eight_jobs_in_a_row_leave_nothing": (
        ALL_GPUS,
        "submits eight jobs of its own, one after the other",
    ),
    "launch/test_launch.py::test_the_same_commands_work_every_time": (
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
    "restart/test_restart.py::test_a_lost_node_is_done_without": (
        *RESTARTED,
        SPARE_RAYLETS,
    ),
    "restart/test_restart.py::test_a_punished_run_is_the_run_never_killed": (
        *RESTARTED,
        "kills for ten minutes",
    ),
    "restart/test_restart.py::test_fewer_ranks_go_on_with_the_same_samples": (
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
