"""Ray actors and tasks with hard node affinity and num_cpus=0, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def on_node(target: Any, node: str, **options: Any) -> Any:
    """Make `target`, a class or a function, a Ray actor or task on the node of this id."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    affinity = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(target).options(num_cpus=0, scheduling_strategy=affinity, **options)


def collect_answers(
    calls: Mapping[Any, str], seconds: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Wait for calls, which are mapped to names; return answers and errors by name."""
    import ray

    if not calls:
        return {}, {}
    done, pending = ray.wait(list(calls), num_returns=len(calls), timeout=seconds)
    answers = {}
    errors = {calls[call]: f"no answer within {seconds:.0f} s" for call in pending}
    for call in done:
        try:
            answers[calls[call]] = ray.get(call)
        except ray.exceptions.RayError as error:
            errors[calls[call]] = (str(error).strip().splitlines() or ["the worker died"])[-1]
    return answers, errors
