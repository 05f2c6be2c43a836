"""Ray actors and tasks with hard node affinity and num_cpus=0."""

from __future__ import annotations

from typing import Any


def on_node(target: Any, node: str, **options: Any) -> Any:
    """Make `target`, a class or a function, a Ray actor or task on the node of this id."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    affinity = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(target).options(num_cpus=0, scheduling_strategy=affinity, **options)
