"""Judges what changed on the nodes during the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.system_files import BOOT_ID, read_text
from probes.findings import finding

Facts = Mapping[str, Any]
NEW_AT_EACH_READ = "/proc/sys/kernel/random/uuid"  # where the kernel's boot id never changes


def judge_changes(before: Sequence[Facts], now: Sequence[Facts], measure: Recorder) -> None:
    """Judge that each node of the run's start is still there, and was not restarted."""
    after = {fact["node"]: fact for fact in now}
    changed = {
        fact["name"]: text
        for fact in before
        if (text := _describe_change(fact, after.get(fact["node"])))
    }
    known = bool(before) and all(fact["boot_id"] for fact in (*before, *now))
    note = "a node gives no boot id" if before else "no node answered when the run began"
    measure("nodes_changed", len(changed) if changed or known else None, note=note)
    for name, text in changed.items():
        measure.explain(finding("HOST-CHANGED", f"{name}: {text}", [name]))


def _describe_change(before: Facts, now: Facts | None) -> str:
    if now is None:
        return "it answered when the run began, and does not answer now"
    if before["boot_id"] and now["boot_id"] and before["boot_id"] != now["boot_id"]:
        return "the machine was restarted during the run"
    return ""


def read_boot_id(path: str = BOOT_ID) -> str:
    """Read this node's boot id, or for a control the text of another file."""
    return read_text(Path(path))


def control_restarted_node(
    cluster: Cluster, before: Sequence[Facts], now: Sequence[Facts], measure: Recorder
) -> None:
    """Check that a node whose boot id changes is detected."""
    victim = now[-1]
    fault = f"{victim['name']} reads its boot id from {NEW_AT_EACH_READ}, which changes"
    told = cluster.on_each_node(read_boot_id, each={victim["node"]: NEW_AT_EACH_READ})
    if victim["node"] not in told:
        saw = f"{victim['name']} does not answer"
        measure.control("restarted node", fault, None, saw=saw)
        return
    trial = measure.trial()
    judge_changes(before, [*now[:-1], {**victim, "boot_id": told[victim["node"]]}], trial)
    located = trial.suspects == {victim["name"]}
    measure.control("restarted node", fault, trial, located=located)
