"""Judges the shared folder: whether it is one, its speed, its room; and controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median, median_high
from typing import Any

from probes.check.judging import is_agreed, judge_if_agreed, plant, plant_on
from probes.check.recorder import Recorder, Trial
from probes.contract.terms import ClusterTerms
from probes.findings import join_names
from probes.hosts import criterion as check
from probes.hosts.names import Link, blame_nodes
from probes.hosts.storage_round import CREATED, OTHER_FOLDER, StorageRound
from probes.hosts.storage_work import CHUNK, RANDOM, READ, WRITE, Place, Size, do_all_work, do_work
from reports.numbers import percent, quantity

Answers = Mapping[Link, Mapping[str, Any] | None]
Parts = Mapping[str, Mapping[str, Any]]  # node id -> what it answered
Timings = Parts  # of `do_work`
Steps = Mapping[str, Timings]  # by kind of work
Shares = Mapping[str, float]  # of the others' speed, by node id
Ids = Sequence[str]  # of nodes
SILENT = "{} did not answer"
ALONE = "fewer than two nodes share the folder"


def judge_exchange(storage: StorageRound, answers: Answers, measure: Recorder) -> list[str]:
    """Judge that each node reads what others wrote, and how soon; return the nodes apart.

    A node apart does not see some file of the others, or they do not see its file.
    """
    known = {link: one for link, one in answers.items() if one is not None}
    failed = {link: str(one["problem"]) for link, one in known.items() if one["problem"]}
    silent = sorted({storage.names[link[0]] for link in answers if link not in known})
    note = SILENT.format(join_names(silent)) if silent else ("" if answers else ALONE)
    count = None if note and not failed else len(failed)
    measure(check.UNSEEN_FILES, count, on=storage.where, note=note)
    delays = {link: s for link, one in known.items() if (s := one["seconds"]) is not None}
    slowest = max(delays.values(), default=None)
    is_late = measure.would_fail(check.SEEN_AFTER, slowest)
    value = slowest if is_late or not (note or failed) else None
    why = note or ("some files were not seen" if failed else "")
    measure(check.SEEN_AFTER, value, on=storage.where, note=why if value is None else "")
    apart = explain_unseen(storage, list(known), failed, measure)
    if is_late:
        explain_late(storage, delays, measure)
    return apart


def explain_unseen(
    storage: StorageRound, tried: Sequence[Link], failed: Mapping[Link, str], measure: Recorder
) -> list[str]:
    """Explain the files that were not seen, by nodes where that is possible; return these nodes."""
    blame, names, folder = blame_nodes(tried, list(failed)), storage.names, storage.where
    for node in dict.fromkeys([*blame.unreaching, *blame.unreached]):
        if node not in blame.unreaching:
            text = f"Other nodes cannot read the files of {names[node]} in {folder}"
        elif node in blame.unreached:
            text = f"{names[node]} and the other nodes cannot read each other's files in {folder}"
        else:
            problem = next(text for link, text in failed.items() if link[0] == node)
            text = f"{names[node]} cannot read files of the other nodes in {folder}: {problem}"
        storage.explain(measure, "HOST-SHARED", text, [node])
    for reader, writer in blame.pairs:
        problem, peer = failed[reader, writer], names[writer]
        text = f"{names[reader]} cannot read the file of {peer} in {folder}: {problem}"
        storage.explain(measure, "HOST-SHARED", text, [reader, writer], peer=peer)
    return sorted({*blame.unreached, *blame.unreaching}.union(*blame.pairs))


def explain_late(storage: StorageRound, delays: Mapping[Link, float], measure: Recorder) -> None:
    """Explain the files that were seen too late, by nodes where that is possible."""
    late = {link: s for link, s in delays.items() if measure.would_fail(check.SEEN_AFTER, s)}
    blame = blame_nodes(list(delays), list(late))
    ends = [*blame.unreaching, *blame.unreached] or [id for link in blame.pairs for id in link]
    nodes = list(dict.fromkeys(ends))
    seconds, who = quantity(max(late.values()), "s"), storage.name_all(nodes)
    text = (
        f"Files of other nodes are seen in {storage.where} only after {seconds}. "
        f"Nodes concerned: {who}"
    )
    storage.explain(measure, "HOST-STORAGE-LATE", text, nodes)


def judge_races(storage: StorageRound, answers: Parts, among: Ids, measure: Recorder) -> None:
    """Judge what nodes did with the same files at once.  `answers` are as in StorageRound.race."""
    judge_created(storage, answers, among, measure)
    judge_replaced(storage, answers, among, measure)
    judge_traces(storage, answers, measure)


def judge_created(storage: StorageRound, answers: Parts, among: Ids, measure: Recorder) -> None:
    """Judge that each file was created by exactly one node, with O_EXCL."""
    mine = {id: answers[id]["created"].get("mine") for id in among if id in answers}
    owners = [[id for id in mine if at in (mine[id] or ())] for at in range(CREATED)]
    unknown = len(among) < 2 or any(mine.get(id) is None for id in among)
    wrong = [ids for ids in owners if len(ids) > 1 or not (ids or unknown)]
    count = None if unknown and not wrong else len(wrong)
    note = _why_missing(storage, answers, among, "created")
    measure(check.DOUBLE_CREATIONS, count, on=storage.where, note=note)
    if wrong:
        times = Counter(id for ids in wrong for id in ids)
        always = [id for id in times if times[id] == len(wrong)]
        ids = always if len(always) == 1 else list(times)
        who = f". Nodes concerned: {storage.name_all(ids)}" if ids else ""
        text = (
            f"Several nodes, or none, created {len(wrong)} of {CREATED} files in {storage.where}. "
            f"Expected: exactly one node, by O_EXCL{who}"
        )
        storage.explain(measure, "HOST-STORAGE-EXCL", text, ids)


def judge_replaced(storage: StorageRound, answers: Parts, among: Ids, measure: Recorder) -> None:
    """Judge that readers always found a complete version of a file that was replaced."""
    parts = {id: answers[id].get("replaced", {}) for id in among if id in answers}
    readers = {id: part for id, part in parts.items() if "reads" in part}
    gaps = {id: part["gaps"] for id, part in readers.items() if part["gaps"]}
    blind = [id for id, part in readers.items() if not part["reads"]]
    note = _why_missing(storage, answers, among, "replaced")
    if blind:
        note = f"{storage.name_all(blind)} did not see the file that another node replaces"
    total = sum(gaps.values())
    count = total if total or (readers and not note) else None
    measure(check.RENAME_GAPS, count, on=storage.where, note=note)
    measure.note("stale_handles", sum(part["stale"] for part in readers.values()), "reads")
    if gaps:
        reads = sum(part["reads"] for part in readers.values())
        text = (
            f"While a file in {storage.where} was replaced by rename, {total} of {reads} reads "
            f"found no complete file. Nodes concerned: {storage.name_all(gaps)}"
        )
        storage.explain(measure, "HOST-STORAGE-RENAME", text, gaps)


def _why_missing(storage: StorageRound, answers: Parts, among: Ids, key: str) -> str:
    """Describe why a part of the answers is missing; "" if none is."""
    if len(among) < 2:
        return ALONE
    if silent := [id for id in among if id not in answers]:
        return SILENT.format(storage.name_all(silent))
    parts = {id: answers[id].get(key, {}) for id in among}
    errors = (f"{storage.names[id]}: {one['error']}" for id, one in parts.items() if "error" in one)
    return join_names(errors, 3)


# (measure, unit, key of what a node did, its number there, key of what is left, code).
TRACES = (
    (check.LOST_LINES, "lines", "appended", "lines", "lines", "HOST-STORAGE-APPEND"),
    (check.LOST_UPDATES, "updates", "locked", "times", "number", "HOST-STORAGE-LOCK"),
)


def judge_traces(storage: StorageRound, answers: Parts, measure: Recorder) -> None:
    """Judge, where that is agreed, that no appended line and no addition under a lock was lost.

    Many sound clusters do not promise it: NFS appends without atomicity, and locks of Lustre and
    NFS may hold on one node alone.
    """
    left, folder = answers.get("", {}), storage.where
    for name, unit, key, own, trace, code in TRACES:
        done = [one[key] for id, one in answers.items() if id and key in one]
        errors = sorted({one["error"] for one in done if "error" in one})
        wanted = sum(one.get(own, 0) for one in done)
        known = len(done) > 1 and trace in left and wanted > 0 and not errors
        value = max(0, wanted - left[trace]) if known else None
        note = "" if known else join_names(errors, 3) or "the nodes did not finish this test"
        judge_if_agreed(measure, name, value, unit, on=folder, note=note)
        if value and measure.would_fail(name, value):
            text = f"{len(done)} nodes made {wanted} {unit} in one file in {folder}. Lost: {value}"
            storage.explain(measure, code, text)


MEASURES = {WRITE: check.SHARD_WRITE, READ: check.SHARD_READ, RANDOM: check.RANDOM_READ}
RATES = {WRITE: check.WRITE_RATE, READ: check.READ_RATE}  # of all nodes together
DOING = {WRITE: "writes its shard", READ: "reads a shard", RANDOM: "reads random blocks"}
UNITS = {WRITE: "bytes/s", READ: "bytes/s", RANDOM: "reads/s"}  # others are files/s
NOISE_S = 0.25  # s that a worker on a busy node may wait for a CPU: differences below mean nothing
NO_SPACE = ("No space left on device", "Disk quota exceeded")


def find_shares(timings: Timings, count: int) -> dict[str, float]:
    """Compute each node's speed as a share of the typical speed of the others, 1 at most.

    `count` is the work of each node.  A node that was cut short counts as if it had gone on.  Of
    two others the slower is typical: the faster may be the server itself.
    """
    done = {id: one for id, one in timings.items() if one["done"]}
    seconds = {id: one["seconds"] * count / one["done"] for id, one in done.items()}
    shares = {}
    for id, own in seconds.items():
        if others := [one for other, one in seconds.items() if other != id]:
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
    return shares | {id: max(shares[id], again.get(id, 0.0)) for id in slow}


def judge_shares(
    storage: StorageRound,
    kind: str,
    shares: Shares,
    timings: Timings,
    among: Ids,
    measure: Recorder,
) -> None:
    """Judge each node's share of the typical speed, and name the slow ones."""
    for id in among:
        name, share = storage.names[id], shares.get(id)
        missing = timings.get(id, {}).get("error") or "the node did not answer"
        measure(MEASURES[kind], share, on=name, note=missing if share is None else "")
        if share is not None and measure.would_fail(MEASURES[kind], share):
            own, usual = timings[id], median_timing(timings, id)
            text = (
                f"{name} {DOING[kind]} in {storage.where} at {percent(share)} of the other nodes' "
                f"speed ({describe_rate(kind, own)}, the others {describe_rate(kind, usual)})"
            )
            storage.explain(measure, "HOST-STORAGE-SLOW", text, [id])


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
    storage: StorageRound, failures: Mapping[str, str], silent: Ids, measure: Recorder
) -> None:
    """Judge that every node could write a shard and read one; equal errors are one finding."""
    unknown = [id for id in silent if id not in failures]
    value = None if unknown and not failures else len(failures)
    note = SILENT.format(storage.name_all(unknown)) if unknown else ""
    measure(check.FAILED_SHARDS, value, on=storage.where, note=note)
    for error in dict.fromkeys(failures.values()):
        ids = [id for id, one in failures.items() if one == error]
        code = "HOST-STORAGE-FULL" if error in NO_SPACE else "HOST-STORAGE-ERROR"
        text = f"{storage.name_all(ids)} cannot write or read files in {storage.where}: {error}"
        storage.explain(measure, code, text, ids)


def judge_rates(
    storage: StorageRound, steps: Steps, size: Size, measure: Recorder
) -> dict[str, Timings]:
    """Judge each node's speed against the others', if that is fair; return the timings by kind.

    `steps` are the timings of writing and reading.
    """
    timings = {**steps, RANDOM: storage.work(RANDOM, storage.sharing, size)}
    for kind, rows in timings.items():
        note_speeds(storage, kind, rows, measure)
        if storage.compares:
            is_slow = partial(measure.would_fail, MEASURES[kind])
            repeat = partial(storage.work, kind, size=size)
            shares = confirm_slow(rows, size.count(kind), is_slow, repeat)
            judge_shares(storage, kind, shares, rows, storage.sharing, measure)
    return timings


def agreed_rates(tier: str, measure: Recorder) -> set[str]:
    """Return the speeds of all nodes together that are judged: agreed, and not in a quick run.

    A quick run writes too little for that: how soon storage answers counts there, not its speed.
    """
    return {name for name in RATES.values() if tier != "quick" and is_agreed(measure, name)}


def judge_together(
    storage: StorageRound, kind: str, timings: Timings, agreed: set[str], measure: Recorder
) -> None:
    """Judge the speed of all nodes at once (GB/s) where that is agreed; otherwise record it."""
    name, subject = RATES[kind], f"{storage.where}, {len(timings)} nodes at once"
    value = together(timings)
    if name not in agreed:
        measure.note(name, value, "GB/s", on=subject)
        return
    measure(name, value, on=subject, note="" if value else "no node finished this test")
    if value is not None and measure.would_fail(name, value):
        text = (
            f"{len(timings)} nodes at once {kind} {quantity(value, 'GB/s')} in {storage.where}. "
            f"Agreed: {measure.contract.limit('HOSTS', name)}"
        )
        storage.explain(measure, "HOST-STORAGE-RATE", text)


def together(timings: Timings) -> float | None:
    """Compute the speed of all nodes together (GB/s): until the last has ended."""
    seconds = max((one["seconds"] for one in timings.values()), default=0.0)
    return sum(one["done"] for one in timings.values()) / seconds / 1e9 if seconds else None


def note_alone(storage: StorageRound, size: Size, measure: Recorder) -> None:
    """Record the speed of one node that writes alone."""
    for id, one in storage.work(WRITE, storage.sharing[:1], size).items():
        measure.note("write_speed_alone", speed(one), UNITS[WRITE], on=storage.names[id])


def note_speeds(storage: StorageRound, kind: str, timings: Timings, measure: Recorder) -> None:
    """Record the typical and the slowest node's speed."""
    done = {id: speed(one) for id, one in timings.items() if one["done"]}
    if not done:
        return
    unit, slowest = UNITS.get(kind, "files/s"), min(done, key=lambda id: done[id])
    measure.note(f"{kind}_speed", median(done.values()), unit, on=f"a node in {storage.where}")
    measure.note(f"slowest_{kind}_speed", done[slowest], unit, on=storage.names[slowest])


GIB = 2**30  # bytes
QUICK = Size(4 * CHUNK, 256, 30)  # 16 MiB: a second's work in all
USUAL, MOST = 64 * CHUNK, 256 * CHUNK  # bytes of a shard in longer tiers: 256 MiB, 1 GiB at most
LONG_READS, LONG_FILES = 2048, 300  # some seconds of work, on storage that is not fast
MOST_USED = 0.5  # share of the free room that the probe may fill


def read_rooms(opened: Parts) -> dict[str, dict[str, Any]]:
    """Map node id to the room of the folder, for each node that could read it."""
    return {id: one["room"] for id, one in opened.items() if "free_gib" in one["room"]}


def choose_size(tier: str, terms: ClusterTerms, nodes: int, opened: Parts) -> Size:
    """Choose how much each node writes: a shard of the agreed save in the longer tiers."""
    if tier == "quick":
        return QUICK
    agreed = int(terms.save_gb * 1e9 / nodes) if terms.save_gb else USUAL
    rooms = [room["free_gib"] for room in read_rooms(opened).values() if room["size_gib"]]
    most = int(min(rooms) * GIB * MOST_USED / nodes) if rooms else MOST
    chunks = min(agreed, most, MOST) // CHUNK
    return Size(max(QUICK.shard_bytes, chunks * CHUNK), LONG_READS, LONG_FILES)


def judge_room(
    storage: StorageRound, ranks: int, save_gb: float | None, measure: Recorder
) -> float | None:
    """Judge how many saves fit into the folder, where their size is agreed; return that number.

    The node that sees the least room counts.  A folder that reports no size has no limit.
    """
    folder, rooms = storage.where, read_rooms(storage.opened)
    sized = {id: room for id, room in rooms.items() if room["size_gib"]}
    if not sized:
        note = "the file system reports no size" if rooms else "no node could read the free space"
        if save_gb:
            measure(check.CHECKPOINT_ROOM, None, on=folder, note=note)
        return None
    least = min(sized, key=lambda id: sized[id]["free_gib"])
    free, node = sized[least], storage.names[least]
    measure.note("free_room", free["free_gib"], "GiB", on=f"{folder} on {node}")
    if not save_gb:
        return None
    saves = free["free_gib"] * GIB / (save_gb * 1e9)
    if free["free_files"] is not None:
        saves = min(saves, free["free_files"] / (ranks + 1))  # a file of each rank, and an index
    measure(check.CHECKPOINT_ROOM, saves, on=folder)
    if measure.would_fail(check.CHECKPOINT_ROOM, saves):
        files = "" if free["free_files"] is None else f" and {free['free_files']} inodes"
        text = (
            f"{folder} has room for {quantity(saves, 'saves')} of {quantity(save_gb, 'GB')}: "
            f"{quantity(free['free_gib'], 'GiB')}{files} are free, as {node} reports"
        )
        storage.explain(measure, "HOST-STORAGE-FULL", text, [least])
    return saves


SHORT_S = 1.0  # s that a node looks for files in a folder where they never come
FACTOR = 1.5  # how much slower than the limit a slow node is
MOST_PAUSE_S = 20.0  # s of all pauses of a slow node: a limit that needs more is not shown
UNSHARED = "no two nodes share the folder"


def control_sharing(storage: StorageRound, sharing: Ids, measure: Recorder) -> None:
    """Check that a node is detected that looks in another folder, and one that breaks the rules.

    The rules are those of files that several nodes use.
    """
    name = storage.names[sharing[-1]] if len(sharing) > 1 else "a node"
    lost = f"{name} looks for the other nodes' files in an empty folder"
    careless = f"{name} creates files without O_EXCL, and writes a file in place"
    if len(sharing) < 2:
        measure.control(check.LOST_FILES, lost, None, saw=UNSHARED)
        measure.control(check.CARELESS_NODE, careless, None, saw=UNSHARED)
        return
    place = storage.places[victim := sharing[-1]]
    elsewhere = {victim: replace(place, name=f"{place.name}-none")}
    exchanged = storage.exchange(sharing, SHORT_S, elsewhere)
    plant(measure, check.LOST_FILES, lost, partial(judge_exchange, storage, exchanged))
    judge = partial(judge_races, storage, storage.race(sharing, victim), sharing)
    without = {trace for trace, *_ in TRACES if not is_agreed(measure, trace)}
    plant(measure, check.CARELESS_NODE, careless, judge, without=without)


def control_slow_node(
    storage: StorageRound, timings: Steps, size: Size, agreed: set[str], measure: Recorder
) -> None:
    """Check that a node that writes and reads with pauses is detected."""
    did = [{id for id, one in rows.items() if one["done"]} for rows in timings.values()]
    members = [id for id in storage.sharing if all(id in ids for ids in did)]
    if len(members) < 2 or not timings:
        fault = "a node pauses while it writes and reads in the shared folder"
        measure.control(check.SLOW_NODE, fault, None, saw="no two nodes wrote and read there")
        return
    victim = members[-1]
    works = []
    for kind, rows in timings.items():
        pause = find_pause(kind, rows, victim, size, agreed, measure)
        works.append(storage.plan_work(kind, victim, size, pause))

    def judge(answer: Sequence[Mapping[str, Any]], trial: Trial) -> None:
        for kind, timing in zip(timings, answer, strict=True):
            slow = {**timings[kind], victim: timing}
            judge_shares(storage, kind, find_shares(slow, size.count(kind)), slow, [victim], trial)
            if kind in RATES:
                judge_together(storage, kind, slow, agreed, trial)

    without = {*RATES.values()} - agreed
    if not storage.compares:
        without |= {*MEASURES.values()}
    fault, where = "pauses while it writes and reads", storage.node(victim)
    given = (check.SLOW_NODE, fault, where, do_all_work, works)
    plant_on(storage.cluster, measure, *given, judge=judge, without=without)


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
    return float(min(FACTOR * needed, MOST_PAUSE_S) / max(1.0, size.steps(kind)))


def control_no_folder(storage: StorageRound, size: Size, measure: Recorder) -> None:
    """Check that a node that cannot write is detected."""
    victim = list(storage.places)[-1]
    elsewhere = replace(storage, parent=OTHER_FOLDER)
    place = Place(OTHER_FOLDER, storage.places[victim].name, victim)
    work = replace(storage.plan_work(WRITE, victim, size), place=place)

    def judge(answer: Mapping[str, Any], trial: Trial) -> None:
        errors = {victim: str(answer["error"])} if answer["error"] else {}
        judge_failures(elsewhere, errors, [], trial)

    fault = f"writes its shard to {OTHER_FOLDER}"
    at = storage.node(victim)
    plant_on(storage.cluster, measure, check.NO_FOLDER, fault, at, do_work, work, judge=judge)


def control_larger_saves(
    storage: StorageRound, saves: float | None, save_gb: float, measure: Recorder
) -> None:
    """Check that saves as large as all free room do not fit often enough."""

    def judge(trial: Trial) -> None:
        judge_room(storage, storage.cluster.size, save_gb * (saves or 0.0), trial)

    fault, unable = "each save is as large as the free room", "the free room is not known, or zero"
    plant(measure, check.LARGER_SAVES, fault, judge, unable="" if saves else unable)
