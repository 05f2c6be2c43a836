"""Judges which nodes and GPUs changed during the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.system_files import BOOT_ID, read_text
from probes.findings import finding, join_names

Facts = Mapping[str, Any]
NEW_AT_EACH_READ = "/proc/sys/kernel/random/uuid"  # where the kernel's boot id never changes


def judge_changes(
    cluster: Cluster, before: Sequence[Facts], now: Sequence[Facts], measure: Recorder
) -> None:
    """Judge that each node of the run's start is still there, and was not restarted.

    A node that Ray counts as alive and that does not answer proves nothing.
    """
    alive = {node["id"] for node in cluster.nodes}
    answers = {fact["node"] for fact in now}
    silent = [one["name"] for one in before if one["node"] in alive - answers]
    changed = {
        fact["name"]: text
        for fact in before
        if fact["name"] not in silent and (text := describe_change(fact, now))
    }
    for name in silent:
        measure.explain(finding("HOST-NO-ANSWER", f"{name}: no answer at the end", [name]))
    has_boot_ids = all(fact["boot_id"] for fact in (*before, *now))
    known = before and has_boot_ids and not silent
    note = "a node gives no boot id, or does not answer" if before else "no node answered at first"
    measure("nodes_changed", len(changed) if changed or known else None, note=note)
    for name, text in changed.items():
        measure.explain(finding("HOST-CHANGED", f"{name}: {text}", [name]))


def describe_change(before: Facts, now: Sequence[Facts]) -> str:
    """Describe what happened to a node since `before`; "" for nothing."""
    after = next((fact for fact in now if fact["node"] == before["node"]), None)
    if after is None:
        again = any(fact["boot_id"] == before["boot_id"] for fact in now if fact["boot_id"])
        return "Ray was restarted during the run" if again else "it left the cluster"
    if before["boot_id"] and after["boot_id"] and before["boot_id"] != after["boot_id"]:
        return "the machine was restarted during the run"
    return ""


def judge_gpu_changes(before: Sequence[Facts], now: Sequence[Facts], measure: Recorder) -> None:
    """Judge that each node has the same GPUs as at the start, by their UUIDs."""
    first = {fact["node"]: {gpu["uuid"] for gpu in fact["gpus"]} for fact in before}
    for fact in now:
        if fact["node"] not in first:
            continue  # it came later
        old, new = first[fact["node"]], {gpu["uuid"] for gpu in fact["gpus"]}
        gone, come = sorted(old - new - {""}), sorted(new - old - {""})
        known = gone or (old and "" not in old | new)
        count = max(len(gone), len(come)) if known else None
        measure("gpus_changed", count, on=fact["name"], note="some GPUs give no UUID")
        if gone:
            text = f"{join_names(gone)} on {fact['name']}: not there any more"
            text += f"; in place of them {join_names(come)}" if come else ""
            names = {"gpu": gone[0]}
            measure.explain(finding("HOST-GPU-CHANGED", text, [fact["name"]], names=names))


def read_boot_id(path: str = BOOT_ID) -> str:
    """Read this node's boot id, or for a control the text of another file."""
    return read_text(Path(path))


def control_restarted_node(
    cluster: Cluster, before: Sequence[Facts], victim: Facts, measure: Recorder
) -> None:
    """Check that a node whose boot id changes is detected."""
    fault = f"{victim['name']} reads its boot id from {NEW_AT_EACH_READ}, which changes"
    told = cluster.on_each_node(read_boot_id, each={victim["node"]: NEW_AT_EACH_READ})
    if victim["node"] not in told:
        saw = f"{victim['name']} does not answer"
        measure.control("restarted node", fault, None, saw=saw)
        return
    trial = measure.trial()
    was = [fact for fact in before if fact["node"] == victim["node"]]
    judge_changes(cluster, was, [{**victim, "boot_id": told[victim["node"]]}], trial)
    measure.control("restarted node", fault, trial)
