"""Measures the cost of saving: the largest rung again with saves, and with one slow save."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Recorder, Trial
from probes.cluster.cluster import Cluster
from probes.cluster.shared_folder import FolderUnknown, find_blind_nodes
from probes.findings import finding
from probes.scaling.plan import LadderRig, node_count_text
from probes.scaling.replay import replace_lost_workers
from probes.scaling.run_ladder import gang_hangs
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.model.flops import parameter_count
from reports.numbers import percent, quantity
from scaling.ladder.checkpoint_stall import (
    CheckpointSave,
    collect_saves,
    median_save,
    slow_writer_node,
    slowest_writer,
)
from scaling.ladder.ladder import WARM_UP_STEPS, Rung, run_rung

SAVES, SAVE_GAP = 3, 4  # number of saves that are judged, and steps between two saves
COPIES = 3  # number of checkpoints that are on disk at once
PARAM_BYTES = 12  # bytes of a parameter: itself, and AdamW's two moments
MIN_DELAY_S = 0.5  # seconds: least delay of the slow save, for fast storage
TIMEOUT_S = 900  # seconds: limit of all saves together, for slow storage


@dataclass(frozen=True)
class SavePlan:
    """Plan of the largest rung's saves.

    `folder` is None if no folder can be used.  `config` is the load of the rung's steps.  `terms`
    hold what was agreed for training's saves (`save_minutes`, `save_gb`).
    """

    folder: Path | None
    config: TrainConfig
    terms: ClusterTerms


def time_saves(rig: LadderRig, cluster: Cluster, count: int, plan: SavePlan) -> None:
    """Judge the share of time that training stands still for saves, and name the slow writer."""
    measure, on = rig.measure, node_count_text(count)
    if reason := no_save_reason(cluster, rig.gang, count, plan):
        measure("checkpoint_overhead", None, on=on, note=reason)
        return
    measure.progress(f"scaling: saves of {on}")
    steps = SAVES * SAVE_GAP + 1 - WARM_UP_STEPS  # run_rung adds the warm-up steps
    config = save_config(plan, "timed", steps=steps, save_every=SAVE_GAP)
    try:
        rung = run_rung(rig.gang, rig.node_names, count, config, timeout=TIMEOUT_S)
    except GangError as error:
        measure("checkpoint_overhead", None, on=on, note=str(error))
        replace_lost_workers(rig.gang, error)
        return
    # A further save is left out: no step follows it that would show which rank is late.
    saves = collect_saves(rung)[:SAVES]
    if len(saves) < SAVES:
        errors = "; ".join(rung.save_errors) or "the trainer reported no others"
        measure(
            "checkpoint_overhead",
            None,
            on=on,
            note=f"{len(saves)} of {SAVES} saves were made: {errors}",
        )
        return
    judge_saves(saves, rung, plan.terms, measure)
    control_slow_save(rig, count, plan, median_save(saves))


def no_save_reason(cluster: Cluster, gang: Gang, count: int, plan: SavePlan) -> str:
    """Explain why no checkpoint can be saved; "" if it can."""
    if count == 1 < len(cluster.nodes):  # each node would run a job of its own
        return "no rung of several nodes was left to save"
    if gang_hangs(gang):
        return "ranks of the previous run hang, or are gone"
    need = "saves need a folder that the driver and every node can write to ([cluster] shared)"
    if plan.folder is None:
        return f"{need}, found none for the driver"
    try:
        nodes = find_blind_nodes(cluster, str(plan.folder))
    except FolderUnknown as unknown:
        return f"{need}. No node can write there: {unknown}"
    if nodes:
        return f"{need}. {', '.join(nodes)} did not see the files of the others"
    needed = COPIES * PARAM_BYTES * parameter_count(plan.config)
    free = shutil.disk_usage(plan.folder).free
    if free < needed:
        return f"{need}, with {gb(needed)} free for {COPIES} saves, found {gb(free)}"
    return ""


def gb(size: float) -> str:
    """Format a number of bytes in GB (1e9 bytes)."""
    return quantity(size / 1e9, "GB")


def save_config(plan: SavePlan, name: str, **changes: Any) -> TrainConfig:
    """Add a checkpoint folder to the load; each save replaces the previous one."""
    return replace(plan.config, checkpoints=f"{plan.folder}/{name}", keep_last=1, **changes)


def judge_saves(
    saves: list[CheckpointSave], rung: Rung, terms: ClusterTerms, measure: Recorder
) -> None:
    """Judge the median save's stall as a share of the agreed time between two saves.

    If `save_gb` is agreed, the stall is scaled in proportion to that size.
    """
    usual, on = median_save(saves), node_count_text(rung.count)
    size = terms.save_gb * 1e9 if terms.save_gb else usual.size_bytes
    stall_s, minutes = usual.stall_s * size / usual.size_bytes, terms.save_minutes
    share, stalls = stall_s / (60 * minutes), ", ".join(f"{save.stall_s:.2g}" for save in saves)
    subject, usual_gb = f"{on}, {gb(size)} every {minutes:g} minutes", gb(usual.size_bytes)
    rate = usual.size_bytes / usual.stall_s
    measure("checkpoint_overhead", share, on=subject, samples=len(saves))
    measure.note("save_stall", usual.stall_s, "s", on=f"{on}, {usual_gb}", samples=len(saves))
    measure.note("save_rate", rate, "bytes/s", on=on, samples=len(saves))
    measure.covered(f"saves of {usual_gb} (with reading back) stopped {on} for {stalls} s")
    if measure.would_fail("checkpoint_overhead", share):
        node = slow_writer_node(usual, rung.nodes)
        cost = f"a save of {usual_gb} stops training for {usual.stall_s:.3g} s"
        cost += f"; a save of {gb(size)} in proportion for {stall_s:.3g} s" if terms.save_gb else ""
        why = "no single node's writing explains it"
        why = f"the others wait while {node} writes" if node else why
        message = (
            f"on {on} {cost}. With a save every {minutes:g} minutes: {percent(share)} of the time. "
            f"Reason: {why}"
        )
        measure.explain(finding("SCALE-CHECKPOINT", message, [node] if node else []))


def judge_slow_save(
    save: CheckpointSave, rung: Rung, terms: ClusterTerms, measure: Recorder
) -> Trial:
    """Judge one save as if saves were so frequent that their share is twice the limit."""
    trial, limit = measure.trial(), measure.contract.limit("SCALING", "checkpoint_overhead")
    allowed = limit.high if limit and limit.high else 1.0
    often = terms.model_copy(
        update={"save_minutes": save.stall_s / (2 * allowed) / 60, "save_gb": None}
    )
    judge_saves([save], rung, often, trial)
    return trial


def control_slow_save(rig: LadderRig, count: int, plan: SavePlan, usual: CheckpointSave) -> None:
    """Check that a save that is slow on one rank is located there.

    The delay is at least twice the longest write time of any rank.
    """
    culprit, delay = len(usual.write_s) // 2, max(MIN_DELAY_S, 2 * max(usual.write_s))
    stall = f"upload:rank={culprit}:seconds={delay}"
    config = save_config(plan, "late", steps=1, save_every=WARM_UP_STEPS + 1, stall=stall)
    trial, located, observed = None, False, "one rank"
    if len(usual.write_s) > 1:
        try:
            rung = run_rung(rig.gang, rig.node_names, count, config, timeout=TIMEOUT_S)
            observed = "; ".join(rung.save_errors)
            for save in collect_saves(rung):
                rank, seconds, median = slowest_writer(save.write_s)
                located = rank == culprit and seconds - median > delay / 2
                observed = f"rank {rank} writes for {seconds:.2g} s, the others for {median:.2g} s"
                trial = judge_slow_save(save, rung, plan.terms, rig.measure)
        except GangError as error:
            observed = str(error)
            replace_lost_workers(rig.gang, error)
    fault = f"rank {culprit} writes {delay:.2g} s longer than its part of a save needs"
    rig.measure.control("slow save", fault, trial, located=located, saw=observed)
