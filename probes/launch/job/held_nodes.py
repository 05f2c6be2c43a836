"""Holds all accelerators of a node, so that a job must run on the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from probes.cluster.cluster import Cluster

HOLD_SECONDS = 60  # for accelerators that no other job has


class NodeNotFree(RuntimeError):
    """Raised when a node's accelerators cannot be held: another job has them."""


class NodeHolder:
    """Holds what its actor was given."""

    def pid(self) -> int:
        """Return the process id, once the actor runs."""
        return os.getpid()


@dataclass(frozen=True)
class HeldNode:
    """A node whose accelerators are held: how many ranks have no room there, and who holds them."""

    ranks: int
    pid: int


@contextmanager
def hold_node(cluster: Cluster, node: Mapping[str, Any]) -> Iterator[HeldNode]:
    """Hold a node's accelerators meanwhile.

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
        answer = holder.pid.remote()
        ready, _ = ray.wait([answer], timeout=HOLD_SECONDS)
        if not ready:
            raise NodeNotFree(f"{count} {resource} of {node['name']} are not free")
        try:
            pid = ray.get(answer)
        except ray.exceptions.RayError as error:
            raise NodeNotFree(f"no process starts on {node['name']}: {error}") from None
        yield HeldNode(count if resource == "GPU" else 1, pid)
    finally:
        ray.kill(holder)
