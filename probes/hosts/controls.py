"""Controls of HOSTS: a node that reports false facts, a larger order, another folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.criteria.hosts import CONTROLS
from probes.acceptance.measure import Recorder, Trial
from probes.cluster.cluster import Cluster
from probes.cluster.node_facts import node_facts
from probes.cluster.nvml import GPU_IS_LOST
from probes.cluster.software import SYSTEM_PARTS
from probes.hosts.gpu_counts import compared_sources
from probes.hosts.judge import judge_folder, judge_hosts, judge_parity
from probes.hosts.order import judge_order

Facts = Mapping[str, Any]
DOCTORED = "0.0.0+doctored"  # the version, and the model, that the doctored node reports
NODE_ORDERS = ("gpu_model", "gpu_memory", "cpus", "ram", "disk", "ordered_versions")


def read_doctored_facts(lies: Facts | None) -> dict[str, Any]:
    """Read this node's facts; with `lies`, replace some of them by false values."""
    facts = node_facts()
    return facts if lies is None else doctor_facts(facts, lies)


def doctor_facts(facts: Facts, lies: Facts) -> dict[str, Any]:
    """Replace facts of a node by false values.

    All versions are DOCTORED, CPUs are 0.5, RAM and disks are 0.01 GiB, and the last GPU is lost.
    The first GPU gets another model and 0.5 GiB.  `lies` are the boot id and the GPU UUID of
    another node.
    Software parts and GPUs that the node does not report are not added.
    """
    software = dict.fromkeys(facts["software"], DOCTORED)
    gpus = [dict(gpu) for gpu in facts["gpus"]]
    if gpus:
        gpus[-1]["error"] = {"code": GPU_IS_LOST, "text": "doctored"}
        gpus[0] |= {"name": DOCTORED, "memory_gib": 0.5, "uuid": lies["uuid"]}
    scarce = {"cpus": 0.5, "ram_gib": 0.01, "disk_gib": 0.01, "boot_id": lies["boot_id"]}
    return {**facts, "software": software, "gpus": gpus, **scarce}


def control_doctored_node(
    cluster: Cluster, terms: ClusterTerms, facts: Sequence[Facts], measure: Recorder
) -> None:
    """Check that each false fact of a node about its hardware and software is detected."""
    victim, other = facts[-1], facts[0]
    fault = f"{victim['name']} reports other hardware and software than it has"
    lies = {
        "boot_id": other["boot_id"],
        "uuid": other["gpus"][0]["uuid"] if other["gpus"] else "",
    }
    each = {node["id"]: lies if node["id"] == victim["node"] else None for node in cluster.nodes}
    told = cluster.on_each_node(read_doctored_facts, each=each)
    if victim["node"] not in told:
        measure.control("doctored node", fault, None, saw=f"{victim['name']} does not answer")
        return
    torch = {fact["node"]: fact["torch"] for fact in facts if "torch" in fact}
    doctored: list[dict[str, Any]] = [
        {**fact, **told[fact["node"]], "torch": torch.get(fact["node"])}
        for fact in facts
        if fact["node"] in told
    ]
    trial = measure.trial()
    judge_hosts(cluster, terms, doctored, [], trial)
    judge_parity(cluster, terms, doctored, trial)
    judge_order([*doctored], terms, trial)
    without = _not_told(cluster, terms, facts, trial)
    if without.issuperset(CONTROLS["doctored node"]):
        return  # a node alone, of which nothing is ordered, is compared with nothing
    measure.control("doctored node", fault, trial, without=without)


def _not_told(
    cluster: Cluster, terms: ClusterTerms, facts: Sequence[Facts], trial: Trial
) -> set[str]:
    """Name the measures that false facts cannot fail here: not ordered, or not compared."""
    without = {name for name in NODE_ORDERS if not trial.has_measured(name)}
    if len(facts) < 2:
        without |= {"machines", "duplicate_gpus", "nodes_with_fewer_gpus"}
        without |= {"differences", "system_differences"}
    if cluster.kind == "local":
        without.add("machines")
    if not any(part in fact["software"] for fact in facts for part in SYSTEM_PARTS):
        without.add("system_differences")  # the nodes do not report them
    if "NVML" not in compared_sources(cluster.kind, cluster.emulated, facts):
        without |= {"count_mismatches", "nodes_with_fewer_gpus", "nvml_errors", "duplicate_gpus"}
        without.add("gpus")  # only Ray's count is compared with the order
    return without


def control_larger_order(
    cluster: Cluster, terms: ClusterTerms, facts: Sequence[Facts], measure: Recorder
) -> None:
    """Check that an order of one more node, and of one more GPU on each node, fails."""
    orders = {"nodes": "nodes", "gpus_per_node": "gpus"}
    known = {key: getattr(terms, key) for key in orders if getattr(terms, key) is not None}
    fault = "the order asks for one node more, and for one GPU more on each node"
    if not known:
        measure.control("larger order", fault, None, saw="no number of nodes or GPUs is ordered")
        return
    trial = measure.trial()
    larger = terms.model_copy(update={key: count + 1 for key, count in known.items()})
    judge_hosts(cluster, larger, facts, [], trial)
    without = {name for key, name in orders.items() if key not in known}
    measure.control("larger order", fault, trial, without=without)


def control_own_folder(cluster: Cluster, folder: str, measure: Recorder) -> None:
    """Check that a node that writes and reads its own folder, not the shared one, is detected."""
    if len(cluster.nodes) < 2:
        return  # a single node shares its folder with no other
    victim, trial = cluster.nodes[-1], measure.trial()
    elsewhere = {victim["id"]: tempfile.gettempdir()}
    judge_folder(cluster, folder, trial, elsewhere)
    fault = f"{victim['name']} writes to {tempfile.gettempdir()}, not to {folder}"
    measure.control("own folder", fault, trial)
