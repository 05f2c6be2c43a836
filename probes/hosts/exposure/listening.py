"""Judges where Ray listens: at which of the nodes' addresses its entrances can be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.access.entrances import CLIENT, DASHBOARD, GCS, TAKEN
from probes.cluster.access.listeners import public_addresses, read_listeners
from probes.cluster.cluster import Cluster
from probes.findings import finding, join_names
from probes.hosts.exposure.entrances import Asked, find_port

Facts = Mapping[str, Any]
METRICS = "metrics"
# Where these listen only informs: what a listener on all addresses opens, a firewall may close.
NOTED = (DASHBOARD, CLIENT, GCS, METRICS)


def list_ports(asked: Sequence[Asked], nodes: Sequence[Facts]) -> dict[str, dict[str, int]]:
    """Map each node's name to its ports by kind: entrances, and the port of its metrics."""
    ports: dict[str, dict[str, int]] = {node["name"]: {} for node in nodes}
    for one in asked:
        if one.entrance.node in ports:
            ports[one.entrance.node][one.entrance.kind] = find_port(one.entrance.address)
    for node in nodes:
        if number := node["ports"].get(METRICS):
            ports[node["name"]][METRICS] = number
    return ports


def read_all_listeners(
    cluster: Cluster, ports: Mapping[str, Mapping[str, int]], nodes: list[dict[str, Any]]
) -> dict[str, dict[int, list[str]]]:
    """Read on every node where its ports listen; a node that cannot be read has no entry."""
    each = {node["id"]: list(ports[node["name"]].values()) for node in nodes}
    answers = cluster.on_each_node(read_listeners, each=each, nodes=nodes)
    names = {node["id"]: node["name"] for node in nodes}
    return {names[id]: found for id, found in answers.items() if found is not None}


def note_listeners(
    ports: Mapping[str, Mapping[str, int]],
    listeners: Mapping[str, Mapping[int, list[str]]],
    measure: Recorder,
) -> None:
    """Record where dashboard, Ray client, GCS and metrics listen on the head's node."""
    head = next((name for name, kinds in ports.items() if GCS in kinds), "")
    for kind in NOTED:
        number = ports.get(head, {}).get(kind)
        found = listeners.get(head, {}).get(number or 0)
        if found:
            name = f"{kind.lower().replace(' ', '_')}_listens_on"
            measure.note(name, join_names(found), on=f"{head} port {number}")


def judge_public(
    asked: Sequence[Asked],
    facts: Sequence[Facts],
    listeners: Mapping[str, Mapping[int, list[str]]],
    measure: Recorder,
) -> None:
    """Judge the entrances that ask for no token and listen at a globally routable address.

    A firewall may keep strangers out, which no node can see.  So such an entrance is no failure,
    and leaves the measure UNPROVEN.
    """
    own = {fact["name"]: read_own_addresses(fact) for fact in facts}
    public, unknown = [], []
    for one in asked:
        name = one.entrance.node
        if one.answers.without != TAKEN or not name:
            continue
        addresses = own.get(name)
        if addresses is None:
            unknown.append(f"the addresses of {name} were not read")
            continue
        if not public_addresses(["::"], addresses):
            continue
        listens = listeners.get(name, {}).get(find_port(one.entrance.address), [])
        if not listens:
            unknown.append(f"where {one.entrance.text} listens could not be read")
        elif reached := public_addresses(listens, addresses):
            public.append((one.entrance, reached))
    nodes = list(dict.fromkeys(entrance.node for entrance, _ in public))
    texts = [f"{entrance.text} at {join_names(reached)}" for entrance, reached in public]
    note = join_names(dict.fromkeys(unknown), 3)
    value = None if unknown and not public else len(public)
    if measure.would_fail("public_entrances", value):
        value, note = None, f"open at public addresses: {join_names(texts, 3)}"
        entrance, reached = public[0]
        names = {"address": reached[0], "port": find_port(entrance.address)}
        text = f"No token is asked for: {join_names(texts, 6)}"
        measure.explain(finding("HOST-PUBLIC", text, nodes, names=names))
    measure("public_entrances", value, note=note)


def read_own_addresses(fact: Facts) -> list[str] | None:
    """List the addresses of a node's interfaces; None if they were not read."""
    interfaces = (fact.get("names") or {}).get("interfaces")
    if interfaces is None:
        return None
    return [text for interface in interfaces.values() for text in interface["addresses"]]
