"""Tests that all nodes can use the shared folder at once, as jobs and their checkpoints do."""

import pytest

from probes.hosts.storage.controls import (
    control_careless_node,
    control_larger_saves,
    control_no_folder,
    control_other_folder,
    control_slow_node,
)
from probes.hosts.storage.mounts import read_mount
from probes.hosts.storage.rates import judge_failures
from probes.hosts.storage.room import choose_size, judge_room
from probes.hosts.storage.shards import READ, SMALL, WRITE
from probes.hosts.storage.sharing import judge_exchange, judge_races
from probes.hosts.storage.speeds import (
    LEAST_COMPARED,
    agreed_rates,
    judge_rates,
    judge_together,
    note_alone,
    note_speeds,
)
from probes.hosts.storage.storage_round import StorageRound, find_failures


@pytest.mark.criterion("HOSTS")
def test_all_nodes_use_the_shared_folder_at_once(cluster, terms, tier, measure):
    """Each node reads what others wrote, no two create one file, and none writes or reads slowly.

    Without an agreed shared folder each node uses its temporary folder.
    """
    folder = terms.shared or ""
    if folder:
        mounts = cluster.on_each_node(read_mount, each={n["id"]: folder for n in cluster.nodes})
        cluster.shared_mounts = mounts  # the last probe compares them
        measure.keep("mounts.json", mounts, caption="what each node has at the shared folder")
    with StorageRound.start(cluster, folder) as storage:
        sharing = storage.members
        if folder and len(storage.places) > 1:
            sharing = judge_sharing(storage, measure)
        measure.covered(storage.covered(sharing))
        size = choose_size(tier, terms, len(storage.places), storage.opened)
        use_shards(storage, sharing, size, tier, measure)
        if folder:
            save_gb, ranks = terms.save_gb, cluster.size
            saves = judge_room(storage.opened, storage.names, folder, ranks, save_gb, measure)
            if save_gb:
                control_larger_saves(storage, ranks, saves, save_gb, measure)


def judge_sharing(storage, measure):
    """Judge what nodes see of each other's files; return the nodes that share the folder."""
    members, names = storage.members, storage.names
    answers = storage.exchange(members)
    apart = judge_exchange(answers, names, storage.where, measure)
    sharing = [id for id in members if id not in apart]
    if len(sharing) < 2:
        sharing = []
    judge_races(storage.race(sharing) if sharing else {}, sharing, names, storage.where, measure)
    control_other_folder(storage, sharing, measure)
    control_careless_node(storage, sharing, measure)
    return sharing


def use_shards(storage, sharing, size, tier, measure):
    """Let all nodes write and read shards at once, and judge errors and speed."""
    written = storage.work(WRITE, storage.members, size)
    sound = [id for id in written if not written[id]["error"]]
    storage.sharing = [id for id in sharing if id in sound]
    readers = storage.sharing or sound
    steps = {WRITE: written, READ: storage.work(READ, readers, size)}
    small = {SMALL: storage.work(SMALL, readers, size)}
    errors, silent = find_failures(storage, readers, {**steps, **small})
    judge_failures(errors, silent, storage.names, storage.where, measure)
    control_no_folder(storage, size, measure)
    measure.keep("storage.json", {**steps, **small}, caption="work of every node in the folder")
    note_speeds(SMALL, small[SMALL], storage.names, storage.where, measure)
    if not storage.parent or len(storage.places) < 2 or storage.cluster.kind == "local":
        return  # no two nodes compare: each has its own disk, or all have the same
    compares = len(storage.places) >= LEAST_COMPARED
    timings = judge_rates(storage, steps, size, compares, measure)
    agreed = agreed_rates(tier, measure)
    for kind in steps:
        judge_together(kind, steps[kind], storage.where, agreed, measure)
    note_alone(storage, size, measure)
    if compares or agreed:
        control_slow_node(storage, timings, size, agreed, compares, measure)
