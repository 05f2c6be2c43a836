"""Runs for the tests of formats: every recording, and records made for one test."""

from __future__ import annotations

from typing import Any

import pytest

from reports.acceptance import AcceptanceSummary, summarize_acceptance
from reports.measurement import Limit, Measurement
from reports.record import Control, OwedProbe, ProbeResult, RunRecord
from tests.support.paths import RECORDINGS

RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))
every_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
NODES = ["node0", "node1"]
ODD = "\x1b[31m\u202e<b>|`[x](y)`\n::error::no\r\n##[error]no \uffff\ufffe\"'\\ %0A, & é"


def measured(name: str, value: Any, on: str = "cluster", **limit: Any) -> Measurement:
    """A measurement, judged where it has a limit."""
    bound = Limit(unit="GB/s", because="agreed for this test", **limit) if limit else None
    return Measurement(
        name=name, value=value, unit="GB/s", subject=on, limit=bound, judged=bound is not None
    )


def result_of(*measurements: Measurement, criterion: str = "FABRIC", **fields: Any) -> ProbeResult:
    """A finished result whose control was caught."""
    caught = Control(name="wrong network", fault="traffic forced onto eth0", caught=True)
    found = {"probe": f"{criterion.lower()}::a", "state": "finished", "controls": [caught]}
    return ProbeResult(
        **{**found, "criterion": criterion, "measurements": list(measurements), **fields}
    )


def summary_of(*results: ProbeResult, **fields: Any) -> AcceptanceSummary:
    """The summary of a run that requires FABRIC and has these results."""
    owed = [OwedProbe(probe=one.probe, criterion=one.criterion, tier="quick") for one in results]
    criteria = fields.pop("criteria", [{"id": "FABRIC", "title": "fabric", "how": "measured"}])
    record: dict[str, Any] = {
        "id": "run-1",
        "started": "2026-11-20T22:17:03.120Z",
        "finished": "2026-11-20T23:04:41.870Z",
        "state": "finished",
        "command": "pytest",
        "tier": "quick",
        "cluster": {"name": "atlas", "nodes": [{"name": name} for name in NODES]},
        "contract": {"name": "c", "criteria": criteria},
        "owed": owed,
        "results": results,
    }
    return summarize_acceptance(RunRecord(**{**record, **fields}))
