"""Are the machines what was ordered, and do they look alike to a job?"""

import copy

import pytest

from probes.cluster.node_facts import software_versions
from probes.cluster.software import software_differences
from probes.cluster.torch_devices import count_torch_devices
from probes.findings import join_names
from probes.hosts.gpu_counts import find_wrong_counts, nodes_below_most, without_one_gpu
from probes.hosts.judge import judge_folder, judge_hosts, judge_parity
from probes.hosts.order import judge_order


@pytest.mark.criterion("HOSTS")
def test_hosts_are_what_was_ordered(cluster, terms, measure):
    """Every ordered node answers, with its accelerators, one software stack and the shared folder.

    Facts are read inside a worker on each node, for that is where a job will run.  Ray's, NVML's
    and torch's count of GPUs and the order must agree.
    """
    bystanders = cluster.read_facts(cluster.bystanders)
    facts = add_torch_counts(cluster, cluster.facts)
    inventory = [*facts, *bystanders]
    measure.keep("hosts.json", inventory, caption="inventory of every node, as a worker sees it")
    measure.covered(coverage_text(cluster, facts))
    counts = judge_hosts(cluster, terms, facts, bystanders, measure)
    judge_parity(cluster, terms, facts, measure)
    judge_order(facts, terms, measure)
    if terms.shared:
        judge_folder(cluster, terms.shared, measure)
    if facts:
        control_doctored_fact(facts, measure)
    if counts:  # none where every node that answered has left since
        control_doctored_count(counts, measure)


def add_torch_counts(cluster, facts):
    """The same facts, with what torch counts where accelerators are real."""
    if not cluster.on_gpu:
        return facts
    counts = cluster.on_each_node(count_torch_devices, gpus=1)
    why = "no GPU was free for a worker, or torch did not answer, within 90 s"
    silent = {id: {"error": cluster.errors.get(id, why)} for id in cluster.node_names}
    return [{**fact, "torch": {**silent, **counts}[fact["node"]]} for fact in facts]


def coverage_text(cluster, facts):
    """Which nodes answered, and which take no part."""
    text = f"{len(facts)} of {len(cluster.nodes)} nodes that Ray counts as alive answered"
    if names := [node["name"] for node in cluster.bystanders]:
        text += f"; without accelerators, and so no part of the gang: {join_names(names)}"
    return text


def control_doctored_fact(facts, measure):
    """Control: another torch on one node must be seen."""
    doctored, name = copy.deepcopy(facts), facts[-1]["name"]
    doctored[-1]["software"]["torch"] = "0.0.0-doctored"
    before = software_differences(facts, software_versions())
    new = [t for t in software_differences(doctored, software_versions()) if t not in before]
    measure.control(
        "doctored fact",
        f"the torch version that {name} reports is changed",
        caught=any(name in text and "0.0.0-doctored" in text for text in new),
        saw="; ".join(new) or "no difference",
    )


def control_doctored_count(counts, measure):
    """Control: a GPU taken out of one node's count must be seen, by the order or another count."""
    node, name = counts[0], counts[0].name
    doctored = [without_one_gpu(node), *counts[1:]]
    sentence, caught = find_wrong_counts(doctored).get(name, ""), None
    if node.ordered is not None or len(node.counts) > 1:
        caught = sentence != find_wrong_counts(counts).get(name, "")
    elif len(counts) > 1:  # there is nothing to compare with but the other nodes
        caught = name in nodes_below_most(doctored)
    measure.control(
        "doctored count",
        f"one GPU of {name} is taken out of what NVML, or Ray without NVML, counts",
        caught=caught,
        saw=sentence or ("fewer than on most nodes" if caught else "nothing"),
    )
