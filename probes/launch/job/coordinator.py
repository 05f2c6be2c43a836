"""Removes the detached actor that Ray Train makes for all jobs of a cluster, and leaves.

Only a task gets the actor: a handle imports Ray Data, which takes 40 MB of a driver for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import on_node
from probes.cluster.room.placement_groups import jobs_of_others

COORDINATOR = "AutoscalingCoordinator"  # the actor, and its namespace
REMOVAL_S = 60  # for a task on the head that imports Ray Data


@contextmanager
def removed_coordinator(cluster: Cluster) -> Iterator[None]:
    """Remove the coordinator of a job of ours, unless there was one or other jobs may use it."""
    import ray

    before = has_coordinator()
    try:
        yield
    finally:
        if not before and has_coordinator() and not jobs_of_others(cluster):
            ray.get(on_node(_remove, cluster.head_node_id).remote(), timeout=REMOVAL_S)


def has_coordinator() -> bool:
    """Return whether the actor lives that Ray Train and Ray Data of all jobs share."""
    from ray.util import list_named_actors

    named = list_named_actors(all_namespaces=True)
    return {"name": COORDINATOR, "namespace": COORDINATOR} in named


def _remove() -> None:
    import ray

    with suppress(ValueError):  # it went by itself
        ray.kill(ray.get_actor(COORDINATOR, namespace=COORDINATOR))
