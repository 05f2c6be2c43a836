"""Lets one trial at a time run on a cluster: two would measure each other.

The claim is a key in Ray's store, which has the job of the driver.  It ends with that job, however
the driver ends.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from probes.cluster.node_affinity import on_node
from probes.cluster.room.placement_groups import ASK_SECONDS, live_drivers
from reports.sanitize import one_line

NAMESPACE, KEY = b"seatrial", b"trial"
POLL_S = 5.0
SETTLE_S = 1.0  # two trials may find the same dead claim: the later one holds it


class OtherTrial(RuntimeError):
    """Raised when another trial runs on the cluster."""


def claim_cluster(
    cluster: Any, started: str, wait_s: float = 0, say: Callable[[str], None] = print
) -> None:
    """Claim the cluster for this driver's job; wait for another trial for `wait_s` seconds.

    `say` is called once with what is waited for.  Raises OtherTrial.
    """
    deadline, said = time.monotonic() + wait_s, False
    while other := _try_claim(cluster, started):
        if time.monotonic() >= deadline:
            do = (
                "wait for it with --wait-for-room 30m" if not wait_s else "it has not ended in time"
            )
            raise OtherTrial(f"{other}: {do}")
        if not said:
            say(other)
            said = True
        time.sleep(POLL_S)


def release_cluster() -> None:
    """End the claim of this driver, if it has one."""
    from ray.experimental.internal_kv import _internal_kv_del

    if _read().get("job") == _own_job():
        _internal_kv_del(KEY, namespace=NAMESPACE)


def _try_claim(cluster: Any, started: str) -> str:
    """Claim the cluster; return "", or which other trial has it."""
    import ray
    from ray.experimental.internal_kv import _internal_kv_put

    own = {"job": _own_job(), "host": socket.gethostname(), "started": started}
    value = json.dumps(own).encode()
    existed = _internal_kv_put(KEY, value, overwrite=False, namespace=NAMESPACE)
    if not existed:
        return ""
    other = _read()
    if other.get("job") == own["job"]:
        return ""
    host, since = (one_line(other.get(key) or "unknown") for key in ("host", "started"))
    asked = on_node(live_drivers, cluster.head_node_id).remote()
    try:
        living = ray.get(asked, timeout=ASK_SECONDS)
    except ray.exceptions.RayError:  # as long as it may run, it does
        living = {other.get("job"): ""}
    if other.get("job") in living:
        return f"another trial runs on this cluster, started on {host} at {since}"
    if _read() != other:  # a third one asked, too, and was faster
        return "another trial has just begun here"
    _internal_kv_put(KEY, value, overwrite=True, namespace=NAMESPACE)
    time.sleep(SETTLE_S)
    return "" if _read().get("job") == own["job"] else "another trial has just begun here"


def _own_job() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id())


def _read() -> dict[str, Any]:
    """Read the claim; {} if there is none, or it is not of this form."""
    from ray.experimental.internal_kv import _internal_kv_get

    try:
        claim = json.loads(_internal_kv_get(KEY, namespace=NAMESPACE) or b"{}")
    except ValueError:
        return {}
    return claim if isinstance(claim, dict) else {}
