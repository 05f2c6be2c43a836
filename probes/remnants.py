"""What libraries of Ray's leave on a cluster when we use them, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Ray Train and Ray Data (2.5x on) share one detached actor of this name, in a namespace of it too.
COORDINATOR = "AutoscalingCoordinator"


@contextmanager
def coordinator_removed(others: Callable[[], list[str]]) -> Iterator[None]:
    """End the actor that Ray Train leaves, unless it was there before or `others` live here."""
    import ray

    before = coordinator()
    try:
        yield
    finally:
        left = coordinator()
        if left is not None and before is None and not others():
            ray.kill(left)


def coordinator() -> Any:
    """Ray's coordinator of autoscaling, where there is one."""
    import ray

    try:
        return ray.get_actor(COORDINATOR, namespace=COORDINATOR)
    except ValueError:
        return None
