"""Asks nodes: tasks and actors that run on a chosen node, under names that no other run has."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

TASK_SECONDS = 90  # bounds a silent node; the first task there waits for our packages and a worker


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


# The first 12 hexadecimal digits of a uuid4 are random (the 13th is not), and names stay short.
# Among 10,000 tokens in use, two are the same with a probability of 1 in 5 million.
TOKEN_DIGITS = 12


def make_unique_token() -> str:
    """Make a token that no other run has.

    The caller must pass on the name that it builds: a second call returns another token.
    """
    return uuid.uuid4().hex[:TOKEN_DIGITS]
