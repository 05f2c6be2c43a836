"""Judges limits, room and clock of each node, as a worker meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

from probes.check import judging
from probes.check.declarations import Check
from probes.check.judging import ask_victim, condition_holds, explain_alike, plant, record_each
from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.system_facts import UNLIMITED, ClockOffset, ClockReaders, read_node_system
from probes.contract.contract import ClusterTerms
from probes.findings import finding, join_names
from probes.hosts import criterion as check
from probes.hosts.gpu_health import AllFacts, Facts
from reports.numbers import percent, quantity
from reports.record import Finding

Ranks = Mapping[str, int]  # of a node, by its id
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
    return Reading(soft, text=f"a worker can open {soft} files (hard limit: {hard})")


def read_locked_memory(system: Facts, ranks: int) -> Reading:
    """Read how much memory (GiB) a worker may lock: all of it, where no limit holds."""
    limits, ram = system["limits"], system["settings"]["ram_gib"]
    soft = limits["locked_bytes"][0]
    if limits["locks_any"] or soft == UNLIMITED:
        return Reading(ram, "the size of the node's memory could not be read")
    return Reading(soft / GIB, text=f"a worker can lock {soft // 2**10} KiB of memory")


def read_stack(system: Facts, ranks: int) -> Reading:
    """Read how large (MiB) the stack of a worker may grow; without a limit, as its memory."""
    soft = system["limits"]["stack_bytes"][0]
    if soft == UNLIMITED:
        ram = system["settings"]["ram_gib"]
        return Reading(ram and ram * 1024, "the size of the node's memory could not be read")
    return Reading(soft / MIB, text=f"the stack size limit of a worker is {soft // 2**10} KiB")


def read_shared_memory(system: Facts, ranks: int) -> Reading:
    """Read what is free in /dev/shm (GiB).  Memory is its limit where it reports no size.

    Where a quarter or less is in use, its size counts: a container with --shm-size=1g is sound.
    """
    room = system["shared_memory"]
    if room["error"]:
        return Reading(0, text=f"no file can be written in {room['path']}: {room['error']}")
    if not room["size_gib"]:
        ram = system["settings"]["ram_gib"]
        return Reading(ram, "the sizes of /dev/shm and of memory could not be read")
    text = f"{room['path']} has {room['size_gib'] * 1024:.0f} MiB, {percent(room['free_share'])}"
    size = "size_gib" if room["free_share"] >= 0.75 else "free_gib"
    return Reading(room[size], text=f"{text} of it free")


def read_threads(system: Facts, ranks: int) -> Reading:
    """Read how many more threads each rank of the node may start."""
    bound, room = min(system["threads"].items(), key=lambda item: item[1])
    threads, of = quantity(room, "more threads"), quantity(ranks, "ranks")
    text = f"the user of a worker can start {threads} for {of} (limit: {bound})"
    return Reading(room / ranks, text=text)


def read_temporary_room(system: Facts, ranks: int) -> Reading:
    """Read the free share of the fuller of two folders: Ray's session, and temporary files."""
    session, temporary = system["session"], system["temporary"]
    share = min(free_share(session, None), free_share(temporary))
    room = session if free_share(session, None) == share else temporary
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
        return Reading(None, "the command line of a raylet does not show its session")
    if not others and found["hidden"]:
        return Reading(None, "the option hidepid of /proc hides the processes of other users")
    if not others and not found["own"]:
        return Reading(None, "the node's own raylet is not among the processes that a worker sees")
    names = (f"process {one['pid']} ({one['session']})" for one in others)
    text = f"raylets of another cluster are running: {join_names(names)}"
    return Reading(len(others), text=text, names={"pid": others[0]["pid"]} if others else {})


# measure: (finding, reader)
READERS: dict[Check, tuple[str, Callable[[Facts, int], Reading]]] = {
    check.OPEN_FILES: ("HOST-OPEN-FILES", read_open_files),
    check.LOCKED_MEMORY: ("HOST-LOCKED-MEMORY", read_locked_memory),
    check.STACK: ("HOST-STACK", read_stack),
    check.SHARED_MEMORY: ("HOST-SHARED-MEMORY", read_shared_memory),
    check.PROCESSES: ("HOST-PROCESSES", read_threads),
    check.TEMP_ROOM: ("HOST-TEMP-FULL", read_temporary_room),
    check.STRAY_RAYLETS: ("HOST-STRAY-RAYLET", read_strays),
}


def judged_measures(cluster: Cluster, terms: ClusterTerms) -> list[Check]:
    """List the measures that this cluster must record; of the others the values only inform."""
    return [name for name in READERS if condition_holds(name, cluster, terms)]


def judge_system(
    facts: AllFacts,
    ranks: Ranks,
    measures: Iterable[Check],
    measure: Recorder,
    silent: Sequence[str] = (),
) -> None:
    """Judge these measures on each node; `ranks` is by node id.  Equal faults are one finding.

    `silent` are the names of nodes without facts: nothing is proven of them.
    """
    for name in measures:
        readings = read_each(name, facts, ranks)
        values = {node: reading.value for node, reading in readings.items()}
        notes = {node: reading.note for node, reading in readings.items()}
        record_each(measure, name, values, silent, notes)
        failed = {n: one for n, one in readings.items() if measure.would_fail(name, one.value)}
        names = {one.text: one.names for one in failed.values()}
        texts = {node: one.text for node, one in failed.items()}
        explain_alike(measure, READERS[name][0], texts, "{nodes}: {text}", names=names)


def read_each(name: Check, facts: AllFacts, ranks: Ranks | None = None) -> dict[str, Reading]:
    """Read a measure of each node, by name; `ranks` is by node id, and 1 where it is not known."""
    read, known = READERS[name][1], ranks or {}
    return {
        fact["name"]: try_reader(read, fact.get("system", {}), max(1, known.get(fact["node"], 1)))
        for fact in facts
    }


def try_reader(read: Callable[[Facts, int], Reading], system: Facts, ranks: int) -> Reading:
    """Return the reading; without a value if a part of the facts could not be read."""
    try:
        return read(system, ranks)
    except (KeyError, TypeError, ValueError):
        reasons = [part["unreadable"] for part in system.values() if "unreadable" in part]
        return Reading(None, f"could not be read: {'; '.join(reasons) or 'no reason is known'}")


Worst = Callable[..., Any]
# note: (unit, part of the facts, key in it, which value is the worst; None notes each value)
SETTINGS: dict[str, tuple[str, str, str, Worst | None]] = {
    "cpu_governor": ("", "settings", "governor", None),
    "huge_pages": ("", "settings", "huge_pages", None),
    "numa_nodes": ("nodes", "settings", "numa_nodes", None),
    "machine_cpus": ("CPUs", "settings", "cpus", None),
    "swap_in_use": ("GiB", "settings", "swap_gib", max),
    "shared_memory_free": ("ratio", "shared_memory", "free_share", min),
}


def note_settings(facts: AllFacts, measures: Sequence[Check], measure: Recorder) -> None:
    """Record what only informs: settings, quantities, and the limits that are not judged here."""
    for name, (unit, part, key, worst) in SETTINGS.items():
        found = {fact["name"]: fact.get("system", {}).get(part, {}).get(key) for fact in facts}
        _note(name, unit, worst, found, measure)
    for limit in READERS.keys() - set(measures):
        values = {node: one.value for node, one in read_each(limit, facts).items()}
        _note(limit, limit.unit, max if limit == check.STRAY_RAYLETS else min, values, measure)


def _note(
    name: str, unit: str, worst: Worst | None, values: Mapping[str, Any], measure: Recorder
) -> None:
    """Record the worst value with its node; without `worst` each value once, with its nodes."""
    known = {node: value for node, value in values.items() if value not in (None, "")}
    if worst and known:
        node = worst(known, key=known.__getitem__)
        measure.note(name, known[node], unit, on=node)
        return
    for value in dict.fromkeys(known.values()):
        nodes = [node for node in known if known[node] == value]
        on = "each node" if len(nodes) == len(known) else join_names(nodes)
        measure.note(name, value, unit, on=on)


LOST_CLOCK = "CLOCK_MONOTONIC"  # what a machine without a battery has: the time since 1970 is lost


def measure_clocks(cluster: Cluster, measure: Recorder) -> None:
    """Measure the largest offset between two nodes' clocks, and its control."""
    names = cluster.node_names
    nodes = [node["id"] for node in [*cluster.nodes, *cluster.bystanders]]
    if len(nodes) < 2:
        measure.covered("one node: no clocks to compare")
        return
    with closing(ClockReaders(nodes)) as readers:
        offsets = readers.compare(readers.wait_until_up())
        victim = nodes[len(cluster.nodes) - 1]
        lost = readers.compare([victim] if victim in offsets else [], LOST_CLOCK)
    silent = [names[id] for id in nodes if id not in offsets]
    by_name = {names[id]: offset for id, offset in offsets.items()}
    kept = {name: asdict(offset) for name, offset in by_name.items()}
    measure.keep("clocks.json", kept, caption="clock of each node")  # less the driver's
    judge_clocks(by_name, silent, measure)
    control_lost_clock(by_name, {names[id]: offset for id, offset in lost.items()}, measure)


def judge_clocks(
    offsets: Mapping[str, ClockOffset], silent: Sequence[str], measure: Recorder
) -> None:
    """Judge the largest offset between two clocks.

    An offset that passes or fails only within its error proves nothing, and neither does one that
    passes while nodes are `silent`.
    """
    if len(offsets) < 2:
        measure(check.CLOCK_OFFSET, None, note=f"no answer from {join_names(silent)}")
        return
    ends = [(offset.seconds, offset.error) for offset in offsets.values()]
    value = max(seconds for seconds, _ in ends) - min(seconds for seconds, _ in ends)
    most = max(s + e for s, e in ends) - min(s - e for s, e in ends)
    least = max(0.0, max(s - e for s, e in ends) - min(s + e for s, e in ends))
    fails, note = measure.would_fail(check.CLOCK_OFFSET, least), ""
    if not fails and silent:
        note = f"no answer from {join_names(silent)}"
    elif not fails and measure.would_fail(check.CLOCK_OFFSET, most):
        note = f"nodes answer too slowly: the offset is {quantity(value, 's', spread=most - value)}"
    measure(check.CLOCK_OFFSET, None if note else value, spread=most - value, note=note)
    if fails:
        measure.explain(find_odd_clocks(offsets, measure))


def find_odd_clocks(offsets: Mapping[str, ClockOffset], measure: Recorder) -> Finding:
    """Name the nodes that are far from the median; where none is, the two that are farthest."""
    middle = median(offset.seconds for offset in offsets.values())
    apart = {name: offset.seconds - middle for name, offset in offsets.items()}
    odd = [name for name, by in apart.items() if measure.would_fail(check.CLOCK_OFFSET, abs(by))]
    odd = odd or [min(apart, key=apart.__getitem__), max(apart, key=apart.__getitem__)]
    parts = [
        f"{name} is {quantity(abs(apart[name]), 's')} {'ahead' if apart[name] > 0 else 'behind'}"
        for name in odd
    ]
    text = f"against the median of {len(offsets)} clocks, {join_names(parts)}"
    return finding("HOST-CLOCK", text, odd)


def control_lost_clock(
    offsets: Mapping[str, ClockOffset], lost: Mapping[str, ClockOffset], measure: Recorder
) -> None:
    """Check that a node whose clock began at its boot is detected and named."""
    planted = {**offsets, **lost}

    def judge(trial: Recorder) -> bool:
        judge_clocks(planted, [], trial)
        return set(lost) <= set(find_odd_clocks(planted, trial).suspects)

    fault = f"{join_names(lost) or 'a node'} reports the time since boot, not the time of day"
    plant(measure, check.LOST_CLOCK, fault, judge, unable="" if lost else judging.SILENT)


NO_ROOM = "/proc"  # a folder in which no file can be written, on every node
OTHER_SESSION = "seatrial_control"
END_SECONDS = 10.0  # for one small process to end on a busy node
# Lowers its own soft limits, leaves root (whom some limits do not bind), takes the name of a
# raylet, and waits until its input ends.
CHILD = """
import json, os, resource, sys
for name, soft in json.loads(sys.argv[1]).items():
    kind = getattr(resource, name)
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
with open("/proc/self/comm", "w") as file:
    file.write("raylet")
if os.geteuid() == 0:
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    except OSError:
        pass
print("ready", flush=True)
sys.stdin.read()
"""


def read_strained_system(limits: Mapping[str, int]) -> dict[str, Any]:
    """Read this node's system as a process with these soft limits, and without room, has it."""
    option = f"--session-name={OTHER_SESSION}"
    call = [sys.executable, "-I", "-S", "-c", CHILD, json.dumps(dict(limits)), option]
    child = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise RuntimeError("the process with low limits did not start")
        return read_node_system(str(child.pid), NO_ROOM)
    finally:
        end_child(child)


def end_child(child: subprocess.Popen[str]) -> None:
    """End the input of a process, and so the process."""
    try:
        child.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()


def control_strained_process(
    cluster: Cluster, facts: AllFacts, ranks: Ranks, measures: Sequence[Check], measure: Recorder
) -> None:
    """Check that low limits, missing room and a foreign raylet on the last node are detected."""
    victim = facts[-1]
    fault = (
        f"a process on {victim['name']} has half of each limit, uses the folder {NO_ROOM}, "
        "and is named as a raylet of another cluster"
    )
    planted = halve_limits(ranks.get(victim["node"], 1), measure)
    system, unable = ask_victim(cluster, victim, read_strained_system, planted)
    limits = (system or {}).get("limits", {})
    without = {*check.LIMITS} - {*measures}
    free = {"locks_any": check.LOCKED_MEMORY, "starts_any": check.PROCESSES}
    without |= {name for key, name in free.items() if limits.get(key)}
    judge = partial(judge_system, [{**victim, "system": system}], ranks, measures)
    plant(measure, check.STRAINED_PROCESS, fault, judge, unable=unable, without=without)


def halve_limits(ranks: int, measure: Recorder) -> dict[str, int]:
    """Compute soft limits that are half of what is owed, by their names in `resource`."""
    owed = {
        "RLIMIT_NOFILE": (check.OPEN_FILES, 1),
        "RLIMIT_MEMLOCK": (check.LOCKED_MEMORY, GIB),
        "RLIMIT_STACK": (check.STACK, MIB),
        "RLIMIT_NPROC": (check.PROCESSES, ranks),
    }
    halves = {}
    for name, (target, factor) in owed.items():
        limit = measure.contract.limit("HOSTS", target)
        if limit and limit.low is not None:
            halves[name] = int(limit.low * factor / 2)
    return halves
