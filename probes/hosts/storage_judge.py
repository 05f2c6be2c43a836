"""Judges the shared folder: whether it is one, its speed, its room; and controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from probes.check.recorder import Recorder
from probes.contract.terms import ClusterTerms
from probes.findings import finding, join_names
from probes.hosts.names import blame_nodes
from probes.hosts.storage_round import CREATED, Link, StorageRound
from probes.hosts.storage_work import (
    CHUNK,
    LOADERS,
    MEASURES,
    NOISE_S,
    RANDOM,
    READ,
    WRITE,
    Place,
    Size,
    Timings,
    confirm_slow,
    do_all_work,
    do_work,
    find_shares,
    judge_failures,
    judge_shares,
    median_timing,
    read_rooms,
    speed,
)
from reports.numbers import number, quantity
from reports.record import Finding

Answers = Mapping[Link, Mapping[str, Any] | None]
Names = Mapping[str, str]
SILENT = "{} did not answer"
ALONE = "fewer than two nodes share the folder"


def judge_exchange(answers: Answers, names: Names, folder: str, measure: Recorder) -> list[str]:
    """Judge that each node reads what others wrote, and how soon; return the nodes apart.

    A node apart does not see some file of the others, or they do not see its file.
    """
    known = {link: one for link, one in answers.items() if one is not None}
    failed = {link: str(one["problem"]) for link, one in known.items() if one["problem"]}
    silent = sorted({names[reader] for reader, writer in answers if (reader, writer) not in known})
    note = SILENT.format(join_names(silent)) if silent else ("" if answers else ALONE)
    unknown = not answers or bool(silent)
    measure("unseen_files", None if unknown and not failed else len(failed), on=folder, note=note)
    delays = [one["seconds"] for one in known.values() if one["seconds"] is not None]
    slowest = max(delays, default=None)
    is_late = measure.would_fail("seen_after", slowest)
    value = slowest if is_late or not (unknown or failed) else None
    why = note or ("some files were not seen" if failed else "")
    measure("seen_after", value, on=folder, note=why if value is None else "")
    blame = blame_nodes(list(known), list(failed))
    measure.explain(find_unseen(blame, failed, names, folder))
    if is_late:
        measure.explain(find_late(known, names, folder, measure))
    ends = {node for link in blame.pairs for node in link}
    return sorted({*blame.unreached, *blame.unreaching, *ends})


def find_unseen(blame: Any, failed: Mapping[Link, str], names: Names, folder: str) -> list[Finding]:
    """Explain the files that were not seen, by nodes where that is possible."""
    found = []
    both = set(blame.unreached) & set(blame.unreaching)
    for node in dict.fromkeys([*blame.unreaching, *blame.unreached]):
        name = names[node]
        if node in both:
            text = f"{name} does not see files of the others in {folder}, nor they its files"
        elif node in blame.unreaching:
            problem = next(text for link, text in failed.items() if link[0] == node)
            text = f"{name}: {problem} files of the other nodes in {folder}"
        else:
            text = f"Other nodes do not see the files of {name} in {folder}"
        found.append(finding("HOST-SHARED", text, [name], names={"folder": folder}))
    for reader, writer in blame.pairs:
        problem = failed[reader, writer]
        text = f"{names[reader]}: {problem} the file of {names[writer]} in {folder}"
        suspects, known = [names[reader], names[writer]], {"folder": folder, "peer": names[writer]}
        found.append(finding("HOST-SHARED", text, suspects, names=known))
    return found


def find_late(
    known: Mapping[Link, Mapping[str, Any]], names: Names, folder: str, measure: Recorder
) -> list[Finding]:
    """Explain the files that were seen too late, by nodes where that is possible."""
    late = {
        link: one["seconds"]
        for link, one in known.items()
        if measure.would_fail("seen_after", one["seconds"])
    }
    tried = [link for link, one in known.items() if one["seconds"] is not None]
    blame = blame_nodes(tried, list(late))
    nodes = list(dict.fromkeys([*blame.unreaching, *blame.unreached]))
    nodes = nodes or list(dict.fromkeys(node for link in blame.pairs for node in link))
    who = [names[node] for node in nodes]
    seconds = quantity(max(late.values()), "s")
    text = f"Files of other nodes are seen in {folder} only after {seconds}: {join_names(who)}"
    return [finding("HOST-STORAGE-LATE", text, who, names={"folder": folder})]


def judge_races(
    answers: Mapping[str, Mapping[str, Any]],
    among: Sequence[str],
    names: Names,
    folder: str,
    measure: Recorder,
) -> None:
    """Judge what nodes did with the same files at once.  `answers` are as in StorageRound.race."""
    judge_created(answers, among, names, folder, measure)
    judge_replaced(answers, among, names, folder, measure)
    judge_traces(answers, folder, measure)


def judge_created(
    answers: Mapping[str, Mapping[str, Any]],
    among: Sequence[str],
    names: Names,
    folder: str,
    measure: Recorder,
) -> None:
    """Judge that each file was created by exactly one node, with O_EXCL."""
    mine = {id: answers[id]["created"].get("mine") for id in among if id in answers}
    missing = [names[id] for id in among if mine.get(id) is None]
    owners: dict[int, list[str]] = {index: [] for index in range(CREATED)}
    for id, numbers in mine.items():
        for index in numbers or ():
            owners[index].append(id)
    wrong = [ids for ids in owners.values() if len(ids) > 1]
    unknown = bool(missing) or len(among) < 2
    wrong += [ids for ids in owners.values() if not ids and not unknown]
    note = _why_missing(answers, among, names, "created")
    measure("double_creations", None if unknown and not wrong else len(wrong), on=folder, note=note)
    if wrong:
        times = Counter(id for ids in wrong for id in ids)
        always = [id for id in times if times[id] == len(wrong)]
        suspects = [names[id] for id in (always if len(always) == 1 else times)]
        text = f"{len(wrong)} of {CREATED} files in {folder} were not created by exactly one node"
        text += f" with O_EXCL: {join_names(suspects)}" if suspects else " with O_EXCL"
        measure.explain(finding("HOST-STORAGE-EXCL", text, suspects, names={"folder": folder}))


def judge_replaced(
    answers: Mapping[str, Mapping[str, Any]],
    among: Sequence[str],
    names: Names,
    folder: str,
    measure: Recorder,
) -> None:
    """Judge that readers always found a complete version of a file that was replaced."""
    parts = {id: answers[id]["replaced"] for id in among if "replaced" in answers.get(id, {})}
    readers = {id: part for id, part in parts.items() if "reads" in part}
    gaps = {id: part["gaps"] for id, part in readers.items() if part["gaps"]}
    blind = [names[id] for id, part in readers.items() if not part["reads"]]
    note = _why_missing(answers, among, names, "replaced")
    if blind:
        note = f"{join_names(blind)} did not see the file"
    unknown = bool(note) or not readers
    total = sum(gaps.values())
    measure("rename_gaps", None if unknown and not total else total, on=folder, note=note)
    measure.note("stale_handles", sum(part["stale"] for part in readers.values()), "reads")
    if gaps:
        reads = sum(part["reads"] for part in readers.values())
        who = [names[id] for id in gaps]
        text = (
            f"While a file in {folder} was replaced by rename, {total} of {reads} reads found no "
            f"file or a part of one: {join_names(who)}"
        )
        measure.explain(finding("HOST-STORAGE-RENAME", text, who, names={"folder": folder}))


def _why_missing(
    answers: Mapping[str, Mapping[str, Any]], among: Sequence[str], names: Names, key: str
) -> str:
    """Describe why a part of the answers is missing; "" if none is."""
    if len(among) < 2:
        return ALONE
    silent = [names[id] for id in among if id not in answers]
    if silent:
        return SILENT.format(join_names(silent))
    errors = {
        names[id]: answers[id][key]["error"] for id in among if "error" in answers[id].get(key, {})
    }
    return join_names((f"{name}: {error}" for name, error in errors.items()), 3)


def judge_traces(answers: Mapping[str, Mapping[str, Any]], folder: str, measure: Recorder) -> None:
    """Judge, where that is agreed, that no appended line and no addition under a lock was lost.

    Many sound clusters do not promise it: NFS appends without atomicity, and locks of Lustre and
    NFS may hold on one node alone.
    """
    parts = [one for id, one in answers.items() if id]
    left = answers.get("", {})
    appended = [part.get("appended", {}) for part in parts if "appended" in part]
    locked = [part.get("locked", {}) for part in parts if "locked" in part]
    rows = (
        ("lost_lines", "lines", "lines", "lines", appended, "HOST-STORAGE-APPEND"),
        ("lost_updates", "updates", "times", "number", locked, "HOST-STORAGE-LOCK"),
    )
    for name, unit, own, trace, done, code in rows:
        errors = sorted({one["error"] for one in done if "error" in one})
        wanted = sum(one.get(own, 0) for one in done)
        known = len(done) > 1 and trace in left and wanted > 0 and not errors
        value = max(0, wanted - left[trace]) if known else None
        note = "" if known else join_names(errors, 3) or "the nodes did not do it"
        judge_if_agreed(measure, name, value, unit, on=folder, note=note)
        if value and measure.would_fail(name, value):
            text = f"{value} of {wanted} {unit} were lost in {folder}, of {len(done)} nodes at once"
            measure.explain(finding(code, text, names={"folder": folder}))


def judge_if_agreed(
    measure: Recorder, name: str, value: float | None, unit: str, *, on: str, note: str = ""
) -> None:
    """Judge a value if the contract has a limit for it; otherwise record that it informs."""
    if measure.contract.limit("HOSTS", name) is None:
        measure.note(name, value, unit, on=on, note=note)
    else:
        measure(name, value, on=on, note=note)


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


GIB = 2**30  # bytes
QUICK = Size(4 * CHUNK, 256, 30)  # 16 MiB: a second's work in all
USUAL, MOST = (
    64 * CHUNK,
    256 * CHUNK,
)  # bytes of a shard in longer tiers: 256 MiB, and 1 GiB at most
LONG_READS, LONG_FILES = 2048, 300  # some seconds of work, on storage that is not fast
MOST_USED = 0.5  # share of the free room that the probe may fill


def choose_size(
    tier: str, terms: ClusterTerms, nodes: int, opened: Mapping[str, Mapping[str, Any]]
) -> Size:
    """Choose how much each node writes: a shard of the agreed save in the longer tiers."""
    if tier == "quick":
        return QUICK
    agreed = int(terms.save_gb * 1e9 / nodes) if terms.save_gb else USUAL
    rooms = [room["free_gib"] for room in read_rooms(opened).values() if room["size_gib"]]
    most = int(min(rooms) * GIB * MOST_USED / nodes) if rooms else MOST
    chunks = min(agreed, most, MOST) // CHUNK
    return Size(max(QUICK.shard_bytes, chunks * CHUNK), LONG_READS, LONG_FILES)


def judge_room(
    opened: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    folder: str,
    ranks: int,
    save_gb: float | None,
    measure: Recorder,
) -> float | None:
    """Judge how many saves fit into the folder, where their size is agreed; return that number.

    The node that sees the least room counts.  A folder that reports no size has no limit.
    """
    rooms = read_rooms(opened)
    sized = {id: room for id, room in rooms.items() if room["size_gib"]}
    if not sized:
        if save_gb:
            note = "the file system reports no size" if rooms else "no node could read it"
            measure("checkpoint_room", None, on=folder, note=note)
        return None
    least = min(sized, key=lambda id: sized[id]["free_gib"])
    free = sized[least]
    measure.note("free_room", free["free_gib"], "GiB", on=f"{folder} on {names[least]}")
    if not save_gb:
        return None
    saves = free["free_gib"] * GIB / (save_gb * 1e9)
    if free["free_files"] is not None:
        saves = min(saves, free["free_files"] / (ranks + 1))  # a file of each rank, and an index
    measure("checkpoint_room", saves, on=folder)
    if measure.would_fail("checkpoint_room", saves):
        text = (
            f"{folder} has room for {number(saves)} saves of {quantity(save_gb, 'GB')}: "
            f"{quantity(free['free_gib'], 'GiB')} are free, seen on {names[least]}"
        )
        known = {"folder": folder}
        measure.explain(finding("HOST-STORAGE-FULL", text, [names[least]], names=known))
    return saves


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
