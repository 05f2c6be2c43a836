"""The metrics parse strictly, collide nowhere, and join with their limits."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser as prometheus_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from reports.acceptance import AcceptanceSummary, load_summary
from reports.formats.prometheus import prometheus
from reports.measurement import Verdict
from reports.record import RunRecord
from tests.reports.formats.runs import ODD, every_run, measured, result_of, summary_of
from tests.support.paths import RECORDINGS, REPO

Sample = tuple[str, frozenset[tuple[str, str]]]  # name and labels
GUIDE = (REPO / "docs" / "use" / "ci.md").read_text()


def samples(text: str) -> dict[Sample, float]:
    """Every sample, as Prometheus and OpenMetrics read it; a sample that is there twice fails."""
    both = []
    for parser in (prometheus_parser, openmetrics_parser):
        found = [s for m in parser.text_string_to_metric_families(text) for s in m.samples]
        read = {(s.name, frozenset(s.labels.items())): s.value for s in found}
        assert len(read) == len(found)
        assert all(s.timestamp is None for s in found)
        both.append(read)
    assert both[0] == both[1]
    return both[0]


def of_metric(summary: AcceptanceSummary, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """The samples of one metric by their labels."""
    return {key[1]: v for key, v in samples(prometheus(summary)).items() if key[0] == name}


def labels_of(summary: AcceptanceSummary, name: str) -> list[dict[str, str]]:
    return [dict(labels) for labels in of_metric(summary, name)]


def joined(summary: AcceptanceSummary) -> Counter[tuple[str, ...]]:
    """What `value < low or value > high` finds in Prometheus, where all labels must be equal."""
    values = of_metric(summary, "seatrial_measurement")
    lows = of_metric(summary, "seatrial_limit_low")
    highs = of_metric(summary, "seatrial_limit_high")
    assert lows.keys() | highs.keys() <= values.keys(), "a limit without its value"
    broken = [key for key, low in lows.items() if values[key] < low]
    broken += [key for key, high in highs.items() if values[key] > high]
    return Counter(tuple(dict(k)[x] for x in ("criterion", "measure")) for k in broken)


@every_run
def test_every_sample_names_its_cluster_and_the_run_is_in_one_place(run: Path) -> None:
    found = samples(prometheus(load_summary(run)))
    assert all("cluster" in dict(labels) for _, labels in found)
    assert [name for name, labels in found if "run" in dict(labels)] == ["seatrial_run_info"]


@every_run
def test_an_alert_on_limits_finds_what_failed(run: Path) -> None:
    summary = load_summary(run)
    failed = Counter(
        (result.criterion, m.name)
        for result in summary.record.results
        for m in result.measurements
        if m.verdict is Verdict.FAIL and not isinstance(m.value, str)
    )
    if run.name != "hostile":  # its names are cleaned
        assert joined(summary) == failed
    assert sum(joined(summary).values()) == sum(failed.values())


def test_some_recordings_have_broken_limits() -> None:
    """Otherwise the test above compares nothing with nothing."""
    assert joined(load_summary(RECORDINGS / "tcp-fallback"))[("FABRIC", "busbw")] == 1


@pytest.mark.parametrize(
    ("value", "limit", "alerts"),
    [
        (1.0, {"low": 1.0}, 0),
        (0.999, {"low": 1.0}, 1),
        (1.0, {"high": 1.0}, 0),
        (1.001, {"high": 1.0}, 1),
        (0.5, {"low": 0.4, "marginal_low": 0.6}, 0),
        (True, {"low": 1.0}, 0),
        (False, {"low": 1.0}, 1),
    ],
)
def test_an_alert_is_a_fail_and_no_marginal(
    value: Any, limit: dict[str, float], alerts: int
) -> None:
    summary = summary_of(result_of(measured("busbw", value, **limit)))
    assert sum(joined(summary).values()) == alerts
    assert (summary.exit_code == 1) == bool(alerts)


def test_two_clusters_with_one_run_id_do_not_collide() -> None:
    """One Prometheus reads both files."""
    texts = [
        prometheus(summary_of(result_of(measured("busbw", 1.0, low=0.5)), cluster={"name": name}))
        for name in ("atlas", "orion")
    ]
    one, other = (samples(text) for text in texts)
    assert not one.keys() & other.keys()


def test_the_next_run_of_a_cluster_continues_its_series() -> None:
    """A label that changes with each run makes new series each night."""
    probe = "probes/fabric/test_fabric.py::test_allreduce"
    one, other = (
        samples(
            prometheus(summary_of(result_of(measured("busbw", 1.0), probe=f"{at}/{probe}"), id=id))
        )
        for id, at in (("a", ""), ("b", "elsewhere"))
    )
    assert {name for name, _ in one.keys() ^ other.keys()} == {"seatrial_run_info"}


def test_a_node_is_named_only_where_the_subject_is_one() -> None:
    subjects = ["node1", "node1 - node0", "cluster", "node9"]
    summary = summary_of(result_of(*(measured("busbw", 1.0, on) for on in subjects)))
    found = {
        one["subject"]: one.get("node", "") for one in labels_of(summary, "seatrial_measurement")
    }
    assert found == {"node1": "node1", "node1 - node0": "", "cluster": "", "node9": ""}


@pytest.mark.parametrize(
    "nodes", [None, "node1", 7, ["node1"], [None], [{"name": None}], [{}], {"name": "node1"}]
)
def test_facts_of_another_form_name_no_node(nodes: Any) -> None:
    summary = summary_of(result_of(measured("busbw", 1.0, "node1")), cluster={"nodes": nodes})
    (one,) = labels_of(summary, "seatrial_measurement")
    assert (one.get("node", ""), one["cluster"]) == ("", "unknown")


def test_equal_measurements_stay_apart_and_keep_their_limits() -> None:
    summary = load_summary(RECORDINGS / "retried")
    again = [one for one in labels_of(summary, "seatrial_measurement") if "occurrence" in one]
    assert {one["occurrence"] for one in again} == {"2"}
    assert any("occurrence" in one for one in labels_of(summary, "seatrial_limit_high"))


def test_names_that_look_equal_when_cleaned_stay_apart() -> None:
    """One line that is there twice makes Prometheus refuse the file."""
    summary = summary_of(
        result_of(measured("busbw", 1.0, "node1"), measured("busbw", 2.0, "node\u200b1")),
        criteria=[{"id": id, "title": "t", "how": "h"} for id in ("FABRIC", "FAB\u200bRIC")],
    )
    assert sorted(of_metric(summary, "seatrial_measurement").values()) == [1.0, 2.0]
    assert len(of_metric(summary, "seatrial_verdict")) == 2


def test_hostile_names_stay_in_their_label() -> None:
    summary = summary_of(
        result_of(measured(ODD, 1.0, ODD, low=2.0), criterion=ODD), cluster={"name": ODD}, id=ODD
    )
    text = prometheus(summary)
    assert len(samples(text)) == len([x for x in text.splitlines() if not x.startswith("#")])
    assert sum(joined(summary).values()) == 1


@every_run
def test_run_metrics_are_those_of_the_summary(run: Path) -> None:
    summary = load_summary(run)
    assert list(of_metric(summary, "seatrial_exit_code").values()) == [summary.exit_code]
    accepted = of_metric(summary, "seatrial_run_accepted")
    assert list(accepted.values()) == [float(summary.exit_code == 0)]
    kind = "yes" if summary.record.rehearsal else "no"
    assert [dict(labels)["rehearsal"] for labels in accepted] == [kind]
    ranks = of_metric(summary, "seatrial_verdict").values()
    assert sorted(ranks) == sorted(row.verdict.rank for row in summary.rows)


def test_the_end_of_a_run_is_in_seconds_and_missing_if_it_did_not_end() -> None:
    name = "seatrial_run_finished_timestamp_seconds"
    assert list(of_metric(summary_of(), name).values()) == [1795215881.87]
    assert not of_metric(load_summary(RECORDINGS / "killed-run"), name)
    assert not of_metric(summary_of(finished="soon"), name)


def test_only_numbers_that_a_float_holds_are_samples() -> None:
    values = {"none": None, "word": "NET/IB", "huge": 10**400, "big": 10**30, "zero": 0}
    summary = summary_of(result_of(*(measured(name, value) for name, value in values.items())))
    found = {one["measure"] for one in labels_of(summary, "seatrial_measurement")}
    assert found == {"big", "zero"}


@every_run
def test_the_text_follows_from_the_record_alone(run: Path) -> None:
    summary = load_summary(run)
    again = RunRecord.model_validate_json(summary.record.model_dump_json())
    copy = summary.__class__(**{**vars(summary), "record": again})
    assert prometheus(copy) == prometheus(summary)


def test_the_guide_names_the_metrics_that_exist() -> None:
    found = samples(prometheus(load_summary(RECORDINGS / "tcp-fallback")))
    assert set(re.findall(r"seatrial_\w+", GUIDE)) == {name for name, _ in found}
