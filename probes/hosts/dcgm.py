"""Judges DCGM's own diagnostics of each node, where the contract orders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.gpus.dcgm import LEVEL_SECONDS, run_diagnostics
from probes.cluster.node_affinity import collect_answers, on_node
from probes.findings import finding, join_names

LEVELS = {"quick": 1, "standard": 2, "soak": 3}
START_SECONDS = 60.0  # for a worker on a busy node, in addition to the diagnostic itself
NO_GPU = "999"  # an index that no node has, for the control
SHOWN = 3  # failed tests of a node in a sentence


def judge_diagnostics(cluster: Cluster, measure: Recorder) -> None:
    """Run the level of the contract's tier on all nodes at once, and judge the failed tests."""
    level = LEVELS[measure.contract.tier]
    answers, errors = _run_on(cluster.nodes, level)
    names = cluster.node_names
    measure.covered(f"dcgmi diag -r {level} ran on {len(answers)} of {len(cluster.nodes)} nodes")
    for node in cluster.nodes:
        judge_node(names[node["id"]], answers.get(node["id"]), errors.get(node["id"], ""), measure)
    victim = cluster.nodes[-1]
    fault = f"dcgmi on {names[victim['id']]} is given GPU {NO_GPU}, which is not there"
    planted, _ = _run_on([victim], level=1, gpus=NO_GPU)
    if victim["id"] not in planted:
        saw = f"{names[victim['id']]} does not answer"
        measure.control("missing GPU", fault, None, saw=saw)
        return
    trial = measure.trial()
    judge_node(names[victim["id"]], planted[victim["id"]], "", trial)
    measure.control("missing GPU", fault, trial)


def judge_node(name: str, answer: Mapping[str, Any] | None, silent: str, measure: Recorder) -> None:
    """Judge one node's answer; a diagnostic that did not run to its end counts as failed."""
    if answer is None:
        measure("diag_failures", None, on=name, note=f"the node does not answer: {silent}")
        return
    failed = list(answer["failed"])
    if answer["error"]:
        failed.append({"test": "diagnostic", "where": "", "text": answer["error"]})
    measure("diag_failures", len(failed), on=name)
    if failed:
        texts = [_describe(one) for one in failed]
        statement = f"{name}: {join_names(texts, SHOWN)}. Expected: no failed test"
        measure.explain(finding("HOST-DCGM", statement, [name]))


def _describe(one: Mapping[str, str]) -> str:
    where = f" of GPU {one['where']}" if one["where"] else ""
    return f"{one['test']}{where} failed" + (f" ({one['text']})" if one["text"] else "")


def _run_on(
    nodes: Sequence[Mapping[str, Any]], level: int, gpus: str = ""
) -> tuple[dict[str, Any], dict[str, str]]:
    calls = {
        on_node(run_diagnostics, node["id"], max_retries=0).remote(level, gpus): node["id"]
        for node in nodes
    }
    return collect_answers(calls, LEVEL_SECONDS[level] + START_SECONDS)
