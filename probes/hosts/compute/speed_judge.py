"""Judges which accelerators are slow, against those of their model: twice, and then alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names, name_gpu
from probes.hosts.compute.fleet import Accelerator, Speed, WorkFleet
from probes.hosts.compute.results import Accelerators, count_by_node, explain_by_node, same_slot
from reference_trainer.model.flops import peak_flops
from reports.numbers import percent, quantity
from scaling.collectives.fault_search import MIN_HEALTHY, typical_speed

# operation: (name in messages, unit)
COMPARED = {
    "gemm": ("GEMM", "TFLOP/s"),
    "hbm": ("copy in its memory", "GB/s"),
    "h2d": ("copy from the host", "GB/s"),
    "d2h": ("copy to the host", "GB/s"),
}
# Sound GPUs of a model differ by some percent, for the power limit clocks each by its chip.  Of
# few GPUs this spread is not known.
TOLERANCE, FEW_TOLERANCE = 0.05, 0.10
# Emulated accelerators share cores, wait for each other, and have the caches of a machine whose
# other users come and go: the same copy has 40 GB/s in one second and 80 in the next.
EMULATED_TOLERANCE = 0.5
# GPUs share PCIe switches and the memory of the host, so a copy counts as slow only if it is alone.
SHARED_PATHS = frozenset({"h2d", "d2h"})
ABOVE_PEAK = 1.05  # a rate so far above the peak was not measured rightly; boards boost a little

Slow = tuple[str, str]  # accelerator and operation


@dataclass(frozen=True)
class Yardstick:
    """Typical rate of an operation on one model, and the rate below which it is slow.

    `fastest` is the accelerator with the highest rate.
    """

    typical: float
    limit: float
    members: int
    fastest: str


@dataclass
class SpeedRuns:
    """Rates of the accelerators: all at once, again (where some were slow), and suspects alone.

    Of emulated ones, `alone` has the fastest too, in the same turns.
    """

    first: Mapping[str, Speed]
    second: Mapping[str, Speed] = field(default_factory=dict)
    alone: Mapping[str, Speed] = field(default_factory=dict)


def find_yardsticks(
    accelerators: Accelerators, speeds: Mapping[str, Speed], on_gpu: bool
) -> dict[tuple[str, str], Yardstick]:
    """Find what is typical, by model and operation.  A model with one accelerator has nothing."""
    values = defaultdict[tuple[str, str], dict[str, float]](dict)
    for key, speed in speeds.items():
        for operation, rate in speed.typical.items():
            if operation in COMPARED:
                values[accelerators[key].model, operation][key] = rate
    found = {}
    for place, rates in values.items():
        if len(rates) > 1:
            few = FEW_TOLERANCE if len(rates) < MIN_HEALTHY else TOLERANCE
            tolerance = few if on_gpu else EMULATED_TOLERANCE
            typical, limit = typical_speed([*rates.values()], 1 - tolerance)
            fastest = max(rates, key=lambda key: rates[key])
            found[place] = Yardstick(typical, limit, len(rates), fastest)
    return found


def find_slow(
    accelerators: Accelerators, speeds: Mapping[str, Speed], on_gpu: bool
) -> dict[Slow, Yardstick]:
    """Find the accelerators that are slow in one run, and what they are compared with."""
    sticks = find_yardsticks(accelerators, speeds, on_gpu)
    return {
        (key, operation): stick
        for key, speed in speeds.items()
        for operation, rate in speed.typical.items()
        if (stick := sticks.get((accelerators[key].model, operation))) and rate < stick.limit
    }


def find_slow_each_time(
    accelerators: Accelerators, runs: SpeedRuns, on_gpu: bool
) -> dict[Slow, Yardstick]:
    """Find who is slow in both runs, and alone too where others may be the reason."""
    again = find_slow(accelerators, runs.second, on_gpu)
    is_slow_alone = is_below_limit if on_gpu else is_slow_each_turn
    return {
        (key, operation): stick
        for (key, operation), stick in find_slow(accelerators, runs.first, on_gpu).items()
        if (key, operation) in again
        and (
            (on_gpu and operation not in SHARED_PATHS)
            or is_slow_alone(runs.alone, key, operation, stick)
        )
    }


def is_below_limit(alone: Mapping[str, Speed], key: str, operation: str, stick: Yardstick) -> bool:
    """Return whether an accelerator alone is below the limit of all at once."""
    return alone[key].typical[operation] < stick.limit


def is_slow_each_turn(
    alone: Mapping[str, Speed], key: str, operation: str, stick: Yardstick
) -> bool:
    """Return whether an accelerator is far slower than the fastest in each of their turns.

    Both worked alone one after the other, so whatever slows the machine for a while slows both.  A
    control has one turn.
    """
    own, fastest = (alone[one].rates[operation] for one in (key, stick.fastest))
    turns = zip(own, fastest, strict=False)
    return all(rate < (1 - EMULATED_TOLERANCE) * most for rate, most in turns)


def find_alone(fleet: WorkFleet, speeds: Mapping[str, Speed]) -> dict[str, list[str]]:
    """Find who is slow in one run, and who has to work alone to judge it.

    This is itself.  An emulated one is compared with the fastest, which works alone too.
    """
    needed = defaultdict[str, list[str]](list)
    for (key, _), stick in find_slow(fleet.accelerators, speeds, fleet.on_gpu).items():
        needed[key] += [key] if fleet.on_gpu else [key, stick.fastest]
    return {key: list(dict.fromkeys(others)) for key, others in needed.items()}


def find_unknown(fleet: WorkFleet, runs: SpeedRuns) -> dict[str, str]:
    """Find the accelerators whose speed is not known or not comparable, with the reason."""
    models = defaultdict[str, int](int)
    for key, speed in runs.first.items():
        models[fleet.accelerators[key].model] += bool(speed.typical)
    needed_alone = find_alone(fleet, runs.first)
    needed = [runs.first, runs.second] if needed_alone else [runs.first]
    found = {}
    for key, one in fleet.accelerators.items():
        reason = _missing_rate(fleet, one, [run.get(key) for run in needed])
        for other in needed_alone.get(key, ()):
            found_alone = [runs.alone.get(other)]
            reason = reason or _missing_rate(fleet, fleet.accelerators[other], found_alone)
        if not reason and models[one.model] < 2:
            reason = f"no other GPU to compare with: {one.model}"
        if reason:
            found[key] = reason
    return found


def _missing_rate(fleet: WorkFleet, one: Accelerator, speeds: Iterable[Speed | None]) -> str:
    """Describe what is missing in what an accelerator measured; "" for nothing."""
    for speed in speeds:
        if speed is None or speed.error:
            return (speed.error if speed else "") or fleet.why_unknown(one.key)
        if missing := COMPARED.keys() - speed.typical.keys():
            return f"{one.label} did not measure: {join_names(sorted(missing))}"
        peak = peak_flops(one.model, "bf16")
        if peak and speed.typical["gemm"] * 1e12 > ABOVE_PEAK * peak:
            rate = quantity(speed.typical["gemm"], "TFLOP/s")
            return f"{one.label} measured {rate}, which is above its peak"
    return ""


def judge_speed(fleet: WorkFleet, runs: SpeedRuns, measure: Recorder) -> None:
    """Judge that no accelerator is slower than those of its model."""
    known, unknown = leave_out_unknown(fleet, runs)
    slow = find_slow_each_time(fleet.accelerators, known, fleet.on_gpu)
    keys = list(dict.fromkeys(key for key, _ in slow))
    count_by_node("slow_gpus", fleet.accelerators, keys, unknown, measure)
    texts = {key: describe_slow(key, slow, known, fleet) for key in keys}
    for number, members in same_slot(fleet.accelerators, keys).items():
        nodes = [fleet.accelerators[key].node for key in members]
        text = f"GPU {number} of each node ({len(nodes)} nodes) is slow, as {nodes[0]}: "
        first = fleet.accelerators[members[0]]
        names = name_gpu(first.uuid, first.number)
        measure.explain(finding("HOST-GPU-SLOW", text + texts[members[0]], nodes, names=names))
        texts = {key: words for key, words in texts.items() if key not in members}
    explain_by_node("HOST-GPU-SLOW", fleet.accelerators, texts, measure)


def leave_out_unknown(fleet: WorkFleet, runs: SpeedRuns) -> tuple[SpeedRuns, dict[str, str]]:
    """Leave out the accelerators that prove nothing; return the others, and who with the reason.

    Without them what is typical changes: one may look slow now that did not run alone.
    """
    unknown = find_unknown(fleet, runs)
    while True:
        first, second, alone = (
            {key: speed for key, speed in run.items() if key not in unknown}
            for run in (runs.first, runs.second, runs.alone)
        )
        needed_alone = find_alone(fleet, first)
        late = {
            key: missing[0]
            for key, others in needed_alone.items()
            if (missing := [other for other in others if other not in alone])
        }
        if not late:
            return SpeedRuns(first, second, alone), unknown
        label = {key: fleet.accelerators[other].label for key, other in late.items()}
        unknown |= {key: f"{label[key]} was not measured alone" for key in late}


def describe_slow(
    key: str, slow: Mapping[Slow, Yardstick], runs: SpeedRuns, fleet: WorkFleet
) -> str:
    """Describe the rates of a slow accelerator, and how it does alone."""
    parts = []
    for operation in (one for other, one in slow if other == key):
        name, unit = COMPARED[operation]
        stick, alone = slow[key, operation], runs.alone[key].typical[operation]
        # The better of both runs: the accelerator is not slower than that.
        rate = max(run[key].typical[operation] for run in (runs.first, runs.second))
        text = (
            f"{name} {quantity(rate, unit)}, {percent(rate / stick.typical)} of what is typical of "
            f"{stick.members} of its model; alone {quantity(alone, unit)}"
        )
        if not fleet.on_gpu:
            fastest = quantity(runs.alone[stick.fastest].typical[operation], unit)
            text += f", and {fleet.accelerators[stick.fastest].label} alone {fastest}"
        parts.append(text)
    return "; ".join(parts)


def note_launches(fleet: WorkFleet, speeds: Mapping[str, Speed], measure: Recorder) -> None:
    """Note the median time of a launch for each model."""
    models = defaultdict[str, list[float]](list)
    for key, speed in speeds.items():
        if speed.launch_us is not None:
            models[fleet.accelerators[key].model].append(speed.launch_us)
    for model, values in models.items():
        measure.note("launch_latency", median(values), "us", on=model)
