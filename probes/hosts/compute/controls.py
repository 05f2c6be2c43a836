"""Controls of the work: the last accelerator computes wrongly, fails, is slow, and tires."""

from __future__ import annotations

import math
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from probes.acceptance.measure import Recorder, Trial
from probes.hosts.compute.agreed_rates import AGREED, is_agreed, judge_agreed
from probes.hosts.compute.drift import judge_drift
from probes.hosts.compute.fleet import Accelerator, RunLength, Speed, WorkFleet
from probes.hosts.compute.speed_judge import SpeedRuns, find_slow, judge_speed
from probes.hosts.compute.sum_judge import judge_errors, judge_sums
from probes.hosts.compute.sums import ELEMENT, SHAPE
from probes.hosts.compute.trial_runs import measure_alone

EXTRA, EMULATED_EXTRA = 2, 8  # how often the slowed accelerator makes each call, at least
MOST_EXTRA_WORK = 64  # where an agreed figure is far below what the accelerator does
UNFOLLOWED = "no accelerator of the last node computed"


def find_victim(fleet: WorkFleet) -> Accelerator | None:
    """Find the last accelerator that computes; None if none does."""
    working = [*fleet.working.values()]
    return working[-1] if working else None


def control_wrong_sums(
    fleet: WorkFleet, sums: Mapping[str, Any], measure: Recorder, without: Container[str]
) -> None:
    """Check that a GEMM with one changed input element is detected, and one that fails."""
    faults = {
        "wrong element": (ELEMENT, "multiplies matrices with one changed element"),
        "failing GEMM": (SHAPE, "multiplies a matrix that has a column too few"),
    }
    for name, (plant, text) in faults.items():
        victim = find_victim(fleet)
        if victim is None:
            measure.control(name, f"the last accelerator {text}", None, saw=UNFOLLOWED)
            continue
        planted = fleet.check_sums([victim.key], plant)
        trial = measure.trial()
        found = {**sums, **planted}
        judge_errors(fleet, found, [], trial)
        judge_sums(fleet, found, trial, hashes="gemm_hash_differs" not in without)
        fault = f"{victim.label} {text}"
        located = victim.key in planted and is_located(trial, victim)
        measure.control(name, fault, trial, located=located, without=without)


def is_located(trial: Trial, victim: Accelerator) -> bool:
    """Return whether a finding of the trial names the accelerator and its node."""
    return any(
        victim.label in one.statement and victim.node in one.suspects for one in trial.findings
    )


def control_slowed(
    fleet: WorkFleet,
    runs: SpeedRuns,
    length: RunLength,
    measure: Recorder,
    without: Container[str],
) -> None:
    """Check that an accelerator that does each piece of work several times is detected."""
    missing = {name for name in AGREED if not is_agreed(name, measure)}
    if "slow_gpus" in without and len(missing) == len(AGREED):
        return
    victim = find_victim(fleet)
    if victim is None or victim.key not in runs.first:
        measure.control("slowed GPU", "the last accelerator is slowed", None, saw=UNFOLLOWED)
        return
    extra = extra_calls(fleet, runs.first[victim.key], measure)
    slowed = fleet.measure_speed([victim.key], replace(length, rounds=1), extra)
    trial = measure.trial()
    first = {**runs.first, **slowed}
    if "slow_gpus" not in without:
        alone = {**measure_fastest(fleet, first, runs, length), **runs.alone, **slowed}
        judge_speed(fleet, SpeedRuns(first, first, alone), trial)
    judge_agreed(fleet, first, trial)
    fault = f"{victim.label} does each piece of work {extra} times"
    located = victim.key in slowed and is_located(trial, victim)
    skipped = missing | {name for name in ("slow_gpus",) if name in without}
    measure.control("slowed GPU", fault, trial, located=located, without=skipped)


def measure_fastest(
    fleet: WorkFleet, first: Mapping[str, Speed], runs: SpeedRuns, length: RunLength
) -> dict[str, Speed]:
    """Measure alone whom emulated suspects are compared with, if they were not yet."""
    if fleet.on_gpu:
        return {}
    fastest = {stick.fastest for stick in find_slow(fleet.accelerators, first, False).values()}
    return measure_alone(fleet, sorted(fastest - runs.alone.keys()), replace(length, rounds=1))


def usual_extra(fleet: WorkFleet) -> int:
    """Compute how often a call is made, so that the accelerator is far slower than the others.

    Emulated accelerators share cores: the slowed one runs alone, so it is faster than before by
    their number on each core.
    """
    if fleet.on_gpu:
        return EXTRA
    on_each_core = len(fleet.working) / (os.cpu_count() or 1)
    return min(max(EMULATED_EXTRA, math.ceil(4 * on_each_core)), MOST_EXTRA_WORK)


def extra_calls(fleet: WorkFleet, speed: Speed, measure: Recorder) -> int:
    """Compute how often a call is made, so that each rate is far below what is agreed.

    It would be a quarter, but alone an accelerator is faster than with the others.
    """
    extra = usual_extra(fleet)
    for name, operation in AGREED.items():
        limit = measure.contract.limit("HOSTS", name)
        if limit and limit.low and operation in speed.typical:
            extra = max(extra, math.ceil(4 * speed.typical[operation] / limit.low))
    return min(extra, MOST_EXTRA_WORK)


def control_tiring(
    fleet: WorkFleet, parts: Sequence[Mapping[str, Speed]], length: RunLength, measure: Recorder
) -> None:
    """Check that an accelerator that does extra work at the end is detected."""
    victim = find_victim(fleet)
    if victim is None or not all(victim.key in part for part in parts):
        measure.control("tiring GPU", "the last accelerator slows down", None, saw=UNFOLLOWED)
        return
    extra = usual_extra(fleet)
    slowed = fleet.measure_speed([victim.key], replace(length, rounds=1), extra)
    trial = measure.trial()
    third = math.ceil(len(parts) / 3)
    tiring = [
        {**part, **slowed} if number >= len(parts) - third else part
        for number, part in enumerate(parts)
    ]
    judge_drift(fleet, tiring, trial)
    fault = f"{victim.label} does each piece of work {extra} times at the end"
    located = victim.key in slowed and is_located(trial, victim)
    measure.control("tiring GPU", fault, trial, located=located)
