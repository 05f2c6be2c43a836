"""Judges how fast nodes write and read the shared folder: each against the others, and together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median_high
from typing import Any

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names
from probes.hosts.storage.shards import RANDOM, READ, WRITE
from reports.numbers import percent, quantity

Timings = Mapping[str, Mapping[str, Any]]  # node id -> the answer of `do_work`
Names = Mapping[str, str]
MEASURES = {WRITE: "shard_write", READ: "shard_read", RANDOM: "random_read"}
NOISE_S = 0.25  # s that a worker on a busy node may wait for a CPU: differences below mean nothing
NO_SPACE = ("No space left on device", "Disk quota exceeded")
DOING = {WRITE: "writes its shard", READ: "reads a shard", RANDOM: "reads at random"}


def find_shares(timings: Timings, count: int) -> dict[str, float]:
    """Compute each node's speed as a share of the typical speed of the others, 1 at most.

    `count` is the work of each node.  A node that was cut short counts as if it had gone on.  Of
    two others the slower is typical: the faster may be the server itself.
    """
    seconds = {
        id: one["seconds"] * count / one["done"] for id, one in timings.items() if one["done"]
    }
    shares = {}
    for id, own in seconds.items():
        others = [one for other, one in seconds.items() if other != id]
        if others:
            shares[id] = min(1.0, (median_high(others) + NOISE_S) / max(own, NOISE_S))
    return shares


def confirm_slow(
    timings: Timings,
    count: int,
    is_slow: Callable[[float], bool],
    repeat: Callable[[list[str]], Timings],
) -> dict[str, float]:
    """Compute the shares; nodes that are slow try again with as many of the fastest.

    Of two shares the better counts: what else used the storage may have slowed a node once.
    """
    shares = find_shares(timings, count)
    slow = [id for id, share in shares.items() if is_slow(share)]
    if not slow:
        return shares
    fastest = sorted((id for id in shares if id not in slow), key=lambda id: -shares[id])
    again = find_shares(repeat([*slow, *fastest[: len(slow)]]), count)
    return {id: max(share, again.get(id, share)) if id in slow else share
            for id, share in shares.items()}  # fmt: skip


def judge_shares(
    kind: str,
    shares: Mapping[str, float],
    timings: Timings,
    among: Iterable[str],
    names: Names,
    folder: str,
    measure: Recorder,
) -> None:
    """Judge each node's share of the typical speed, and name the slow ones."""
    name = MEASURES[kind]
    for id in among:
        note = "" if id in shares else timings.get(id, {}).get("error") or "it did not answer"
        measure(name, shares.get(id), on=names[id], note=note)
        share = shares.get(id)
        if share is not None and measure.would_fail(name, share):
            own = describe_rate(kind, timings[id])
            usual = describe_rate(kind, median_timing(timings, id))
            text = (
                f"{names[id]} {DOING[kind]} in {folder} at {percent(share)} of the others' speed "
                f"({own}, the others {usual})"
            )
            known = {"folder": folder}
            measure.explain(finding("HOST-STORAGE-SLOW", text, [names[id]], names=known))


def median_timing(timings: Timings, without: str) -> Mapping[str, Any]:
    """Find the timing of the other nodes that is in the middle."""
    others = [one for id, one in timings.items() if id != without and one["done"]]
    return sorted(others, key=speed)[(len(others) - 1) // 2]  # of two, the slower


def speed(timing: Mapping[str, Any]) -> float:
    """Compute bytes, or times, in a second."""
    return float(timing["done"] / timing["seconds"]) if timing["seconds"] else 0.0


def describe_rate(kind: str, timing: Mapping[str, Any]) -> str:
    """Describe a speed, as `512 MB/s` or `1200 reads/s`."""
    if kind == RANDOM:
        return quantity(speed(timing), "reads/s")
    return quantity(speed(timing) / 1e6, "MB/s")


def judge_failures(
    failures: Mapping[str, str],
    silent: Sequence[str],
    names: Names,
    folder: str,
    measure: Recorder,
) -> None:
    """Judge that every node could write a shard and read one; equal errors are one finding."""
    unknown = [names[id] for id in silent if id not in failures]
    value = None if unknown and not failures else len(failures)
    note = f"{join_names(unknown)} did not answer" if unknown else ""
    measure("failed_shards", value, on=folder, note=note)
    for error in dict.fromkeys(failures.values()):
        who = [names[id] for id, one in failures.items() if one == error]
        code = "HOST-STORAGE-FULL" if error in NO_SPACE else "HOST-STORAGE-ERROR"
        text = f"{join_names(who)} cannot write and read files in {folder}: {error}"
        measure.explain(finding(code, text, who, names={"folder": folder}))
