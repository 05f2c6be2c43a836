"""Labels that tell one run from another in the tools that collect many: cluster, run and node."""

from __future__ import annotations

from reports.acceptance import AcceptanceSummary


def run_facts(summary: AcceptanceSummary) -> dict[str, str]:
    """Return the facts of the run as a whole, as text."""
    record = summary.record
    return {
        "cluster": record.cluster_name,
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
