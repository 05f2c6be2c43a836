"""Formats cluster facts, with any keys, as tables: facts that all nodes share, the rest by node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.redact import redact

MAX_VALUE_CHARS = 160  # of one fact in its cell; the record has the complete value


@dataclass(frozen=True)
class Inventory:
    """Inventory: `facts` of the cluster, facts `common` to all nodes, a table of the others."""

    facts: list[tuple[str, str]]
    common: list[tuple[str, str]]
    header: list[str]
    rows: list[list[str]]


def build_inventory(cluster: Mapping[str, Any]) -> Inventory:
    """Convert nested facts, without secrets, to two lists and one table."""
    facts = redact(cluster)
    nodes = [flatten(node) for node in _node_facts(facts)]
    cluster_facts = {key: value for key, value in facts.items() if not (nodes and key == "nodes")}
    keys = list(dict.fromkeys(key for node in nodes for key in node))
    common = [key for key in keys if len(nodes) > 1 and len({node.get(key) for node in nodes}) == 1]
    header = [key for key in keys if key not in common]
    header.sort(key=lambda key: key != "name")
    return Inventory(
        facts=list(flatten(cluster_facts).items()),
        common=[(key, nodes[0][key]) for key in common],
        header=header,
        rows=[[node.get(key, "-") for key in header] for node in nodes],
    )


def flatten(value: Any, name: str = "") -> dict[str, str]:
    """Convert `{"a": {"b": 1}}` to `{"a.b": "1"}`; lists become one line."""
    if isinstance(value, Mapping):
        pairs: dict[str, str] = {}
        for key, item in value.items():
            pairs |= flatten(item, f"{name}.{key}" if name else str(key))
        return pairs
    return {name: fact_text(value)}


def fact_text(value: Any) -> str:
    """Format one fact: a list of words with commas, nested lists as JSON, cut if too long."""
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = _list_text(value) if isinstance(value, list) else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + " ..."


def _list_text(value: list[Any]) -> str:
    """Join words with commas; eight equal GPUs are `8 x {...}`."""
    if all(isinstance(item, str | int | float) for item in value):
        return ", ".join(map(str, value))
    items = [json.dumps(item, sort_keys=True, default=str) for item in value]
    if len(set(items)) == 1 and len(items) > 1:
        return f"{len(items)} x {items[0]}"
    return ", ".join(items)


def cluster_size(cluster: Mapping[str, Any]) -> str:
    """Format the size as `8 nodes, 64 GPUs`, as far as it is known."""
    nodes = _node_facts(cluster)
    parts = [f"{len(nodes)} node{'s' * (len(nodes) != 1)}"] if nodes else []
    ranks, resource = cluster.get("ranks"), str(cluster.get("resource") or "rank")
    told = [node.get("gpus") for node in nodes]
    gpus = sum(len(g) if isinstance(g, list) else g for g in told if isinstance(g, list | int))
    if gpus:
        parts.append(f"{gpus} GPU{'s' * (gpus != 1)}")
    elif isinstance(ranks, int) and ranks:
        parts.append(f"{ranks} {resource}{'s' * (ranks != 1)}")
    return ", ".join(parts) or "size unknown"


def _node_facts(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    nodes = cluster.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, Mapping) for node in nodes):
        return []
    return nodes
