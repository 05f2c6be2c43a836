"""Answers about the cluster: nodes, software, accelerators, dashboard, RDMA, shared folder."""

from __future__ import annotations

import http.client
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probes.acceptance.cluster_terms import ClusterTerms
from probes.cluster.cleanup import request_dashboard
from probes.cluster.cluster import Cluster
from probes.cluster.node_facts import software_versions
from probes.cluster.room.free_room import busy_accelerators
from probes.cluster.shared_folder import find_folder_problem
from probes.cluster.software import software_differences
from probes.doctor.answer import FAIL, UNPROVEN, Answer
from probes.findings import join_names
from probes.least_versions import ALL
from reports.numbers import quantity

DASHBOARD_SECONDS = 5
LEAST_NODES = ("FABRIC", "SCALING")  # of one node they prove nothing
ON_GPUS = tuple(id for id in ALL if id != "HOSTS")
KEPT_IN_SHARED = ("HOSTS", "RESTART")


def ask_cluster(cluster: Cluster, terms: ClusterTerms) -> Iterator[Answer]:
    """Answer each question; one short task runs on each node, and takes no accelerator."""
    yield ask_nodes(cluster, terms)
    yield ask_silence(cluster)
    yield ask_software(cluster)
    yield ask_accelerators(cluster)
    yield ask_dashboard(cluster)
    if cluster.resource == "GPU" and not cluster.emulated:
        yield ask_nvml(cluster)
    if terms.fabric == "rdma":
        yield ask_rdma(cluster)
    yield ask_shared(cluster, terms)


def ask_nodes(cluster: Cluster, terms: ClusterTerms) -> Answer:
    """Compare the nodes and accelerators with the order, and with what criteria need."""
    count, size = len(cluster.nodes), cluster.size
    if cluster.resource != "GPU" and terms.accelerators == "real" and terms.gpus_per_node:
        found = f"{quantity(count, 'nodes')}, and Ray counts no GPU"
        return Answer("nodes", found, FAIL, ALL, "Start Ray where it sees the GPUs")
    found = f"{quantity(count, 'nodes')}, {quantity(size, cluster.resource + 's')}"
    short = [
        f"{node['name']} has {gpus}"
        for node in cluster.nodes
        if (gpus := int(node["resources"].get("GPU", 0))) != terms.gpus_per_node
    ]
    if terms.nodes not in (None, count):
        do = "Start the missing nodes, or correct the order"
        return Answer("nodes", f"{found}; {terms.nodes} were ordered", FAIL, ("HOSTS",), do)
    if terms.gpus_per_node is not None and short:
        text = f"{found}; {terms.gpus_per_node} on each were ordered, {join_names(short)}"
        return Answer("nodes", text, FAIL, ("HOSTS",), "Find the missing accelerators")
    if count < 2:
        lacking = (*LEAST_NODES, *(("GANG",) if size < 2 else ()))
        return Answer("nodes", f"{found}: too few to compare", UNPROVEN, lacking, "Add a node")
    return Answer("nodes", found)


def ask_silence(cluster: Cluster) -> Answer:
    """Name the nodes where a task does not run."""
    answered = {fact["node"] for fact in cluster.facts}
    silent = [
        f"{node['name']} ({cluster.errors.get(node['id'], 'no answer')})"
        for node in cluster.nodes
        if node["id"] not in answered
    ]
    if not silent:
        return Answer("tasks", "each node runs one")
    do = "Look into the raylet's log on that node"
    return Answer("tasks", f"none runs on {join_names(silent)}", FAIL, ALL, do)


def ask_software(cluster: Cluster) -> Answer:
    """Name the software that is not the same everywhere."""
    differences = software_differences(cluster.facts, software_versions())
    if not differences:
        return Answer("software", "the same on all nodes and here")
    text = "; ".join(differences)
    return Answer("software", text, FAIL, ("HOSTS",), "Install one version everywhere")


def ask_accelerators(cluster: Cluster) -> Answer:
    """Name what holds accelerators."""
    unit, busy = f"{cluster.resource}s", busy_accelerators(cluster)
    if not busy:
        return Answer("room", f"all {quantity(cluster.size, unit)} are free")
    held = cluster.describe_holders() or f"{quantity(busy, unit)} are not free"
    do = "Wait for it with --wait-for-room 30m"
    return Answer("room", held, UNPROVEN, ON_GPUS, do)


def ask_dashboard(cluster: Cluster) -> Answer:
    """Tell whether the dashboard takes jobs, by a question that starts none."""
    if not (address := cluster.dashboard):
        do = "Start the head with its dashboard (`pip install 'ray[default]'`)"
        return Answer("dashboard", "the cluster has none", UNPROVEN, ("LAUNCH",), do)
    try:
        request_dashboard(address, "/api/version", seconds=DASHBOARD_SECONDS)
        return Answer("dashboard", f"{address} answers")
    except urllib.error.HTTPError as error:
        error.close()
        found = f"{address} refuses us (HTTP {error.code})"
        do = "Set RAY_AUTH_TOKEN_PATH to the cluster's token"
    except (OSError, ValueError, http.client.HTTPException) as error:
        found, do = f"{address} does not answer: {error}", "Open its port to this machine"
    return Answer("dashboard", found, UNPROVEN, ("LAUNCH",), do)


def ask_nvml(cluster: Cluster) -> Answer:
    """Name the nodes where NVML cannot be read."""
    return _by_node(
        "NVML", cluster, lambda fact: (fact["nvml"]["error"] or {}).get("text", ""),
        "read on each node", ("HOSTS", "GANG"), "Let workers read NVML",
    )  # fmt: skip


def ask_rdma(cluster: Cluster) -> Answer:
    """Name the nodes where a worker has no RDMA device, or cannot open one."""

    def problem(fact: dict[str, Any]) -> str:
        devices = fact["rdma_access"]
        return next(filter(None, devices.values()), "") if devices else "no RDMA device"

    return _by_node(
        "RDMA", cluster, problem, "each worker can open the devices", ("FABRIC",),
        "Give workers the devices below /dev/infiniband",
    )  # fmt: skip


def _by_node(
    question: str, cluster: Cluster, problem: Any, sound: str, criteria: tuple[str, ...], do: str
) -> Answer:
    found = {fact["name"]: text for fact in cluster.facts if (text := problem(fact))}
    if not found:
        return Answer(question, sound)
    by_text: dict[str, list[str]] = {}
    for name, text in found.items():
        by_text.setdefault(text, []).append(name)
    said = "; ".join(f"{text} on {join_names(names)}" for text, names in by_text.items())
    return Answer(question, said, UNPROVEN, criteria, do)


def ask_shared(cluster: Cluster, terms: ClusterTerms) -> Answer:
    """Name the nodes that do not share the agreed folder."""
    if cluster.kind == "local":
        return Answer("shared folder", "not needed: all raylets are on this host")
    folder = Path(terms.shared) if terms.shared else Path.cwd()
    cause, blind = find_folder_problem(cluster, folder)
    if not cause:
        return Answer("shared folder", f"all nodes share {folder}")
    if not terms.shared:
        do = "Name one in [cluster] shared, or go to a folder that is shared"
        found = f"none is agreed, and checkpoints go below {folder}: {cause}"
        return Answer("shared folder", found, UNPROVEN, ("RESTART",), do)
    state = FAIL if blind else UNPROVEN
    return Answer("shared folder", cause, state, KEPT_IN_SHARED, "Mount it on each node")
