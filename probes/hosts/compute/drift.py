"""Judges which accelerators slow down under load: the end of the work against its beginning."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from probes.acceptance.measure import Recorder
from probes.hosts.compute.fleet import Speed, WorkFleet
from probes.hosts.compute.results import count_by_node, explain_by_node
from probes.hosts.compute.speed_judge import COMPARED
from reports.numbers import percent, quantity

STEADY = ("gemm", "hbm")  # operations that are followed: they heat the GPU and its memory
WARM_UP = 1  # parts that are left out: a cold GPU runs at its highest clock
LEAST_PARTS = 3  # after those: a first and a last third
# A sound GPU settles within 1 or 2 % once it is warm.  Emulated accelerators share cores.
TOLERANCE, EMULATED_TOLERANCE = 0.05, 0.5


@dataclass(frozen=True)
class Change:
    """Rate of an operation in the first and the last third of the work."""

    operation: str
    first: float
    last: float
    share: float  # last of first; of emulated accelerators, against what is usual


def find_changes(
    parts: Sequence[Mapping[str, Speed]], keys: Sequence[str], on_gpu: bool
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


def judge_drift(fleet: WorkFleet, parts: Sequence[Mapping[str, Speed]], measure: Recorder) -> None:
    """Judge that no accelerator is slower at the end than at the beginning."""
    unknown = find_unfollowed(fleet, parts)
    slowed = find_slowed(fleet, parts, unknown)
    count_by_node("slowing_gpus", fleet.accelerators, slowed, unknown, measure)
    texts = {
        key: "; ".join(map(describe_change, own)) + describe_heat(parts, key)
        for key, own in slowed.items()
    }
    explain_by_node("HOST-GPU-DRIFT", fleet.accelerators, texts, measure)


def find_slowed(
    fleet: WorkFleet, parts: Sequence[Mapping[str, Speed]], unknown: Container[str]
) -> dict[str, list[Change]]:
    """Find the accelerators that are slower at the end, each with what became slower.

    Those that are `unknown` were not followed to the end.
    """
    keys = [key for key in fleet.accelerators if key not in unknown]
    least = 1 - (TOLERANCE if fleet.on_gpu else EMULATED_TOLERANCE)
    changes = find_changes(parts, keys, fleet.on_gpu)
    slowed = {key: [one for one in own if one.share < least] for key, own in changes.items()}
    return {key: own for key, own in slowed.items() if own}


def find_unfollowed(fleet: WorkFleet, parts: Sequence[Mapping[str, Speed]]) -> dict[str, str]:
    """Find the accelerators that were not followed to the end, with the reason."""
    if len(parts) < WARM_UP + LEAST_PARTS:
        return dict.fromkeys(fleet.accelerators, "the work was too short")
    found = {}
    for key in fleet.accelerators:
        speeds = [part.get(key) for part in parts]
        if not all(speed and set(STEADY) <= speed.typical.keys() for speed in speeds):
            errors = [speed.error for speed in speeds if speed and speed.error]
            found[key] = (errors[0] if errors else "") or fleet.why_unknown(key)
    return found


def describe_change(change: Change) -> str:
    """Describe by how much an operation became slower."""
    name, unit = COMPARED[change.operation]
    return (
        f"{name} went from {quantity(change.first, unit)} to {quantity(change.last, unit)}, "
        f"{percent(change.last / change.first)} of it"
    )


def describe_heat(parts: Sequence[Mapping[str, Speed]], key: str) -> str:
    """Describe the temperature at both ends; "" if it is not known."""
    heats = [part[key].celsius for part in parts if part[key].celsius is not None]
    return f", at {heats[0]:.0f} and then {heats[-1]:.0f} degrees Celsius" if heats else ""
