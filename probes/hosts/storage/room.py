"""Judges the shared folder's room for checkpoints, and chooses how much the probe writes there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.acceptance.cluster_terms import ClusterTerms
from probes.acceptance.measure import Recorder
from probes.findings import finding
from probes.hosts.storage.places import read_rooms
from probes.hosts.storage.shards import CHUNK, Size
from reports.numbers import number, quantity

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
