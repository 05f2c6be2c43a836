"""Controls of collective results: a changed element, and a call that one rank begins late."""

from __future__ import annotations

from dataclasses import replace

from probes.acceptance.measure import Recorder
from probes.fabric.bad_nodes import FabricRig
from probes.fabric.detect import wrong_data
from probes.fabric.judge import judge_elements, judge_variation
from probes.fabric.links.judge import judge_stalls
from probes.fabric.speeds.collectives import (
    FSDP_OPS,
    collective_speeds,
    judge_shares,
    run_slowed,
    small_size,
)
from probes.fabric.sweep import CHECK_SIZE, SweepResult, check_ops, sweep_seconds
from reference_trainer.launch.gang import Gang, GangError
from scaling.collectives.sweep import Delay, read_nothing, summarise, sweep

SLOWED_BY = 3.0  # times the time of an all-reduce: the collective then has a quarter of the speed
CORRUPT_BYTES = 1 << 16  # size of each collective whose result is changed
STALLED_BY = 1.5  # times the limit of a stall: beyond any doubt


def control_wrong_element(gang: Gang, rank_nodes: list[str], measure: Recorder) -> None:
    """Check that a changed element on one rank is found, with rank and offset."""
    bad_rank = gang.size - 1
    fault = f"one element of each result on rank {bad_rank} is changed"
    try:
        rows = [row for each in check_ops(gang, CORRUPT_BYTES, bad_rank).values() for row in each]
    except GangError as error:
        measure.control("wrong element", fault, None, saw=str(error))
        return
    trial = measure.trial()
    judge_elements(rows, trial)
    wrong_ranks = {rank for row in rows for rank, _ in row["first_wrong"]}
    located = wrong_ranks == {bad_rank} and all(row["wrong"] for row in rows)
    findings = wrong_data(rows, rank_nodes)
    saw = findings[0].statement if findings else "no wrong element"
    measure.control("wrong element", fault, trial, located=located, saw=saw)


def control_late_call(rig: FabricRig, run: SweepResult) -> None:
    """Check that one call that a rank begins late is found: all others stall in it."""
    limit, bad_rank = rig.limits("longest_stall"), rig.gang.size - 1
    late_s = STALLED_BY * (limit.high or 0.0) if limit else 0.0
    fault = f"rank {bad_rank} begins one all-reduce {late_s:.2g} s after the others"
    call = ("all_reduce",), 0.5, 0.25, CHECK_SIZE, None, read_nothing, Delay([bad_rank], late_s)
    try:
        data = rig.gang.run(sweep, *call, timeout=sweep_seconds(rig.gang.size))
    except GangError as error:
        rig.measure.control("late call", fault, None, saw=str(error))
        return
    trial = rig.measure.trial()
    rows = summarise([item["sweeps"]["all_reduce"] for item in data])
    judge_stalls(replace(run, rows=rows), False, trial)
    rig.measure.control("late call", fault, trial)


def control_slow_collective(rig: FabricRig, run: SweepResult) -> None:
    """Check that FSDP's collectives are found slow if half of the ranks begin every call late.

    One late rank of many would hardly change how much the times of all differ.
    """
    late, size = range(rig.gang.size // 2, rig.gang.size), small_size(run)
    delay_s = SLOWED_BY * max(row["seconds"] for row in run.rows if row["size"] == size)
    names = " and ".join(FSDP_OPS)
    fault = f"ranks from {late[0]} on begin each {names} {delay_s:.2g} s late"
    try:
        rows = run_slowed(rig.gang, size, late, delay_s)
    except GangError as error:
        rig.measure.control("slow collective", fault, None, saw=str(error))
        return
    trial = rig.measure.trial()
    judge_shares(collective_speeds(rows, run, FSDP_OPS, size), trial)
    judge_variation(max(rows[FSDP_OPS[0]], key=lambda row: row["rank_cv"]), FSDP_OPS[0], trial)
    rig.measure.control("slow collective", fault, trial)
