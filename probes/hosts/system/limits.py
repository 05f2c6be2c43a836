"""Judges the limits, shared memory, room and raylets of each node, as a job sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.facts.process_limits import UNLIMITED
from probes.findings import finding, join_names
from reports.numbers import percent

Facts = Mapping[str, Any]
GIB, MIB = 2**30, 2**20  # bytes
MOST_FILES = 2**20  # what "unlimited" open files are: the kernel's fs.nr_open
TEMPORARY_GIB = 1.0  # free space of the temporary folder that is enough, however large the disk
ENOUGH_FILES = 50_000  # free inodes that are enough: a Python environment with torch takes 30,000


@dataclass(frozen=True)
class Reading:
    """Value of a measure on one node, why there is none, and text and names of a finding."""

    value: float | None
    note: str = ""
    text: str = ""
    names: Facts = field(default_factory=dict)


def read_open_files(system: Facts, ranks: int) -> Reading:
    """Read how many files a worker may open."""
    soft, hard = (MOST_FILES if n == UNLIMITED else n for n in system["limits"]["open_files"])
    return Reading(soft, text=f"a worker may open {soft} files (hard limit: {hard})")


def read_locked_memory(system: Facts, ranks: int) -> Reading:
    """Read how much memory (GiB) a worker may lock: all of it, where no limit holds."""
    limits, ram = system["limits"], system["settings"]["ram_gib"]
    soft = limits["locked_bytes"][0]
    if limits["locks_any"] or soft == UNLIMITED:
        return Reading(ram, "the size of the node's memory could not be read")
    return Reading(soft / GIB, text=f"a worker may lock {soft // 2**10} KiB of memory")


def read_stack(system: Facts, ranks: int) -> Reading:
    """Read how large (MiB) the stack of a worker may grow; without a limit, as its memory."""
    soft = system["limits"]["stack_bytes"][0]
    if soft == UNLIMITED:
        ram = system["settings"]["ram_gib"]
        return Reading(ram and ram * 1024, "the size of the node's memory could not be read")
    return Reading(soft / MIB, text=f"the stack of a worker may have {soft // 2**10} KiB")


def read_shared_memory(system: Facts, ranks: int) -> Reading:
    """Read the size of /dev/shm (GiB).  Memory is its limit where it reports no size."""
    room = system["shared_memory"]
    if room["error"]:
        return Reading(0, text=f"no file can be written in {room['path']}: {room['error']}")
    if not room["size_gib"]:
        return Reading(system["settings"]["ram_gib"], "neither its size nor memory could be read")
    text = f"{room['path']} has {room['size_gib'] * 1024:.0f} MiB, {percent(room['free_share'])}"
    return Reading(room["size_gib"], text=f"{text} of it free")


def read_threads(system: Facts, ranks: int) -> Reading:
    """Read how many more threads each rank of the node may start."""
    bound, room = min(system["threads"].items(), key=lambda item: item[1])
    text = f"a worker's user may start {room} more threads for {ranks} ranks, by {bound}"
    return Reading(room / ranks, text=text)


def read_temporary_room(system: Facts, ranks: int) -> Reading:
    """Read the free share of the fuller of two folders: Ray's session, and temporary files."""
    session, temporary = system["session"], system["temporary"]
    shares = (free_share(session, None), session), (free_share(temporary), temporary)
    share, room = min(shares, key=itemgetter(0))
    where = f"{room['path']} ({room['file_system'] or 'unknown file system'})"
    if room["error"]:
        text = f"no file can be written in {where}: {room['error']}"
        return Reading(0, text=text, names={"folder": room["path"]})
    files = "" if room["free_files"] is None else f", and {room['free_files']} free inodes"
    text = f"{where} has {percent(room['free_share'])} ({room['free_gib']:.3g} GiB) free{files}"
    return Reading(share, text=text, names={"folder": room["path"]})


def free_share(room: Facts, enough_gib: float | None = TEMPORARY_GIB) -> float:
    """Compute the free share of a folder, by bytes and inodes: 1 where there is enough of them.

    Without `enough_gib` the share alone counts, as for Ray.
    """
    if room["error"]:
        return 0.0
    shares = [1.0]
    if enough_gib is None or room["free_gib"] < enough_gib:
        shares.append(room["free_share"])
    if room["free_files"] is not None and room["free_files"] < ENOUGH_FILES:
        shares.append(room["free_files_share"])
    return min(shares)


def read_strays(system: Facts, ranks: int) -> Reading:
    """Count the raylets of other clusters.  The node's own must be seen, or none can be."""
    found = system["raylets"]
    others = [one for one in found["others"] if one["session"]]
    if len(others) < len(found["others"]) and not others:
        return Reading(None, "a raylet does not name its session on its command line")
    if not others and found["hidden"]:
        return Reading(None, "processes of other users are hidden (/proc has option hidepid)")
    if not others and not found["own"]:
        return Reading(None, "the node's own raylet is not among the processes that a worker sees")
    names = (f"process {one['pid']} ({one['session']})" for one in others)
    text = f"raylets of another cluster run: {join_names(names)}"
    return Reading(len(others), text=text, names={"pid": others[0]["pid"]} if others else {})


# measure: (finding, reader)
READERS: dict[str, tuple[str, Callable[[Facts, int], Reading]]] = {
    "open_files": ("HOST-OPEN-FILES", read_open_files),
    "locked_memory": ("HOST-LOCKED-MEMORY", read_locked_memory),
    "stack": ("HOST-STACK", read_stack),
    "shared_memory": ("HOST-SHARED-MEMORY", read_shared_memory),
    "processes": ("HOST-PROCESSES", read_threads),
    "temp_room": ("HOST-TEMP-FULL", read_temporary_room),
    "stray_raylets": ("HOST-STRAY-RAYLET", read_strays),
}


def judged_measures(embedded: bool, rdma: bool) -> list[str]:
    """List the measures that are judged here.

    An embedded cluster has the limits of the shell that started it, and shares its host with
    others.  Memory is locked for RDMA alone.
    """
    without = {"open_files", "stack", "shared_memory", "stray_raylets"} if embedded else set[str]()
    if embedded or not rdma:
        without.add("locked_memory")
    return [name for name in READERS if name not in without]


def judge_system(
    facts: Sequence[Facts],
    ranks: Mapping[str, int],
    measures: Iterable[str],
    measure: Recorder,
    silent: Sequence[str] = (),
) -> None:
    """Judge these measures on each node; `ranks` is by node id.  Equal faults are one finding.

    `silent` are the names of nodes without facts: nothing is proven of them.
    """
    for name in measures:
        code, read = READERS[name]
        failed: dict[str, list[str]] = defaultdict(list)
        known: dict[str, Facts] = {}
        for fact in facts:
            reading = try_reader(read, fact.get("system", {}), max(1, ranks.get(fact["node"], 1)))
            measure(name, reading.value, on=fact["name"], note=reading.note)
            if measure.would_fail(name, reading.value):
                failed[reading.text].append(fact["name"])
                known.setdefault(reading.text, reading.names)
        for node in silent:
            measure(name, None, on=node, note="the node does not answer")
        for text, nodes in failed.items():
            statement = f"{join_names(nodes)}: {text}"
            measure.explain(finding(code, statement, nodes, names=known[text]))


def try_reader(read: Callable[[Facts, int], Reading], system: Facts, ranks: int) -> Reading:
    """Return the reading; without a value if a part of the facts could not be read."""
    try:
        return read(system, ranks)
    except (KeyError, TypeError, ValueError):
        reasons = [part["unreadable"] for part in system.values() if "unreadable" in part]
        return Reading(None, f"it could not be read: {'; '.join(reasons) or 'facts are missing'}")
