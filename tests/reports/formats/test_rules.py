"""Rules of Prometheus and the dashboard of Grafana: they load, and ask for what there is."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import parser

from reports.acceptance import load_summary
from reports.formats.prometheus import prometheus
from reports.measurement import Verdict
from tests.reports.formats.runs import RUNS
from tests.support.paths import RECORDINGS, REPO

SHIPPED = REPO / "docs" / "use" / "prometheus"
RULES, DASHBOARD = SHIPPED / "rules.yml", SHIPPED / "dashboard.json"
WIDTH = 24  # columns of a dashboard
ADDED = {"instance", "job"}  # labels that Prometheus adds
WORDS = re.compile(
    r"seatrial_\w+|(\w+)=|(?:by|on|group_left) \(([^)]*)\)|label_values\([^,]*, (\w+)"
)


def rules() -> list[dict[str, str]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def variables() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["templating"]["list"]
    return found


def expressions() -> Iterator[str]:
    """Everything that is asked of Prometheus."""
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from (one["definition"] for one in variables() if one["type"] == "query")


def series(run: Path) -> Iterator[tuple[str, dict[str, str], float]]:
    families = parser.text_string_to_metric_families(prometheus(load_summary(run)))
    yield from ((s.name, s.labels, s.value) for family in families for s in family.samples)


def test_rules_and_dashboard_ask_for_metrics_and_labels_that_exist() -> None:
    found = [*series(RECORDINGS / "tcp-fallback")]
    metrics, labels = {name for name, _, _ in found}, {key for _, keys, _ in found for key in keys}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for text in expressions():
        for name in recorded:
            text = text.replace(name, "")
        asked = set(re.findall(r"seatrial_\w+", text))
        assert asked <= metrics, text
        used = {
            word
            for groups in WORDS.findall(text)
            for word in re.split(r",\s*", ",".join(groups))
            if word
        }
        assert used <= labels | ADDED, text
    for rule in rules():
        shown = re.findall(r"\$labels\.(\w+)", str(rule.get("annotations", "")))
        assert {*shown} <= labels


def test_the_dashboard_has_no_two_panels_in_one_place_and_knows_its_variables() -> None:
    taken, ids = set[tuple[int, int]](), [panel["id"] for panel in panels()]
    assert len({*ids}) == len(ids)
    for panel in panels():
        at = panel["gridPos"]
        mine = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not mine & taken
        assert at["x"] + at["w"] <= WIDTH
        assert panel["description"]
        taken |= mine
    known = {one["name"] for one in variables()}
    assert {*re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())} == known


def test_each_verdict_has_its_word_and_colour_on_the_dashboard() -> None:
    words = {str(verdict.rank): verdict.value for verdict in Verdict}
    shown = re.findall(r'"(\d)": \{\s*"text": "([A-Z]+)"', DASHBOARD.read_text())
    assert {pair for pair in shown if pair[1] in words.values()} == {*words.items()}


@pytest.mark.soak(criterion="suite")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_prometheus_alerts_for_what_failed_and_for_nothing_else(run: Path, tmp_path: Path) -> None:
    """The rules, evaluated by Prometheus's own tool on the metrics of each recording."""
    summary, found = load_summary(run), [*series(run)]
    asked = [
        {
            "eval_time": "10m",
            "alertname": "SeatrialNotAccepted",
            "exp_alerts": not_accepted(found),
        },
        {"expr": "cluster:seatrial_limit_missed:count", "eval_time": "10m"},
    ]
    missed = [
        m
        for result in summary.record.results
        for m in result.measurements
        if m.verdict is Verdict.FAIL and not isinstance(m.value, str)
    ]
    cluster = json.dumps(found[0][1]["cluster"])
    asked[1]["exp_samples"] = [
        {
            "labels": f"cluster:seatrial_limit_missed:count{{cluster={cluster}}}",
            "value": len(missed),
        }
    ]
    test = tmp_path / "rules.test.yml"
    test.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(RULES)],
                "tests": [
                    {
                        "interval": "1m",
                        "input_series": [
                            {"series": name + braces(labels), "values": f"{value!r}x10"}
                            for name, labels, value in found
                        ],
                        "alert_rule_test": asked[:1],
                        "promql_expr_test": asked[1:],
                    }
                ],
            },
            allow_unicode=True,
        )
    )
    done = subprocess.run(
        ["promtool", "test", "rules", str(test)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def braces(labels: dict[str, str]) -> str:
    """Labels as a series is written: JSON's texts are PromQL's too."""
    return (
        "{" + ",".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in labels.items()) + "}"
    )


def not_accepted(found: list[tuple[str, dict[str, str], float]]) -> list[dict[str, Any]]:
    """The alert that is due: of a run that is no rehearsal and is not accepted."""
    of = {name: (labels, value) for name, labels, value in found}
    labels, accepted = of["seatrial_run_accepted"]
    if accepted or labels["rehearsal"] == "yes":
        return []
    info = of["seatrial_run_info"][0]
    run, contract = info["run"], info["contract"]
    return [
        {
            "exp_labels": {**labels, "severity": "critical", "run": run, "contract": contract},
            "exp_annotations": {
                "summary": f"{labels['cluster']}: the run {run} is not accepted",
                "description": "Read report.html of this run: it names each cause and what to do.",
            },
        }
    ]
