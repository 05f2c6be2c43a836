"""Defines the part of HOSTS on the shared folder; `hosts.py` has the criterion."""

from __future__ import annotations

from probes.acceptance.criteria.criterion import (
    Circumstances,
    Condition,
    Duty,
    Measure,
    default_measure,
    none_of,
)

# Of the shared folder.  Those without a limit are judged where a contract gives one: many sound
# clusters do not promise them.
STORAGE = {
    "unseen_files": none_of("files", "a job reads on one node what it wrote on another"),
    "seen_after": default_measure(
        "s", "NFS keeps what it knows of a folder for up to 60 s (acdirmax)", high=60
    ),
    "double_creations": default_measure(
        "files", "with O_EXCL one node alone creates a file: lock files depend on it", high=0
    ),
    "rename_gaps": default_measure(
        "reads",
        "a checkpoint is published by rename: readers find the old version or the new one",
        high=0,
    ),
    "lost_lines": Measure("lines", better="lower"),
    "lost_updates": Measure("updates", better="lower"),
    "failed_shards": none_of("nodes", "each node writes and reads its part of a checkpoint"),
    **{
        name: default_measure("ratio", f"all ranks wait for the node that {does} slowest", low=0.5)
        for name, does in (
            ("shard_write", "writes its shard"),
            ("shard_read", "reads its shard"),
            ("random_read", "reads its data"),
        )
    },
    "write_rate": Measure("GB/s", better="higher"),
    "read_rate": Measure("GB/s", better="higher"),
    "checkpoint_room": default_measure(
        "saves", "a save is complete before the older of two is removed", low=3
    ),
}
CONTROLS = {
    "lost files": ("unseen_files",),
    "careless node": ("double_creations", "rename_gaps", "lost_lines", "lost_updates"),
    "no folder": ("failed_shards",),
    "slow node": ("shard_write", "shard_read", "random_read", "write_rate", "read_rate"),
    "larger saves": ("checkpoint_room",),
}
NO_CONTROL = {
    "seen_after": "a file would have to be held back for longer than its limit, a minute, each time",
}


def _shares_folder(here: Circumstances) -> bool:
    """Return whether several nodes have one folder."""
    return bool(here.terms.shared) and here.nodes > 1


def _compares_storage(here: Circumstances) -> bool:
    """Return whether a node can be slower than the others: of two, one may be the server itself.

    Raylets of one host have the same disk.
    """
    return _shares_folder(here) and here.nodes > 2 and not here.one_host


def _rates_storage(here: Circumstances) -> bool:
    """Return whether the speed of all nodes is judged: a quick run writes too little for that."""
    return _shares_folder(here) and not here.one_host and here.tier != "quick"


def _if_agreed(name: str, condition: Condition) -> Condition:
    """Add to a condition that the contract has a limit for a measure."""
    return lambda here: f"HOSTS.{name}" in here.agreed and condition(here)


CONDITIONS: dict[str, Condition] = {
    **dict.fromkeys(("unseen_files", "seen_after", "double_creations"), _shares_folder),
    **dict.fromkeys(("rename_gaps", "lost files", "careless node"), _shares_folder),
    **{name: _if_agreed(name, _shares_folder) for name in ("lost_lines", "lost_updates")},
    **dict.fromkeys(("shard_write", "shard_read", "random_read"), _compares_storage),
    **{name: _if_agreed(name, _rates_storage) for name in ("write_rate", "read_rate")},
    "slow node": lambda here: (
        _compares_storage(here)
        or any(_if_agreed(name, _rates_storage)(here) for name in ("write_rate", "read_rate"))
    ),
    **dict.fromkeys(
        ("checkpoint_room", "larger saves"),
        lambda here: bool(here.terms.shared and here.terms.save_gb),
    ),
}
DUTIES = (
    Duty(
        "hosts/storage/test_storage.py::test_all_nodes_use_the_shared_folder_at_once",
        "quick",
        tuple(STORAGE),
        ("lost files", "careless node", "no folder", "slow node", "larger saves"),
    ),
)
