"""The acceptance table as data: criteria, their measures, and the limits that no contract changes.

The same list is in four places: this table, the contract files, the report's first table and the
names of the probe files.  A test keeps them equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal

from reports.measurement import Limit
from reports.numbers import Value, number

Better = Literal["higher", "lower", "word", ""]


@dataclass(frozen=True)
class Measure:
    """A quantity that a probe measures.

    `unit` must be the unit of its limit.  A `fixed` limit holds on every cluster and no contract
    may change it.  A `default` holds unless the contract gives another limit.  With neither, a
    contract or the cluster's own facts must give the limit, or the result is UNPROVEN.  The limit
    of a `from_run` measure follows from the run's own set-up, which the text names.  Where no
    contract gives one, the limit of a `derived_in_run` measure follows from the devices it ran on.

    `better` is the side of better values.  A limit on the other side is refused, for it would pass
    worse values.  It is "" where a limit has both sides or one value is right, and "word" where
    values are words.  `signed`: a value below zero can be true; elsewhere it is an error of
    measurement, and no value.  `of_data`: it counts wrong results, which no hardware excuses.  It
    is judged also where the rest of its row cannot be proven.  `doubted`: a contradiction leaves it
    UNPROVEN with a note, and never fails it.
    """

    unit: str
    fixed: Limit | None = None
    default: Limit | None = None
    from_run: str = ""
    derived_in_run: bool = False
    better: Better = ""
    signed: bool = False
    of_data: bool = False
    doubted: bool = False

    @property
    def agreeable(self) -> bool:
        """Whether a contract may give its limit."""
        return self.fixed is None and not self.from_run

    def plausible_value(self, value: Value) -> tuple[Value, str]:
        """Return the value and "", or None and why the value cannot be."""
        if self.signed or value is None or isinstance(value, str) or not value < 0:
            return value, ""
        why = " (the clocks of two hosts may differ)" if self.unit == "s" else ""
        text = f"{number(value)} {self.unit}".strip()
        return None, f"the value was {text}: it cannot be negative{why}"


@dataclass(frozen=True)
class CriterionRow:
    """One row of the acceptance table."""

    title: str
    how: str
    measures: dict[str, Measure]


def fixed_measure(unit: str, because: str, *, signed: bool = False, **bounds: Any) -> Measure:
    """Build a measure whose limit holds on every cluster."""
    return Measure(unit, fixed=Limit(unit=unit, because=because, **bounds), signed=signed)


def default_measure(unit: str, because: str, **bounds: Any) -> Measure:
    """Build a measure with a limit that a contract may replace; a one-sided limit sets `better`."""
    limit = Limit(unit=unit, because=because, **bounds)
    better: Better = "" if (limit.low is None) == (limit.high is None) else "higher"
    return Measure(unit, default=limit, better="lower" if better and limit.low is None else better)


def none_of(unit: str, because: str) -> Measure:
    """Build a count that must be zero everywhere."""
    return fixed_measure(unit, because, high=0)


def doubted(measure: Measure) -> Measure:
    """Mark a measure that a contradiction leaves UNPROVEN, and never fails."""
    return dataclasses.replace(measure, doubted=True)


def wrong_data(unit: str, because: str) -> Measure:
    """Build a count of wrong results: it must be zero on every machine, also in a rehearsal."""
    return dataclasses.replace(none_of(unit, because), of_data=True)


def exactly(count: float, unit: str, because: str) -> Limit:
    """Build a limit with one allowed value."""
    return Limit(low=count, high=count, unit=unit, because=because)


FABRIC_MEASURES = {
    "wrong_elements": wrong_data("elements", "a fast wrong answer is a failure"),
    "unreachable_pairs": none_of("pairs", "every rank must reach every other"),
    "duplicate_addresses": none_of(
        "addresses", "two machines with one address take each other's traffic"
    ),
    "pairs_below_mtu": none_of("pairs", "full-size packets must pass, or init hangs"),
    "mtu_mismatches": none_of("nodes", "one MTU on one fabric, or large packets vanish"),
    "harmful_settings": none_of(
        "settings", "a setting that breaks or cripples the fabric does so for every job"
    ),
    "busbw": Measure("GB/s", better="higher"),
    "network": Measure("", better="word"),
    "agreeing_sources": doubted(
        fixed_measure(
            "sources", "byte counters and the library's own word must say the same", low=2, high=2
        )
    ),
    "fabric_share": fixed_measure(
        "ratio",
        "a ring all-reduce moves 2(n-1)/n x S per node; headers add 5 % at MTU 1500",
        low=0.97,
        high=1.12,
    ),
    "other_share": fixed_measure(
        "ratio", "gradient bytes seen on any other interface took the wrong road", high=0.1
    ),
    "off_fabric_links": none_of(
        "links", "a pair of nodes that uses another network is slow, and loads that network"
    ),
    "lost_packets": default_measure(
        "ratio",
        "sound data centre networks lose 0.001 to 0.01 % of packets; over 0.1 % is an incident (Guo et al., Pingmesh, SIGCOMM 2015)",
        high=1e-3,
        marginal_high=5e-4,
    ),
    "link_changes": none_of("changes", "a link that nobody touches stays up"),
    "interface_errors": default_measure(
        "ratio",
        "cables are specified at 1 wrong bit in 1e12 (IEEE 802.3, InfiniBand), which is 1e-7 of packets",
        high=1e-4,
        marginal_high=1e-5,
    ),
    "longest_stall": default_measure(
        "s",
        "beyond twice the median call of its size: TCP waits 0.2 s and doubles, RDMA some 0.5 s, before it sends a lost packet again",
        high=0.5,
        marginal_high=0.3,
    ),
    # Only where RDMA is agreed: speed alone does not show which path the bytes took.
    "log_errors": none_of(
        "findings", "RDMA with errors, or through host memory, is not what was agreed"
    ),
    "rails": Measure("rails", from_run="[cluster] rails, or the best node's"),
    "slowest_rail": default_measure(
        "ratio",
        "NCCL spreads its rings evenly over the rails of a node; 1 is an equal part",
        low=0.7,
        marginal_low=0.85,
    ),
    "slow_groups": none_of(
        "groups", "what is slow only where many nodes work at once slows every large job"
    ),
    "slowest_pair": default_measure(
        "ratio",
        "links of one fabric differ by noise: the best of several tries of a healthy one is over 0.9",
        low=0.75,
        marginal_low=0.85,
    ),
}

SCALING_MEASURES = {
    "efficiency": Measure("ratio", better="higher"),
    # Both are of the median node, running alone.  Without an agreed limit `mfu` gets a limit derived
    # from the GPU's name.
    "mfu": Measure("ratio", better="higher", derived_in_run=True),
    "tokens_per_s": Measure("tokens/s per rank", better="higher"),
    "non_finite": wrong_data("losses", "a loss that is not a number is no training"),
    "disagreements": wrong_data(
        "steps", "ranks that do not train one model are fast, and prove nothing"
    ),
    "residual": fixed_measure("ratio", "the terms must sum to the step they explain", high=1e-6),
    "wall_gap": fixed_measure(
        "ratio",
        "the steps must fill the window by the host's clock too; its readings are late by far less than 1 % of one",
        high=0.01,
    ),
    "straggler": default_measure(
        "ratio",
        "ranks doing equal work differ by noise; one that keeps all others waiting for 15 % of a step is a fault",
        high=0.15,
        marginal_high=0.1,
    ),
    "checkpoint_overhead": default_measure(
        "ratio",
        "of the agreed time between two saves; large jobs save every 15 to 30 minutes (NVIDIA on nvCOMP), so that is 36 s of 30 minutes, and sound clusters lose 2 to 4 % to scaling in all",
        high=0.02,
        marginal_high=0.01,
    ),
}

GANG_MEASURES = {
    "partially_held": none_of("samples", "a gang holds all of its allocation or nothing"),
    "not_removed": none_of("gangs", "a gang that is cancelled, or whose driver died, goes"),
    "lost_while_running": none_of("samples", "a gang that runs must not notice those that wait"),
    "blocked_behind": none_of("gangs", "a gang that has room must not wait for one that has none"),
    "placed_in_fragments": none_of(
        "nodes", "STRICT_PACK means one node, whatever is free elsewhere"
    ),
    "never_placed": none_of("gangs", "a gang that fits must have its turn"),
    "nodes_killed": doubted(
        fixed_measure("raylets", "the fault must have happened", low=1, high=1)
    ),
    "ray_train_outcome": fixed_measure(
        "", "Ray Train must run once it has room", one_of=["finished"]
    ),
    "actors_not_running": none_of("actors", "a gang that is placed must be able to run"),
    "losses_not_detected": none_of("nodes", "Ray must notice that a node is lost"),
    "deadlocks": none_of("deadlocks", "one group per job cannot hold and wait"),
    "misplaced": none_of(
        "gangs", "a strategy, or a component's place, is part of what was asked for"
    ),
    "placed_concurrently": fixed_measure(
        "gangs", "two gangs of 75 % cannot both fit, and one must", low=1, high=1
    ),
    "sample_rate": doubted(
        fixed_measure("Hz", "a half-held gang must not hide between two samples", low=20)
    ),
    "placement_delay": default_measure(
        "s",
        "Ray retries a pending gang within 1 s and ticks each 1 s; twice that and a margin for load",
        high=5,
        marginal_high=3,
    ),
    "release_time": default_measure(
        "s",
        "Ray drops a dead driver's gang when its connection closes, 0.1 s on an idle head; others wait meanwhile",
        high=10,
        marginal_high=5,
    ),
    "large_gang_wait": Measure("s", better="lower"),
    "overcommitted": none_of("samples", "no accelerator may be promised twice"),
    "leaked": none_of("GPUs", "what no gang holds is free; anything else has leaked"),
    "unregistered_use": none_of(
        "GPUs", "a GPU in use that Ray counts as free will be given away twice"
    ),
    "not_released": none_of("GPUs", "what a job held is free again after it"),
}

LAUNCH_MEASURES = {
    # Python returns -9 for a command that signal 9 ended: a failure, not an error of measurement.
    "exit_code": fixed_measure(
        "", "the documented commands must succeed", low=0, high=0, signed=True
    ),
    "ranks": Measure("ranks", from_run="one rank per accelerator"),
    "wrong_ranks": none_of(
        "ranks",
        "each rank must run once, on this cluster, on a GPU of its own where there are real ones, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT right and consistent",
    ),
    "time_to_first_step": doubted(
        default_measure("s", "a user should see a first step within five minutes", high=300)
    ),
}

RESTART_MEASURES = {
    "faults_injected": doubted(
        fixed_measure("processes", "the fault must have happened, once", low=1, high=1)
    ),
    "outcome": Measure("", from_run="what the scenario must come to"),
    "attempts": Measure(
        "attempts", from_run="one for each injected fault, and the one that finishes"
    ),
    "resumed_from": Measure("step", from_run="the newest checkpoint that is whole"),
    "steps_lost": Measure("steps", from_run="the save interval of the probe"),
    "not_refused": none_of(
        "checkpoints", "what cannot be proven whole and this run's must not be loaded"
    ),
    "refusals_explained": Measure("sentences", from_run="the checkpoints that were refused"),
    "saves_refused": Measure("saves", from_run="the saves that met a full disk"),
    "saved_after": Measure("saves", from_run="the saves that are due once there is room"),
    "not_released": none_of("groups", "a run that has ended holds nothing"),
    "still_running": none_of(
        "processes", "a rank of a run that has ended may still write, and holds its device"
    ),
    "kills": Measure("kills", from_run="how many there must be in the given time"),
    "unexplained_failures": none_of("attempts", "an attempt is lost to a kill, or to nothing"),
    "runs_lost": none_of("runs", "every run comes to its end, however often it is killed"),
    "samples_differ": none_of(
        "steps", "the samples and their order do not depend on the number of ranks"
    ),
    "drift": Measure("", from_run="the distance of two runs that nobody resumed"),
    "unreported_waits": none_of("waits", "who waits for room must say so, and for how much"),
    "held_while_waiting": none_of("bundles", "who waits for room must not keep others from it"),
    "non_finite": none_of("steps", "a loss that is not a number is no training"),
    "unequal_steps": none_of(
        "steps", "loss, gradient norm and samples must be bitwise those of a run never killed"
    ),
    "final_state": fixed_measure(
        "",
        "the parameters at the end must be bitwise those of a run never killed, but for sums that "
        "NCCL made in another order",
        one_of=["equal", "reordered"],
    ),
    "recovery_time": default_measure(
        "s", "from the kill to the first new step; longer is a manual restart", high=120
    ),
}

HOSTS_MEASURES = {
    "nodes": Measure("nodes", from_run="[cluster] nodes"),
    "machines": Measure("machines", from_run="how many nodes answer"),
    "gpus": Measure("GPUs", from_run="[cluster] gpus_per_node"),
    "count_mismatches": none_of(
        "counts", "Ray, NVML and torch must count the same GPUs, or ranks get what is not there"
    ),
    "nodes_below_most": none_of("nodes", "a node with fewer GPUs than most has lost some"),
    "nvml_errors": none_of("errors", "a GPU that cannot be asked cannot be trusted"),
    "duplicate_gpus": none_of("GPUs", "a GPU that two nodes count is ordered twice"),
    "differences": none_of(
        "differences",
        "one job runs on one software stack (Python, Ray, torch, driver) and one kind of GPU",
    ),
    "gpu_model": Measure("", from_run="[cluster] gpu_model"),
    "gpu_memory": Measure("GiB", from_run="[cluster] gpu_memory_gib"),
    "cpus": Measure("CPUs", from_run="[cluster] cpus_per_node"),
    "ram": Measure("GiB", from_run="[cluster] ram_gib"),
    "ordered_versions": Measure("versions", from_run="[cluster] versions"),
    "shared_missing": none_of("nodes", "checkpoints need one folder that every node sees"),
}

CRITERIA: dict[str, CriterionRow] = {
    "FABRIC": CriterionRow(
        "RDMA is in use",
        "all-reduce bus bandwidth at line rate, and witnesses of the road the bytes took",
        FABRIC_MEASURES,
    ),
    "SCALING": CriterionRow(
        "scaling is close to linear",
        "a real FSDP job timed on 1, 2, 4 and 8 nodes; every lost percent explained by terms that add up to the loss",
        SCALING_MEASURES,
    ),
    "GANG": CriterionRow(
        "gang scheduling works under contention",
        "competing jobs: each has its full allocation or holds nothing, at every sample",
        GANG_MEASURES,
    ),
    "LAUNCH": CriterionRow(
        "a user can launch without help",
        "the documented path, followed literally in a clean shell, starts a job that runs correctly",
        LAUNCH_MEASURES,
    ),
    "RESTART": CriterionRow(
        "restart from checkpoint works",
        "a run is killed mid-training, resumes by itself, and is shown equal to a run that was never killed",
        RESTART_MEASURES,
    ),
    "HOSTS": CriterionRow(
        "the machines are what was ordered",
        "inventory, GPU counts, parity and what was ordered of every node, as a job sees them",
        HOSTS_MEASURES,
    ),
}

# Probes run in this order: the inventory first, then from the fabric upwards.
RUN_ORDER = ("HOSTS", "FABRIC", "GANG", "LAUNCH", "RESTART", "SCALING")


def is_judged(criterion: str, measure: str, not_provable: Container[str]) -> bool:
    """Return whether a measure is judged, where `not_provable` criteria cannot be proven."""
    return criterion not in not_provable or CRITERIA[criterion].measures[measure].of_data
