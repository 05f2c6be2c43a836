"""Reaches into private parts of Ray: no other file does, for a release of Ray may move them.

Two scripts of probes that need only Ray have private parts of their own; the test of this rule
names them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

Group = Any  # Ray's protobuf, PlacementGroupTableData


def import_pynvml() -> Any:
    """Import Ray's own copy of pynvml."""
    from ray._private.thirdparty import pynvml

    return pynvml


def reload_settings() -> None:
    """Make Ray read its variables again, as ray._private.authentication does."""
    from ray._raylet import Config  # type: ignore[attr-defined]  # compiled, without types

    Config.initialize("")


def find_last_address() -> str | None:
    """Find the address of the last `ray start` of this host; None if there was none."""
    from ray._private import services

    return services.find_bootstrap_address(None)


def complete_address(named: str) -> str | None:
    """Return the host:port that RAY_ADDRESS names, if any.  Raises ValueError."""
    from ray._private import services

    return services.canonicalize_bootstrap_address(named, None)


def read_dashboard_url() -> str:
    """Read the URL of the joined cluster's dashboard; "" if it has none.

    In ray.get_dashboard_url() a variable of the shell would override the result.
    """
    from ray._private import services

    return services.get_webui_url_from_internal_kv() or ""


def read_session() -> tuple[str, str]:
    """Read name and folder of the session of this process's node."""
    import ray

    node = ray._private.worker._global_node
    return node.session_name, node.get_session_dir_path()


def read_value(key: bytes, namespace: bytes) -> bytes | None:
    """Read a value that the head keeps; None if there is none."""
    from ray.experimental.internal_kv import _internal_kv_get

    return _internal_kv_get(key, namespace=namespace)


def write_value(key: bytes, value: bytes, namespace: bytes, overwrite: bool) -> bool:
    """Let the head keep a value; return whether it had one, which stays without `overwrite`."""
    from ray.experimental.internal_kv import _internal_kv_put

    return _internal_kv_put(key, value, overwrite=overwrite, namespace=namespace)


def delete_value(key: bytes, namespace: bytes) -> None:
    """Let the head forget a value."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(key, namespace=namespace)


def gcs_accessor() -> Any:
    """Return Ray's own reader of its tables, in a driver or a worker."""
    from ray._private.state import state

    return state._connect_and_get_accessor()


def read_groups(known: Container[bytes]) -> Iterator[tuple[bytes, Group]]:
    """Yield each placement group and its entry in Ray's table, but for the `known` entries."""
    for entry in gcs_accessor().get_placement_group_table():
        if entry not in known:
            yield entry, _parse_group(entry)


def read_group(id: bytes) -> Group | None:
    """Read one placement group; None if Ray no longer knows it."""
    from ray._raylet import PlacementGroupID

    entry = gcs_accessor().get_placement_group_info(PlacementGroupID(id))
    return _parse_group(entry) if entry else None


def _parse_group(entry: bytes) -> Group:
    """Parse a placement group of Ray's tables."""
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    return PlacementGroupTableData.FromString(entry)


class LiveActors:
    """Reads living actors many times a second: entries that did not change are parsed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def snapshot(self, jobs: Iterable[str | None]) -> list[Any]:
        """Read the living actors of these jobs, by id in hex; None stands for all jobs."""
        from ray._raylet import JobID
        from ray.core.generated.gcs_pb2 import ActorTableData

        table = gcs_accessor().get_actor_table
        ids = [None if job is None else JobID.from_hex(job) for job in jobs]
        entries = [entry for id in ids for entry in table(id, "ALIVE")]
        known = self._known
        self._known = {one: known.get(one) or ActorTableData.FromString(one) for one in entries}
        return [one for one in self._known.values() if one.state == ActorTableData.ALIVE]


def read_jobs() -> list[dict[str, Any]]:
    """Read the jobs of the cluster, also those that have ended."""
    from ray._private import state

    return list(state.jobs())


def read_free_resources() -> dict[str, dict[str, float]]:
    """Read the free resources of each node, by its id."""
    from ray._private import state

    return state.available_resources_per_node()


def read_draining() -> dict[str, int]:
    """Read the nodes that are being drained: by id the end of their time (ms, Unix; 0: none)."""
    from ray._private.state import state

    return dict(state.get_draining_nodes())
