"""Cluster facts as tables, whatever keys they have: what all nodes share once, the rest by node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.redact import redact

LONGEST = 160


@dataclass(frozen=True)
class Inventory:
    """`facts` of the cluster, `common` to every node, and a table of what differs."""

    facts: list[tuple[str, str]]
    common: list[tuple[str, str]]
    header: list[str]
    rows: list[list[str]]


def inventory(cluster: Mapping[str, Any]) -> Inventory:
    """Nested facts, without secrets, as two lists and one table."""
    facts = redact(cluster)
    nodes = [flat(node) for node in _nodes(facts)]
    rest = {key: value for key, value in facts.items() if not (nodes and key == "nodes")}
    keys = list(dict.fromkeys(key for node in nodes for key in node))
    same = [key for key in keys if len(nodes) > 1 and len({node.get(key) for node in nodes}) == 1]
    header = [key for key in keys if key not in same]
    header.sort(key=lambda key: key != "name")
    return Inventory(
        facts=list(flat(rest).items()),
        common=[(key, nodes[0][key]) for key in same],
        header=header,
        rows=[[node.get(key, "-") for key in header] for node in nodes],
    )


def flat(value: Any, name: str = "") -> dict[str, str]:
    """`{"a": {"b": 1}}` as `{"a.b": "1"}`; lists become one line."""
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for key, item in value.items():
            found |= flat(item, f"{name}.{key}" if name else str(key))
        return found
    return {name: words(value)}


def words(value: Any) -> str:
    """One fact in words: a list of words with commas, anything deeper as short JSON."""
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        text = ", ".join(str(item) for item in value)
    elif isinstance(value, list):
        text = _alike(value)
    else:
        text = str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def _alike(value: list[Any]) -> str:
    """Eight equal GPUs are `8 x {...}`."""
    told = [json.dumps(item, sort_keys=True, default=str) for item in value]
    if len(set(told)) == 1 and len(told) > 1:
        return f"{len(told)} x {told[0]}"
    return ", ".join(told)


def size(cluster: Mapping[str, Any]) -> str:
    """`8 nodes, 64 GPUs`, as far as the facts say."""
    nodes = _nodes(cluster)
    parts = [f"{len(nodes)} node{'s' * (len(nodes) != 1)}"] if nodes else []
    ranks, resource = cluster.get("ranks"), str(cluster.get("resource") or "rank")
    gpus = sum(_gpus(node) for node in nodes)
    if gpus:
        parts.append(f"{gpus} GPU{'s' * (gpus != 1)}")
    elif isinstance(ranks, int) and ranks:
        parts.append(f"{ranks} {resource}{'s' * (ranks != 1)}")
    return ", ".join(parts) or "size not told"


def _gpus(node: Mapping[str, Any]) -> int:
    gpus = node.get("gpus")
    if isinstance(gpus, list):
        return len(gpus)
    return gpus if isinstance(gpus, int) else 0


def _nodes(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    nodes = cluster.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, Mapping) for node in nodes):
        return []
    return nodes
