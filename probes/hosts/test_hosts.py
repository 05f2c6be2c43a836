"""Tests that the machines are what was ordered, and look alike to a job."""

import pytest

from probes.cluster.torch_devices import count_torch_devices
from probes.findings import join_names
from probes.hosts.controls import control_doctored_node, control_larger_order, control_own_folder
from probes.hosts.dcgm import judge_diagnostics
from probes.hosts.gpu_counts import compared_sources
from probes.hosts.judge import judge_folder, judge_hosts, judge_parity
from probes.hosts.order import judge_order
from probes.hosts.sick_gpu import control_sick_gpu


@pytest.mark.criterion("HOSTS")
def test_hosts_are_what_was_ordered(cluster, terms, measure):
    """Every ordered node answers, with healthy GPUs, one software stack and the shared folder.

    Facts are read inside a worker on each node, for that is where a job will run.  Ray's, NVML's
    and torch's count of GPUs and the order must agree.  NVML must report no fault of any GPU.
    """
    if compared_sources(cluster.kind, cluster.emulated, cluster.facts):
        cluster.hear_xids()  # from here to the last probe
    bystanders = cluster.read_facts(cluster.bystanders)
    facts = add_torch_counts(cluster, cluster.facts)
    inventory = [*facts, *bystanders]
    measure.keep("hosts.json", inventory, caption="inventory of every node, as a worker sees it")
    measure.covered(coverage_text(cluster, facts))
    judge_hosts(cluster, terms, facts, bystanders, measure)
    judge_parity(cluster, terms, facts, measure)
    judge_order(facts, terms, measure)
    if terms.shared:
        judge_folder(cluster, terms.shared, measure)
        control_own_folder(cluster, terms.shared, measure)
    if terms.dcgm_diag and cluster.on_gpu:
        judge_diagnostics(cluster, measure)
    if facts:
        control_doctored_node(cluster, terms, facts, measure)
        control_larger_order(cluster, terms, facts, measure)
        if compared_sources(cluster.kind, cluster.emulated, facts):
            control_sick_gpu(cluster, facts, facts[-1], measure, "sick GPU")


def add_torch_counts(cluster, facts):
    """Add torch's GPU counts to the facts, where accelerators are real."""
    if not cluster.on_gpu:
        return facts
    counts = cluster.on_each_node(count_torch_devices, gpus=1)
    why = "no GPU was free for a worker, or torch did not answer, within 90 s"
    silent = {id: {"error": cluster.errors.get(id, why)} for id in cluster.node_names}
    return [{**fact, "torch": {**silent, **counts}[fact["node"]]} for fact in facts]


def coverage_text(cluster, facts):
    """Describe which nodes answered, and which take no part."""
    text = f"{len(facts)} of {len(cluster.nodes)} nodes that Ray counts as alive answered"
    if names := [node["name"] for node in cluster.bystanders]:
        text += f"; without accelerators, so not part of the gang: {join_names(names)}"
    return text
