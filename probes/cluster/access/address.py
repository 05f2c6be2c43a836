"""Finds the address of the cluster under test, and checks that something answers at it.

A cluster is named `auto`, `local`, `local:N` or `ray://host:port`.
"""

from __future__ import annotations

import os
import re
import socket

from probes.cluster.access.auth_mode import TokenProblem, follow_auth_mode
from probes.spelling import closest_name

CONNECT_SECONDS = 2  # bounds one TCP handshake with a host that drops packets
MAX_RAYLETS = 32  # of an embedded cluster: more do not fit on a host
OTHERWISE = (
    "run this on a node of the cluster, set RAY_ADDRESS, name it with --cluster "
    "ray://host:10001, or rehearse with --cluster local:4"
)


class ClusterUnreachable(RuntimeError):
    """Raised when no cluster can be joined.  The message is one sentence and a hint."""


def check_spec(spec: str) -> None:
    """Check that `spec` can name a cluster, without contacting any.  Raises ClusterUnreachable."""
    if spec == "auto" or re.fullmatch(r"ray://[^:/]+:\d+", spec):
        return
    if match := re.fullmatch(r"local(?::(\d+))?", spec):
        if not 1 <= int(match[1] or 1) <= MAX_RAYLETS:
            raise ClusterUnreachable(
                f"--cluster local:N takes 1 to {MAX_RAYLETS} raylets, found {match[1]}"
            )
        return
    word = spec.partition(":")[0]
    close = closest_name(word, ["auto", "local", "ray"])
    meant = f"; did you mean {close}?" if close not in ("", word) else ""
    raise ClusterUnreachable(
        f"--cluster takes auto, local[:N] or ray://host:port, found {spec!r}{meant}"
    )


def count_raylets(spec: str) -> int:
    """Return how many raylets a `local[:N]` asks for; 0 for another cluster."""
    return int(spec.partition(":")[2] or 2) if spec.split(":")[0] == "local" else 0


def find_address(spec: str) -> str:
    """Return the address to join for `auto` or `ray://host:port`, once it answers.

    Raises ClusterUnreachable where there is no address, or nothing answers at it.
    """
    origin, hint = "from --cluster", "Is the head up, and its port open?"
    if spec == "auto" and os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        spec, origin = os.environ["RAY_ADDRESS"], "from RAY_ADDRESS"
        check_spec(spec)
    if spec == "auto":
        spec, origin = _running_address()
        hint = f"Is the head up? Try `ray status` there, or {OTHERWISE}"
    host, _, port = spec.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClusterUnreachable(f"no Ray at {spec} ({origin}: {reason}). {hint}") from None
    return spec


def _running_address() -> tuple[str, str]:
    """Find the address of the Ray cluster that this machine is a node of, and where it is from.

    Raises ClusterUnreachable when there is none.
    """
    from ray._private import services

    try:
        address = services.canonicalize_bootstrap_address("auto", None)
    except ConnectionError:
        address = None
    except ValueError as error:
        raise ClusterUnreachable(f"RAY_ADDRESS is no address: {error}") from None
    if not address:
        raise ClusterUnreachable(f"--cluster auto found no running Ray cluster: {OTHERWISE}")
    if os.environ.get("RAY_ADDRESS"):
        return str(address), "from RAY_ADDRESS"
    processes = services.find_gcs_addresses()
    return str(address), (
        "from a Ray process of this host" if processes else "from the last `ray start` of this host"
    )


def read_size(spec: str) -> tuple[int, int]:
    """Return the number of live nodes and GPUs of a running cluster.  Nothing is placed on it."""
    import ray

    address = find_address(spec)
    try:
        follow_auth_mode(address)
        ray.init(address, log_to_driver=False, logging_level="error", configure_logging=False)
        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    except (TokenProblem, ConnectionError, ValueError, RuntimeError) as error:
        message = " ".join(str(error).split())
        raise ClusterUnreachable(f"{address} cannot be joined: {message}") from None
    finally:
        ray.shutdown()
    with_gpus = [one for one in resources if one.get("GPU")]
    return len(with_gpus or resources), int(sum(one["GPU"] for one in with_gpus))
