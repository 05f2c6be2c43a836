"""Judges speed on one node, and what a checkpoint costs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probes.check.judging import cover_alike
from probes.check.recorder import Recorder, Trial
from probes.cluster.cluster import Cluster
from probes.cluster.shared_folder import BLIND, FolderUnknown, find_blind_nodes
from probes.contract.contract import ClusterTerms
from probes.contract.limits import derived_limit
from probes.findings import finding, join_names
from probes.scaling import criterion as check
from probes.scaling.judge import LimitLookup, judge_training
from probes.scaling.run_ladder import LadderRig, gang_hangs, node_count_text, replace_lost_workers
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.model.size import parameter_count
from reports.measurement import Limit, Verdict
from reports.numbers import percent, quantity
from scaling.ladder import ladder
from scaling.ladder.ladder import CheckpointSave, Rung, run_rung

SLOWED_BY = 1.5  # the control's step, as a multiple of the longest allowed step: beyond any noise
SLOWED_STEPS = 2  # timed steps of the control; the planted wait is the same in each
EXPLODING = 1e30  # learning rate and clipping norm: the next step's loss is not finite


@dataclass(frozen=True)
class SpeedTest:
    """One way to judge a rung's speed: the name of the measure, and its limit (None: no limit).

    `device` is the GPU of the nodes that it judges, where nodes have different ones: each kind has
    its own peak.
    """

    name: str
    limit: Limit | None
    device: str = ""

    def part(self, rung: Rung) -> Rung:
        """Reduce the rung to the nodes that the test judges."""
        own = [node for node, (device, _) in rung.gpus.items() if device == self.device]
        return rung.only(*own) if own else rung

    def read(self, rung: Rung) -> tuple[float | None, str]:
        """Read the rung's value; return (value, ""), or (None, reason)."""
        if self.name == check.TOKENS_PER_S:
            return rung.tokens_per_s, ""
        rung = self.part(rung)
        if rung.mfu is None:
            unknown = f"the peak of {rung.devices or 'this device'} is unknown"
            return None, f"{unknown}: set [SCALING.tokens_per_s] in the contract"
        if rung.mfu > 1:
            share = f"{percent(rung.mfu)} of the peak of {rung.devices}"
            return None, f"{share}: no device exceeds its peak"
        return rung.mfu, ""

    def fails(self, rung: Rung) -> bool:
        """Judge whether the rung is too slow."""
        return self.limit is not None and self.limit.judge(self.read(rung)[0]) is Verdict.FAIL

    def slack(self, rung: Rung) -> float:
        """Compute the factor by which a step of the rung may become longer; 1.0 without a limit."""
        value, _ = self.read(rung)
        return value / self.limit.low if value and self.limit and self.limit.low else 1.0


def speed_tests(base: Rung, limits: LimitLookup, emulated: bool) -> list[SpeedTest]:
    """List the tests of the base rung: at least one, with or without a limit.

    An emulated accelerator has no peak, so it has no MFU test.  A real accelerator has one if MFU
    has a limit, or if no tokens per second are agreed; each kind has its own.
    """
    tokens, agreed = limits(check.TOKENS_PER_S), limits(check.MFU)
    tests = [SpeedTest(check.TOKENS_PER_S, tokens)] if tokens or emulated else []
    for device in () if emulated else sorted({one for one, _ in base.gpus.values()} or {""}):
        part = SpeedTest(check.MFU, None, device).part(base)
        limit = agreed or (derived_limit(part.devices) if part.mfu is not None else None)
        tests += [SpeedTest(check.MFU, limit, device)] if limit or not tokens else []
    return tests


def judge_speed(base: Rung, tests: Sequence[SpeedTest], measure: Recorder) -> None:
    """Judge the median node alone by each test; name the nodes that are too slow."""
    on, timed = f"{node_count_text(1)}, {base.load_text}", len(base.steps[0])
    for test in tests:
        part, where = test.part(base), f"{test.device}, {on}" if test.device else on
        value, note = test.read(part)
        measure(test.name, value, on=where, limit=test.limit, samples=timed, note=note)
        cover_alike(measure, "GPUs", {test.name: test.limit} if test.name == check.MFU else {})
        if test.name == check.MFU and len({*part.nodes}) > 1:
            shares = {name: test.read(part.only(name))[0] or 0.0 for name in part.nodes}
            slowest = min(shares, key=lambda name: shares[name])
            measure.note("mfu_of_slowest_node", shares[slowest], "ratio", on=slowest)
        if test.limit is None:
            words = f"no limit for one node's speed is agreed, or known for {part.devices}"
            remedy = f": set [SCALING.{test.name}] in the contract" if measure.row.required else ""
            measure.covered(words + remedy)
        elif value is not None and test.fails(part):
            slow = [name for name in dict.fromkeys(part.nodes) if test.fails(part.only(name))]
            words = f"training on one node is too slow ({join_names(slow)}): "
            words += "MFU " * (test.name == check.MFU)
            observed = quantity(value, test.limit.unit)
            message = f"{words}{observed}. Expected: {test.limit} ({test.limit.because})"
            measure.explain(finding("SCALE-SLOW-BASE", message, slow))
    judged = {test.name for test in tests}
    if check.TOKENS_PER_S not in judged:
        measure.note(check.TOKENS_PER_S, base.tokens_per_s, "tokens/s per rank", on=on)
    if check.MFU not in judged and base.mfu is not None:
        measure.note(check.MFU, base.mfu, "ratio", on=on)


def control_bad_base(
    rig: LadderRig, config: TrainConfig, base: Rung, tests: Sequence[SpeedTest], alone: bool = False
) -> None:
    """Check that slow nodes, an exploding loss, and nodes that train separately are detected.

    One run has all three faults; each is judged by a measure of its own.  `alone`: one node was
    ordered, and the halves of its ranks train separately.
    """
    delay = max((SLOWED_BY * max(1.0, t.slack(base)) - 1) * t.part(base).seconds for t in tests)
    stall = f"data:rank=0:seconds={delay}"
    planted = replace(config, steps=SLOWED_STEPS, stall=stall, lr=EXPLODING, clip=EXPLODING)
    apart = "each node trains alone, instead of all nodes in one job"
    if alone:
        apart = "the ranks of the node train in two jobs, instead of one"
    who = apart.partition(",")[0]
    faults = {
        check.SLOW_BASE: f"{who}, and its rank 0 waits {delay:.2g} s for data in every step",
        check.EXPLODING_LOSS: f"the learning rate is {EXPLODING:g}",
        check.TRAINED_APART: apart,
    }
    try:
        bad = run_rung(rig.gang, rig.node_names, 1, planted, as_one_job=True, halves=alone)
    except GangError as error:  # the measurement of the base remains valid
        for name, fault in faults.items():
            rig.measure.control(name, fault, None, saw=str(error))
        replace_lost_workers(rig.gang, error)
        return
    trial, limited = rig.measure.trial(), [test for test in tests if test.limit is not None]
    judge_speed(bad, limited, trial)
    judge_training(bad, trial, node_count_text(1))
    without = {check.MFU, check.TOKENS_PER_S} - {test.name for test in limited}
    for name, fault in faults.items():
        unlimited = name == check.SLOW_BASE and not limited
        saw = "one node's speed has no limit: set [SCALING.tokens_per_s]" if unlimited else ""
        if name == check.TRAINED_APART and alone and len(base.steps) < 2:
            saw = "the job has only one rank"
        shown = None if saw else trial
        red = name != check.SLOW_BASE or all(test.fails(bad) for test in limited)  # of each kind
        rig.measure.control(name, fault, shown, located=red, saw=saw, without=without)


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
        measure(check.CHECKPOINT_OVERHEAD, None, on=on, note=reason)
        return
    measure.progress(f"scaling: checkpoint saves on {on}")
    steps = SAVES * SAVE_GAP + 1 - ladder.WARM_UP_STEPS  # run_rung adds the warm-up steps
    config = save_config(plan, "timed", steps=steps, save_every=SAVE_GAP)
    try:
        rung = run_rung(rig.gang, rig.node_names, count, config, timeout=TIMEOUT_S)
    except GangError as error:
        measure(check.CHECKPOINT_OVERHEAD, None, on=on, note=str(error))
        replace_lost_workers(rig.gang, error)
        return
    # A further save is left out: no step follows it that would show which rank is late.
    saves = ladder.collect_saves(rung)[:SAVES]
    if len(saves) < SAVES:
        errors = "; ".join(rung.save_errors) or "the trainer reported no error"
        note = f"{len(saves)} of {SAVES} saves were made: {errors}"
        measure(check.CHECKPOINT_OVERHEAD, None, on=on, note=note)
        return
    judge_saves(saves, rung, plan.terms, measure)
    control_slow_save(rig, count, plan, ladder.median_save(saves))


def no_save_reason(cluster: Cluster, gang: Gang, count: int, plan: SavePlan) -> str:
    """Explain why no checkpoint can be saved; "" if it can."""
    if count == 1 < len(cluster.nodes):  # each node would run a job of its own
        return "no run on several nodes succeeded, so no save was timed"
    if gang_hangs(gang):
        return "ranks of the previous run hang or have ended"
    need = "saves need a folder that the driver and every node can write to ([cluster] shared)"
    if plan.folder is None:
        return f"{need}. seatrial has found no folder that it can write to"
    try:
        nodes = find_blind_nodes(cluster, str(plan.folder))
    except FolderUnknown as unknown:
        return f"{need}. No node can write to {plan.folder}: {unknown}"
    if nodes:
        return f"{need}. {', '.join(nodes)} {BLIND.format(plan.folder)}"
    needed = COPIES * PARAM_BYTES * parameter_count(plan.config)
    free = shutil.disk_usage(plan.folder).free
    if free < needed:
        return f"{need}. {COPIES} saves need {gb(needed)} of free space there, found {gb(free)}"
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
    usual, on = ladder.median_save(saves), node_count_text(rung.count)
    size = terms.save_gb * 1e9 if terms.save_gb else usual.size_bytes
    stall_s, minutes = usual.stall_s * size / usual.size_bytes, terms.save_minutes
    share, stalls = stall_s / (60 * minutes), ", ".join(f"{save.stall_s:.2g}" for save in saves)
    subject, usual_gb = f"{on}, {gb(size)} every {minutes:g} minutes", gb(usual.size_bytes)
    saved, rate = f"saves of {usual_gb} (written and read back)", usual.size_bytes / usual.stall_s
    measure(check.CHECKPOINT_OVERHEAD, share, on=subject, samples=len(saves))
    measure.note("save_stall", usual.stall_s, "s", on=f"{on}, {usual_gb}", samples=len(saves))
    measure.note("save_rate", rate, "bytes/s", on=on, samples=len(saves))
    measure.covered(f"{saved} stopped training on {on} for {stalls} s")
    if measure.would_fail(check.CHECKPOINT_OVERHEAD, share):
        node = ladder.slow_writer_node(usual, rung.nodes)
        cost = f"a save of {usual_gb} stops training for {usual.stall_s:.3g} s"
        cost += f"; {gb(size)} would take {stall_s:.3g} s (in proportion)" if terms.save_gb else ""
        why = f"The others wait while {node} writes" if node else "No single node writes slowly"
        message = (
            f"on {on} {cost}. With a save every {minutes:g} minutes, training stops for "
            f"{percent(share)} of the time. {why}"
        )
        measure.explain(finding("SCALE-CHECKPOINT", message, [node] if node else []))


def judge_slow_save(
    save: CheckpointSave, rung: Rung, terms: ClusterTerms, measure: Recorder
) -> Trial:
    """Judge one save as if saves were so frequent that their share is twice the limit."""
    trial, limit = measure.trial(), measure.contract.limit("SCALING", check.CHECKPOINT_OVERHEAD)
    allowed = limit.high if limit and limit.high else 1.0
    minutes = save.stall_s / (2 * allowed) / 60
    often = terms.model_copy(update={"save_minutes": minutes, "save_gb": None})
    judge_saves([save], rung, often, trial)
    return trial


def control_slow_save(rig: LadderRig, count: int, plan: SavePlan, usual: CheckpointSave) -> None:
    """Check that a save that is slow on one rank is located there.

    The delay is at least twice the longest write time of any rank.
    """
    culprit, delay = len(usual.write_s) // 2, max(MIN_DELAY_S, 2 * max(usual.write_s))
    stall = f"upload:rank={culprit}:seconds={delay}"
    config = save_config(plan, "late", steps=1, save_every=ladder.WARM_UP_STEPS + 1, stall=stall)
    trial, located, observed = None, False, "the job has only one rank"
    if len(usual.write_s) > 1:
        try:
            rung = run_rung(rig.gang, rig.node_names, count, config, timeout=TIMEOUT_S)
            observed = "; ".join(rung.save_errors)
            for save in ladder.collect_saves(rung):
                rank, seconds, median = ladder.slowest_writer(save.write_s)
                located = rank == culprit and seconds - median > delay / 2
                observed = f"rank {rank} writes for {seconds:.2g} s, other ranks for {median:.2g} s"
                trial = judge_slow_save(save, rung, plan.terms, rig.measure)
        except GangError as error:
            observed = str(error)
            replace_lost_workers(rig.gang, error)
    fault = f"rank {culprit} writes {delay:.2g} s longer than its part of a save needs"
    rig.measure.control(check.SLOW_SAVE, fault, trial, located=located, saw=observed)
