"""Judges HOSTS: nodes, machines, GPU counts, NVML, parity, and the shared folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.criteria.criterion import exactly
from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.node_facts import software_versions
from probes.cluster.shared_folder import FolderUnknown, find_blind_nodes
from probes.cluster.software import software_differences
from probes.findings import finding, join_names
from probes.hosts import hardware
from probes.hosts.gpu_counts import (
    NodeGpus,
    compared_sources,
    count_gpus,
    find_wrong_counts,
    nodes_with_fewer_gpus,
)
from probes.hosts.gpu_health import judge_gpu_health

Facts = Mapping[str, Any]


def judge_hosts(
    cluster: Cluster,
    terms: ClusterTerms,
    facts: Sequence[Facts],
    bystanders: Sequence[Facts],
    measure: Recorder,
) -> None:
    """Judge nodes, machines and GPUs.  `bystanders` are facts of nodes where Ray counts no GPU."""
    alive = {node["id"] for node in cluster.nodes}
    gone = [fact["name"] for fact in facts if fact["node"] not in alive]
    facts = [fact for fact in facts if fact["node"] in alive]
    bystanders = without_hosts_gpus(bystanders, facts)
    judge_nodes(cluster, terms, facts, bystanders, gone, measure)
    nodes = count_all_gpus(cluster, terms, facts, bystanders)
    judge_counts(nodes, measure)
    judge_silent_bystanders(cluster, bystanders, measure)
    if cluster.kind == "local":
        measure.covered("machines and NVML are not compared: all raylets share one host")
        return
    judge_machines(facts, measure)
    if compared_sources(cluster.kind, cluster.emulated, facts):
        short = terms.nodes is not None and len(facts) < terms.nodes
        judge_nvml(nodes, [*facts, *bystanders], short, measure)
        judge_duplicates(nodes, facts, measure)
        judge_gpu_health(facts, measure)
    else:
        measure.covered("NVML is not asked: accelerators are emulated, and no node has it")


def judge_nodes(
    cluster: Cluster,
    terms: ClusterTerms,
    facts: Sequence[Facts],
    bystanders: Sequence[Facts],
    gone: list[str],
    measure: Recorder,
) -> None:
    """Judge the nodes that answer against the order; name the lost and the silent ones.

    `gone` are nodes that answered when the run began.  Without an order no other node counts as
    missing: Ray also lists nodes that left days ago.  A node where Ray counts no GPU may be an
    ordered node whose driver did not load.
    """
    ordered = terms.nodes
    measure("nodes", len(facts), limit=exactly(ordered, "nodes", "ordered") if ordered else None)
    silent = _find_silent(cluster, cluster.nodes, facts, measure)
    known = cluster.known_nodes()
    # A node that died twice has two entries.
    dead = list(dict.fromkeys(node["name"] for node in known if not node["alive"]))
    lost = dead if ordered else gone
    if not silent and (len(facts) < ordered if ordered else lost):
        no_gpus = [fact["name"] for fact in bystanders]
        names = lost or no_gpus or ["a node that never joined"]
        of = f"{len(facts)} of {ordered} nodes answer" if ordered else f"{len(facts)} nodes answer"
        why = "" if lost or not no_gpus else ", where Ray counts no GPU"
        text = f"{of}; missing: {join_names(names)}{why}"
        head = next((node["address"] for node in known if node.get("head")), "")
        measure.explain(finding("HOST-MISSING", text, names, names={"head_address": head}))
    if ordered and len(facts) > ordered:
        statement = f"{len(facts)} nodes answer. Ordered: {ordered}"
        measure.explain(finding("HOST-EXTRA", statement))  # the extra node is not known


def _find_silent(
    cluster: Cluster, nodes: Sequence[Facts], facts: Sequence[Facts], measure: Recorder
) -> list[str]:
    """Report each node that did not answer as a finding; return their names."""
    answered = {fact["node"] for fact in facts}
    silent = {node["id"]: node["name"] for node in nodes if node["id"] not in answered}
    for id, name in silent.items():
        why = cluster.errors.get(id, "no answer in time")
        measure.explain(finding("HOST-NO-ANSWER", f"{name}: {why}", [name]))
    return list(silent.values())


def without_hosts_gpus(bystanders: Sequence[Facts], facts: Sequence[Facts]) -> list[Facts]:
    """Remove from the bystanders what belongs to a node of the gang.

    A container may see its host's GPUs: GPUs that a node of the gang shows are removed.  If both
    run on one machine, NVML counts as missing on the bystander.
    """
    shown = {gpu["uuid"] for fact in facts for gpu in fact["gpus"]} - {""}
    hosts = {fact["boot_id"] for fact in facts} - {""}
    unasked = {"library": False, "error": None}
    return [
        {
            **fact,
            "gpus": [gpu for gpu in fact["gpus"] if gpu["uuid"] not in shown],
            "nvml": unasked if fact["boot_id"] in hosts else fact["nvml"],
        }
        for fact in bystanders
    ]


def judge_silent_bystanders(cluster: Cluster, facts: Sequence[Facts], measure: Recorder) -> None:
    """Record an unknown count for each bystander that does not answer: it may have GPUs."""
    for name in _find_silent(cluster, cluster.bystanders, facts, measure):
        measure("count_mismatches", None, on=name, note="the node does not answer")


def judge_machines(facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge that each node is a machine of its own, by the kernels' boot ids."""
    boots = [fact["boot_id"] for fact in facts]
    known = bool(boots) and all(boots)
    limit = exactly(len(facts), "machines", "each node must be a separate machine")
    note = "a node gives no boot id"
    measure("machines", len(set(boots)) if known else None, limit=limit, note=note)
    measure.explain(hardware.find_shared_machines(facts))


def count_all_gpus(
    cluster: Cluster, terms: ClusterTerms, facts: Sequence[Facts], bystanders: Sequence[Facts]
) -> list[NodeGpus]:
    """Count each node's GPUs by every source that is compared here."""
    sources = compared_sources(cluster.kind, cluster.emulated, facts)
    by_ray = {node["id"]: int(node["resources"].get("GPU", 0)) for node in cluster.nodes}
    ordered = terms.gpus_per_node
    members = [count_gpus(f, by_ray.get(f["node"], 0), ordered, sources) for f in facts]
    # A bystander without GPUs may have no NVML; the GPUs of a bystander are known to NVML alone.
    outside = [] if cluster.kind == "local" else ["NVML"]
    return members + [count_gpus(fact, 0, None, outside, member=False) for fact in bystanders]


def judge_counts(nodes: Sequence[NodeGpus], measure: Recorder) -> None:
    """Judge each node's GPU count against the order, and its sources against each other."""
    for node in nodes:
        if node.member:
            ordered = node.ordered
            limit = exactly(ordered, "GPUs", "ordered") if ordered is not None else None
            measure("gpus", node.value, on=node.name, limit=limit, note=node.why_unknown)
        measure("count_mismatches", node.mismatches, on=node.name, note=node.why_unknown)
    fewer = nodes_with_fewer_gpus(nodes)
    measure("nodes_with_fewer_gpus", len(fewer) if nodes else None, note="no node answers")
    wrong = find_wrong_counts(nodes)
    for node in nodes:
        if node.name in wrong or node.name in fewer:
            measure.explain(finding("HOST-GPUS", node.sentence, [node.name]))


def judge_nvml(
    nodes: Sequence[NodeGpus], facts: Sequence[Facts], short: bool, measure: Recorder
) -> None:
    """Judge that NVML answers on each node, and for each of its GPUs.

    If nodes are missing (`short`), a node with NVML's library may be one of them: it must answer.
    """
    for node, fact in zip(nodes, facts, strict=True):
        missing = short and fact["nvml"]["library"]
        expected = bool(node.counts["Ray"] or node.ordered or missing)
        faults = hardware.find_nvml_faults(fact, expected)
        count = None if faults is None else len(faults)
        measure("nvml_errors", count, on=node.name, note="NVML does not know AMD's GPUs")
        measure.explain(faults or [])


def judge_duplicates(nodes: Sequence[NodeGpus], facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge that each GPU belongs to one node alone, by its UUID."""
    shared = hardware.find_shared_gpus(facts)
    uuids = [gpu["uuid"] for fact in facts for gpu in fact["gpus"]]
    known = all(uuids) and (uuids or not any(node.counts["Ray"] for node in nodes))
    count = len(shared) if (known and facts) or shared else None
    measure("duplicate_gpus", count, note="some GPUs give no UUID")
    measure.explain(shared)


def judge_parity(
    cluster: Cluster, terms: ClusterTerms, facts: list[dict[str, Any]], measure: Recorder
) -> None:
    """Judge that all nodes have the same software and, unless several are ordered, the same GPU."""
    software = software_differences(facts, software_versions())
    several = isinstance(terms.gpu_model, list) and len(terms.gpu_model) > 1
    odd = [] if cluster.kind == "local" or several else hardware.find_odd_gpus(facts)
    systems = hardware.find_odd_systems(facts)
    measure("system_differences", len(systems) if facts else None, note="no node answers")
    measure.explain(systems)
    count = len(software) + len(odd)
    measure("differences", count if facts else None, note="no node answers")
    for sentence in software:
        measure.explain(finding("HOST-VERSIONS", sentence))
    measure.explain(odd)


def judge_folder(
    cluster: Cluster,
    folder: str,
    measure: Recorder,
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    """Judge that every node writes and sees the shared folder, by files that nodes write there.

    `elsewhere` is for a control, see `find_blind_nodes`.
    """
    try:
        blind = find_blind_nodes(cluster, folder, elsewhere)
    except FolderUnknown as unknown:
        measure("shared_missing", None, on=folder, note=f"no node can write there: {unknown}")
        return
    measure("shared_missing", len(blind), on=folder)
    for name in blind:
        text = f"{name} cannot write to {folder}, or does not see the files of most nodes there"
        measure.explain(finding("HOST-SHARED", text, [name], names={"folder": folder}))
