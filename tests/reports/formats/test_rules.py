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

from reports.acceptance import load_summary
from reports.formats.prometheus import prometheus
from reports.measurement import Verdict
from tests.reports.formats.runs import RUNS
from tests.reports.formats.test_prometheus import samples
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
    found = samples(prometheus(load_summary(run)))
    yield from ((name, dict(labels), value) for (name, labels), value in found.items())


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


SCRAPED = [{"instance": "node7", "job": job} for job in ("node", "again")]  # one exporter, twice


@pytest.mark.soak(criterion="suite")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_prometheus_alerts_for_what_failed_and_for_nothing_else(run: Path, tmp_path: Path) -> None:
    """The rules, evaluated by Prometheus's own tool on the metrics of each recording."""
    found = [(name, {**labels, **at}, v) for name, labels, v in series(run) for at in SCRAPED]
    missed = [*missed_limits(found)]
    count = f"cluster:seatrial_limit_missed:count{{cluster={json.dumps(found[0][1]['cluster'])}}}"
    evaluate(
        tmp_path,
        found,
        {"SeatrialNotAccepted": not_accepted(found), "SeatrialLimitMissed": missed},
        {"cluster:seatrial_limit_missed:count": [{"labels": count, "value": len(missed)}]},
    )


@pytest.mark.soak(criterion="suite")
@pytest.mark.parametrize(
    ("kind", "age_s", "fires"),
    [
        ({"rehearsal": "no", "partial": "no"}, 800_000, True),
        ({"rehearsal": "no", "partial": "no"}, 600_000, False),
        ({"rehearsal": "no", "partial": "yes"}, 800_000, False),
        ({"rehearsal": "yes", "partial": "no"}, 800_000, False),
    ],
)
def test_an_old_complete_run_is_named(
    tmp_path: Path, kind: dict[str, str], age_s: int, fires: bool
) -> None:
    labels = {"cluster": "atlas", **kind}
    alert = {
        "exp_labels": {**labels, "severity": "warning"},
        "exp_annotations": {"summary": "atlas: the last complete run is 9d 6h 23m 20s old"},
    }
    found = [("seatrial_run_finished_timestamp_seconds", labels, float(-age_s))]
    evaluate(tmp_path, found, {"SeatrialRunIsOld": [alert] * fires}, {})


Sample = tuple[str, dict[str, str], float]
Expected = dict[str, list[dict[str, Any]]]


def evaluate(folder: Path, found: list[Sample], alerts: Expected, values: Expected) -> None:
    """Let promtool evaluate the rules on these samples, 10 minutes after the epoch."""
    case = {
        "interval": "1m",
        "input_series": [
            {"series": name + braces(labels), "values": f"{value!r}x10"}
            for name, labels, value in found
        ],
        "alert_rule_test": [
            {"eval_time": "10m", "alertname": name, "exp_alerts": expected}
            for name, expected in alerts.items()
        ],
        "promql_expr_test": [
            {"eval_time": "10m", "expr": expr, "exp_samples": expected}
            for expr, expected in values.items()
        ],
    }
    test = folder / "rules.test.yml"
    text = yaml.safe_dump({"rule_files": [str(RULES)], "tests": [case]}, allow_unicode=True)
    test.write_text(text)
    done = subprocess.run(
        ["promtool", "test", "rules", str(test)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def braces(labels: dict[str, str]) -> str:
    """Labels as a series is written: JSON's texts are PromQL's too."""
    return (
        "{" + ",".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in labels.items()) + "}"
    )


def not_accepted(found: list[Sample]) -> list[dict[str, Any]]:
    """The alerts that are due: of a run that is no rehearsal and is not accepted."""
    info = next(labels for name, labels, _ in found if name == "seatrial_run_info")
    run = {key: info[key] for key in ("run", "contract")}
    return [
        {
            "exp_labels": {**labels, **run, "severity": "critical"},
            "exp_annotations": {
                "summary": f"{labels['cluster']}: the run {info['run']} is not accepted",
                "description": "Read report.html of this run: it names each cause and what to do.",
            },
        }
        for name, labels, value in found
        if name == "seatrial_run_accepted" and not value and labels["rehearsal"] == "no"
    ]


def missed_limits(found: list[Sample]) -> Iterator[dict[str, Any]]:
    """The alerts that are due: of each value outside its limits."""
    of = {(name, *sorted(labels.items())): value for name, labels, value in found}
    for name, labels, value in found:
        key = sorted(labels.items())
        low = of.get(("seatrial_limit_low", *key), value)
        high = of.get(("seatrial_limit_high", *key), value)
        if name == "seatrial_measurement" and not low <= value <= high:
            number = repr(value).removesuffix(".0")
            what = f"{labels['measure']} on {labels['subject']} is {number} {labels['unit']}"
            known = {key: label for key, label in labels.items() if label}  # others are dropped
            yield {
                "exp_labels": {**known, "severity": "warning"},
                "exp_annotations": {"summary": f"{labels['cluster']}: {what}".strip()},
            }
