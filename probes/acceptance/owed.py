"""Lists what each tier owes: its probes, with the measures and controls that each must record.

The table is written by hand and read before pytest selects anything.  So what is deselected,
ignored, not collected or never recorded is noticed.  A test keeps it equal to what is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probes.acceptance.cluster_terms import ClusterTerms
from probes.acceptance.control_targets import FORGOTTEN, NO_CONTROL
from probes.acceptance.criteria import is_judged
from reports.record import OwedProbe

TIERS = ("quick", "standard", "soak")
MANY_NODES = 8  # enough that every measure that depends on the number of nodes is owed


@dataclass(frozen=True)
class Circumstances:
    """Facts that decide whether a measure is owed: tier, terms, agreed limits, the cluster's shape.

    `agreed` are the measures with a limit in the contract, as SCALING.mfu.
    """

    tier: str
    terms: ClusterTerms
    nodes: int
    on_gpu: bool
    agreed: frozenset[str] = frozenset()
    one_host: bool = False  # an embedded cluster: its raylets share a machine
    not_provable: frozenset[str] = frozenset()  # criteria: only their data is judged
    ip_fabric: bool = True  # False where RDMA is agreed and no port has an IP address

    @property
    def emulated(self) -> bool:
        """Whether computation is on the CPU, so that nodes need no NVML."""
        return self.terms.accelerators == "emulated" or self.one_host

    @property
    def speed_in_tokens(self) -> bool:
        """Whether SCALING judges speed by tokens/s alone: mfu has no meaning, or no limit."""
        tokens, mfu = "SCALING.tokens_per_s" in self.agreed, "SCALING.mfu" in self.agreed
        return self.emulated or (tokens and not mfu)


@dataclass(frozen=True)
class Duty:
    """One probe of the suite; `probe` is its file under probes/ and its name."""

    probe: str
    tier: str
    measures: tuple[str, ...]
    controls: tuple[str, ...]

    @property
    def criterion(self) -> str:
        """Row of the acceptance table, which is the folder's name."""
        return self.probe.split("/", 1)[0].upper()


LINK_MEASURES = (
    *("off_fabric_links", "lost_packets", "link_changes", "interface_errors", "longest_stall"),
)

# Owed only where the condition holds; all others are owed by every probe that finishes.
CONDITIONS: dict[tuple[str, str], Callable[[Circumstances], bool]] = {
    ("HOSTS", "machines"): lambda here: not here.one_host,
    ("HOSTS", "nvml_errors"): lambda here: not here.emulated,
    ("HOSTS", "duplicate_gpus"): lambda here: not here.emulated,
    ("HOSTS", "gpu_model"): lambda here: bool(here.terms.gpu_model),
    ("HOSTS", "gpu_memory"): lambda here: bool(here.terms.gpu_memory_gib),
    ("HOSTS", "cpus"): lambda here: bool(here.terms.cpus_per_node),
    ("HOSTS", "ram"): lambda here: bool(here.terms.ram_gib),
    ("HOSTS", "ordered_versions"): lambda here: bool(here.terms.versions),
    ("HOSTS", "shared_missing"): lambda here: bool(here.terms.shared),
    ("HOSTS", "own folder"): lambda here: bool(here.terms.shared) and here.nodes > 1,
    # InfiniBand without IPoIB, and EFA, have no IP packets whose size could be tested.
    **{
        ("FABRIC", name): lambda here: here.ip_fabric
        for name in ("mtu_mismatches", "pairs_below_mtu", "large packets")
    },
    ("FABRIC", "log_errors"): lambda here: here.terms.fabric == "rdma",
    ("FABRIC", "rails"): lambda here: here.terms.fabric == "rdma",
    ("FABRIC", "slowest_rail"): lambda here: here.terms.fabric == "rdma",
    # Two nodes are one pair, with no other to compare; raylets of one host have no link.
    ("FABRIC", "slowest_pair"): lambda here: here.nodes > 2 and not here.one_host,
    **{
        ("FABRIC", name): lambda here: not here.one_host
        for name in (*LINK_MEASURES, "late call", "bad sender", "doctored counters")
    },
    ("SCALING", "checkpoint_overhead"): lambda here: here.tier != "quick",
    ("SCALING", "slow save"): lambda here: here.tier != "quick",
    ("SCALING", "mfu"): lambda here: not here.speed_in_tokens,
    ("SCALING", "tokens_per_s"): lambda here: (
        here.speed_in_tokens or "SCALING.tokens_per_s" in here.agreed
    ),
    ("GANG", "large_gang_wait"): lambda here: bool(here.terms.queue),
    ("GANG", "unregistered_use"): lambda here: here.on_gpu,
    ("GANG", "a GPU used behind Ray's back"): lambda here: here.on_gpu,
}

SCENE = ("partially_held", "overcommitted", "not_released", "sample_rate", "unregistered_use")
STEADY = (*SCENE, "leaked")
EARLY = ("one bundle early",)
FORGETS = (*(f"resume forgets: {part}" for part in FORGOTTEN), "exploding loss")
LEFT = ("left behind on purpose",)
OTHER = ("another scenario",)
KILLED_RUN = (*FORGETS, *OTHER, *LEFT)
SAME = ("unequal_steps", "final_state")
RETURNS = ("faults_injected", "outcome", "attempts", "resumed_from", "steps_lost")
HOLDS = ("not_released", "still_running")
RESUMES = (*RETURNS, *SAME, "non_finite", *HOLDS)
REFUSES = ("outcome", "not_refused", "resumed_from", "refusals_explained", *SAME)
GANG_QUEUE, RESTART = "gang/test_gang_queue.py", "restart/test_restart.py"
PLACEMENT, OTHER_RANKS = "gang/test_gang_placement.py", "restart/test_restart_other_ranks.py"
KILLED = f"{RESTART}::test_killed_run_resumes_as_if_never_killed"
DAMAGED = f"{RESTART}::test_a_damaged_checkpoint_is_refused"
NODE_LOST = f"{OTHER_RANKS}::test_a_lost_node_is_done_without"
INTACT = ("an untouched one taken for damaged",)
WAITS = ("unreported_waits", "held_while_waiting")

DUTIES = (
    Duty(
        "hosts/test_hosts.py::test_hosts_are_what_was_ordered",
        "quick",
        (
            *("nodes", "machines", "gpus", "count_mismatches", "nodes_below_most", "nvml_errors"),
            *("duplicate_gpus", "differences", "gpu_model", "gpu_memory", "cpus", "ram"),
            *("ordered_versions", "shared_missing"),
        ),
        ("doctored node", "larger order", "own folder"),
    ),
    Duty(
        "fabric/test_fabric.py::test_allreduce_takes_the_fabric_at_line_rate",
        "quick",
        (
            *("wrong_elements", "unreachable_pairs", "mtu_mismatches", "pairs_below_mtu"),
            "duplicate_addresses",
            *("busbw", "network", "agreeing_sources", "fabric_share", "other_share"),
            *("slowest_pair", "rails", "slowest_rail", "log_errors", "harmful_settings"),
            *LINK_MEASURES,
        ),
        (
            *("wrong element", "closed door", "large packets", "doctored port", "late call"),
            *("bad sender", "doctored counters", "wrong network", "other report"),
            "harmful variable",
        ),
    ),
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
        f"{GANG_QUEUE}::test_mixed_gangs_of_twice_the_cluster_all_run",
        "standard",
        (*SCENE, "never_placed"),
        EARLY,
    ),
    Duty(
        f"{GANG_QUEUE}::test_a_gang_that_does_not_fit_blocks_nobody",
        "standard",
        (*STEADY, "blocked_behind", "not_removed"),
        EARLY,
    ),
    Duty(
        f"{GANG_QUEUE}::test_a_big_gang_under_a_stream_of_small_ones",
        "standard",
        (*SCENE, "large_gang_wait"),
        EARLY,
    ),
    Duty(
        f"{GANG_QUEUE}::test_a_storm_of_gangs_leaves_nothing",
        "standard",
        (*SCENE, "never_placed"),
        EARLY,
    ),
    Duty(
        f"{GANG_QUEUE}::test_ray_train_waits_as_a_gang",
        "standard",
        (*SCENE, "never_placed", "ray_train_outcome"),
        EARLY,
    ),
    Duty(
        "launch/test_launch.py::test_documented_path_starts_a_correct_job",
        "quick",
        ("exit_code", "ranks", "wrong_ranks", "time_to_first_step"),
        ("missing variable",),
    ),
    Duty(
        f"{KILLED}[killed-in-a-step-then-in-a-save]",
        "quick",
        (*RESUMES, "recovery_time"),
        KILLED_RUN,
    ),
    *(
        Duty(f"{KILLED}[{case}]", "standard", (*RESUMES, "recovery_time"), KILLED_RUN)
        for case in ("stopped-not-killed", "told-to-leave", "killed-in-an-upload")
    ),
    *(
        Duty(f"{KILLED}[{case}]", "soak", (*RESUMES, "recovery_time"), KILLED_RUN)
        for case in (
            "killed-in-a-commit",
            "killed-before-the-first-checkpoint",
            "killed-while-it-restarts",
        )
    ),
    Duty(f"{KILLED}[attempts-used-up]", "soak", (*RETURNS, *HOLDS), (*OTHER, *LEFT)),
    Duty(f"{RESTART}::test_a_run_can_be_repeated", "quick", SAME, FORGETS),
    Duty(
        f"{RESTART}::test_the_same_command_goes_on_after_a_killed_launcher",
        "standard",
        RESUMES,
        KILLED_RUN,
    ),
    *(
        Duty(f"{DAMAGED}[{case}]", tier, REFUSES, INTACT)
        for case, tier in {
            "newest-bit-flipped": "quick",
            "metadata-torn": "quick",
            "newest-truncated": "standard",
            "newest-not-committed": "standard",
            "of-another-run": "standard",
            "of-a-later-version": "standard",
        }.items()
    ),
    Duty(
        f"{RESTART}::test_a_full_disk_costs_a_save_and_not_the_run",
        "standard",
        ("faults_injected", "outcome", "saves_refused", "saved_after", *SAME),
        (*FORGETS, "a disk that was not full"),
    ),
    Duty(
        f"{NODE_LOST}[no-node-to-spare]",
        "standard",
        (*RESUMES, *WAITS),
        (*KILLED_RUN, "silent wait"),
    ),
    *(
        Duty(f"{NODE_LOST}[{case}]", "soak", (*RESUMES, "recovery_time"), KILLED_RUN)
        for case in ("a-node-to-spare", "raylet-killed", "two-nodes-at-once")
    ),
    Duty(
        f"{OTHER_RANKS}::test_a_punished_run_is_the_run_never_killed",
        "soak",
        ("kills", "unexplained_failures", "runs_lost", "steps_lost", *SAME, *HOLDS),
        (*FORGETS, *LEFT, "kills taken away"),
    ),
    Duty(
        f"{OTHER_RANKS}::test_fewer_ranks_go_on_with_the_same_samples",
        "standard",
        ("samples_differ", "resumed_from", "drift"),
        ("resumed one sample further on",),
    ),
    Duty(
        "scaling/test_scaling.py::test_each_node_adds_its_share",
        "quick",
        (
            *("efficiency", "residual", "wall_gap", "non_finite", "disagreements", "straggler"),
            *("mfu", "tokens_per_s", "checkpoint_overhead"),
        ),
        ("slow base", "exploding loss", "trained apart", "planted delay", "slow save"),
    ),
)


def owed_by(here: Circumstances) -> Iterator[OwedProbe]:
    """Yield the probes that a tier owes, each with what it must record in these circumstances."""
    for duty in DUTIES:
        if TIERS.index(duty.tier) <= TIERS.index(here.tier):
            measures = [
                name
                for name in _owed_names(duty, duty.measures, here)
                if is_judged(duty.criterion, name, here.not_provable)
            ]
            reasons = NO_CONTROL[duty.criterion]
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
        condition = CONDITIONS.get((duty.criterion, name))
        if condition is None or condition(here):
            yield name


def judged_names(tier: str, terms: ClusterTerms, agreed: frozenset[str]) -> set[str]:
    """Return the measures, as SCALING.mfu, that a run of this tier may be judged by."""
    return {
        f"{probe.criterion}.{name}"
        for on_gpu in (False, True)
        for probe in owed_by(Circumstances(tier, terms, MANY_NODES, on_gpu, agreed))
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
    except (KeyError, TypeError, AttributeError):  # an older run, or a modified record
        return True
