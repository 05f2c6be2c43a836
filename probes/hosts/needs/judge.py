"""Judges that each node has what jobs load: the image, models, ways out, RDMA devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.egress import try_targets
from probes.cluster.facts.model_files import read_model_files
from probes.cluster.node_facts import add_silent
from probes.hosts.needs.controls import (
    control_changed_file,
    control_closed_target,
    control_hidden_devices,
    control_other_image,
)
from probes.hosts.needs.images import judge_images
from probes.hosts.needs.models import judge_models
from probes.hosts.needs.ray_client import judge_ray_client
from probes.hosts.needs.rdma_devices import judge_rdma_devices, note_peer_memory
from probes.hosts.needs.ways_out import judge_ways_out

Facts = Mapping[str, Any]


def judge_needs(cluster: Cluster, terms: ClusterTerms, measure: Recorder) -> None:
    """Judge the image, the models and ways out that the contract names, and RDMA devices."""
    facts = add_silent(cluster.facts, cluster.nodes)
    if cluster.kind == "local":
        measure.covered("images are not compared: all raylets share one host")
    else:
        _judge_facts(cluster, facts, terms, measure)
    if terms.egress:
        _judge_egress(cluster, terms.egress, measure)
    if terms.ray_client_port:
        judge_ray_client(cluster, terms.ray_client_port, measure)
    if terms.model_files:
        _compare_models(cluster, terms.model_files, measure)


def _judge_facts(
    cluster: Cluster, facts: Sequence[Facts], terms: ClusterTerms, measure: Recorder
) -> None:
    """Judge what the facts of the nodes say; the controls are on the last that answered."""
    if len(facts) > 1:
        judge_images(cluster, facts, measure)
        if cluster.facts:
            control_other_image(cluster, cluster.facts, measure)
    if terms.fabric == "rdma":
        judge_rdma_devices(facts, terms.rails, measure)
        note_peer_memory(cluster.facts, measure)
        if cluster.facts:
            control_hidden_devices(cluster, cluster.facts, terms.rails, measure)


def _ask_all(
    cluster: Cluster, function: Callable[..., Any], what: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Ask each node for `what`; return answers by name, and the names of silent nodes.

    Nodes are in the order of the facts, which is that of addresses.
    """
    answers = cluster.on_each_node(function, what)
    order = {fact["node"]: index for index, fact in enumerate(cluster.facts)}
    nodes = sorted(cluster.nodes, key=lambda node: order.get(node["id"], len(order)))
    known = {node["name"]: answers.get(node["id"]) for node in nodes}
    return (
        {name: answer for name, answer in known.items() if answer is not None},
        [name for name, answer in known.items() if answer is None],
    )


def _find_victim(cluster: Cluster, answers: Mapping[str, Any]) -> dict[str, str] | None:
    """Find the last node that answered, as {"node", "name"}; None if there is none."""
    nodes = [node for node in cluster.nodes if node["name"] in answers]
    return {"node": nodes[-1]["id"], "name": nodes[-1]["name"]} if nodes else None


def _judge_egress(cluster: Cluster, targets: Sequence[str], measure: Recorder) -> None:
    """Connect to the contract's targets from all nodes at the same time, and judge that."""
    answers, silent = _ask_all(cluster, try_targets, targets)
    measure.keep("egress.json", answers, caption="connections out of the cluster, by node")
    judge_ways_out(targets, answers, silent, measure)
    if victim := _find_victim(cluster, answers):
        control_closed_target(cluster, victim, measure)


def _compare_models(cluster: Cluster, paths: Sequence[str], measure: Recorder) -> None:
    """Read the contract's models on all nodes at the same time, and compare them."""
    answers, silent = _ask_all(cluster, read_model_files, paths)
    measure.covered("models: size, and 1 MiB of each 256 MiB of every file")
    judge_models(paths, answers, silent, measure)
    victim = _find_victim(cluster, answers)
    if victim and len(cluster.nodes) > 1:
        control_changed_file(cluster, paths, answers, victim, measure)
