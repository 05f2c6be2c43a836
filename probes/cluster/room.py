"""Finds out whether a cluster has room for a run, and who holds its accelerators."""

from __future__ import annotations

import json
import math
import re
import shlex
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from probes.cluster import ray_internals
from probes.cluster.ask import on_node
from reports.numbers import quantity
from reports.redact import redact_text
from reports.sanitize import one_line

POLL_S = 2.0  # one call of GCS each
LEAST_SHARE = 1e-3  # of an accelerator: Ray counts in ten-thousandths
SETTLE_S = 20.0  # within it an earlier probe's accelerators are back
STEADY_S = 4.0  # a job that hands its accelerators on leaves them free for a moment


def busy_accelerators(cluster: Any, idle: int = 0) -> int:
    """Count the accelerators that Ray has given away, or parts of them, but for `idle`."""
    import ray

    free: dict[str, Any] = ray.available_resources()
    busy = math.ceil(cluster.ray_gpu_count - float(free.get(cluster.resource, 0)) - LEAST_SHARE)
    return max(0, busy - idle)


def _who_holds(cluster: Any) -> str:
    return str(cluster.describe_holders() or "some accelerators are in use")


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
    began, announced, free_since = time.monotonic(), "", None
    while (now := time.monotonic()) - began < seconds:
        if busy_accelerators(cluster):
            free_since = None
            if (held := _who_holds(cluster)) != announced:
                announced = held
                say(f"{held}: the run waits for free accelerators, at most for --wait-for-room")
        else:
            free_since = now if free_since is None else free_since
            if not announced or now - free_since >= STEADY_S:
                break
        time.sleep(POLL_S)
    return round(time.monotonic() - began, 1)


NODES_POLL_S = 1.0  # one call of GCS each: cheap, and a start takes minutes


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
            gpus = f" with {quantity(gpus_per_node, 'GPUs')} each" if gpus_per_node else ""
            say(f"{ready} of {count} nodes{gpus} have joined")
            before = ready
        if time.monotonic() - began >= seconds:
            break
        time.sleep(NODES_POLL_S)
    return round(time.monotonic() - began, 1)


def _ready(cluster: Any, gpus_per_node: int) -> int:
    """Count the nodes that have their GPUs."""
    return sum(node["resources"].get("GPU", 0) >= gpus_per_node for node in cluster.nodes)


ASK_SECONDS = 60  # for a task on the head
MIN_PAUSE_S = 0.02  # least seconds from one scan of the table to the next
PAUSE_FACTOR = 3  # times the seconds of the last scan, which runs in Ray's own thread
MAX_READS = 3  # tries to get two readings that agree, before the last one is used
Group = ray_internals.Group


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
        groups = {}
        for id in ids:
            group = ray_internals.read_group(id)
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
        for entry, group in ray_internals.read_groups(self._removed):
            if group.state == group.REMOVED:
                self._removed.add(entry)
            else:
                self._live[group.placement_group_id] = None


def _node_ids(group: Group) -> list[bytes]:
    """List the node of each bundle that has one."""
    return [bundle.node_id for bundle in group.bundles if bundle.node_id]


# Ray's own drivers: its dashboard, and the agent that starts submitted jobs and then stays.
RAY_JOBS = re.compile(r"/ray/dashboard/|^ray::Dashboard")


def live_jobs() -> dict[str, dict[str, Any]]:
    """Map the id of each live job on the cluster to its row in Ray's table."""
    return {job["JobID"]: job for job in ray_internals.read_jobs() if not job["IsDead"]}


def live_drivers() -> dict[str, str]:
    """Map the id of each live job on the cluster to the command that started it."""
    return {id: job.get("Entrypoint", "") for id, job in live_jobs().items()}


def jobs_of_others(cluster: Any) -> list[str]:
    """List the ids of other jobs on the cluster, also where we are Ray's client."""

    return other_jobs(_ask_head(cluster, live_drivers))


def _ask_head(cluster: Any, question: Callable[[], Any]) -> Any:
    """Ask the head for `live_drivers` or `live_jobs`.  Raises RayError."""
    import ray

    return ray.get(on_node(question, cluster.head_node_id).remote(), timeout=ASK_SECONDS)


def other_jobs(drivers: dict[str, str], ours: Iterable[str] = ()) -> list[str]:
    """List the ids of jobs that are neither `ours` nor this process's nor Ray's own dashboard."""
    import ray

    known = {*ours, ray.get_runtime_context().get_job_id()}
    return sorted(id for id, cmd in drivers.items() if id not in known and not RAY_JOBS.search(cmd))


HOLDERS_SECONDS = 20
MAX_SHOWN = 5  # holders that a sentence names
IN_GROUP = "_group_"  # in the name of a resource that a placement group holds


@dataclass(frozen=True)
class HeldAccelerators:
    """What holds `count` accelerators of a node, in words."""

    node: str
    count: float
    what: str


def find_holders(resource: str, nodes: Mapping[str, str]) -> list[HeldAccelerators]:
    """Find what holds this resource on the cluster's nodes (`nodes`: id -> name).

    An empty list where Ray does not answer: it explains, and judges nothing.
    """
    import ray

    asked = ray.remote(read_tables).options(num_cpus=0, max_retries=0).remote()
    try:
        tables = ray.get(asked, timeout=HOLDERS_SECONDS)
    except ray.exceptions.RayError:
        ray.cancel(asked, force=True)
        return []
    return list_holders(resource, nodes, *tables)


def read_tables() -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Read total and free resources by node, living actors, and placement groups (in a task)."""
    import ray

    living = [
        {
            "class": actor.class_name,
            "name": actor.name,
            "namespace": actor.ray_namespace,
            "job": actor.job_id.hex(),
            "node": actor.address.node_id.hex(),
            "resources": dict(actor.required_resources),
        }
        for actor in ray_internals.LiveActors().snapshot([None])
    ]
    totals = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return totals, ray_internals.read_free_resources(), living, ray.util.placement_group_table()


def list_holders(
    resource: str,
    nodes: Mapping[str, str],
    totals: Mapping[str, Mapping[str, float]],
    free: Mapping[str, Mapping[str, float]],
    actors: Iterable[Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Any]],
) -> list[HeldAccelerators]:
    """List the holders on these nodes, each once, the largest first."""
    alive = [id for id in nodes if id in totals]
    held = {id: totals[id].get(resource, 0) - free.get(id, {}).get(resource, 0) for id in alive}
    found = defaultdict[tuple[str, str], float](float)  # by node and words
    for group in groups.values():
        words = _group_words(group["name"], group["placement_group_id"][-8:])
        places = group["bundles_to_node_id"] if group["state"] != "REMOVED" else {}
        for bundle, node in places.items():
            found[node, words] += group["bundles"].get(bundle, {}).get(resource, 0)
    for actor in actors:
        if not any(IN_GROUP in name for name in actor["resources"]):
            found[actor["node"], _actor_words(actor)] += actor["resources"].get(resource, 0)
    for node, count in held.items():
        known = sum(part for (place, _), part in found.items() if place == node)
        found[node, "a task"] = max(0, round(count - known, 3))
    holders = [
        HeldAccelerators(nodes[node], count, words)
        for (node, words), count in found.items()
        if count and node in held
    ]
    return sorted(holders, key=lambda one: (-one.count, one.node, one.what))


def _group_words(name: str, job: str) -> str:
    return f"placement group {name} of job {job}" if name else f"a placement group of job {job}"


def _actor_words(actor: Mapping[str, Any]) -> str:
    name = f" (its name: {actor['name']})" if actor["name"] else ""
    return f"actor {actor['class']}{name} of job {actor['job']}, namespace {actor['namespace']}"


def describe_holders(holders: Iterable[HeldAccelerators], resource: str) -> str:
    """Describe what holds accelerators, in one sentence without a full stop; "" for nothing."""
    listed = list(holders)
    words = [
        f"{quantity(holder.count, resource + 's')} on {holder.node} "
        f"{'is' if holder.count == 1 else 'are'} held by {holder.what}"
        for holder in listed[:MAX_SHOWN]
    ]
    more = len(listed) - MAX_SHOWN
    return "; ".join([*words, *([f"and {more} more"] if more > 0 else [])])


NAMESPACE, KEY = b"seatrial", b"trial"
MAX_CLAIM = 4096  # bytes: any user of the cluster can write the claim
MAX_WORDS = 80  # characters of another user's words in a sentence
JUST_BEGUN = "another run of seatrial has just started on this cluster"
CLAIM_POLL_S = 5.0
CLAIM_SETTLE_S = 1.0  # two trials may find the same dead claim: the later one holds it


class OtherTrial(RuntimeError):
    """Raised when another trial runs on the cluster."""


def claim_cluster(
    cluster: Any, started: str, wait_s: float = 0, say: Callable[[str], None] = print
) -> None:
    """Claim the cluster for this driver's job; wait for another trial for `wait_s` seconds.

    `say` is called once with what is waited for.  Raises OtherTrial.
    """
    deadline, announced = time.monotonic() + wait_s, False
    while other := _try_claim(cluster, started):
        if time.monotonic() >= deadline:
            waited = "it did not end within --wait-for-room"
            do = waited if wait_s else "wait for it with --wait-for-room 30m"
            raise OtherTrial(f"{other}: {do}{_way_on(cluster)}")
        if not announced:
            say(other)
            announced = True
        time.sleep(CLAIM_POLL_S)


def release_cluster() -> None:
    """End the claim of this driver, if it has one."""
    if _read().get("job") == _own_job():
        ray_internals.delete_value(KEY, NAMESPACE)


def end_claim(job: str) -> None:
    """End the claim of this job, which is no trial.  Raises OtherTrial where it has none."""
    claim = _read()
    if claim.get("job") != job:
        found = f"the lock of job {_words(claim, 'job')}, {_origin(claim)}" if claim else "no lock"
        raise OtherTrial(f"job {one_line(job)} has no lock on this cluster. Found: {found}")
    ray_internals.delete_value(KEY, NAMESPACE)


def _way_on(cluster: Any) -> str:
    """Say what ends a claim that names a job which is no trial: any user can write it."""
    if not (claim := _read()):
        return ""
    command = f"seatrial cleanup --unclaim {shlex.quote(_words(claim, 'job'))}"
    command += f" --cluster {cluster.address}" if cluster.kind == "client" else ""
    return f". If that job is not a run of seatrial, remove its lock with `{command}`"


def _try_claim(cluster: Any, started: str) -> str:
    """Claim the cluster; return "", or which other trial has it."""
    own = {"job": _own_job(), "host": socket.gethostname(), "started": started}
    value = json.dumps(own).encode()
    if not ray_internals.write_value(KEY, value, NAMESPACE, overwrite=False):
        return ""
    other = _read()
    if other.get("job") == own["job"]:
        return ""
    if driver := _describe_driver(cluster, other):
        return f"another run of seatrial uses this cluster, {_origin(other)} ({driver})"
    if _read() != other:  # a third one asked, too, and was faster
        return JUST_BEGUN
    ray_internals.write_value(KEY, value, NAMESPACE, overwrite=True)
    time.sleep(CLAIM_SETTLE_S)
    return "" if _read().get("job") == own["job"] else JUST_BEGUN


def _origin(claim: Mapping[str, Any]) -> str:
    return f"started on {_words(claim, 'host')} at {_words(claim, 'started')}"


def _words(claim: Mapping[str, Any], key: str) -> str:
    """Return what another user wrote into a field, or Ray knows of a job, in a few clean words."""
    return one_line(redact_text(str(claim.get(key) or "unknown")))[:MAX_WORDS]


def _describe_driver(cluster: Any, claim: dict[str, Any]) -> str:
    """Describe the job that a claim names, as Ray knows it; "" if it can be no trial any more.

    Ray's own jobs live as long as the cluster, and are no trials.
    """
    import ray

    named = f"job {_words(claim, 'job')}"
    try:
        job = _ask_head(cluster, live_jobs).get(claim.get("job"))
    except ray.exceptions.RayError:  # as long as it may run, it does
        return f"{named}: Ray does not report whether it still runs"
    if job is None or RAY_JOBS.search(job.get("Entrypoint", "")):
        return ""
    place = f"process {_words(job, 'DriverPid')} on {_words(job, 'DriverIPAddress')}"
    return f"{named}, {place}: {_words(job, 'Entrypoint')}"


def _own_job() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id())


def _read() -> dict[str, Any]:
    """Read the claim; {} if there is none, or it is not of this form."""
    value = ray_internals.read_value(KEY, NAMESPACE) or b"{}"
    try:
        claim = json.loads(value) if len(value) <= MAX_CLAIM else {}
    except (ValueError, RecursionError):
        return {}
    return claim if isinstance(claim, dict) and isinstance(claim.get("job"), str) else {}
