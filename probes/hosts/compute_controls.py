"""Runs of work as trials and at the end of a run, and faults planted in them."""

from __future__ import annotations

import math
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low
from typing import Any

from probes.check.judging import is_agreed
from probes.check.recorder import Recorder, Trial
from probes.contract.limits import LANE_GBS
from probes.hosts import compute_judge
from probes.hosts import criterion as check
from probes.hosts.compute_fleet import Accelerator, RunLength, Speed, Speeds, WorkFleet
from probes.hosts.compute_judge import AGREED, COMPARED, SpeedRuns, Sums, rate_limit
from probes.hosts.compute_worker import ELEMENT, SHAPE
from reference_trainer.model.devices import find_device
from reports.measurement import Limit
from reports.numbers import percent, quantity

STEADY = ("gemm", "hbm")  # operations that are followed: they heat the GPU and its memory
WARM_UP = 1  # parts that are left out: a cold GPU runs at its highest clock
LEAST_PARTS = 3  # after those: a first and a last third
# A sound GPU settles within 1 or 2 % once it is warm.  Emulated accelerators share cores.
DRIFT_TOLERANCE, EMULATED_DRIFT = 0.05, 0.5
# Against its first part, while it was cold, one H200 lost 4 %; five times as much is a fault.  Hot
# GPUs of a node differ by up to twice as much as cold ones: those behind others get warmer air.
COLD_TOLERANCE, HOT_TOLERANCE = 0.20, 0.10


@dataclass(frozen=True)
class Change:
    """Rate of an operation in the first and the last third of the work."""

    operation: str
    first: float
    last: float
    share: float  # last of first; of emulated accelerators, against what is usual


def find_changes(
    parts: Sequence[Speeds], keys: Sequence[str], on_gpu: bool
) -> dict[str, list[Change]]:
    """Compare the last third with the first, for each accelerator and operation.

    What slows all emulated accelerators at once is the machine that they share.  What slows one for
    a moment is its neighbours: of an emulated one the best rate of the last third counts.
    """
    steady = parts[WARM_UP:]
    third = max(1, len(steady) // LEAST_PARTS)
    changes: dict[str, list[Change]] = {key: [] for key in keys}
    for operation in STEADY:
        ends = {}
        for key in keys:
            typical = [part[key].typical[operation] for part in steady]
            rates = [rate for part in steady[-third:] for rate in part[key].rates[operation]]
            last = median(typical[-third:]) if on_gpu else max(filter(math.isfinite, rates))
            ends[key] = (median(typical[:third]), last)
        shares = {key: last / first for key, (first, last) in ends.items()}
        usual = 1.0 if on_gpu or not shares else min(1.0, median(shares.values()))
        for key, (first, last) in ends.items():
            changes[key].append(Change(operation, first, last, shares[key] / usual))
    return changes


def judge_drift(fleet: WorkFleet, parts: Sequence[Speeds], measure: Recorder) -> None:
    """Judge that no accelerator becomes slower, and that no GPU is slow at the end.

    What is slow from its second part on does not become slower after that.
    """
    unknown = find_unfollowed(fleet, parts)
    texts = find_slow_ends(fleet, parts, unknown, measure) if fleet.on_gpu else {}
    texts |= {
        key: "; ".join(map(describe_change, own)) + describe_heat(parts, key)
        for key, own in find_slowed(fleet, parts, unknown).items()
    }
    fleet.judge(measure, check.SLOWING_GPUS, "HOST-GPU-DRIFT", texts, unknown)


def find_slowed(
    fleet: WorkFleet, parts: Sequence[Speeds], unknown: Container[str]
) -> dict[str, list[Change]]:
    """Find the accelerators that are slower at the end, each with what became slower.

    Those that are `unknown` were not followed to the end.
    """
    keys = [key for key in fleet.accelerators if key not in unknown]
    least = 1 - (DRIFT_TOLERANCE if fleet.on_gpu else EMULATED_DRIFT)
    changes = find_changes(parts, keys, fleet.on_gpu)
    slowed = {key: [one for one in own if one.share < least] for key, own in changes.items()}
    return {key: own for key, own in slowed.items() if own}


def find_slow_ends(
    fleet: WorkFleet, parts: Sequence[Speeds], unknown: Container[str], measure: Recorder
) -> dict[str, str]:
    """Describe the GPUs whose last third is slow: for a cold GPU, others, or their model."""
    last = parts[-max(1, (len(parts) - WARM_UP) // LEAST_PARTS) :]
    ends = {
        key: Speed({one: [part[key].typical[one] for part in last] for one in STEADY})
        for key in fleet.accelerators
        if key not in unknown
    }
    sticks, texts = compute_judge.find_yardsticks(fleet, ends), dict[str, list[str]]()
    for key, speed in ends.items():
        model = fleet.accelerators[key].model
        for name, operation in AGREED.items():
            if operation not in STEADY:
                continue
            least = (1 - COLD_TOLERANCE) * parts[0][key].typical[operation]
            bounds = [(least, f"{percent(1 - COLD_TOLERANCE)} of its rate when it was cold")]
            if stick := sticks.get((model, operation)):
                why = f"{percent(1 - HOT_TOLERANCE)} of the typical rate of {stick.members} GPUs"
                bounds.append((min(stick.limit, (1 - HOT_TOLERANCE) * stick.typical), why))
            if limit := rate_limit(measure, name, model):
                bounds.append((limit.low or 0.0, limit.because))
            least, why = max(bounds)
            if (rate := speed.typical[operation]) < least:
                what, unit = COMPARED[operation]
                text = f"{what} is {quantity(rate, unit)} at the end of the work. Expected: "
                texts.setdefault(key, []).append(f"{text}>= {quantity(least, unit)} ({why})")
    return {key: "; ".join(own) + describe_heat(parts, key) for key, own in texts.items()}


def find_unfollowed(fleet: WorkFleet, parts: Sequence[Speeds]) -> dict[str, str]:
    """Find the accelerators that were not followed to the end, with the reason."""
    if len(parts) < WARM_UP + LEAST_PARTS:
        return dict.fromkeys(fleet.accelerators, "the work was too short")
    found = {}
    for key in fleet.accelerators:
        speeds = [part.get(key) for part in parts]
        if not all(speed and set(STEADY) <= speed.typical.keys() for speed in speeds):
            errors = (speed.error for speed in speeds if speed and speed.error)
            found[key] = next(errors, "") or fleet.why_unknown(key)
    return found


def describe_change(change: Change) -> str:
    """Describe by how much an operation became slower."""
    name, unit = COMPARED[change.operation]
    return (
        f"{name} went from {quantity(change.first, unit)} to {quantity(change.last, unit)} "
        f"({percent(change.last / change.first)} of the first rate)"
    )


def describe_heat(parts: Sequence[Speeds], key: str) -> str:
    """Describe the temperature at both ends; "" if it is not known."""
    heats = [part[key].celsius for part in parts if part[key].celsius is not None]
    if not heats:
        return ""
    return f"; temperature from {heats[0]:.0f} to {heats[-1]:.0f} degrees Celsius"


# The median of 3 rounds forgives one disturbance.  0.2 s is a hundred GEMMs of an H100.  On a CPU,
# 0.1 s is one period of a cgroup's quota, and what is slow only with others is no fault.
GPU_LENGTH, CPU_LENGTH = RunLength(3, 0.2), RunLength(2, 0.1)
# Emulated suspects and the fastest work alone in turns: two periods of a quota for each operation.
TURNS, TURN_LENGTH = 5, RunLength(1, 0.2)
# Parts of the longer work, by tier: 10 s each.  After some minutes the temperature of a GPU is
# steady.
GPU_PART, CPU_PART = RunLength(10, 0.5, STEADY), RunLength(3, 0.2, STEADY)
GPU_PARTS, CPU_PARTS = {"standard": 7, "soak": 61}, {"standard": 6, "soak": 13}


def run_length(fleet: WorkFleet) -> RunLength:
    """Return how long one run is on this kind of accelerators."""
    return GPU_LENGTH if fleet.on_gpu else CPU_LENGTH


def run_work(fleet: WorkFleet) -> SpeedRuns:
    """Measure all accelerators at once; if some are slow, all again, and then each slow one alone.

    Emulated accelerators share cores, so that a second run of all of them shows nothing more.  They
    and the fastest work alone in turns.
    """
    length = run_length(fleet)
    keys = [*fleet.working]
    first = fleet.measure_speed(keys, length)
    chosen = [key for needed in compute_judge.find_alone(fleet, first).values() for key in needed]
    chosen = list(dict.fromkeys([*chosen, *compute_judge.find_below(fleet, first)]))
    if not chosen:
        return SpeedRuns(first)
    if fleet.on_gpu:
        second = fleet.measure_speed(keys, length)
        return SpeedRuns(first, second, measure_alone(fleet, chosen, length))
    turns = [measure_alone(fleet, chosen, TURN_LENGTH) for _ in range(TURNS)]
    return SpeedRuns(first, first, join_turns(turns))


def join_turns(turns: Sequence[Speeds]) -> dict[str, Speed]:
    """Join the rates of each accelerator, turn by turn; leave out who missed one."""
    joined = {}
    for key in turns[0]:
        own = [turn[key] for turn in turns if key in turn]
        if len(own) < len(turns):
            continue
        rates = {
            operation: [rate for one in own for rate in one.rates.get(operation, ())]
            for operation in own[0].rates
        }
        error = next((one.error for one in own if one.error), "")
        joined[key] = replace(own[-1], rates=rates, error=error)
    return joined


def measure_alone(fleet: WorkFleet, suspects: list[str], length: RunLength) -> dict[str, Speed]:
    """Measure suspects while no other accelerator of their node works.

    Those of several nodes work at the same time.  Emulated ones share one machine, and work alone.
    """
    speeds: dict[str, Speed] = {}
    waiting = list(suspects)
    while waiting:
        batch: dict[str, str] = {}  # by node
        for key in waiting:
            batch.setdefault(fleet.accelerators[key].node if fleet.on_gpu else "", key)
        speeds |= fleet.measure_speed(batch.values(), length)
        waiting = [key for key in waiting if key not in batch.values()]
    return speeds


def run_long(fleet: WorkFleet, tier: str) -> list[Speeds]:
    """Let all accelerators work for a minute (standard) or ten (soak), in parts.

    Emulated ones share cores: with its neighbours one may have half a core at the end, and a whole
    one before.  So if some seem slower, all do the last part again, each alone: what slows the
    machine then slows all of them.
    """
    count, length = (GPU_PARTS if fleet.on_gpu else CPU_PARTS)[tier], part_length(fleet)
    keys = [*fleet.working]
    parts: list[Speeds] = [fleet.measure_speed(keys, length) for _ in range(count)]
    if not fleet.on_gpu and find_slowed(fleet, parts, find_unfollowed(fleet, parts)):
        parts[-1] = {**parts[-1], **measure_alone(fleet, keys, length)}
    return parts


def part_length(fleet: WorkFleet) -> RunLength:
    """Return how long a part of the longer work is."""
    return GPU_PART if fleet.on_gpu else CPU_PART


EXTRA, EMULATED_EXTRA = 2, 8  # how often the slowed accelerator makes each call, at least
MOST_EXTRA_WORK = 64  # where an agreed figure is far below what the accelerator does
UNFOLLOWED = "the last accelerator did not compute, or did not answer"


def find_victim(fleet: WorkFleet) -> Accelerator | None:
    """Find the last accelerator that computes; None if none does."""
    return next(reversed(fleet.working.values()), None)


def control_wrong_sums(fleet: WorkFleet, sums: Sums, measure: Recorder, without: set[str]) -> None:
    """Check that a GEMM with one changed input element is detected, and one that fails."""
    faults = {
        check.WRONG_ELEMENT: (ELEMENT, "multiplies matrices with one changed element"),
        check.FAILING_GEMM: (SHAPE, "multiplies a matrix that has one column too few"),
    }
    for name, (plant, text) in faults.items():
        victim = find_victim(fleet)
        if victim is None:
            measure.control(name, f"the last accelerator {text}", None, saw=UNFOLLOWED)
            continue
        planted = fleet.check_sums([victim.key], plant)
        trial = measure.trial()
        found = {**sums, **planted}
        compute_judge.judge_errors(fleet, found, [], trial)
        compute_judge.judge_sums(fleet, found, trial, hashes=check.GEMM_HASH_DIFFERS not in without)
        located = victim.key in planted and is_located(trial, victim)
        measure.control(name, f"{victim.label} {text}", trial, located=located, without=without)


def is_located(trial: Trial, victim: Accelerator) -> bool:
    """Return whether a finding of the trial names the accelerator and its node."""
    return any(
        victim.label in one.statement and victim.node in one.suspects for one in trial.findings
    )


def control_slowed(fleet: WorkFleet, runs: SpeedRuns, measure: Recorder, without: set[str]) -> None:
    """Check that an accelerator that does each piece of work several times is detected."""
    victim = find_victim(fleet)
    model = victim.model if victim else ""
    missing = {name for name in AGREED if rate_limit(measure, name, model) is None}
    if check.SLOW_GPUS in without and len(missing) == len(AGREED):
        return
    if victim is None or victim.key not in runs.first:
        measure.control(check.SLOWED_GPU, "the last accelerator is slowed", None, saw=UNFOLLOWED)
        return
    limits = {operation: rate_limit(measure, name, model) for name, operation in AGREED.items()}
    extra, length = extra_calls(fleet, runs.first[victim.key], limits), run_length(fleet)
    slowed = fleet.measure_speed([victim.key], replace(length, rounds=1), extra)
    trial = measure.trial()
    first, alone = {**runs.first, **slowed}, {**runs.alone, **slowed}
    if check.SLOW_GPUS not in without:
        alone = {**measure_fastest(fleet, first, runs, length), **alone}
        compute_judge.judge_speed(fleet, SpeedRuns(first, first, alone), trial)
    compute_judge.judge_rates(fleet, SpeedRuns(first, first, alone), trial)
    fault = f"{victim.label} does each piece of work {extra} times"
    located = victim.key in slowed and is_located(trial, victim)
    skipped = missing | ({check.SLOW_GPUS} & without)
    measure.control(check.SLOWED_GPU, fault, trial, located=located, without=skipped)


def measure_fastest(
    fleet: WorkFleet, first: Speeds, runs: SpeedRuns, length: RunLength
) -> dict[str, Speed]:
    """Measure alone whom emulated suspects are compared with, if they were not yet."""
    if fleet.on_gpu:
        return {}
    fastest = {stick.fastest for stick in compute_judge.find_slow(fleet, first).values()}
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


def extra_calls(fleet: WorkFleet, speed: Speed, limits: Mapping[str, Limit | None]) -> int:
    """Compute how often a call is made, so that each rate is far below its limit.

    It would be a quarter, but alone an accelerator is faster than with the others.
    """
    extra = usual_extra(fleet)
    for operation, limit in limits.items():
        if limit and limit.low and operation in speed.typical:
            extra = max(extra, math.ceil(4 * speed.typical[operation] / limit.low))
    return min(extra, MOST_EXTRA_WORK)


def control_tiring(fleet: WorkFleet, parts: Sequence[Speeds], measure: Recorder) -> None:
    """Check that an accelerator that does extra work at the end is detected."""
    victim = find_victim(fleet)
    if victim is None or not all(victim.key in part for part in parts):
        measure.control(check.TIRING_GPU, "the last accelerator slows down", None, saw=UNFOLLOWED)
        return
    extra = usual_extra(fleet)
    slowed = fleet.measure_speed([victim.key], replace(part_length(fleet), rounds=1), extra)
    trial = measure.trial()
    third = math.ceil(len(parts) / 3)
    tiring = [*parts[:-third], *({**part, **slowed} for part in parts[-third:])]
    judge_drift(fleet, tiring, trial)
    fault = f"{victim.label} does each piece of work {extra} times at the end"
    located = victim.key in slowed and is_located(trial, victim)
    measure.control(check.TIRING_GPU, fault, trial, located=located)


JUDGED = frozenset({"generation", "most_generation", "width", "most_width"})
OLD_LINK = {"generation": 1}  # what the control plants
Link = Mapping[str, int]
Links = Mapping[str, Mapping[str, Any]]  # answers of `AcceleratorWorker.read_link` by accelerator


def judge_links(fleet: WorkFleet, links: Links, runs: SpeedRuns, measure: Recorder) -> None:
    """Judge that each GPU's PCIe link runs at its highest generation and width under load.

    Where the contract agrees on a rate of copies, slots may be slower than the boards.
    """
    known = {key: one["link"] for key, one in links.items() if one["link"].keys() >= JUDGED}
    models = fleet.group("model", known)
    slow, unknown = {}, {}
    for key, one in fleet.accelerators.items():
        if key not in links:
            unknown[key] = fleet.why_unknown(key)
        elif key not in known:
            why = links[key]["error"] or "NVML does not support a query of its PCIe link"
            unknown[key] = f"{one.label}: {why}"
        else:
            own = board_link(one.model, known[key])
            if is_agreed(measure, check.H2D_GBS) or outruns(runs, key, known[key]):
                own = (0, 0)
            others = [known[other] for other in models[one.model]]
            if text := describe_slow_link(known[key], others, own):
                slow[key] = text
    fleet.judge(measure, check.SLOW_PCIE, "HOST-PCIE", slow, unknown)


def board_link(model: str, link: Link) -> tuple[int, int]:
    """Return the generation and width of a board, whatever its slot can do; 0 is not known."""
    device = find_device(model)
    return (device.pcie or (0, 0)) if device else (link.get("board_generation", 0), 0)


def outruns(runs: SpeedRuns, key: str, link: Link) -> bool:
    """Return whether copies are faster than a slot can be: a virtual machine may report any."""
    of = [run[key].typical for run in (runs.first, runs.second, runs.alone) if key in run]
    rates = [rate for one in of for name in compute_judge.SHARED_PATHS if (rate := one.get(name))]
    lane = LANE_GBS.get(link["most_generation"], math.inf)
    return max(rates, default=0.0) > lane * link["most_width"]


def describe_slow_link(link: Link, model: Sequence[Link], board: tuple[int, int] = (0, 0)) -> str:
    """Describe a link that is slower than it, most of its model or its board can be; "" for others.

    A BIOS may limit a slot: the maximum of this GPU is then low as well.
    """
    generation, width = (
        max(link[name], median_low(one[name] for one in model), own)
        for name, own in zip(("most_generation", "most_width"), board, strict=True)
    )
    if link["generation"] >= generation and link["width"] >= width:
        return ""
    now = f"PCIe {link['generation']} x{link['width']} under load"
    return f"{now}. Expected: PCIe {generation} x{width}"


def note_clocks(fleet: WorkFleet, links: Links, measure: Recorder) -> None:
    """Note the lowest SM clock under load of each node, as a share of the highest that it can have.

    It is no fault by itself: the power limit sets it, and GEMMs of a slow GPU show it.
    """
    shares = {
        key: link["sm_mhz"] / link["most_sm_mhz"]
        for key, one in links.items()
        if (link := one["link"]).get("most_sm_mhz") and "sm_mhz" in link
    }
    for node, keys in fleet.group("node", shares).items():
        measure.note("sm_clock", min(shares[key] for key in keys), "ratio", on=node)


def control_old_link(fleet: WorkFleet, links: Links, runs: SpeedRuns, measure: Recorder) -> None:
    """Check that a GPU whose PCIe link stays at the first generation is detected."""
    victim = find_victim(fleet)
    if victim is None:
        measure.control(check.OLD_LINK, "the last GPU has an old PCIe link", None, saw=UNFOLLOWED)
        return
    planted = fleet.read_links([victim.key], OLD_LINK)
    trial = measure.trial()
    judge_links(fleet, {**links, **planted}, runs, trial)
    fault = f"NVML reports PCIe {OLD_LINK['generation']} under load for {victim.label}"
    located = victim.key in planted and is_located(trial, victim)
    measure.control(check.OLD_LINK, fault, trial, located=located)
