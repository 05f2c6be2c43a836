"""CTRF fits its schema, and has a failure unless the run is accepted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reports.acceptance import AcceptanceSummary, load_summary
from reports.formats.junit import ctrf
from reports.measurement import Verdict
from tests.reports.formats.runs import ODD, every_run, measured, result_of, summary_of
from tests.support.paths import RECORDINGS, REPO

SCHEMA = json.loads((REPO / "tests" / "project" / "schemas" / "ctrf.json").read_text())
VALID = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)


def read(summary: AcceptanceSummary) -> dict[str, Any]:
    """The results of a report, as another tool reads them; it fits the schema."""
    report = json.loads(json.dumps(ctrf(summary), allow_nan=False))
    VALID.validate(report)
    results: dict[str, Any] = report["results"]
    counts = Counter(test["status"] for test in results["tests"])
    counted = {key: n for key, n in results["summary"].items() if key not in ("start", "stop")}
    assert {key: n for key, n in counted.items() if n} == {**counts, "tests": len(results["tests"])}
    return results


@every_run
def test_it_has_no_failure_only_when_accepted(run: Path) -> None:
    summary = load_summary(run)
    results = read(summary)
    assert (results["summary"]["failed"] == 0) == (summary.exit_code == 0)
    assert results["tests"][-1]["name"] == "decision"
    assert (results["tests"][-1]["status"] == "passed") == (summary.exit_code == 0)


@every_run
def test_each_criterion_that_is_not_proven_has_a_test_that_did_not_pass(run: Path) -> None:
    summary = load_summary(run)
    if run.name == "hostile":  # its names are cleaned
        return
    tests = read(summary)["tests"]
    for row in summary.rows:
        statuses = {test["status"] for test in tests if test["suite"] == [row.criterion.id]}
        if row.verdict.accepted:
            assert statuses == {"passed"}
        elif row.verdict is Verdict.FAIL:
            assert "failed" in statuses
        else:
            assert ("other" if row.criterion.required else "skipped") in statuses


def test_marginal_passes_and_is_seen() -> None:
    summary = summary_of(result_of(measured("busbw", 1.1, low=1.0, marginal_low=1.2)))
    test, decision = read(summary)["tests"]
    assert (test["status"], test["rawStatus"]) == ("passed", "MARGINAL")
    assert "Expected: >= 1 GB/s" in test["message"]
    assert (decision["status"], decision["rawStatus"]) == ("passed", "MARGINAL")


def test_values_limits_nodes_run_and_time_are_there() -> None:
    values = [measured("busbw", 0.5, "node1", low=1.0), measured("share", 2, "node0 - node1")]
    results = read(summary_of(result_of(*values)))
    assert results["tests"][0]["extra"]["measurements"] == [
        {
            "name": "busbw",
            "subject": "node1",
            "node": "node1",
            "value": 0.5,
            "unit": "GB/s",
            "limit": ">= 1 GB/s",
            "low": 1.0,
            "high": None,
            "because": "agreed for this test",
            "verdict": "FAIL",
        },
        {
            "name": "share",
            "subject": "node0 - node1",
            "node": "",
            "value": 2,
            "unit": "GB/s",
            "limit": "",
            "low": None,
            "high": None,
            "because": "",
            "verdict": "",
        },
    ]
    facts = results["environment"]["extra"]
    assert (facts["cluster"], facts["run"], facts["exit_code"]) == ("atlas", "run-1", "1")
    assert facts["finished"] == "2026-11-20T23:04:41.870Z"
    assert results["summary"]["start"] == 1795213023120


def test_the_time_is_left_out_if_the_run_did_not_end() -> None:
    assert "timestamp" not in ctrf(load_summary(RECORDINGS / "killed-run"))
    assert ctrf(summary_of())["timestamp"] == "2026-11-20T23:04:41.870Z"


def test_hostile_names_stay_on_one_line() -> None:
    value = measured(ODD, "node" + ODD, ODD, one_of=["x"])
    contract = {"name": ODD, "criteria": [{"id": ODD, "title": ODD, "how": ODD}]}
    result = result_of(value, criterion=ODD, probe=ODD)
    summary = summary_of(result, id=ODD, cluster={"name": ODD}, contract=contract)
    assert read(summary)["summary"]["failed"] == 2
    pending: list[Any] = [ctrf(summary)]
    texts = []
    while pending:
        one = pending.pop()
        if isinstance(one, dict | list):
            pending += [*one, *one.values()] if isinstance(one, dict) else one
        texts += [one] if isinstance(one, str) else []
    assert len(texts) > 20
    assert not [text for text in texts if "\n" in text or "\x1b" in text or "::error" in text]


@pytest.mark.parametrize("gone", ["results", "reportFormat"])
def test_the_schema_can_refuse(gone: str) -> None:
    report = ctrf(summary_of())
    del report[gone]
    with pytest.raises(jsonschema.ValidationError):
        VALID.validate(report)
