"""Keeps a folder on each node's own disk, where a job saves what no other node sees."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from probes.cluster.cluster import Cluster
from probes.cluster.shared_folder import find_folder_problem, remove_later
from probes.launch.job.ranks import Row

KEPT_SECONDS = 1800  # after this time a node removes the folder by itself: the driver has died


@contextmanager
def own_folders(cluster: Cluster, name: str) -> Iterator[str]:
    """Make /tmp/`name` on each node, and yield its path.  Remove it afterwards.

    Should we die, each node removes it by itself.  Raises OSError if a node cannot make it.
    """
    path = f"/tmp/{name}"
    try:
        answers = cluster.on_each_node(make_folder, path)
        problems = [answers.get(node["id"], "no answer") for node in cluster.nodes]
        if problem := next(filter(None, problems), ""):
            raise OSError(f"{path} cannot be made on each node: {problem}")
        yield path
    finally:
        cluster.on_each_node(remove_folder, path)


def is_shared(cluster: Cluster, path: str) -> bool:
    """Return whether all nodes see one folder at this path, where they are several hosts."""
    hosts = {node["address"] for node in cluster.nodes}
    return len(hosts) > 1 and not find_folder_problem(cluster, Path(path))[0]


def make_folder(path: str, seconds: int = KEPT_SECONDS) -> str:
    """Make a folder that this node removes after `seconds`; return the error, or "" (on a node)."""
    try:
        Path(path).mkdir(exist_ok=True)
        Path(path).chmod(0o1777)  # the job's ranks may run as another user
    except OSError as error:
        return str(error)
    remove_later(path, seconds)
    return ""


def remove_folder(path: str) -> None:
    """Remove the folder (on a node)."""
    shutil.rmtree(path, ignore_errors=True)


def ranks_that_began_elsewhere(rows: Sequence[Row], step: int) -> list[Row]:
    """List the ranks of a job that trained, but did not go on from this step's checkpoint."""
    return [row for row in rows if "RANK" in row and row.get("from") != str(step)]
