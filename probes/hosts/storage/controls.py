"""Controls of the shared folder: the last node gets a real fault of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probes.acceptance.measure import Recorder
from probes.hosts.storage.places import Place
from probes.hosts.storage.rates import (
    MEASURES,
    NOISE_S,
    Timings,
    find_shares,
    judge_failures,
    judge_shares,
    median_timing,
)
from probes.hosts.storage.room import judge_room
from probes.hosts.storage.shards import CHUNK, LOADERS, RANDOM, WRITE, Size, do_all_work, do_work
from probes.hosts.storage.sharing import judge_exchange, judge_races
from probes.hosts.storage.speeds import RATES, judge_together
from probes.hosts.storage.storage_round import StorageRound

SHORT_S = 1.0  # s that a node looks for files in a folder where they never come
NO_FOLDER = "/proc"  # where no file can be written, on every node
FACTOR = 1.5  # how much slower than the limit a slow node is
MOST_PAUSE_S = 20.0  # s of all pauses of a slow node: a limit that needs more is not shown


def control_other_folder(storage: StorageRound, sharing: Sequence[str], measure: Recorder) -> None:
    """Check that a node that looks in another folder is detected."""
    if len(sharing) < 2:
        measure.control("lost files", "a node reads elsewhere", None, saw="no two nodes share it")
        return
    victim = sharing[-1]
    place = storage.places[victim]
    elsewhere = {victim: replace(place, name=f"{place.name}-none")}
    trial = measure.trial()
    answers = storage.exchange(sharing, SHORT_S, elsewhere)
    judge_exchange(answers, storage.names, storage.where, trial)
    fault = f"{storage.names[victim]} looks for the others' files in a folder that has none"
    measure.control("lost files", fault, trial)


def control_careless_node(storage: StorageRound, sharing: Sequence[str], measure: Recorder) -> None:
    """Check that a node that breaks the rules of files that several nodes use is detected."""
    fault = "a node creates without O_EXCL and writes in place"
    if len(sharing) < 2:
        measure.control("careless node", fault, None, saw="no two nodes share it")
        return
    victim = sharing[-1]
    fault = f"{storage.names[victim]} creates without O_EXCL, and writes a file in place"
    trial = measure.trial()
    judge_races(storage.race(sharing, victim), sharing, storage.names, storage.where, trial)
    without = {
        name
        for name in ("lost_lines", "lost_updates")
        if measure.contract.limit("HOSTS", name) is None
    }
    measure.control("careless node", fault, trial, without=without)


def control_slow_node(
    storage: StorageRound,
    timings: Mapping[str, Timings],
    size: Size,
    agreed: set[str],
    compares: bool,
    measure: Recorder,
) -> None:
    """Check that a node that writes and reads with pauses is detected."""
    members = [
        id for id in storage.sharing if all(one.get(id, {}).get("done") for one in timings.values())
    ]
    fault = "a node pauses while it writes and reads"
    if len(members) < 2 or not timings:
        measure.control("slow node", fault, None, saw="no two nodes wrote and read")
        return
    victim = members[-1]
    works = [
        storage.plan_work(
            kind, victim, size, find_pause(kind, timings[kind], victim, size, agreed, measure)
        )
        for kind in timings
    ]
    fault = f"{storage.names[victim]} pauses while it writes and reads"
    answer = storage.cluster.on_each_node(do_all_work, each={victim: works}).get(victim)
    if answer is None:
        measure.control("slow node", fault, None, saw=f"{storage.names[victim]} does not answer")
        return
    trial = measure.trial()
    for kind, timing in zip(timings, answer, strict=True):
        slow = {**timings[kind], victim: timing}
        shares = find_shares(slow, size.count(kind))
        judge_shares(kind, shares, slow, [victim], storage.names, storage.where, trial)
        if kind in RATES:
            judge_together(kind, slow, storage.where, agreed, trial)
    without = {*RATES.values()} - agreed | ({*MEASURES.values()} if not compares else set())
    measure.control("slow node", fault, trial, without=without)


def find_pause(
    kind: str, timings: Timings, victim: str, size: Size, agreed: set[str], measure: Recorder
) -> float:
    """Compute the pause after each chunk or block that makes a node slower than is allowed."""
    usual = median_timing(timings, victim)
    seconds = usual["seconds"] * size.count(kind) / usual["done"]
    limit = measure.contract.limit("HOSTS", MEASURES[kind])
    needed = (seconds + NOISE_S) / ((limit.low if limit else None) or 1)
    rate = measure.contract.limit("HOSTS", RATES[kind]) if RATES.get(kind) in agreed else None
    if rate and rate.low:
        needed = max(needed, sum(one["done"] for one in timings.values()) / (rate.low * 1e9))
    steps = size.count(kind) / (LOADERS if kind == RANDOM else CHUNK)
    return float(min(FACTOR * needed, MOST_PAUSE_S) / max(1.0, steps))


def control_no_folder(storage: StorageRound, size: Size, measure: Recorder) -> None:
    """Check that a node that cannot write is detected."""
    victim = list(storage.places)[-1]
    place = Place(NO_FOLDER, storage.places[victim].name, victim)
    work = replace(storage.plan_work(WRITE, victim, size), place=place)
    answers: dict[str, Any] = storage.cluster.on_each_node(do_work, each={victim: work})
    fault = f"{storage.names[victim]} writes its shard to {NO_FOLDER}"
    if victim not in answers:
        measure.control("no folder", fault, None, saw=f"{storage.names[victim]} does not answer")
        return
    trial = measure.trial()
    errors = {victim: answers[victim]["error"]} if answers[victim]["error"] else {}
    judge_failures(errors, [], storage.names, NO_FOLDER, trial)
    measure.control("no folder", fault, trial)


def control_larger_saves(
    storage: StorageRound, ranks: int, saves: float | None, save_gb: float, measure: Recorder
) -> None:
    """Check that saves as large as all free room do not fit often enough."""
    fault = "each save is as large as the free room"
    if not saves:
        measure.control("larger saves", fault, None, saw="the free room is not known, or none")
        return
    trial = measure.trial()
    judge_room(storage.opened, storage.names, storage.where, ranks, save_gb * saves, trial)
    measure.control("larger saves", fault, trial)
