"""Finds the entrances of the joined cluster, and asks them from its head's node."""

from __future__ import annotations

import json
from collections.abc import Sequence

from probes.cluster.access.entrances import (
    AGENT,
    CLIENT,
    DASHBOARD,
    GCS,
    NEEDS_TLS,
    RAYLET,
    REFUSED,
    SUBMIT,
    TAKEN,
    Answers,
    Entrance,
    ask_entrances,
    ask_from_node,
    join_address,
)
from probes.cluster.cleanup import find_token
from probes.cluster.cluster import Cluster
from probes.hosts.exposure.entrances import Asked

CLIENT_PORT = 10001  # of `ray start`; no part of Ray tells another number
KNOWN = (TAKEN, REFUSED, NEEDS_TLS)


def plan_entrances(cluster: Cluster, client_port: int) -> list[Entrance]:
    """List the entrances of Ray on all live nodes, as far as their addresses are known."""
    alive = [node for node in cluster.known_nodes() if node["alive"]]
    head = next((node for node in alive if node["head"]), None)
    planned = [
        Entrance(RAYLET, node["name"], join_address(node["address"], node["ports"]["raylet"]))
        for node in alive
        if node["ports"]["raylet"]
    ]
    for node in alive:
        if agent := read_agent_address(node["id"]):
            planned.append(Entrance(AGENT, node["name"], f"http://{agent}"))
    name = head["name"] if head else ""
    if gcs := read_gcs_address():
        planned.append(Entrance(GCS, name, gcs))
    if direct := cluster.own_dashboard:
        planned.append(Entrance(DASHBOARD, name, direct))
    if head and client_port:
        planned.append(Entrance(CLIENT, name, join_address(head["address"], client_port)))
    return planned


def read_gcs_address() -> str:
    """Read the address of the GCS as Ray's workers know it."""
    import ray

    return str(ray.get_runtime_context().gcs_address or "")


def read_agent_address(node: str) -> str:
    """Read host and port of the HTTP server of a node's dashboard agent; "" if it has none."""
    from ray.experimental.internal_kv import _internal_kv_get

    key = f"DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:{node}"
    try:
        found = json.loads(_internal_kv_get(key.encode(), namespace=b"dashboard") or b"[]")
        host, port = str(found[0]), int(found[1])
    except (ValueError, LookupError, TypeError):
        return ""
    return join_address(host, port) if port > 0 else ""


def ask_from_head(cluster: Cluster, planned: Sequence[Entrance]) -> list[Asked]:
    """Ask entrances from a worker on the head's node: it has the token, and reaches all nodes."""
    id = cluster.head_node_id
    head = [node for node in cluster.known_nodes() if node["id"] == id]
    found = cluster.on_each_node(ask_from_node, planned, nodes=head) if planned else {}
    rows = found.get(id) or [{"without": "no worker answers on the head's node"}] * len(planned)
    return [Asked(one, Answers(**row)) for one, row in zip(planned, rows, strict=True)]


def find_client_port(cluster: Cluster, agreed: int | None) -> int:
    """Find the port of the Ray client: the agreed one, the driver's own, or that of `ray start`.

    It is 0 for an embedded cluster, which has none.
    """
    if cluster.kind == "local":
        return 0
    own = int(cluster.address.rpartition(":")[2]) if cluster.kind == "client" else None
    return agreed or own or CLIENT_PORT


def ask_cluster(cluster: Cluster, client_port: int) -> list[Asked]:
    """Ask all entrances: from the head's node, and the submit address from here.

    A Ray client that does not answer is left out: a cluster may have none, or it is elsewhere.
    """
    asked = ask_from_head(cluster, plan_entrances(cluster, client_port))
    found = [one for one in asked if one.entrance.kind != CLIENT or one.answers.without in KNOWN]
    return found + ask_submit_address(cluster)


def ask_submit_address(cluster: Cluster) -> list[Asked]:
    """Ask the address that the driver submits jobs to, where it is not the dashboard's own."""
    if cluster.dashboard in ("", cluster.own_dashboard):
        return []
    entrance = Entrance(SUBMIT, "", cluster.dashboard)
    return [Asked(entrance, one) for one in ask_entrances([entrance], find_token())]
