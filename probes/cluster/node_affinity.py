"""Actors and tasks of one given node: there or nowhere, and at no CPU's cost."""

from __future__ import annotations

from typing import Any


def pinned(thing: Any, node: str, **options: Any) -> Any:
    """`thing`, a class or a function, as a Ray actor or task that runs on the node of this id."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(thing).options(num_cpus=0, scheduling_strategy=there, **options)
