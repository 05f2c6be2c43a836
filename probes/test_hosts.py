"""Are the machines what was ordered, and do they look alike to a job?"""

import copy

import pytest

from probes.cluster import software_differences
from probes.facts import software
from probes.findings import finding


@pytest.mark.criterion("HOSTS")
def test_hosts_are_what_was_ordered(cluster, terms, measure):
    """Every ordered node answers, with its accelerators, one software stack and the shared folder.

    Facts are read inside a worker on each node, for that is where a job will run.
    """
    facts = cluster.facts  # first: a node that has just died is known to be dead after asking it
    nodes, lost = cluster.nodes, [node for node in cluster.known_nodes() if not node["alive"]]
    measure.keep("hosts.json", facts, caption="inventory of every node, as a worker sees it")
    measure.covered(f"{len(facts)} of {len(nodes)} nodes that Ray counts as alive answered")
    judge_counts(cluster, terms, measure, facts, lost)

    differences = cluster.differences()
    measure("differences", len(differences))
    for sentence in differences:
        measure.explain(finding("HOST-VERSIONS", sentence))

    if terms.shared:
        blind = cluster.blind_to(terms.shared)
        measure("shared_missing", len(blind), on=terms.shared)
        for name in blind:
            said = f"{name} does not see what the driver writes into {terms.shared}"
            measure.explain(finding("HOST-SHARED", said, [name]))

    doctored = copy.deepcopy(facts)
    doctored[-1]["software"]["torch"] = "0.0.0-doctored"
    caught = software_differences(doctored, software())
    named = [said for said in caught if said not in differences]
    measure.control(
        "doctored fact",
        f"the torch version that {facts[-1]['name']} reports is changed",
        caught=any(facts[-1]["name"] in said and "0.0.0-doctored" in said for said in named),
        saw="; ".join(named) or "no difference",
    )


def judge_counts(cluster, terms, measure, facts, lost):
    """Nodes and accelerators against the order; too many is a finding too."""
    from probes.criteria import exactly

    known = len(cluster.nodes) + len(lost)
    wanted = terms.nodes or known
    why = "ordered" if terms.nodes else "no number was ordered: Ray has counted as many"
    measure("nodes", len(facts), limit=exactly(wanted, "nodes", why))
    answered = {fact["node"] for fact in facts}
    silent = [node["name"] for node in cluster.nodes if node["id"] not in answered]
    if silent:
        measure.explain(finding("HOST-SILENT", f"no worker answers on {', '.join(silent)}", silent))
    if len(facts) < wanted:
        names = [node["name"] for node in lost] or ["a node that never joined"]
        said = f"{len(facts)} of {wanted} nodes answer; Ray lost {', '.join(names)}"
        measure.explain(finding("HOST-MISSING", said, names))
    if len(facts) > wanted:
        said = f"{len(facts)} nodes answer, {wanted} were ordered"
        measure.explain(finding("HOST-EXTRA", said, [fact["name"] for fact in facts]))

    each = terms.gpus_per_node
    counts = {node["name"]: int(node["resources"].get("GPU", 0)) for node in cluster.nodes}
    why = "ordered" if each is not None else "no number was ordered: most nodes have as many"
    each = each if each is not None else sorted(counts.values())[len(counts) // 2]
    for fact in facts:
        measure("gpus", counts[fact["name"]], on=fact["name"], limit=exactly(each, "GPUs", why))
        if counts[fact["name"]] != each:
            said = f"{fact['name']} counts {counts[fact['name']]} GPUs, {each} were ordered"
            measure.explain(finding("HOST-GPUS", said, [fact["name"]]))
