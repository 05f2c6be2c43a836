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
    "wrong_elements": wrong_data("elements", "a wrong result is a failure, however fast it comes"),
    "unreachable_pairs": none_of("pairs", "every rank must reach every other rank"),
    "duplicate_addresses": none_of(
        "addresses", "two machines with the same address receive each other's traffic"
    ),
    "pairs_below_mtu": none_of(
        "pairs", "full-size packets must pass; if they are dropped, init hangs"
    ),
    "mtu_mismatches": none_of(
        "nodes", "all nodes of a fabric need the same MTU; otherwise large packets are dropped"
    ),
    "harmful_settings": none_of(
        "settings", "a setting that breaks or slows the fabric does so for every job"
    ),
    "busbw": Measure("GB/s", better="higher"),
    "network": Measure("", better="word"),
    "agreeing_sources": doubted(
        fixed_measure(
            "sources", "byte counters and the library's own report must agree", low=2, high=2
        )
    ),
    "fabric_share": fixed_measure(
        "ratio",
        "a ring all-reduce moves 2(n-1)/n x S bytes per node; headers add 5 % at MTU 1500",
        low=0.97,
        high=1.12,
    ),
    "other_share": fixed_measure(
        "ratio", "gradient bytes on any other interface used the wrong network", high=0.1
    ),
    "off_fabric_links": none_of(
        "links", "a pair of nodes that uses another network is slow and loads that network"
    ),
    "lost_packets": default_measure(
        "ratio",
        "healthy data centre networks lose 0.001 to 0.01 % of packets; more than 0.1 % is an incident (Guo et al., Pingmesh, SIGCOMM 2015)",
        high=1e-3,
        marginal_high=5e-4,
    ),
    "link_changes": none_of("changes", "a healthy link stays up"),
    "interface_errors": default_measure(
        "ratio",
        "cables are specified for 1 wrong bit in 1e12 (IEEE 802.3, InfiniBand), which is 1e-7 of packets",
        high=1e-4,
        marginal_high=1e-5,
    ),
    "longest_stall": default_measure(
        "s",
        "time above twice the median call of that size; TCP waits 0.2 s (then doubles), RDMA about 0.5 s, before it sends a lost packet again",
        high=0.5,
        marginal_high=0.3,
    ),
    # Only where RDMA is agreed: speed alone does not show which path the bytes took.
    "log_errors": none_of(
        "findings", "RDMA with errors, or staged through host memory, is not what was agreed"
    ),
    "rails": Measure("rails", from_run="[cluster] rails, or the best node's"),
    "slowest_rail": default_measure(
        "ratio",
        "NCCL spreads its rings evenly over the rails of a node; 1 is an equal share",
        low=0.7,
        marginal_low=0.85,
    ),
    "slow_groups": none_of(
        "groups", "nodes that are slow only when many work at once slow every large job"
    ),
    "slowest_pair": default_measure(
        "ratio",
        "healthy links of one fabric differ only by noise: the best of several tries is above 0.9",
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
    "non_finite": wrong_data("losses", "training has failed if the loss is NaN or infinite"),
    "disagreements": wrong_data(
        "steps", "ranks must train the same model; otherwise their speed proves nothing"
    ),
    "residual": fixed_measure(
        "ratio", "the terms must add up to the step time that they explain", high=1e-6
    ),
    "wall_gap": fixed_measure(
        "ratio",
        "the steps must fill the window on the host's clock too; its error is far below 1 %",
        high=0.01,
    ),
    "straggler": default_measure(
        "ratio",
        "ranks with equal work differ only by noise; a rank that makes all others wait for 15 % of a step is a fault",
        high=0.15,
        marginal_high=0.1,
    ),
    "checkpoint_overhead": default_measure(
        "ratio",
        "share of the agreed time between two saves; large jobs save every 15 to 30 minutes (NVIDIA on nvCOMP), so 2 % is 36 s of 30 minutes; healthy clusters lose 2 to 4 % to scaling in total",
        high=0.02,
        marginal_high=0.01,
    ),
}

GANG_MEASURES = {
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

LAUNCH_MEASURES = {
    # Python returns -9 for a command that signal 9 ended: a failure, not an error of measurement.
    "exit_code": fixed_measure(
        "", "the documented commands must succeed", low=0, high=0, signed=True
    ),
    "ranks": Measure("ranks", from_run="one rank per accelerator"),
    "wrong_ranks": none_of(
        "ranks",
        "each rank must run once, on this cluster, on its own GPU (if GPUs are real), with correct and consistent RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
    ),
    "time_to_first_step": doubted(
        default_measure("s", "a user should see the first step within five minutes", high=300)
    ),
}

RESTART_MEASURES = {
    "faults_injected": doubted(
        fixed_measure("processes", "the fault must have happened exactly once", low=1, high=1)
    ),
    "outcome": Measure("", from_run="the outcome that the scenario must have"),
    "attempts": Measure("attempts", from_run="one per injected fault, plus the last"),
    "resumed_from": Measure("step", from_run="the newest complete checkpoint"),
    "steps_lost": Measure("steps", from_run="the save interval of the probe"),
    "not_refused": none_of(
        "checkpoints",
        "a checkpoint that is not proven complete, and of this run, must not be loaded",
    ),
    "refusals_explained": Measure("sentences", from_run="the checkpoints that were refused"),
    "saves_refused": Measure("saves", from_run="the saves that met a full disk"),
    "saved_after": Measure("saves", from_run="the saves that are due once there is free space"),
    "not_released": none_of("groups", "a run that has ended must hold nothing"),
    "still_running": none_of(
        "processes", "a rank that outlives its run may still write files, and holds its device"
    ),
    "kills": Measure("kills", from_run="the number of kills that are due in the given time"),
    "unexplained_failures": none_of("attempts", "every failed attempt must match an injected kill"),
    "runs_lost": none_of("runs", "every run must finish, however often it is killed"),
    "samples_differ": none_of(
        "steps", "the samples and their order must not depend on the number of ranks"
    ),
    "drift": Measure("", from_run="the distance between two runs that were not resumed"),
    "unreported_waits": none_of(
        "waits", "a job that waits for resources must log what it waits for"
    ),
    "held_while_waiting": none_of(
        "bundles", "a waiting job must not keep resources from other jobs"
    ),
    "non_finite": none_of("steps", "training has failed if the loss is NaN or infinite"),
    "unequal_steps": none_of(
        "steps",
        "loss, gradient norm and samples must be bitwise equal to those of a run that was never killed",
    ),
    "final_state": fixed_measure(
        "",
        "the final parameters must be bitwise equal to those of a run that was never killed, "
        "except for sums that NCCL added in another order",
        one_of=["equal", "reordered"],
    ),
    "recovery_time": default_measure(
        "s",
        "from the kill to the first new step; a longer wait is no better than a manual restart",
        high=120,
    ),
}

HOSTS_MEASURES = {
    "nodes": Measure("nodes", from_run="[cluster] nodes"),
    "machines": Measure("machines", from_run="the nodes that answer"),
    "gpus": Measure("GPUs", from_run="[cluster] gpus_per_node"),
    "count_mismatches": none_of(
        "counts",
        "Ray, NVML and torch must count the same GPUs; otherwise ranks get GPUs that do not exist",
    ),
    "nodes_below_most": none_of("nodes", "a node with fewer GPUs than most nodes has lost some"),
    "nvml_errors": none_of("errors", "a GPU that does not answer NVML cannot be trusted"),
    "duplicate_gpus": none_of("GPUs", "a GPU that two nodes count would be given to two ranks"),
    "differences": none_of(
        "differences",
        "a job needs the same software (Python, Ray, torch, driver) and kind of GPU on every node",
    ),
    "gpu_model": Measure("", from_run="[cluster] gpu_model"),
    "gpu_memory": Measure("GiB", from_run="[cluster] gpu_memory_gib"),
    "cpus": Measure("CPUs", from_run="[cluster] cpus_per_node"),
    "ram": Measure("GiB", from_run="[cluster] ram_gib"),
    "ordered_versions": Measure("versions", from_run="[cluster] versions"),
    "shared_missing": none_of(
        "nodes", "checkpoints need one folder that every node can read and write"
    ),
}

CRITERIA: dict[str, CriterionRow] = {
    "FABRIC": CriterionRow(
        "RDMA is in use",
        "all-reduce bus bandwidth at line rate; two independent checks show which network "
        "carried the data",
        FABRIC_MEASURES,
    ),
    "SCALING": CriterionRow(
        "scaling is close to linear",
        "a real FSDP job timed on 1, 2, 4 and 8 nodes; the causes of every lost percent, which add up to the loss",
        SCALING_MEASURES,
    ),
    "GANG": CriterionRow(
        "gang scheduling works under contention",
        "competing jobs: each has all its accelerators or none, checked at least 20 times a second",
        GANG_MEASURES,
    ),
    "LAUNCH": CriterionRow(
        "a user can launch without help",
        "the documented commands, run as written in a clean shell, start a job that runs correctly",
        LAUNCH_MEASURES,
    ),
    "RESTART": CriterionRow(
        "restart from checkpoint works",
        "a run is killed during training, resumes by itself, and is proven equal to a run that was never killed",
        RESTART_MEASURES,
    ),
    "HOSTS": CriterionRow(
        "the machines are what was ordered",
        "machines, GPUs and software of every node: as ordered, and the same everywhere",
        HOSTS_MEASURES,
    ),
}

# Probes run in this order: the inventory first, then from the fabric upwards.
RUN_ORDER = ("HOSTS", "FABRIC", "GANG", "LAUNCH", "RESTART", "SCALING")


def is_judged(criterion: str, measure: str, not_provable: Container[str]) -> bool:
    """Return whether a measure is judged, where `not_provable` criteria cannot be proven."""
    return criterion not in not_provable or CRITERIA[criterion].measures[measure].of_data
