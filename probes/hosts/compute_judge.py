"""Judges sums and speed of each GPU by those of the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from probes.check.declarations import Check
from probes.check.judging import cover_alike, is_agreed
from probes.check.recorder import Recorder
from probes.contract.limits import derived_limit
from probes.findings import describe_most, finding, join_names
from probes.hosts import criterion as check
from probes.hosts.compute_fleet import Accelerator, Speed, Speeds, WorkFleet
from probes.hosts.compute_worker import CPU_BUILD
from probes.hosts.gpu_health import judge_worst
from reference_trainer.model.size import peak_flops
from reports.groups import group_pairs
from reports.measurement import Limit, Verdict, title_of
from reports.numbers import percent, quantity
from reports.record import Finding
from scaling.collectives.fault_search import MIN_HEALTHY, split_populations, typical_speed

# operation: (name in messages, unit)
COMPARED = {
    "gemm": ("GEMM", "TFLOP/s"),
    "fp8": ("GEMM in fp8", "TFLOP/s"),
    "hbm": ("copy in its memory", "GB/s"),
    "h2d": ("copy from the host", "GB/s"),
    "d2h": ("copy to the host", "GB/s"),
}
OPTIONAL = frozenset({"fp8"})  # compared where one accelerator of the model was timed
# Sound GPUs of a model differ by some percent, for the power limit clocks each by its chip.  Of
# few GPUs this spread is not known.
TOLERANCE, FEW_TOLERANCE = 0.05, 0.10
# Emulated accelerators share cores, wait for each other, and have the caches of a machine whose
# other users come and go: the same copy has 40 GB/s in one second and 80 in the next.
EMULATED_TOLERANCE = 0.5
# GPUs share PCIe switches and the memory of the host, so a copy counts as slow only if it is alone.
SHARED_PATHS = frozenset({"h2d", "d2h"})
SEPARATORS: tuple[Literal["number", "node"], ...] = ("number", "node")
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

    first: Speeds
    second: Speeds = field(default_factory=dict)
    alone: Speeds = field(default_factory=dict)


def find_yardsticks(fleet: WorkFleet, speeds: Speeds) -> dict[tuple[str, str], Yardstick]:
    """Find what is typical, by model and operation.  A model with one accelerator has nothing."""
    found, typical = {}, {key: one.typical for key, one in speeds.items()}
    for model, keys in fleet.group("model", speeds).items():
        for operation in COMPARED:
            rates = {key: typical[key][operation] for key in keys if operation in typical[key]}
            if len(rates) > 1:
                few = FEW_TOLERANCE if len(rates) < MIN_HEALTHY else TOLERANCE
                tolerance = few if fleet.on_gpu else EMULATED_TOLERANCE
                usual, limit = typical_speed(rates.values(), 1 - tolerance, len(COMPARED))
                fastest = max(rates, key=lambda key: rates[key])
                found[model, operation] = Yardstick(usual, limit, len(rates), fastest)
    return found


def find_slow(fleet: WorkFleet, speeds: Speeds) -> dict[Slow, Yardstick]:
    """Find the accelerators that are slow in one run, and what they are compared with."""
    sticks = find_yardsticks(fleet, speeds)
    return {
        (key, operation): stick
        for key, speed in speeds.items()
        for operation, rate in speed.typical.items()
        if (stick := sticks.get((fleet.accelerators[key].model, operation))) and rate < stick.limit
    }


def find_slow_each_time(fleet: WorkFleet, runs: SpeedRuns) -> dict[Slow, Yardstick]:
    """Find who is slow in both runs, and alone too where others may be the reason."""
    again = find_slow(fleet, runs.second)
    return {
        (key, operation): stick
        for (key, operation), stick in find_slow(fleet, runs.first).items()
        if (key, operation) in again
        and (
            (fleet.on_gpu and operation not in SHARED_PATHS)
            or is_slow_alone(fleet, runs.alone, key, operation, stick)
        )
    }


def is_slow_alone(
    fleet: WorkFleet, alone: Speeds, key: str, operation: str, stick: Yardstick
) -> bool:
    """Return whether an accelerator alone is below the limit of all at once.

    An emulated one must be far slower than the fastest in each of their turns.  Both worked alone
    one after the other, so whatever slows the machine for a while slows both.  A control has one
    turn.
    """
    if fleet.on_gpu:
        return alone[key].typical[operation] < stick.limit
    own, fastest = (alone[one].rates[operation] for one in (key, stick.fastest))
    turns = zip(own, fastest, strict=False)
    return all(rate < (1 - EMULATED_TOLERANCE) * most for rate, most in turns)


def find_alone(fleet: WorkFleet, speeds: Speeds) -> dict[str, list[str]]:
    """Find who is slow in one run, and who has to work alone to judge it.

    This is itself.  An emulated one is compared with the fastest, which works alone too.
    """
    needed = defaultdict[str, list[str]](list)
    for (key, _), stick in find_slow(fleet, speeds).items():
        needed[key] += [key] if fleet.on_gpu else [key, stick.fastest]
    return {key: list(dict.fromkeys(others)) for key, others in needed.items()}


def find_unknown(fleet: WorkFleet, runs: SpeedRuns) -> dict[str, str]:
    """Find the accelerators whose speed is not known or not comparable, with the reason."""
    typical = [key for key, one in runs.first.items() if one.typical]
    models = Counter(fleet.accelerators[key].model for key in typical)
    needed_alone = find_alone(fleet, runs.first)
    needed = [runs.first, runs.second] if needed_alone else [runs.first]
    timed = {
        (fleet.accelerators[key].model, op) for key in typical for op in runs.first[key].typical
    }
    found = {}
    for key, one in fleet.accelerators.items():
        owed = COMPARED.keys() - {op for op in OPTIONAL if (one.model, op) not in timed}
        reason = _missing_rate(fleet, one, [run.get(key) for run in needed], owed)
        for other in needed_alone.get(key, ()):
            found_alone = [runs.alone.get(other)]
            reason = reason or _missing_rate(fleet, fleet.accelerators[other], found_alone, owed)
        if not reason and models[one.model] < 2:
            reason = f"there is no other GPU of this model to compare with: {one.model}"
        if reason:
            found[key] = reason
    return found


def _missing_rate(
    fleet: WorkFleet, one: Accelerator, speeds: Iterable[Speed | None], owed: Set[str]
) -> str:
    """Describe what is missing in what an accelerator measured; "" for nothing."""
    for speed in speeds:
        if speed is None or speed.error:
            return (speed.error if speed else "") or fleet.why_unknown(one.key)
        if missing := owed - speed.typical.keys():
            what = join_names(COMPARED[operation][0] for operation in sorted(missing))
            return f"{one.label} has no measured rate of {what}"
        peak = peak_flops(one.model, "bf16")
        if peak and speed.typical["gemm"] * 1e12 > ABOVE_PEAK * peak:
            rate = quantity(speed.typical["gemm"], "TFLOP/s")
            return f"{one.label} measured {rate}, which is above its peak"
    return ""


def judge_speed(fleet: WorkFleet, runs: SpeedRuns, measure: Recorder) -> None:
    """Judge that no accelerator is slower than those of its model."""
    known, unknown = leave_out_unknown(fleet, runs)
    slow = find_slow_each_time(fleet, known)
    fleet.count_accused(measure, check.SLOW_GPUS, {key for key, _ in slow}, unknown)
    note_populations(fleet, known.first, measure)
    slow = explain_most(fleet, slow, known, measure)
    keys = list(dict.fromkeys(key for key, _ in slow))
    texts = {key: describe_slow(key, slow, known, fleet) for key in keys}
    for number, members in fleet.same_slot(keys).items():
        nodes = [fleet.accelerators[key].node for key in members]
        text = f"GPU {number} is slow on each of {len(nodes)} nodes. For example on {nodes[0]}: "
        names = fleet.accelerators[members[0]].names
        measure.explain(finding("HOST-GPU-SLOW", text + texts[members[0]], nodes, names=names))
        texts = {key: words for key, words in texts.items() if key not in members}
    fleet.explain(measure, "HOST-GPU-SLOW", texts)


def explain_most(
    fleet: WorkFleet, slow: Mapping[Slow, Yardstick], runs: SpeedRuns, measure: Recorder
) -> dict[Slow, Yardstick]:
    """Explain in one finding where most of a model are slower than the best; return the others."""
    rest = dict(slow)
    same = group_pairs(((what, stick), key) for (key, what), stick in slow.items())
    for (what, stick), keys in same.items():
        if 2 * len(keys) > stick.members:
            name, unit = COMPARED[what]
            most, best = (
                quantity(max(runs.first[key].typical[what] for key in chosen), unit)
                for chosen in (keys, [stick.fastest])
            )
            accused = [fleet.accelerators[key] for key in keys]
            part, who = f"{len(keys)} of {stick.members} GPUs", [one.label for one in accused]
            fastest = fleet.accelerators[stick.fastest].label
            text = f"{name}: {describe_most(who, part, most, fastest, best)}"
            nodes = list(dict.fromkeys(one.node for one in accused))
            measure.explain(finding("HOST-GPU-SLOW", text, nodes, names=accused[0].names))
            rest = {at: one for at, one in rest.items() if at[1] != what or at[0] not in keys}
    return rest


def note_populations(fleet: WorkFleet, speeds: Speeds, measure: Recorder) -> None:
    """Note where sound GPUs of a model have two speeds, and what separates them, if it is known."""
    for (model, what), stick in find_yardsticks(fleet, speeds).items() if fleet.on_gpu else ():
        own = {
            key: speeds[key].typical.get(what, 0.0)
            for key in speeds
            if fleet.accelerators[key].model == model
        }
        rates = {key: rate for key, rate in own.items() if rate >= stick.limit}
        ordered = sorted(rates.values())
        if not (count := split_populations(ordered)):
            continue
        slower = {key for key, rate in rates.items() if rate < ordered[count]}
        share = percent(median(ordered[:count]) / median(ordered[count:]))
        text = f"{COMPARED[what][0]}: {count} of {len(rates)} GPUs of {model} reach {share} of the "
        text += "rate of the others, which is no fault"
        for kind, groups in {at: fleet.group(at, rates) for at in SEPARATORS}.items():
            shares = {name: len(slower & {*keys}) / len(keys) for name, keys in groups.items()}
            if all(abs(part - 0.5) > 0.25 for part in shares.values()):
                names = join_names(name for name, part in shares.items() if part > 0.5)
                text += f"; the slower have the {kind} {names}"
        parts = slower, rates.keys() - slower
        heat = (median(speeds[key].celsius or 0.0 for key in part) for part in parts)
        text += "; median temperatures {:.0f} and {:.0f} degrees Celsius"
        measure.covered(text.format(*heat))


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
        late = {
            key: missing[0]
            for key, others in find_alone(fleet, first).items()
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
            f"{name} {quantity(rate, unit)}, {percent(rate / stick.typical)} of the typical rate "
            f"of {stick.members} GPUs of its model; {quantity(alone, unit)} when it runs alone"
        )
        if not fleet.on_gpu:
            fastest = quantity(runs.alone[stick.fastest].typical[operation], unit)
            text += f" ({fleet.accelerators[stick.fastest].label} alone: {fastest})"
        parts.append(text)
    return "; ".join(parts)


def note_launches(fleet: WorkFleet, speeds: Speeds, measure: Recorder) -> None:
    """Note the median time of a launch for each model."""
    times = {key: one.launch_us for key, one in speeds.items() if one.launch_us is not None}
    note_medians(measure, fleet, "launch_latency", times, "us")


def note_medians(
    measure: Recorder, fleet: WorkFleet, name: str, values: Mapping[str, float], unit: str
) -> None:
    """Note the median of each model."""
    for model, keys in fleet.group("model", values).items():
        measure.note(name, median(values[key] for key in keys), unit, on=model)


Sums = Mapping[str, Mapping[str, Any]]  # of AcceleratorWorker.check_sums, by key
SHOWN = 8  # digits of a hash in messages


def judge_sums(fleet: WorkFleet, sums: Sums, measure: Recorder, *, hashes: bool) -> None:
    """Judge that each element of the GEMM with a known answer is right.

    `hashes`: judge too whether equal accelerators give equal bits.
    """
    counts = {key: one["wrong"] for key, one in sums.items()}
    unknown = {key: fleet.why_unknown(key) for key in fleet.accelerators if counts.get(key) is None}
    wrong = {key: count for key, count in counts.items() if count}
    texts = {k: f"wrong elements in a GEMM with a known result: {n}" for k, n in wrong.items()}
    fleet.judge(measure, check.GEMM_WRONG, "HOST-WRONG-SUM", texts, unknown)
    if hashes:
        judge_hashes(fleet, sums, measure)


def judge_errors(fleet: WorkFleet, sums: Sums, runs: Iterable[Speeds], measure: Recorder) -> None:
    """Judge that each worker has a GPU of its own, answers, and ends its work without an error.

    A worker that never started proves nothing: its accelerator may be in use.  Neither does one
    that ended with its node: no accelerator is at fault.
    """
    errors = {key: one.error for key, one in fleet.accelerators.items() if one.error}
    errors |= {key: str(one["error"]) for key, one in sums.items() if one["error"]}
    errors |= {key: one.error for run in runs for key, one in run.items() if one.error}
    shared = {
        key: f"Ray gave the same board to another worker, as GPU {one.shared_with}"
        for key, one in fleet.accelerators.items()
        if one.shared_with
    }
    texts = {key: f"torch stops with: {text}" for key, text in errors.items()}
    silent = [key for key, one in fleet.accelerators.items() if key in fleet.errors]
    alive = fleet.read_alive() if silent else ()
    there = [key for key in silent if key.rpartition(":")[0] in alive]
    started = [key for key in there if fleet.accelerators[key].number]
    texts |= {key: f"its worker stops answering: {fleet.errors[key]}" for key in started}
    unknown = {key: fleet.why_unknown(key) for key in silent if key not in started}
    fleet.count_accused(measure, check.WORK_ERRORS, {**shared, **texts}, unknown)
    fleet.explain(measure, "HOST-SHARED-GPU", shared)
    without = {key: text for key, text in errors.items() if text.endswith(CPU_BUILD)}
    if without:  # no GPU is at fault
        nodes = list(dict.fromkeys(fleet.accelerators[key].node for key in without))
        text = f"{join_names(dict.fromkeys(without.values()))}, on {join_names(nodes)}"
        measure.explain(finding("HOST-TORCH-BUILD", text, nodes))
    others = {key: text for key, text in texts.items() if key not in without}
    fleet.explain(measure, "HOST-GPU-ERROR", others)


def judge_hashes(fleet: WorkFleet, sums: Sums, measure: Recorder) -> None:
    """Judge that accelerators of one build give the same bits, each time."""
    hashes = {key: list(one["hashes"]) for key, one in sums.items() if one["hashes"]}
    unknown = {key: fleet.why_unknown(key) for key in fleet.accelerators if key not in hashes}
    texts: dict[str, str] = {}
    split: list[list[str]] = []  # those of a build without a majority
    for keys in fleet.group("build").values():
        own = {key: hashes[key] for key in keys if key in hashes}
        texts |= find_unstable(own)
        first = {key: one[0] for key, one in own.items() if key not in texts}
        if len(first) == 1:
            one = fleet.accelerators[next(iter(first))]
            unknown[one.key] = f"{one.label}: no other {one.model} with this software gave a result"
        elif usual := find_majority(first):
            most = f"most GPUs of the same kind give {usual[:SHOWN]}"
            others = {key: one for key, one in first.items() if one != usual}
            texts |= {
                k: f"a GEMM gives hash {one[:SHOWN]}, and {most}" for k, one in others.items()
            }
        elif first:
            split.append([*first])
    accused = {*texts, *(key for keys in split for key in keys)}
    fleet.count_accused(measure, check.GEMM_HASH_DIFFERS, accused, unknown)
    fleet.explain(measure, "HOST-WRONG-SUM", texts)
    for keys in split:
        measure.explain(_split_finding(fleet, keys))


def find_unstable(hashes: Mapping[str, list[str]]) -> dict[str, str]:
    """Find who does not give the same bits each time, with the text of a finding."""
    return {
        key: f"the same GEMM returns {len(set(own))} different results in {len(own)} runs"
        for key, own in hashes.items()
        if len(set(own)) > 1
    }


def find_majority(hashes: Mapping[str, str]) -> str | None:
    """Find the hash that more than half have; None if there is none."""
    usual = Counter(hashes.values()).most_common(1)
    return usual[0][0] if usual and 2 * usual[0][1] > len(hashes) else None


def _split_finding(fleet: WorkFleet, keys: list[str]) -> Finding:
    members = [fleet.accelerators[key] for key in keys]
    labels = join_names(one.label for one in members)
    text = f"{labels}: they return different results of the same GEMM, and no result has a majority"
    nodes = list(dict.fromkeys(one.node for one in members))
    return finding("HOST-WRONG-SUM", text, nodes, names=members[0].names)


# measure: operation
AGREED: dict[Check, str] = dict(zip(check.RATES, ("gemm", "fp8", "hbm", "h2d", "d2h"), strict=True))


def rate_limit(measure: Recorder, name: Check, model: str) -> Limit | None:
    """Return the agreed limit of a rate, else the one derived from the model; None without both.

    Where the contract agrees on copies, slots may be slower than the boards: both ways.
    """
    agreed = measure.contract.limit("HOSTS", name)
    copies = AGREED[name] in SHARED_PATHS and is_agreed(measure, check.H2D_GBS)
    derived = name.derived_in_run and not agreed and not copies
    return derived_limit(model, AGREED[name], name.unit) if derived else agreed


def find_below(fleet: WorkFleet, speeds: Speeds) -> list[str]:
    """Find the GPUs with a rate that is low for their model: they are measured again, and alone."""

    def is_low(key: str, name: Check) -> bool:
        limit = derived_limit(fleet.accelerators[key].model, AGREED[name], name.unit)
        rate = speeds[key].typical.get(AGREED[name])
        return bool(limit and rate and limit.judge(rate) is not Verdict.PASS)

    names = [name for name in AGREED if name.derived_in_run and fleet.on_gpu]
    return [key for key in speeds if any(is_low(key, name) for name in names)]


def judge_rates(fleet: WorkFleet, runs: SpeedRuns, measure: Recorder) -> None:
    """Judge the slowest rate of each node, by the contract or by what the model is known to reach.

    By a derived limit the best run counts: also that alone, if other GPUs share the path.
    Without a limit the median of each model is noted.
    """
    limits = defaultdict[str, dict[Check, Limit | None]](dict)
    for name, operation in AGREED.items():
        used, rates = [runs.first, runs.second], dict[str, float]()
        used += [runs.alone] * (operation in SHARED_PATHS)
        for run in used[:1] if is_agreed(measure, name) else used:
            for key, speed in run.items():
                if (rate := speed.typical.get(operation)) is not None:
                    rates[key] = max(rate, rates.get(key, rate))
        _judge_rate(name, fleet, rates, measure)
        for model in {one.model for one in fleet.working.values()}:
            limits[model][name] = rate_limit(measure, name, model)
        of = {key: limits[fleet.accelerators[key].model].get(name) for key in rates}
        without = {key: rate for key, rate in rates.items() if not of[key]}
        note_medians(measure, fleet, name, without, name.unit)
    for model, known in sorted(limits.items()) if fleet.on_gpu else ():
        if names := [name for name, limit in known.items() if name.derived_in_run and not limit]:
            measure.covered(f"no limit is known or agreed for {join_names(names)} of {model}")
        cover_alike(measure, f"GPUs of {model}", known)


def _judge_rate(
    name: Check, fleet: WorkFleet, rates: Mapping[str, float], measure: Recorder
) -> None:
    texts: dict[str, str] = {}
    word = "Agreed" if is_agreed(measure, name) else "Expected"
    for node, keys in fleet.group("node").items():
        models = fleet.group("model", keys)
        silent = models.pop("", [])  # a worker that did not start: its model is not known
        for model, own in ({"": keys} if word == "Agreed" else models).items():
            limit = rate_limit(measure, name, model)
            if limit is None:
                continue
            values = [(key, rates.get(key)) for key in dict.fromkeys([*own, *silent])]
            unknown = sum(rate is None for _, rate in values)
            note = f"{unknown} of {len(values)} accelerators have no measured rate" * bool(unknown)
            slow = judge_worst(measure, name, node, values, min, note, limit)
            text = f"{title_of(name)} is {{}}. {word}: {limit}"
            text += f" ({limit.because})" * (word == "Expected")
            texts |= {key: text.replace("{}", quantity(rate, name.unit)) for key, rate in slow}
    fleet.explain(measure, "HOST-GPU-RATE", texts)
