"""Holds all accelerators of a node, so that a job must run on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from probes.cluster.cluster import Cluster

HOLD_SECONDS = 60  # for accelerators that no other job has


class NodeNotFree(RuntimeError):
    """Raised when a node's accelerators cannot be held: another job has them."""


class NodeHolder:
    """Holds what its actor was given."""

    def ready(self) -> bool:
        """Answer, once the actor runs."""
        return True


@contextmanager
def hold_node(cluster: Cluster, node: Mapping[str, Any]) -> Iterator[int]:
    """Hold a node's accelerators and yield how many ranks have no room there meanwhile.

    Without GPUs a rank takes a CPU, one on each node: all CPUs are held.  Raises NodeNotFree.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    resource = cluster.resource
    count = int(node["resources"].get(resource, 0))
    wanted = {"num_cpus": 0, "num_gpus": count} if resource == "GPU" else {"num_cpus": count}
    here = NodeAffinitySchedulingStrategy(node["id"], soft=False)
    holder = ray.remote(NodeHolder).options(scheduling_strategy=here, **wanted).remote()
    try:
        answer = holder.ready.remote()
        ready, _ = ray.wait([answer], timeout=HOLD_SECONDS)
        if not ready:
            raise NodeNotFree(f"{count} {resource} of {node['name']} are not free")
        try:
            ray.get(answer)
        except ray.exceptions.RayError as error:
            raise NodeNotFree(f"no process starts on {node['name']}: {error}") from None
        yield count if resource == "GPU" else 1
    finally:
        ray.kill(holder)
