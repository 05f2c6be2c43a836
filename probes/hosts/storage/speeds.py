"""Lets nodes repeat their work until it can be compared, and records the speeds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median

from probes.acceptance.measure import Recorder
from probes.findings import finding
from probes.hosts.storage.rates import MEASURES, Names, Timings, confirm_slow, judge_shares, speed
from probes.hosts.storage.shards import RANDOM, READ, WRITE, Size
from probes.hosts.storage.storage_round import StorageRound
from reports.numbers import quantity

RATES = {WRITE: "write_rate", READ: "read_rate"}  # of all nodes together
LEAST_COMPARED = 3  # nodes: of two, the faster may be the server itself, and neither is slow
UNITS = {WRITE: "bytes/s", READ: "bytes/s", RANDOM: "reads/s"}  # others are files/s


def judge_rates(
    storage: StorageRound,
    steps: Mapping[str, Timings],
    size: Size,
    compares: bool,
    measure: Recorder,
) -> dict[str, Timings]:
    """Judge each node's speed against the others', if that is fair; return the timings by kind.

    `steps` are the timings of writing and reading.
    """
    timings = {**steps, RANDOM: storage.work(RANDOM, storage.sharing, size)}
    for kind, rows in timings.items():
        note_speeds(kind, rows, storage.names, storage.where, measure)
        if not compares:
            continue
        name = MEASURES[kind]
        shares = confirm_slow(
            rows,
            size.count(kind),
            partial(measure.would_fail, name),
            partial(storage.work, kind, size=size),
        )
        judge_shares(kind, shares, rows, storage.sharing, storage.names, storage.where, measure)
    return timings


def agreed_rates(tier: str, measure: Recorder) -> set[str]:
    """Return the speeds of all nodes together that are judged: agreed, and not in a quick run.

    A quick run writes too little for that: how soon storage answers counts there, not its speed.
    """
    if tier == "quick":
        return set()
    return {name for name in RATES.values() if measure.contract.limit("HOSTS", name)}


def judge_together(
    kind: str, timings: Timings, folder: str, agreed: set[str], measure: Recorder
) -> None:
    """Judge the speed of all nodes at once (GB/s) where that is agreed; otherwise record it."""
    name, subject = RATES[kind], f"{folder}, {len(timings)} nodes at once"
    value = together(timings)
    if name not in agreed:
        measure.note(name, value, "GB/s", on=subject)
        return
    measure(name, value, on=subject, note="" if value else "no node did it")
    if value is not None and measure.would_fail(name, value):
        text = (
            f"{len(timings)} nodes at once {kind} {quantity(value, 'GB/s')} in {folder}. Agreed: "
            f"{measure.contract.limit('HOSTS', name)}"
        )
        measure.explain(finding("HOST-STORAGE-RATE", text, names={"folder": folder}))


def together(timings: Timings) -> float | None:
    """Compute the speed of all nodes together (GB/s): until the last has ended."""
    seconds = max((one["seconds"] for one in timings.values()), default=0.0)
    return sum(one["done"] for one in timings.values()) / seconds / 1e9 if seconds else None


def note_alone(storage: StorageRound, size: Size, measure: Recorder) -> None:
    """Record the speed of one node that writes alone."""
    for id, one in storage.work(WRITE, storage.sharing[:1], size).items():
        measure.note("write_speed_alone", speed(one), UNITS[WRITE], on=storage.names[id])


def note_speeds(kind: str, timings: Timings, names: Names, folder: str, measure: Recorder) -> None:
    """Record the typical and the slowest node's speed."""
    done = {id: speed(one) for id, one in timings.items() if one["done"]}
    if not done:
        return
    unit = UNITS.get(kind, "files/s")
    slowest = min(done, key=lambda id: done[id])
    measure.note(f"{kind}_speed", median(done.values()), unit, on=f"a node in {folder}")
    measure.note(f"slowest_{kind}_speed", done[slowest], unit, on=names[slowest])
