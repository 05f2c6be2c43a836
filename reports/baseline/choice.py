"""Chooses the run to compare with: the one that was named, or the newest sound one of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.acceptance import AcceptanceSummary, load_summary
from reports.baseline.regressions import values_of
from reports.frames.history import RECORD, find_runs
from reports.measurement import Verdict
from reports.record import RunRecord
from reports.run_folder.event_log import FILE
from reports.run_folder.files import UnreadableRun


@dataclass(frozen=True)
class Baseline:
    """The run to compare with; `problem` is why no measure can be held to it, "" if all can."""

    summary: AcceptanceSummary | None = None
    problem: str = ""

    def event(self, tolerances: Mapping[str, float]) -> dict[str, Any]:
        """Return what a run records of it: its id, and the values that are compared."""
        if self.summary is None:
            return {"baseline_problem": self.problem} if self.problem else {}
        record = self.summary.record
        values = values_of(record.results, tolerances)
        return {
            "baseline": record.id,
            "baseline_problem": self.problem,
            "baseline_values": [one.model_dump(mode="json") for one in values],
        }


def is_run(path: Path) -> bool:
    """Return whether a path is a run, and not a folder of runs."""
    return path.is_file() or (path / FILE).is_file() or (path / RECORD).is_file()


def choose_baseline(path: Path, now: RunRecord) -> Baseline:
    """Choose the baseline of the run `now`.  Raises UnreadableRun for one run that is unreadable.

    In a folder, the newest run of the same cluster that can be compared is chosen.
    """
    if is_run(path):
        summary = load_summary(path)
        return Baseline(summary, why_unsound(summary, now))
    found: list[AcceptanceSummary] = []
    for run in find_runs(path):
        try:
            found.append(load_summary(run))
        except (UnreadableRun, OSError):
            continue
    same = [
        one
        for one in sorted(found, key=lambda one: one.record.started, reverse=True)
        if one.record.cluster_name == now.cluster_name and one.record.id != now.id
    ]
    if sound := next((one for one in same if not why_unsound(one, now)), None):
        return Baseline(sound)
    if not same:
        return Baseline(problem=f"{path} has no run of cluster {now.cluster_name}")
    return Baseline(same[0], why_unsound(same[0], now))


def why_unsound(before: AcceptanceSummary, now: RunRecord) -> str:
    """Return why a run is no baseline of the run `now`; "" if it is one."""
    record = before.record
    nodes, present = len(record.node_names), len(now.node_names)
    reasons = {
        "is this run": record.id == now.id,
        "does not verify": bool(before.integrity.problems),
        f"is {record.state}, not finished": record.state != "finished",
        "failed": before.decision is Verdict.FAIL,
        "cannot be verified": bool(before.integrity.doubts or record.unverified),
        "had errors outside its probes": bool(record.problems),
        f"is PARTIAL ({record.partial})": bool(record.partial),
        # Otherwise each run may be as much worse than the last as its noise hides.
        "is worse than its own baseline": bool(record.regressions) and not record.baseline_problem,
        f"has {nodes} nodes, this one {present}": nodes != present,
        "is a rehearsal": bool(record.rehearsal) and not now.rehearsal,
        "is no rehearsal": bool(now.rehearsal) and not record.rehearsal,
    }
    reason = next((text for text, holds in reasons.items() if holds), "")
    return f"run {record.id} {reason}" if reason else ""
