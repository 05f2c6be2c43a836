"""Lists which measures each control must make fail, and why a measure has no control.

A control counts as caught only if its measures failed, judged as the probe judges them.
"""

from __future__ import annotations

from probes.acceptance.criteria import CRITERIA
from reports.measurement import Measurement, Verdict

FORGOTTEN = ("rng", "data", "optimizer", "peer", "all")  # what a faulty resume leaves out
CONTROLS: dict[str, dict[str, tuple[str, ...]]] = {
    "FABRIC": {
        "wrong element": ("wrong_elements",),
        "closed door": ("unreachable_pairs",),
        "large packets": ("pairs_below_mtu",),
        "doctored port": ("mtu_mismatches", "duplicate_addresses"),
        "late call": ("longest_stall",),
        "bad sender": ("slowest_pair", "lost_packets"),
        "doctored counters": ("link_changes", "interface_errors"),
        "wrong network": (
            *("busbw", "network", "fabric_share", "other_share", "off_fabric_links"),
            "log_errors",
        ),
        "other report": ("agreeing_sources",),
        "harmful variable": ("harmful_settings",),
    },
    "SCALING": {
        "slow base": ("mfu", "tokens_per_s"),
        "exploding loss": ("non_finite",),
        "trained apart": ("disagreements",),
        "planted delay": ("efficiency", "straggler"),
        "slow save": ("checkpoint_overhead",),
    },
    "GANG": {
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
    },
    "LAUNCH": {
        "missing variable": ("wrong_ranks", "exit_code", "ranks", "time_to_first_step"),
    },
    "RESTART": {
        **{f"resume forgets: {part}": ("unequal_steps", "final_state") for part in FORGOTTEN},
        "exploding loss": ("non_finite",),
        "another scenario": ("outcome", "attempts", "resumed_from", "steps_lost"),
        "an untouched one taken for damaged": (
            *("not_refused", "resumed_from", "refusals_explained"),
        ),
        "left behind on purpose": ("not_released", "still_running"),
        "a disk that was not full": ("saves_refused", "saved_after"),
        "silent wait": ("unreported_waits", "held_while_waiting"),
        "kills taken away": ("kills", "unexplained_failures", "runs_lost"),
        "resumed one sample further on": ("samples_differ", "drift"),
    },
    "HOSTS": {
        "doctored node": (
            *("machines", "gpus", "count_mismatches", "nodes_below_most", "nvml_errors"),
            *("duplicate_gpus", "differences", "gpu_model", "gpu_memory", "cpus", "ram"),
            "ordered_versions",
        ),
        "larger order": ("nodes", "gpus"),
        "own folder": ("shared_missing",),
    },
}
NO_CONTROL: dict[str, dict[str, str]] = {
    "FABRIC": {
        "rails": "no rail can be taken from a node that others use",
        "slowest_rail": "no rail can be taken from a node that others use",
        "slow_groups": "no uplink can be slowed that others use",
    },
    "SCALING": {
        "residual": "it checks our own sums: no fault of a cluster breaks them",
        "wall_gap": "it checks our own clock: no fault of a cluster breaks it",
    },
    "GANG": {
        "nodes_killed": "it tells that the probe's own fault happened",
        "release_time": "accelerators would be held for longer than the limit",
        "large_gang_wait": "accelerators would be held for longer than the limit",
        "ray_train_outcome": "a second job of Ray Train takes half a minute to start",
    },
    "RESTART": {
        "faults_injected": "it tells that the probe's own fault happened",
        "recovery_time": "a run would have to stand still for longer than the limit",
    },
    "LAUNCH": {},
    "HOSTS": {},
}


def is_red(criterion: str, one: Measurement) -> bool:
    """Return whether a measurement shows the fault: it fails, or is `doubted` and contradicted."""
    doubted = CRITERIA[criterion].measures[one.name].doubted
    return one.verdict is Verdict.FAIL or (
        doubted and one.verdict is Verdict.UNPROVEN and one.limit is not None and bool(one.note)
    )
