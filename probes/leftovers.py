"""Finds and removes what earlier runs left on the nodes of a cluster."""

from __future__ import annotations

import http.client
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.cleanup import list_jobs, remove_path, stop_resource
from probes.cluster.cluster import Cluster
from probes.cluster.embedded import FOLDER, take_folder
from probes.submit.entry import OLD_S, PREFIX

# Names that a run gives its files: a dot where users would see them, and a token of 12 or 16 hex
# digits.  One without a letter could be a user's date; one token of 300 has none, and stays.
OURS = re.compile(
    r"\.?seatrial-(?:user-|submit-)?(?=[0-9]*[a-f])(?:[0-9a-f]{12}|[0-9a-f]{16})(?:-[0-9a-f]{4,56})?"
)
MAX_ENTRIES = 20_000  # of a folder that are looked at for the last change


def list_files(folders: Iterable[str]) -> dict[str, float]:
    """List our files and folders in these folders: seconds since the last change, by path.

    The folder of an embedded cluster is listed if its owner has ended.
    """
    paths = (path for folder in folders for path in _entries(Path(folder)))
    ours = (path for path in paths if OURS.fullmatch(path.name) or _is_abandoned(path))
    return {str(path): max(0.0, time.time() - max(_times(path), default=0.0)) for path in ours}


def remove_files(paths: Iterable[str]) -> dict[str, str]:
    """Remove what `list_files` listed; return why some could not be removed, by path."""
    errors = {}
    for path in map(Path, paths):
        if OURS.fullmatch(path.name):
            error = remove_path(path)
        elif FOLDER.fullmatch(path.name):
            error = _remove_abandoned(path)
        else:
            raise ValueError(f"{path} is not a name of seatrial")
        if error:
            errors[str(path)] = error
    return errors


def _is_abandoned(path: Path) -> bool:
    """Return whether this is the folder of an embedded cluster whose owner has ended."""
    held = take_folder(str(path)) if FOLDER.fullmatch(path.name) else None
    if held is not None:
        os.close(held)
    return held is not None


def _remove_abandoned(path: Path) -> str:
    """Remove the folder of an embedded cluster; return why not, "" if it is gone."""
    if not os.path.lexists(path):
        return ""
    held = take_folder(str(path))
    if held is None:
        return "the process that made this folder still runs, or the folder is not seatrial's"
    try:
        return remove_path(path)
    finally:
        os.close(held)


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):  # no such folder here, or not for us
        return sorted(folder.iterdir())
    return []


def _times(path: Path) -> Iterator[float]:
    """Yield the times of the last change of a file, or of all that is in a folder."""
    try:
        yield path.lstat().st_mtime
    except OSError:  # it has just gone
        return
    count = 0
    for folder, names, files in os.walk(path):  # links are not followed
        for name in (*names, *files):
            count += 1
            if count > MAX_ENTRIES:
                return
            with suppress(OSError):
                yield (Path(folder) / name).lstat().st_mtime


OUR_JOB = re.compile(r"\bseatrial-[0-9a-f]{12}\b")  # in the command or the id of a job
# A job is ours for sure if its id, metadata and command are those of one that a run submits itself:
# HOSTS' job of a stranger.  A job of LAUNCH is typed as any user types it, with a name of ours in
# its command: another user can type the same.
SURE_ID, SURE_METADATA = re.compile(r"seatrial-[0-9a-f]{12}"), {"seatrial": "stranger"}
FILE, JOB = "file", "job"


@dataclass(frozen=True)
class LeftOver:
    """A file or a job of an earlier run; `idle_s` is None for a job, which still runs.

    One that is not `is_sure` may be another user's, and is removed only where it is named.
    """

    kind: str
    node: str  # id; "" for a job
    where: str  # name of the node, or the dashboard
    name: str
    idle_s: float | None = None
    is_sure: bool = True

    @property
    def kept_s(self) -> float:
        """Seconds for which it stays: a submitted run may still be brought back."""
        return OLD_S if Path(self.name).name.startswith(PREFIX) else 0.0


def find_left(cluster: Cluster, shared: str | None) -> tuple[list[LeftOver], list[str]]:
    """Find our files in the shared folder and in each node's temporary folder, and our jobs.

    The second list says what could not be searched.
    """
    names, head = cluster.node_names, cluster.head_node_id
    temporary = ["/tmp", tempfile.gettempdir()]
    folders = {node["id"]: [*temporary] for node in cluster.known_nodes() if node["alive"]}
    if shared:
        folders[head].append(shared)  # all nodes would list the same
    answers = cluster.on_each_node(list_files, each=folders, nodes=[{"id": id} for id in folders])
    listed = [(id, *row) for id, found in answers.items() for row in found.items()]
    files = [LeftOver(FILE, id, names.get(id, id), path, idle_s) for id, path, idle_s in listed]
    silent = [f"{names.get(id, id)} does not answer" for id in folders if id not in answers]
    try:
        return [*files, *_find_jobs(cluster.dashboard)], silent
    except (OSError, ValueError, http.client.HTTPException) as error:
        return files, [*silent, f"jobs cannot be listed: {error}"]


def _find_jobs(address: str) -> list[LeftOver]:
    if not address:
        raise ValueError("the cluster has no dashboard")
    return [
        LeftOver(JOB, "", address, job["submission_id"], is_sure=_is_surely_ours(job))
        for job in list_jobs(address)
        if any(OUR_JOB.search(str(job.get(key))) for key in ("submission_id", "entrypoint"))
    ]


def _is_surely_ours(job: dict[str, Any]) -> bool:
    id = job["submission_id"]
    is_named = bool(SURE_ID.fullmatch(id)) and job.get("metadata") == SURE_METADATA
    return is_named and job.get("entrypoint") == f"echo {id}"


def remove_left(cluster: Cluster, items: Iterable[LeftOver]) -> dict[str, str]:
    """Remove these; return why some could not be removed, by name."""
    errors: dict[str, str] = {}
    by_node: dict[str, list[str]] = {}
    for one in items:
        if one.kind == FILE:
            by_node.setdefault(one.node, []).append(one.name)
            continue
        try:
            stop_resource("job", f"{one.where} {one.name}")
        except OSError as error:
            errors[one.name] = str(error)
    nodes = [{"id": id} for id in by_node]
    answers = cluster.on_each_node(remove_files, each=by_node, nodes=nodes) if nodes else {}
    for id, paths in by_node.items():
        errors |= answers.get(id, dict.fromkeys(paths, "the node does not answer"))
    return errors
