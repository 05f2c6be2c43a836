"""Waits until no other job holds accelerators of the cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

POLL_S = 2.0  # one call of GCS each
LEAST_SHARE = 1e-3  # of an accelerator: Ray counts in ten-thousandths
SETTLE_S = 20.0  # within it an earlier probe's accelerators are back
STEADY_S = 4.0  # a job that hands its accelerators on leaves them free for a moment


def busy_accelerators(cluster: Any, idle: int = 0) -> int:
    """Count the accelerators that Ray has given away, or parts of them, but for `idle`."""
    import ray

    free: dict[str, Any] = ray.available_resources()
    taken = cluster.ray_gpu_count - float(free.get(cluster.resource, 0))
    busy = math.ceil(taken - LEAST_SHARE)
    return max(0, busy - idle)


def _who_holds(cluster: Any) -> str:
    return str(cluster.describe_holders() or "other jobs hold accelerators")


def describe_busy(cluster: Any, seconds: float = SETTLE_S) -> str:
    """Describe what still holds accelerators after so many seconds; "" once all are free."""
    deadline = time.monotonic() + seconds
    while busy_accelerators(cluster):
        if time.monotonic() > deadline:
            return _who_holds(cluster)
        time.sleep(POLL_S)
    return ""


def wait_for_room(cluster: Any, seconds: float, say: Callable[[str], None]) -> float:
    """Wait until all accelerators are free; return the seconds waited.

    `say` is called with what holds them, whenever that changes.  After `seconds` the run begins,
    and what finds no room then is unproven.
    """
    began, said, free_since = time.monotonic(), "", None
    while (now := time.monotonic()) - began < seconds:
        if busy_accelerators(cluster):
            free_since = None
            if (held := _who_holds(cluster)) != said:
                say(said := held)
        else:
            free_since = now if free_since is None else free_since
            if not said or now - free_since >= STEADY_S:
                break
        time.sleep(POLL_S)
    return round(time.monotonic() - began, 1)
