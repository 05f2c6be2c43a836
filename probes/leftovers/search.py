"""Lists what earlier runs left on a cluster, and removes it."""

from __future__ import annotations

import http.client
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from probes.cluster.cleanup import jobs_with, stop_resource
from probes.cluster.cluster import Cluster
from probes.leftovers.on_node import list_files, remove_files
from probes.submit.entry import OLD_S, PREFIX

OUR_JOB = re.compile(r"\bseatrial-[0-9a-f]{12}\b")  # in the command of a job that LAUNCH submits
FILE, JOB = "file", "job"


@dataclass(frozen=True)
class LeftOver:
    """A file or a job of an earlier run; `idle_s` is None for a job, which still runs."""

    kind: str
    node: str  # id; "" for a job
    where: str  # name of the node, or the dashboard
    name: str
    idle_s: float | None = None

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
    nodes = [{"id": id} for id in folders]
    answers = cluster.on_each_node(list_files, each=folders, nodes=nodes)
    files = [
        LeftOver(FILE, id, names.get(id, id), one["path"], one["idle_s"])
        for id, found in answers.items()
        for one in found
    ]
    silent = [f"{names.get(id, id)} does not answer" for id in folders if id not in answers]
    try:
        return [*files, *_find_jobs(cluster.dashboard)], silent
    except (OSError, ValueError, http.client.HTTPException) as error:
        return files, [*silent, f"jobs cannot be listed: {error}"]


def _find_jobs(address: str) -> list[LeftOver]:
    if not address:
        raise ValueError("the cluster has no dashboard")
    return [LeftOver(JOB, "", address, job) for job in jobs_with(address, OUR_JOB)]


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
