"""Lets all nodes use the shared folder at once: one task on each node for each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.cluster.unique_token import make_unique_token
from probes.hosts.network.port_round import choose_peers
from probes.hosts.storage.places import (
    Place,
    close_place,
    open_place,
    read_others,
)
from probes.hosts.storage.races import Race, count_traces, run_races
from probes.hosts.storage.shards import READ, WRITE, Size, Work, do_work

# Seconds until a file must be seen.  NFS keeps attributes of folders for up to 60 s (acdirmax); the
# rest is for the last look.
WAIT_S = 65.0
FEW = 16  # nodes that replace, extend and lock one file: they wait for each other
Link = tuple[str, str]  # (node that reads, node that wrote)


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
        names = {node["id"]: node["name"] for node in nodes}
        started = cls(cluster, parent, places, names)
        own_path = str(Place(parent, token, "").folder)  # as the driver would see it
        cluster.cleanup.register("folder", own_path)
        try:
            started.opened = cluster.on_each_node(open_place, each=places)
            yield started
        finally:
            with suppress(OSError):
                cluster.on_each_node(close_place, each=places)
            cluster.cleanup.remove_now(Path(own_path))

    @property
    def members(self) -> list[str]:
        """Ids of the nodes that could write their first file."""
        return [id for id in self.places if id in self.opened and not self.opened[id]["error"]]

    @property
    def where(self) -> str:
        """Name of the folder in messages."""
        return self.parent or "the temporary folder"

    def exchange(
        self,
        among: Sequence[str],
        wait_s: float | None = None,
        elsewhere: Mapping[str, Place] | None = None,
    ) -> dict[Link, dict[str, Any] | None]:
        """Let each of these nodes read files of others; None where a node does not answer.

        `elsewhere` is for a control: the places where some nodes read.
        """
        ids = list(among)
        others = {id: _peers_of(id, ids) for id in (elsewhere or ids)}
        places = {**self.places, **(elsewhere or {})}
        asked = {id: (places[id], peers) for id, peers in others.items()}
        wait_s = WAIT_S if wait_s is None else wait_s
        answers = self.cluster.on_each_node(read_others, wait_s, each=asked) if asked else {}
        return {
            (reader, writer): answers.get(reader, {}).get(writer)
            for reader, writers in others.items()
            for writer in writers
        }

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
        answers = dict(self.cluster.on_each_node(do_work, each=works)) if works else {}
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
            return f"no shared folder is agreed: each of {count} nodes used its temporary folder"
        text = f"{len(sharing)} of {count} nodes used {self.parent} at once"
        if len(sharing) > FEW:
            text += f"; {len(spread_nodes(sharing, FEW))} replaced, extended and locked one file"
        return text


def _peers_of(id: str, ids: Sequence[str]) -> list[str]:
    if len(ids) < 2:
        return []
    return [ids[at] for at in choose_peers(ids.index(id), len(ids))]


def spread_nodes(ids: Sequence[str], most: int) -> list[str]:
    """Choose at most so many of the nodes, at equal distances."""
    step = max(1, -(-len(ids) // most))
    return list(ids[::step])


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
