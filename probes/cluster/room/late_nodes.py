"""Waits for nodes that join after the driver, as those of an autoscaler do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

POLL_S = 1.0  # one call of GCS each: cheap, and a start takes minutes


def wait_for_nodes(
    cluster: Any,
    count: int,
    gpus_per_node: int,
    seconds: float,
    say: Callable[[str], None] = lambda line: None,
) -> float:
    """Wait until `count` nodes are alive with `gpus_per_node` GPUs each; return the seconds waited.

    `say` is called with how many are there, whenever that changes.  A node without its GPUs does
    not count: its raylet may have started before the GPU driver.  After `seconds` the run begins
    with the nodes that are there, and HOSTS names the missing ones.
    """
    began, before = time.monotonic(), -1
    while (ready := _ready(cluster, gpus_per_node)) < count:
        if ready != before:
            gpus = f" with {gpus_per_node} GPUs each" if gpus_per_node else ""
            say(f"{ready} of {count} nodes{gpus} are there")
            before = ready
        if time.monotonic() - began >= seconds:
            break
        time.sleep(POLL_S)
    return round(time.monotonic() - began, 1)


def _ready(cluster: Any, gpus_per_node: int) -> int:
    """Count the nodes that have their GPUs."""
    return sum(node["resources"].get("GPU", 0) >= gpus_per_node for node in cluster.nodes)
