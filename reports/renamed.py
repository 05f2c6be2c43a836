"""Maps old names to new ones: finding codes, measures (keys of contracts), controls, units, probes.

Run folders, contracts and `seatrial explain` accept old names. Everything is written with new ones.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

CODES = {
    "FAB-WRONG-ROAD": "FAB-WRONG-INTERFACE",
    "GANG-DISTURBED": "GANG-LOST-ACCELERATORS",
    "GANG-HALF": "GANG-PARTIAL",
    "GANG-LOSS-UNSEEN": "GANG-LOSS-NOT-DETECTED",
    "GANG-STAYS": "GANG-NOT-REMOVED",
    "GANG-TWICE": "GANG-OVERCOMMIT",
    "GANG-UNSEEN": "GANG-UNREGISTERED",
    "GANG-UNSTAFFED": "GANG-NO-ACTORS",
    "HOST-SILENT": "HOST-NO-ANSWER",
    "RESTART-DEAD": "RESTART-NOT-RECOVERED",
    "RESTART-LOST": "RESTART-STEPS-LOST",
    "RESTART-SILENT": "RESTART-UNREPORTED",
    "RESTART-TRUSTED": "RESTART-DAMAGED-LOADED",
    "RESTART-UNREPEATABLE": "RESTART-NONDETERMINISTIC",
    "SCALE-APART": "SCALE-RANKS-DISAGREE",
    "SCALE-LOSS": "SCALE-EFFICIENCY",
    "SCALE-RUNG": "SCALE-RUNG-FAILED",
    "SCALE-SLOWING": "SCALE-THROTTLING",
}

# By criterion. In a criterion, no new name equals an old one, so an event needs no version.
MEASURES: dict[str, dict[str, str]] = {
    "FABRIC": {
        "log_faults": "log_errors",
        "narrow_pairs": "pairs_below_mtu",
        "odd_mtu": "mtu_mismatches",
        "off_fabric_links": "links_on_other_networks",
        "other_share": "share_on_other_networks",
        "road": "network",
        "slow_in_groups": "slow_groups",
        "witnesses": "agreeing_sources",
    },
    "SCALING": {
        "alpha_beta_communication": "modelled_communication",
        "memory_over_estimate": "memory_against_estimate",
        "one_node_spread": "step_time_of_slowest_node_over_fastest",
        "replayed_communication": "communication_added_in_replay",
        "saving": "checkpoint_overhead",
    },
    "GANG": {
        "big_wait": "large_gang_wait",
        "disturbed": "lost_while_running",
        "freed": "release_time",
        "half_held": "partially_held",
        "handoff": "placement_delay",
        "left_behind": "not_released",
        "loss_not_seen": "losses_not_detected",
        "not_withdrawn": "not_removed",
        "placed_at_once": "placed_concurrently",
        "train_ended": "ray_train_outcome",
        "unaccounted": "leaked",
        "unseen": "unregistered_use",
        "unstaffed": "actors_not_running",
        "victims_dead": "nodes_killed",
        "withdrawn_in": "time_to_remove_gang",
    },
    "HOSTS": {"ecc_off": "gpus_without_ecc", "nodes_below_most": "nodes_with_fewer_gpus"},
    "LAUNCH": {"first_step": "time_to_first_step"},
    "RESTART": {
        "back_to_work": "recovery_time",
        "held_waiting": "held_while_waiting",
        "left_behind": "not_released",
        "reasons": "refusals_explained",
        "struck": "faults_injected",
        "unprovoked": "unexplained_failures",
        "unsaid_waits": "unreported_waits",
    },
}

UNITS = {"witnesses": "sources"}

CONTROLS = {"other witness": "other report", "wrong road": "wrong network"}

# Probes used to be in one file per criterion: `probes/test_gang.py::name`. These are the probes
# that are now in another file than `probes/gang/test_gang.py`.
PROBE_FILES = {
    "test_a_big_gang_under_a_stream_of_small_ones": "test_gang_queue",
    "test_a_gang_that_does_not_fit_blocks_nobody": "test_gang_queue",
    "test_a_storm_of_gangs_leaves_nothing": "test_gang_queue",
    "test_mixed_gangs_of_twice_the_cluster_all_run": "test_gang_queue",
    "test_ray_train_waits_as_a_gang": "test_gang_queue",
    "test_a_lost_node_harms_its_own_gang_only": "test_gang_placement",
    "test_components_lie_where_they_were_put": "test_gang_placement",
    "test_fragments_are_not_mistaken_for_room": "test_gang_placement",
    "test_strategies_hold": "test_gang_placement",
    "test_a_lost_node_is_done_without": "test_restart_other_ranks",
    "test_a_punished_run_is_the_run_never_killed": "test_restart_other_ranks",
    "test_fewer_ranks_go_on_with_the_same_samples": "test_restart_other_ranks",
}
OLD_PROBE = re.compile(r"\bprobes/test_(\w+)\.py::(\w+)")


def current_name(table: dict[str, str], name: Any) -> Any:
    """Return the current name. A value that is no string, as in a hostile log, is unchanged."""
    return table.get(name, name) if isinstance(name, str) else name


@functools.lru_cache(maxsize=1024)  # one probe has thousands of events
def _current_probe(text: str) -> str:
    return OLD_PROBE.sub(
        lambda old: f"probes/{old[1]}/{PROBE_FILES.get(old[2], 'test_' + old[1])}.py::{old[2]}",
        text,
    )


def current_probe(text: Any) -> Any:
    """Return a text with current pytest node ids; a value that is no string is unchanged."""
    return _current_probe(text) if isinstance(text, str) else text


def with_current_names(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events of a run with current codes, measures, units and probes."""
    measures: dict[str, dict[str, str]] = {}  # by probe
    for event in events:
        kind, data, probe = event["event"], event["data"], str(event.get("probe", ""))
        if kind == "probe_started":
            measures[probe] = MEASURES.get(str(data.get("criterion")), {})
        elif kind == "measurement":
            data = _use_current_measure_names(data, measures.get(probe, {}))
        elif kind == "finding":
            data = _rename_value(data, "code", CODES)
        elif kind == "control":
            data = _rename_value(data, "name", CONTROLS)
            if isinstance(data.get("observed"), list):
                table = measures.get(probe, {})
                seen = [_use_current_measure_names(one, table) for one in data["observed"]]
                data = {**data, "observed": seen}
        elif kind == "run_owes" and isinstance(data.get("owed"), list):
            data = {**data, "owed": [_use_current_owed_names(duty) for duty in data["owed"]]}
        if "reproduce" in data:
            data = {**data, "reproduce": current_probe(data["reproduce"])}
        if "probe" in event:
            event = {**event, "probe": current_probe(event["probe"])}
        yield {**event, "data": data}


def _use_current_measure_names(data: Any, table: dict[str, str]) -> Any:
    """Return a measurement, of a probe or of its control, with current names and units."""
    data = _rename_value(_rename_value(data, "name", table), "unit", UNITS)
    if isinstance(data, dict) and "limit" in data:
        data = {**data, "limit": _rename_value(data["limit"], "unit", UNITS)}
    return data


def _use_current_owed_names(duty: Any) -> Any:
    """Return what one probe owes with the current names of its measures and controls."""
    if not isinstance(duty, dict):
        return duty
    measures = MEASURES.get(str(duty.get("criterion")), {})
    found = dict(duty)
    for key, table in (("measures", measures), ("controls", CONTROLS)):
        if isinstance(duty.get(key), list):
            found[key] = [current_name(table, name) for name in duty[key]]
    if isinstance(duty.get("uncontrolled"), dict):
        named = duty["uncontrolled"].items()
        found["uncontrolled"] = {current_name(measures, name): why for name, why in named}
    return found


def _rename_value(data: Any, key: str, table: dict[str, str]) -> Any:
    """Return the data with a current name; what is no such data, as in a hostile log, unchanged."""
    if not isinstance(data, dict) or key not in data:
        return data
    return {**data, key: current_name(table, data[key])}
