"""Holds all accelerators of a node, so that a job must run on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from probes.cluster.cluster import Cluster

HOLD_SECONDS = 60  # for a group that only we ask for, on a cluster without other jobs


@contextmanager
def hold_node(cluster: Cluster, node: Mapping[str, Any]) -> Iterator[int]:
    """Hold a node's accelerators and yield how many ranks have no room there meanwhile.

    Without GPUs a rank takes one CPU, and the trainer one node each: all CPUs are held.  Raises
    TimeoutError when they are not free.
    """
    import ray

    resource = cluster.resource
    count = int(node["resources"].get(resource, 0))
    here = f"node:{node['address']}"  # Ray's own resource of each node, 1.0 of it
    bundle = {resource: count, **({here: 0.001} if here in node["resources"] else {})}
    group = ray.util.placement_group([bundle], strategy="STRICT_PACK", name="seatrial-held")
    try:
        if not group.wait(timeout_seconds=HOLD_SECONDS):
            raise TimeoutError(f"{count} {resource} of {node['name']} are not free")
        yield count if resource == "GPU" else 1
    finally:
        ray.util.remove_placement_group(group)
