"""Lists the placement groups that are not removed, many times a second.

Ray keeps removed groups, and only its complete table can be read.  With 4000 groups that takes 60
ms.  So one thread scans the table for new groups, as often as that is cheap.  Known live groups are
read one by one, 0.4 ms each.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from typing import Any

from probes.cluster.node_affinity import on_node

ASK_SECONDS = 60  # for a task on the head
MIN_PAUSE_S = 0.02  # least seconds from one scan of the table to the next
PAUSE_FACTOR = 3  # times the seconds of the last scan, which runs in Ray's own thread
MAX_READS = 3  # tries to get two readings that agree, before the last one is used

Group = Any  # Ray's protobuf, PlacementGroupTableData


class LivePlacementGroups:
    """Live placement groups, found by a thread that scans the table; see `snapshot`."""

    def __init__(self) -> None:
        self._live: dict[bytes, None] = {}  # ids; a dict: a set may not grow while it is read
        self._removed: set[bytes] = set()  # entries as Ray sends them, which never change again
        self._error = ""
        self._scan_table()
        threading.Thread(target=self._scan_loop, daemon=True).start()

    def snapshot(self) -> list[Group]:
        """List all live groups as they were at one moment.  Raises RuntimeError if a scan failed.

        They are read one after the other, and meanwhile one may hand its resources to another.  So
        groups that hold anything are read until two readings agree, MAX_READS times at most.
        """
        if self._error:
            raise RuntimeError(self._error)
        groups = self._read(list(self._live))
        for _ in range(MAX_READS):
            holders = [id for id, group in groups.items() if _node_ids(group)]
            reread = self._read(holders) if len(holders) > 1 else {}
            stable = all(_node_ids(groups[id]) == _node_ids(group) for id, group in reread.items())
            groups = {**groups, **reread}
            if stable:
                break
        return [group for group in groups.values() if group.state != group.REMOVED]

    def _read(self, ids: list[bytes]) -> dict[bytes, Group]:
        from ray._raylet import PlacementGroupID

        groups = {}
        for id in ids:
            entry = gcs_accessor().get_placement_group_info(PlacementGroupID(id))
            group = _parse_group(entry) if entry else None
            if group is None or group.state == group.REMOVED:
                self._live.pop(id, None)
            if group is not None:
                groups[id] = group
        return groups

    def _scan_loop(self) -> None:
        try:
            while True:
                started = time.monotonic()
                self._scan_table()
                time.sleep(max(MIN_PAUSE_S, PAUSE_FACTOR * (time.monotonic() - started)))
        except Exception as error:  # noqa: BLE001  (the probe must see every error)
            self._error = f"placement groups cannot be listed: {error}"

    def _scan_table(self) -> None:
        """Scan the table for new groups."""
        for entry in gcs_accessor().get_placement_group_table():
            if entry in self._removed:
                continue
            group = _parse_group(entry)
            if group.state == group.REMOVED:
                self._removed.add(entry)
            else:
                self._live[group.placement_group_id] = None


def gcs_accessor() -> Any:
    """Return Ray's own reader of its tables, in a driver or a worker."""
    from ray._private.state import state

    return state._connect_and_get_accessor()


def _parse_group(entry: bytes) -> Group:
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    return PlacementGroupTableData.FromString(entry)


def _node_ids(group: Group) -> list[bytes]:
    """List the node of each bundle that has one."""
    return [bundle.node_id for bundle in group.bundles if bundle.node_id]


# Ray's own drivers: its dashboard, and the agent that starts submitted jobs and then stays.
RAY_JOBS = re.compile(r"/ray/dashboard/|^ray::Dashboard")


def live_drivers() -> dict[str, str]:
    """Map the id of each live job on the cluster to the command that started it."""
    from ray._private import state

    return {job["JobID"]: job.get("Entrypoint", "") for job in state.jobs() if not job["IsDead"]}


def jobs_of_others(cluster: Any) -> list[str]:
    """List the ids of other jobs on the cluster, also where we are Ray's client."""
    import ray

    asked = on_node(live_drivers, cluster.head_node_id).remote()
    return other_jobs(ray.get(asked, timeout=ASK_SECONDS))


def other_jobs(drivers: dict[str, str], ours: Iterable[str] = ()) -> list[str]:
    """List the ids of jobs that are neither `ours` nor this process's nor Ray's own dashboard."""
    import ray

    known = {*ours, ray.get_runtime_context().get_job_id()}
    return sorted(id for id, cmd in drivers.items() if id not in known and not RAY_JOBS.search(cmd))
