"""Removes the detached actor that Ray Train makes for all jobs of a cluster, and leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from probes.cluster.cluster import Cluster
from probes.cluster.room.placement_groups import jobs_of_others

COORDINATOR = "AutoscalingCoordinator"  # the actor, and its namespace


@contextmanager
def removed_coordinator(cluster: Cluster) -> Iterator[None]:
    """Remove the coordinator of a job of ours, unless there was one or other jobs may use it."""
    import ray

    before = find_coordinator()
    try:
        yield
    finally:
        made = None if before else find_coordinator()
        if made and not jobs_of_others(cluster):
            ray.kill(made)


def find_coordinator() -> Any:
    """Return the actor that Ray Train and Ray Data of all jobs share; None without one."""
    import ray

    try:
        return ray.get_actor(COORDINATOR, namespace=COORDINATOR)
    except ValueError:
        return None
