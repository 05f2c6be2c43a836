"""Labels that tell one run from another in the tools that collect many: cluster, run and node."""

from __future__ import annotations

from collections.abc import Mapping

from reports.acceptance import AcceptanceSummary
from reports.record import RunRecord


def cluster_name(record: RunRecord) -> str:
    """Return the name of the cluster; `unknown` if the run did not record one."""
    return str(record.cluster.get("name") or "unknown")


def node_names(record: RunRecord) -> frozenset[str]:
    """Return the names of the cluster's nodes. Facts of another form have none."""
    nodes = record.cluster.get("nodes")
    facts = [node for node in nodes if isinstance(node, Mapping)] if isinstance(nodes, list) else []
    return frozenset(str(node["name"]) for node in facts if node.get("name"))


def run_facts(summary: AcceptanceSummary) -> dict[str, str]:
    """Return the facts of the run as a whole, as text."""
    record = summary.record
    return {
        "cluster": cluster_name(record),
        "run": record.id,
        "contract": record.contract.name,
        "tier": record.tier,
        "state": record.state,
        "started": record.started,
        "finished": record.finished or "no",
        "rehearsal": record.rehearsal or "no",
        "partial": record.partial or "no",
        "verdict": summary.shown_verdict.value,
        "exit_code": str(summary.exit_code),
    }
