"""Finds which nodes share a folder, by files that the nodes themselves write and list.

The driver writes nothing: it may be a laptop, or run as another user.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.cluster.node_facts import OWN_HOST
from reports.groups import group_pairs

# Longest time (s) that a file outlives its driver: three calls of up to 90 s each need it.
FILE_SECONDS = 300
# Removes the file or folder $1 after $2 s, and ends when it is gone.  It is a grandchild, because
# Ray ends a worker's children.
REMOVE_LATER = """
(n=0; while [ -e "$1" ] && [ $n -lt $2 ]; do sleep 1; n=$((n+1)); done; rm -rf "$1") &
"""


# What is wrong with a node of `find_blind_nodes`; after one name, or several.
BLIND = "cannot write to {}, or cannot see the files that other nodes write there"


class FolderUnknown(RuntimeError):
    """Raised when nothing is known of the folder: no node could write there, or one is silent."""


def find_blind_nodes(
    cluster: Any, folder: str, elsewhere: Mapping[str, str] | None = None
) -> list[str]:
    """Find the nodes that do not write and see what most nodes write and see in `folder`.

    If two views have as many nodes, the driver's own view decides.  If it does not, all nodes are
    named.  Raises FolderUnknown if no node could write: then no node is blamed.  A node that does
    not answer is not blind: without any blind one, FolderUnknown names it.  `elsewhere` maps node
    ids to another folder that these nodes use (for a control).
    """
    token = f".seatrial-{os.urandom(8).hex()}"
    names = {node["id"]: node["name"] for node in cluster.nodes}
    folders = {id: (elsewhere or {}).get(id, folder) for id in names}
    paths = {id: str(Path(folders[id]) / f"{token}-{id}") for id in names}
    for path in paths.values():
        cluster.cleanup.register("folder", path)
    try:
        errors = cluster.on_each_node(write_token, each=paths)
        written = {Path(paths[id]).name for id in errors if not errors[id]}
        if not written:
            why = next(iter(errors.values()), "no node answers")
            raise FolderUnknown(f"no node can write there: {why}")
        views = cluster.on_each_node(list_tokens, token, each=folders)
        seen = {id: written.intersection(view) for id, view in views.items()}
        agreeing = _largest_view(seen, written.intersection(list_tokens(token, folder)))
        answered = {id for id, error in errors.items() if error or id in views}
        silent = names.keys() - answered
        sound = {id for id in agreeing if not errors.get(id)}
        blind = [name for id, name in names.items() if id not in sound | silent]
        if silent and not blind:
            raise FolderUnknown(f"no answer from {', '.join(names[id] for id in sorted(silent))}")
        return blind
    finally:
        cluster.on_each_node(remove_token, each=paths)
        for path in paths.values():
            cluster.cleanup.unregister("folder", path)


def find_folder_problem(cluster: Any, folder: Path) -> tuple[str, list[str]]:
    """Find why `folder` is not shared by all nodes ("": it is), and the nodes without it."""
    if not folder.is_absolute():
        return f"{OWN_HOST} cannot write to a folder that all nodes share", [OWN_HOST]
    try:
        blind = find_blind_nodes(cluster, str(folder))
    except FolderUnknown as unknown:
        return f"{folder}: {unknown}", []
    return (f"{', '.join(blind)} {BLIND.format(folder)}" if blind else ""), blind


def _largest_view(seen: dict[str, set[str]], driver_view: set[str]) -> list[str]:
    """List the nodes that see the same as most; empty if two views tie."""
    groups = group_pairs((frozenset(view), id) for id, view in seen.items() if view)
    ranked = sorted((len(nodes), len(view & driver_view)) for view, nodes in groups.items())
    if not ranked or ranked[-1] in ranked[:-1]:
        return []
    return max(groups.items(), key=lambda item: (len(item[1]), len(item[0] & driver_view)))[1]


def write_token(path: str, seconds: int = FILE_SECONDS) -> str:
    """Write a file that this node removes by itself after `seconds`; return the error, or ""."""
    try:
        Path(path).touch()
    except OSError as error:
        return str(error)
    remove_later(path, seconds)
    return ""


def remove_later(path: str, seconds: int) -> None:
    """Let this node remove a file or folder after `seconds`: its driver may have died by then."""
    subprocess.run(
        ["sh", "-c", REMOVE_LATER, "sh", path, str(seconds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def list_tokens(token: str, folder: str) -> list[str]:
    """List the files of this token; empty if the folder cannot be read."""
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(folder) if name.startswith(token)]
    return []


def remove_token(path: str) -> None:
    """Remove a file that this node wrote."""
    with contextlib.suppress(OSError):
        os.unlink(path)
