"""Asks many nodes or actors at the same time, under names that no other run has."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reports.sanitize import last_line

TASK_SECONDS = 90  # bounds a silent node; the first task there waits for our packages and a worker
REACH_SECONDS = 30.0  # for a call to reach an actor on a busy node


def on_node(target: Any, node: str, **options: Any) -> Any:
    """Make `target`, a class or a function, a Ray actor or task on the node of this id."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    affinity = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(target).options(num_cpus=0, scheduling_strategy=affinity, **options)


@dataclass
class Answers:
    """What was answered, and why some do not answer; both by the name of what was asked.

    Those in `silent` have an error because no answer came in time.
    """

    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


def ask_nodes(
    function: Callable[..., Any],
    each: Mapping[str, tuple[Any, ...]],
    seconds: float = TASK_SECONDS,
    **options: Any,
) -> Answers:
    """Run a function in one worker of each node, by node id with the arguments for it.

    `options` are those of Ray's task.  One that gives no answer in time is cancelled.
    """
    import ray

    calls = {
        on_node(function, id, max_retries=0, **options).remote(*arguments): id
        for id, arguments in each.items()
    }
    answers = collect_answers(calls, seconds)
    for call, id in calls.items():
        if id in answers.silent:
            ray.cancel(call, force=True)
    return answers


def ask_actors(
    actors: Mapping[str, Any], method: str, each: Mapping[str, tuple[Any, ...]], seconds: float
) -> Answers:
    """Call a method of some of these actors, by name with the arguments for it."""
    calls = {getattr(actors[name], method).remote(*each[name]): name for name in each}
    return collect_answers(calls, seconds)


def collect_answers(calls: Mapping[Any, str], seconds: float) -> Answers:
    """Wait so long for calls of Ray, which are mapped to names; return the answers by name."""
    import ray

    if not calls:
        return Answers()
    done, pending = ray.wait(list(calls), num_returns=len(calls), timeout=seconds)
    silent = [calls[call] for call in pending]
    answers = Answers({}, dict.fromkeys(silent, f"no answer within {seconds:.0f} s"), silent)
    for call in done:
        try:
            answers.values[calls[call]] = ray.get(call)
        except ray.exceptions.RayError as error:
            answers.errors[calls[call]] = last_line(error, "the worker died")
    return answers


class ActorSet:
    """Actors by key; `errors` holds why one did not answer."""

    actors: dict[str, Any]
    errors: dict[str, str]

    def close(self) -> None:
        """End the actors, with all that they hold."""
        import ray

        for actor in self.actors.values():
            ray.kill(actor)

    def call_each(
        self, method: str, each: Mapping[str, tuple[Any, ...]], seconds: float = REACH_SECONDS
    ) -> dict[str, Any]:
        """Call a method of these actors at once; leave out who does not answer in time."""
        answers = ask_actors(self.actors, method, each, seconds)
        self.errors |= answers.errors
        return answers.values


# The first 12 hexadecimal digits of a uuid4 are random (the 13th is not), and names stay short.
# Among 10,000 tokens in use, two are the same with a probability of 1 in 5 million.
TOKEN_DIGITS = 12


def make_unique_token() -> str:
    """Make a token that no other run has.

    The caller must pass on the name that it builds: a second call returns another token.
    """
    return uuid.uuid4().hex[:TOKEN_DIGITS]
