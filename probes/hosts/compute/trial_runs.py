"""Runs the work of all accelerators: at once, again where some are slow, and these alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probes.hosts.compute.drift import STEADY, find_slowed, find_unfollowed
from probes.hosts.compute.fleet import RunLength, Speed, WorkFleet
from probes.hosts.compute.speed_judge import SpeedRuns, find_alone

# The median of 3 rounds forgives one disturbance.  0.2 s is a hundred GEMMs of an H100.  On a CPU,
# 0.1 s is one period of a cgroup's quota, and what is slow only with others is no fault.
GPU_LENGTH, CPU_LENGTH = RunLength(3, 0.2), RunLength(2, 0.1)
# Emulated suspects and the fastest work alone in turns: two periods of a quota for each operation.
TURNS, TURN_LENGTH = 5, RunLength(1, 0.2)
# Parts of the longer work, by tier: 10 s each.  After some minutes the temperature of a GPU is
# steady.
GPU_PARTS = {
    "standard": (7, RunLength(10, 0.5, STEADY)),
    "soak": (61, RunLength(10, 0.5, STEADY)),
}
CPU_PARTS = {
    "standard": (6, RunLength(3, 0.2, STEADY)),
    "soak": (13, RunLength(3, 0.2, STEADY)),
}


def run_length(fleet: WorkFleet) -> RunLength:
    """Return how long one run is on this kind of accelerators."""
    return GPU_LENGTH if fleet.on_gpu else CPU_LENGTH


def run_work(fleet: WorkFleet) -> SpeedRuns:
    """Measure all accelerators at once; if some are slow, all again, and then each of them alone.

    Emulated accelerators share cores, so that a second run of all of them shows nothing more.  They
    and the fastest work alone in turns.
    """
    length = run_length(fleet)
    keys = [*fleet.working]
    first = fleet.measure_speed(keys, length)
    needed_alone = find_alone(fleet, first)
    chosen = list(dict.fromkeys(key for needed in needed_alone.values() for key in needed))
    if not chosen:
        return SpeedRuns(first)
    if fleet.on_gpu:
        second = fleet.measure_speed(keys, length)
        return SpeedRuns(first, second, measure_alone(fleet, chosen, length))
    turns = [measure_alone(fleet, chosen, TURN_LENGTH) for _ in range(TURNS)]
    return SpeedRuns(first, first, join_turns(turns))


def join_turns(turns: Sequence[Mapping[str, Speed]]) -> dict[str, Speed]:
    """Join the rates of each accelerator, turn by turn; leave out who missed one."""
    joined = {}
    for key in (key for key in turns[0] if all(key in turn for turn in turns)):
        own = [turn[key] for turn in turns]
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


def run_long(fleet: WorkFleet, tier: str) -> list[Mapping[str, Speed]]:
    """Let all accelerators work for a minute (standard) or ten (soak), in parts.

    Emulated ones share cores: with its neighbours one may have half a core at the end, and a whole
    one before.  So if some seem slower, all do the last part again, each alone: what slows the
    machine then slows all of them.
    """
    count, length = (GPU_PARTS if fleet.on_gpu else CPU_PARTS)[tier]
    keys = [*fleet.working]
    parts: list[Mapping[str, Speed]] = [fleet.measure_speed(keys, length) for _ in range(count)]
    if not fleet.on_gpu and find_slowed(fleet, parts, find_unfollowed(fleet, parts)):
        parts[-1] = {**parts[-1], **measure_alone(fleet, keys, length)}
    return parts


def long_length(fleet: WorkFleet, tier: str) -> RunLength:
    """Return how long a part of the longer work is."""
    return (GPU_PARTS if fleet.on_gpu else CPU_PARTS)[tier][1]
