"""Are the machines what was ordered, and do they look alike to a job?"""

import copy

import pytest

from probes.acceptance.criteria import exactly
from probes.cluster.node_facts import software_versions
from probes.cluster.software import software_differences
from probes.findings import finding


@pytest.mark.criterion("HOSTS")
def test_hosts_are_what_was_ordered(cluster, terms, measure):
    """Every ordered node answers, with its accelerators, one software stack and the shared folder.

    Facts are read inside a worker on each node, for that is where a job will run.
    """
    facts = cluster.facts
    nodes, lost = cluster.nodes, [node for node in cluster.known_nodes() if not node["alive"]]
    measure.keep("hosts.json", facts, caption="inventory of every node, as a worker sees it")
    measure.covered(f"{len(facts)} of {len(nodes)} nodes that Ray counts as alive answered")
    judge_counts(cluster, terms, measure, facts, lost, measure.contract.agreed)

    differences = cluster.differences()
    measure("differences", len(differences))
    for sentence in differences:
        measure.explain(finding("HOST-VERSIONS", sentence))

    if terms.shared:
        judge_folder(cluster, terms.shared, measure)

    doctored = copy.deepcopy(facts)
    doctored[-1]["software"]["torch"] = "0.0.0-doctored"
    caught = software_differences(doctored, software_versions())
    new = [text for text in caught if text not in differences]
    measure.control(
        "doctored fact",
        f"the torch version that {facts[-1]['name']} reports is changed",
        caught=any(facts[-1]["name"] in text and "0.0.0-doctored" in text for text in new),
        saw="; ".join(new) or "no difference",
    )


def judge_counts(cluster, terms, measure, facts, lost, agreed=True):
    """Judge nodes and accelerators against the order; too many is a finding too."""
    judge_nodes(cluster, terms, measure, facts, lost, agreed)
    each = terms.gpus_per_node
    declared = {node["id"]: int(node["resources"].get("GPU", 0)) for node in cluster.nodes}
    why = "ordered" if each is not None else "no number was ordered: most nodes have as many"
    each = each if each is not None else sorted(declared.values())[len(declared) // 2]
    for fact in facts:
        name, counted, shown = fact["name"], declared[fact["node"]], len(fact.get("gpus", []))
        # Ray believes what `ray start` was told; where there is a driver, it is asked instead.
        actual = shown if shown and not cluster.emulated else counted
        measure("gpus", actual, on=name, limit=exactly(each, "GPUs", why))
        if actual != each or (shown and not cluster.emulated and shown != counted):
            statement = (
                f"{name}: {each} GPUs were ordered, Ray counts {counted}, the driver shows {shown}"
            )
            measure.explain(finding("HOST-GPUS", statement, [name]))


def judge_folder(cluster, folder, measure):
    """Judge whether every node sees the shared folder."""
    not_seeing = cluster.nodes_not_seeing(folder)
    measure("shared_missing", len(not_seeing), on=folder)
    for name in not_seeing:
        text = f"{name} does not see what the driver writes into {folder}"
        measure.explain(finding("HOST-SHARED", text, [name]))


def judge_nodes(cluster, terms, measure, facts, lost, agreed):
    """Judge nodes that answer against the order; those lost or silent by name."""
    counted = len(cluster.nodes) + len(lost)
    ordered = terms.nodes or counted
    why = "ordered" if terms.nodes else "no contract: Ray has counted as many"
    limit = exactly(ordered, "nodes", why) if terms.nodes or not agreed or lost else None
    measure("nodes", len(facts), limit=limit)
    answered = {fact["node"] for fact in facts}
    silent = [node for node in cluster.nodes if node["id"] not in answered]
    for node in silent:
        why = cluster.errors.get(node["id"], "no answer in time")
        measure.explain(finding("HOST-NO-ANSWER", f"{node['name']}: {why}", [node["name"]]))
    if len(facts) < ordered and not silent:
        names = [node["name"] for node in lost] or ["a node that never joined"]
        statement = f"{len(facts)} of {ordered} nodes answer; missing: {', '.join(names)}"
        measure.explain(finding("HOST-MISSING", statement, names))
    if len(facts) > ordered:
        statement = f"{len(facts)} nodes answer, {ordered} were ordered"
        measure.explain(finding("HOST-EXTRA", statement, [fact["name"] for fact in facts]))
