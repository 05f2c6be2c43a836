"""Asks all nodes to use the shared folder at once: its work, its races, and its mounts."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from probes.check.judging import plant
from probes.check.recorder import Recorder
from probes.cluster.ask import make_unique_token
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import map_peers
from probes.cluster.system_facts import mount_of, try_writing
from probes.findings import finding, join_names
from probes.hosts import criterion as check
from probes.hosts import storage_work
from probes.hosts.names import Link
from probes.hosts.storage_work import READ, WRITE, Place, Size, Work
from reports.numbers import quantity

MOUNTS = "/proc/self/mountinfo"
OTHER_FOLDER = "/proc"  # a file system that is never shared, and takes no file
Mount = Mapping[str, Any]  # as `read_mount` gives it
Mounts = Mapping[str, Mount]  # by node id
Places = Mapping[str, Place]  # by node id


def read_mount(folder: str, mounts: str = MOUNTS) -> dict[str, Any]:
    """Read {"system", "mount", "error"} of a folder: what is mounted, and why it is not writable.

    `system` is the kind of file system with its source, and the path in it.  `mount` is the mount's
    id and device.
    """
    error = try_writing(folder)  # first, for an automounter mounts what is used
    return {**find_mount(Path(mounts).read_text(errors="replace"), folder), "error": error}


def find_mount(text: str, folder: str) -> dict[str, str]:
    """Find the mount of a folder in the text of mountinfo; {"system": ""} if there is none."""
    if (found := mount_of(text, folder)) is None:
        return {"system": "", "mount": ""}
    before, (kind, source, *_), point = found
    system = f"{kind} {source} (root {before[3]}) at {point}"
    return {"system": system, "mount": f"{before[0]} {before[2]}"}


def judge_mounts(
    cluster: Cluster, started: Sequence[str], before: Mounts, folder: str, measure: Recorder
) -> None:
    """Judge that each node still has the folder that it had, and can write there.

    `started` are the ids of the nodes that answered when the run began.
    """
    names = {node["id"]: node["name"] for node in cluster.nodes if node["id"] in started}
    now = cluster.on_each_node(read_mount, each=dict.fromkeys(names, folder)) if names else {}
    judge_lost(before, now, names, folder, measure)


def judge_lost(
    before: Mounts, now: Mounts, names: Mapping[str, str], folder: str, measure: Recorder
) -> None:
    """Judge what these nodes have in place of the folder's file system of the start.

    Nodes that left the cluster are judged elsewhere.  A file system that was mounted again is the
    same: automounters do that.
    """
    known = [id for id in names if id in now and before.get(id, {}).get("system")]
    lost = {names[id]: text for id in known if (text := describe_loss(before[id], now[id]))}
    unknown = [names[id] for id in names if id not in known]
    note = "" if known else "no node from the start of the run is in the cluster now"
    if unknown:
        note = f"{join_names(unknown)}: no answer, or what was mounted at the start is not known"
    measure(check.STORAGE_LOST, None if note and not lost else len(lost), on=folder, note=note)
    for name, text in lost.items():
        statement, placeholders = f"{folder} on {name}: {text}", {"folder": folder}
        measure.explain(finding("HOST-STORAGE-LOST", statement, [name], names=placeholders))
    again = [names[id] for id in known if before[id]["mount"] != now[id]["mount"]]
    if again and not lost:
        measure.note("mounted_again", join_names(again), on=folder)


def describe_loss(before: Mount, now: Mount) -> str:
    """Describe what happened to the folder's mount on a node; "" for nothing."""
    if now["system"] != before["system"]:
        is_now = now["system"] or "nothing"
        return f"the mount at the start was {before['system']}; now it is {is_now}"
    if now["error"] and not before["error"]:
        return f"no file can be written there any more: {now['error']}"
    return ""


def control_mount(cluster: Cluster, before: Mounts, folder: str, measure: Recorder) -> None:
    """Check that a node is detected that has another file system than at the start."""
    names = {node["id"]: node["name"] for node in cluster.nodes if node["id"] in before}
    victim, name = list(names.items())[-1] if names else ("", "a node")
    now = cluster.on_each_node(read_mount, each={victim: OTHER_FOLDER}) if names else {}
    unable = f"{name} does not answer" if names else "no mount was read at the start"
    fault = f"{name} reads the mount of {OTHER_FOLDER} instead of {folder}"
    judge = partial(judge_lost, before, now, {victim: name}, folder)
    plant(measure, check.LOST_MOUNT, fault, judge, unable="" if now else unable)


CREATED = 32  # files that all nodes try to create: a delay between them is then no escape
REPLACE_S = 1.0  # s for which a file is replaced again and again
FIRST_S = 5.0  # s that a reader waits for the first version of that file
VERSION_LINES = 512  # of that file, 4.5 KiB: more than one block, so that a part can be missing
GAP_S = 0.005  # s that the control leaves the file empty, as a write in place does
APPENDED = 50  # lines that each node appends
LOCKED = 5  # times that each node takes the lock
LOCK_S = 10.0  # s in which a node takes the lock so often, or fewer times
LOCK_POLL_S = 0.002  # s between two tries for the lock


@dataclass(frozen=True)
class Race:
    """What one node does in a race: as writer or reader, and with which others.

    `few` are the nodes that wait for each other before each step, and that alone take part in what
    only some nodes do.  `label` begins the names of all files.  A node that is not `careful`
    creates without O_EXCL, writes in place, and neither appends nor locks, for a control.
    """

    place: Place
    few: tuple[str, ...]
    writer: str  # the node that replaces the file
    label: str = ""
    careful: bool = True

    def path(self, name: str) -> Path:
        """Path of a file of this race."""
        return self.place.folder / f"{self.label}{name}"


def run_races(race: Race) -> dict[str, Any]:
    """Take part in all races; return what this node did and saw.

    Keys: `created` (numbers of files), `replaced` (as in `read_versions`), `appended` (lines),
    `locked` (times, error).  What failed has the key `error` instead.
    """
    answers: dict[str, Any] = {"created": _try(create_files, race)}
    if race.place.node in race.few:
        answers["replaced"] = _try(replace_file, race)
        answers["appended"] = _try(append_lines, race)
        answers["locked"] = _try(take_lock, race)
    return answers


def _try(step: Callable[[Race], dict[str, Any]], race: Race) -> dict[str, Any]:
    try:
        if race.place.node in race.few:
            storage_work.meet_others(race.place, f"{race.label}{step.__name__}", race.few)
        return step(race)
    except OSError as error:
        return {"error": error.strerror or str(error)}


def create_files(race: Race) -> dict[str, Any]:
    """Try to create each file; return the numbers of those that this node created."""
    flags = os.O_CREAT | os.O_WRONLY | (os.O_EXCL if race.careful else 0)
    if not race.careful:  # the others are first, so that it creates what they have created
        storage_work.poll(lambda _: race.path("once-0").exists(), FIRST_S)
    mine = []
    for number in range(CREATED):
        with suppress(FileExistsError):
            os.close(os.open(race.path(f"once-{number}"), flags, 0o600))
            mine.append(number)
    return {"mine": mine}


def replace_file(race: Race) -> dict[str, Any]:
    """Replace a file again and again, or read it meanwhile."""
    path = race.path("newest")
    if race.place.node != race.writer:
        return read_versions(path)
    start = time.monotonic()
    version = 0
    while time.monotonic() < start + REPLACE_S:
        version += 1
        write_version(path, version, race.careful)
    return {"versions": version}


def write_version(path: Path, version: int, by_rename: bool) -> None:
    """Write a version to another file and rename that; or, for a control, write it in place."""
    text = f"{version:08d}\n" * VERSION_LINES
    if by_rename:
        new = path.with_suffix(".tmp")
        new.write_text(text)
        os.replace(new, path)
        return
    with path.open("w") as file:
        time.sleep(GAP_S)
        file.write(text)
        time.sleep(GAP_S)


def read_versions(path: Path) -> dict[str, Any]:
    """Read the file while another node replaces it.

    Returns {"reads", "gaps", "stale"}: reads in all, those that found no file or a part of one, and
    those that had to be repeated because NFS had removed the old version (ESTALE).
    """
    counts = {"reads": 0, "gaps": 0, "stale": 0}
    if not storage_work.poll(lambda _: path.name in os.listdir(path.parent), FIRST_S):
        return counts
    start = time.monotonic()
    while time.monotonic() < start + REPLACE_S:
        counts["reads"] += 1
        try:
            lines = path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            counts["gaps"] += 1
            continue
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            counts["stale"] += 1
            continue
        counts["gaps"] += len(lines) != VERSION_LINES or len({*lines}) != 1
    return counts


def append_lines(race: Race) -> dict[str, Any]:
    """Append lines to one file, each by one write; return their number."""
    flags = os.O_CREAT | os.O_WRONLY | (os.O_APPEND if race.careful else 0)
    file = os.open(race.path("lines"), flags, 0o600)
    try:
        for number in range(APPENDED):
            line = f"{race.place.node} {number}\n".encode()
            if race.careful:
                os.write(file, line)
            else:
                os.pwrite(file, line, 0)
        os.fsync(file)
    finally:
        os.close(file)
    return {"lines": APPENDED}


def take_lock(race: Race) -> dict[str, Any]:
    """Add 1 to a number in a file, each time under its lock; return how often."""
    lock = os.open(race.path("lock"), os.O_CREAT | os.O_RDWR, 0o600)
    deadline, times = time.monotonic() + LOCK_S, 0
    try:
        if not race.careful:
            write_number(lock, 1)
            return {"times": LOCKED}
        while times < LOCKED and time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_POLL_S)
                continue
            found = os.pread(lock, 16, 0).strip()
            time.sleep(LOCK_POLL_S)  # another that holds the lock too adds to the same number
            write_number(lock, int(found or 0) + 1)
            fcntl.flock(lock, fcntl.LOCK_UN)
            times += 1
    finally:
        os.close(lock)
    return {"times": times}


def write_number(file: int, number: int) -> None:
    """Write the number, until it is on disk."""
    os.pwrite(file, f"{number:15d}\n".encode(), 0)
    os.fsync(file)


def count_traces(race: Race) -> dict[str, int]:
    """Count what the races left: distinct lines, and the number under the lock."""
    counts = {"lines": 0, "number": 0}
    with suppress(FileNotFoundError):  # no node took part
        words = [line.split(" ") for line in read_text(race.path("lines")).splitlines()]
        pairs = {tuple(pair) for pair in words if len(pair) == 2 and pair[1].isdigit()}
        counts["lines"] = len(pairs)
    with suppress(FileNotFoundError):
        number = read_text(race.path("lock")).strip()
        counts["number"] = int(number) if number.isdigit() else 0
    return counts


def read_text(path: Path) -> str:
    """Read a file, with signs in place of what is no text."""
    return path.read_text(errors="replace")


# Seconds until a file must be seen.  NFS keeps attributes of folders for up to 60 s (acdirmax); the
# rest is for the last look.
WAIT_S = 65.0
LEAST_COMPARED = 3  # nodes: of two, the faster may be the server itself, and neither is slow
FEW = 16  # nodes that replace, extend and lock one file: they wait for each other


@dataclass
class StorageRound:
    """The nodes' places in the folder, and what they answered when they opened them.

    `parent` is the shared folder; "" is the temporary folder of each node, which it has alone.
    `opened` holds the answers of `open_place` by node id, and `names` the names of all nodes.
    """

    cluster: Any
    parent: str
    places: dict[str, Place]
    names: dict[str, str]
    opened: dict[str, dict[str, Any]] = field(default_factory=dict)
    sharing: list[str] = field(default_factory=list)  # nodes that see each other's files
    written: dict[str, int] = field(default_factory=dict)  # bytes of each node's shard

    @classmethod
    @contextmanager
    def start(cls, cluster: Any, parent: str) -> Iterator[StorageRound]:
        """Open a place on each node; at the end, whatever happens, remove them all."""
        token = f".seatrial-{make_unique_token()}"
        nodes = sorted(cluster.nodes, key=lambda node: node["id"])
        places = {node["id"]: Place(parent, token, node["id"]) for node in nodes}
        started = cls(cluster, parent, places, {node["id"]: node["name"] for node in nodes})
        own_path = str(Place(parent, token, "").folder)  # as the driver would see it
        cluster.cleanup.register("folder", own_path)
        try:
            started.opened = cluster.on_each_node(storage_work.open_place, each=places)
            yield started
        finally:
            with suppress(OSError):
                cluster.on_each_node(storage_work.close_place, each=places)
            cluster.cleanup.remove_now(Path(own_path))

    @property
    def members(self) -> list[str]:
        """Ids of the nodes that could write their first file."""
        return [id for id in self.places if id in self.opened and not self.opened[id]["error"]]

    @property
    def compares(self) -> bool:
        """Whether it is fair to compare the nodes' speeds: there are enough of them."""
        return len(self.places) >= LEAST_COMPARED

    @property
    def where(self) -> str:
        """Name of the folder in messages."""
        return self.parent or "the temporary folder"

    def node(self, id: str) -> dict[str, str]:
        """Return id and name of a node, as `plant_on` takes its victim."""
        return {"node": id, "name": self.names[id]}

    def name_all(self, ids: Iterable[str]) -> str:
        """Join the names of these nodes."""
        return join_names(self.names[id] for id in ids)

    def explain(
        self, measure: Recorder, code: str, text: str, ids: Iterable[str] = (), **known: object
    ) -> None:
        """Record a finding of these nodes in the folder; `known` names further placeholders."""
        suspects = [self.names[id] for id in ids]
        measure.explain(finding(code, text, suspects, names={"folder": self.where, **known}))

    def exchange(
        self, among: Sequence[str], wait_s: float | None = None, elsewhere: Places | None = None
    ) -> dict[Link, dict[str, Any] | None]:
        """Let each of these nodes read files of others; None where a node does not answer.

        A link is (node that reads, node that wrote).

        `elsewhere` is for a control: the places where some nodes read.
        """
        peers = map_peers(among) if len(among) > 1 else {}
        others = {id: peers[id] for id in elsewhere or peers}
        places = {**self.places, **(elsewhere or {})}
        wait_s = WAIT_S if wait_s is None else wait_s
        asked = {id: (places[id], ids) for id, ids in others.items()}
        read = storage_work.read_others
        answers = self.cluster.on_each_node(read, wait_s, each=asked) if asked else {}
        links = [(reader, writer) for reader in others for writer in others[reader]]
        return {link: answers.get(link[0], {}).get(link[1]) for link in links}

    def race(self, among: Sequence[str], careless: str = "") -> dict[str, dict[str, Any]]:
        """Let these nodes race; return what each did, and under "" what they left.

        `careless` is for a control: this node replaces the file, and breaks each rule.
        """
        few = tuple(dict.fromkeys([*spread_nodes(among, FEW), *[careless] * bool(careless)]))
        writer, label = careless or few[0], "c-" if careless else ""
        races = {id: Race(self.places[id], few, writer, label, id != careless) for id in among}
        answers: dict[str, dict[str, Any]] = self.cluster.on_each_node(run_races, each=races)
        left = self.cluster.on_each_node(count_traces, each={few[0]: races[few[0]]})
        return {**answers, "": left.get(few[0], {})}

    def work(self, kind: str, among: Sequence[str], size: Size) -> dict[str, dict[str, Any]]:
        """Let these nodes do the same work at once; nodes that do not answer are left out."""
        works = {id: self.plan_work(kind, id, size) for id in among}
        answers = dict(self.cluster.on_each_node(storage_work.do_work, each=works)) if works else {}
        if kind == WRITE:
            self.written |= {id: one["done"] for id, one in answers.items()}
        return answers

    def plan_work(self, kind: str, id: str, size: Size, pause_s: float = 0.0) -> Work:
        """Plan the work of one node; `pause_s` is for a control."""
        owner = self.owner_for(kind, id)
        is_new = kind == WRITE or owner not in self.written
        shard_bytes = size.shard_bytes if is_new else self.written[owner]
        return Work(kind, self.places[id], owner, size.count(kind), shard_bytes, pause_s)

    def owner_for(self, kind: str, id: str) -> str:
        """Choose whose shard a node reads: that of another node, if they share a folder."""
        if kind == WRITE or not self.parent:
            return id
        ids = self.sharing
        distance = 1 if kind == READ else 2  # random reads are of a shard that was not read yet
        return ids[(ids.index(id) + distance) % len(ids)] if id in ids else id

    def covered(self, sharing: Sequence[str]) -> str:
        """Describe which nodes did what."""
        count = len(self.places)
        if not self.parent:
            none = "the contract names no shared folder"
            return f"{none}: {quantity(count, 'nodes')} used the temporary folder instead"
        text = f"{len(sharing)} of {count} nodes used {self.parent} at once"
        if len(sharing) > FEW:
            text += f"; {len(spread_nodes(sharing, FEW))} replaced, extended and locked one file"
        return text


def spread_nodes(ids: Sequence[str], most: int) -> list[str]:
    """Choose at most so many of the nodes, at equal distances."""
    return list(ids[:: max(1, -(-len(ids) // most))])


def find_failures(
    storage: StorageRound, readers: Sequence[str], steps: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, str], list[str]]:
    """Find the nodes that could not write or read, with the reason, and those that are silent.

    `readers` are the nodes that did every step; all that opened their place did the first, WRITE.
    """
    errors: dict[str, str] = {}
    silent: list[str] = []
    for kind, answers in {"open": storage.opened, **steps}.items():
        for id, one in answers.items():
            if one["error"]:
                errors.setdefault(id, str(one["error"]))  # its first error is the reason
        asked = {"open": storage.places, WRITE: storage.members}.get(kind, readers)
        silent += [id for id in asked if id not in answers]
    return errors, list(dict.fromkeys(silent))
