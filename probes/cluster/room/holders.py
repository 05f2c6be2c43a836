"""Finds what holds the accelerators of a cluster: placement groups, actors, and other work.

Ray's tables name the owner of a group or actor.  A running task owns what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from probes.cluster.room.placement_groups import gcs_accessor
from reports.numbers import quantity

ASK_SECONDS = 20
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
        tables = ray.get(asked, timeout=ASK_SECONDS)
    except ray.exceptions.RayError:
        ray.cancel(asked, force=True)
        return []
    return list_holders(resource, nodes, *tables)


def read_tables() -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Read total and free resources by node, living actors, and placement groups (in a task)."""
    import ray
    from ray._private import state
    from ray.core.generated.gcs_pb2 import ActorTableData

    actors = [ActorTableData.FromString(row) for row in gcs_accessor().get_actor_table(None, None)]
    living = [
        {
            "class": actor.class_name,
            "name": actor.name,
            "namespace": actor.ray_namespace,
            "job": actor.job_id.hex(),
            "node": actor.address.node_id.hex(),
            "resources": dict(actor.required_resources),
        }
        for actor in actors
        if actor.state == ActorTableData.ALIVE
    ]
    totals = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    free = state.available_resources_per_node()
    return totals, free, living, ray.util.placement_group_table()


def list_holders(
    resource: str,
    nodes: Mapping[str, str],
    totals: Mapping[str, Mapping[str, float]],
    free: Mapping[str, Mapping[str, float]],
    actors: Iterable[Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Any]],
) -> list[HeldAccelerators]:
    """List the holders on these nodes, by node and then by size."""
    held = {
        id: totals[id].get(resource, 0) - free.get(id, {}).get(resource, 0)
        for id in nodes
        if id in totals
    }
    found: list[HeldAccelerators] = []
    known: Counter[str] = Counter()
    for group in groups.values():
        if group["state"] == "REMOVED":
            continue
        for bundle, node in group["bundles_to_node_id"].items():
            count = group["bundles"].get(bundle, {}).get(resource, 0)
            if count and node in held:
                known[node] += count
                job = group["placement_group_id"][-8:]
                found.append(HeldAccelerators(nodes[node], count, _group_words(group["name"], job)))
    for actor in actors:
        count, node = actor["resources"].get(resource, 0), actor["node"]
        in_group = any(IN_GROUP in name for name in actor["resources"])
        if count and node in held and not in_group:
            known[node] += count
            found.append(HeldAccelerators(nodes[node], count, _actor_words(actor)))
    for node, count in held.items():
        if (rest := round(count - known[node], 3)) > 0:
            found.append(HeldAccelerators(nodes[node], rest, "a task"))
    return _merged(found)


def _group_words(name: str, job: str) -> str:
    return f"placement group {name} of job {job}" if name else f"a placement group of job {job}"


def _actor_words(actor: Mapping[str, Any]) -> str:
    name = f" ({actor['name']})" if actor["name"] else ""
    return f"actor {actor['class']}{name} of job {actor['job']}, namespace {actor['namespace']}"


def _merged(holders: Iterable[HeldAccelerators]) -> list[HeldAccelerators]:
    """Merge those of a node that are described by the same words; the largest come first."""
    counts: dict[tuple[str, str], float] = {}
    for holder in holders:
        key = holder.node, holder.what
        counts[key] = counts.get(key, 0) + holder.count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [HeldAccelerators(node, count, what) for (node, what), count in ordered]


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
