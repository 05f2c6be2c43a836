"""The number that stands for a criterion, and the sentence that says it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from probes.check.registry import CRITERIA
from probes.contract.contract import load as load_contract
from reports.acceptance import (
    claim_end,
    distance_outside,
    gpus_per_node,
    headline_sentence,
    key_measurement,
    load_summary,
    summarize_acceptance,
    work_text,
)
from reports.measurement import Limit, Measurement, Verdict
from reports.record import Criterion, ProbeResult
from reports.regressions import values_of
from reports.run_folder.integrity import load
from tests.support.paths import RECORDINGS

ATLAS = {"nodes": [{"name": f"n{i}", "gpus": 8} for i in range(8)]}
SCALING = Criterion(
    id="SCALING", title="scaling", how="", headlines={"efficiency": "{work} ({value})"}
)
FABRIC = Criterion(
    id="FABRIC",
    title="fabric",
    how="",
    headlines={"busbw": "all-reduce runs at {value}", "latency": "it takes {value}"},
    proven=" over RDMA",
)


def m(name: str, value: Any, low: Any = None, high: Any = None, **more: Any) -> Measurement:
    limit = Limit(low=low, high=high, because="for this test", unit=more.get("unit", ""))
    return Measurement(name=name, value=value, limit=limit, **more)


def key(*measurements: Measurement, headlines: Any = FABRIC.headlines) -> str:
    result = ProbeResult(probe="p", criterion="FABRIC", measurements=list(measurements))
    found = key_measurement([result], headlines)
    return f"{found.name} {found.subject}" if found else ""


def test_a_healthy_run_shows_the_numbers_that_people_buy() -> None:
    rows = load_summary(RECORDINGS / "healthy-atlas").rows
    assert {row.criterion.id: row.key.name for row in rows} == {
        "FABRIC": "busbw",
        "SCALING": "efficiency",
        "GANG": "placement_delay",
        "LAUNCH": "time_to_first_step",
        "RESTART": "recovery_time",
        "HOSTS": "nodes",
    }
    assert [row.claim for row in rows] == [
        "All-reduce runs at 376 GB/s over RDMA",
        "64 GPUs do the work of 58.5 (91.4 %)",
        "A job starts 0.41 s after GPUs are free; no job held only a part of its GPUs",
        "The guide leads to training in 108 s",
        "A killed run trains again after 11.6 s, with the same result",
        "8 nodes answer, as ordered, healthy and identical",
    ]


def test_a_failing_run_shows_what_was_agreed() -> None:
    rows = {row.criterion.id: row for row in load_summary(RECORDINGS / "tcp-fallback").rows}
    assert rows["FABRIC"].claim == "All-reduce runs at 41.2 GB/s. Expected: >= 340 GB/s"
    assert rows["SCALING"].claim == "64 GPUs do the work of 33.3 (52 %). Expected: >= 90 %"
    assert rows["RESTART"].claim == (
        "error: worker on atlas03 unreachable after the kill; gave up after 300 s"
    )


def test_what_keeps_a_proof_away_is_the_sentence() -> None:
    """All its numbers are good: the control that was missed is the reason."""
    rows = {row.criterion.id: row for row in load_summary(RECORDINGS / "control-missed").rows}
    assert "did not find the planted fault" in rows["FABRIC"].claim
    assert rows["FABRIC"].verdict is Verdict.UNPROVEN


def test_nothing_is_claimed_where_no_probe_ran() -> None:
    rows = {row.criterion.id: row for row in load_summary(RECORDINGS / "not-run").rows}
    assert rows["LAUNCH"].claim == "not tested: the run left this test out"
    record = load(RECORDINGS / "healthy-atlas")
    empty = summarize_acceptance(record.model_copy(update={"results": [], "owed": []}))
    assert {row.claim for row in empty.rows} == {"no test ran for this criterion"}


@pytest.mark.parametrize("id", CRITERIA)
def test_each_measure_that_can_fail_has_its_sentence(id: str) -> None:
    row = CRITERIA[id]
    without = [
        str(c) for c in row.checks if not c.doubted and c not in {*row.failing, *row.headlines}
    ]
    assert without == []
    for sentence in row.failing.values():
        used = re.findall(r"\{(\w+)\}", sentence)
        assert "value" in used, sentence
        assert set(used) <= {"value", "on", "subject"}, sentence
        assert not sentence.endswith("."), "the report ends it"


GANG = Criterion(
    id="GANG", title="gang", how="",
    failing={"held": "a job held a part{on}: {value}", "delay": "it waited {value}"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("measured", "sentence", "end"),
    [
        ({"name": "held", "value": 27, "high": 0, "unit": "samples"},
         "A job held a part: 27 samples", ""),
        ({"name": "held", "value": 1, "high": 0, "unit": "samples", "subject": "n1"},
         "A job held a part on n1: 1 sample", ""),
        ({"name": "held", "value": 0, "high": 0, "unit": "samples"}, "Held: 0 samples",
         ". Expected: 0 samples"),
        ({"name": "delay", "value": 9, "high": 5, "unit": "s"}, "It waited 9 s",
         ". Expected: <= 5 s"),
        ({"name": "other", "value": 9, "high": 0}, "Other: 9", ". Expected: 0"),
    ],
)  # fmt: skip
def test_a_value_that_failed_has_the_sentence_of_its_measure(
    measured: dict[str, Any], sentence: str, end: str
) -> None:
    one = m(**measured)
    assert headline_sentence(GANG, one, {}) == sentence
    assert claim_end(GANG, one, Verdict.UNPROVEN) == end


@pytest.mark.parametrize("id", CRITERIA)
def test_each_criterion_has_headlines_among_its_measures(id: str) -> None:
    row = CRITERIA[id]
    assert row.headlines.keys() <= row.measures.keys()
    assert row.headlines
    for sentence in row.headlines.values():
        assert set(re.findall(r"\{(\w+)\}", sentence)) <= {"value", "subject", "work"}


def test_only_a_contract_for_rdma_claims_rdma() -> None:
    proven = {
        name: {one.id: one.proven for one in load_contract(name).facts().criteria}["FABRIC"]
        for name in ("h100-ndr400", "lab")
    }
    assert proven == {"h100-ndr400": " over RDMA", "lab": " over the agreed fabric"}


def test_a_headline_comes_before_other_measurements_of_its_verdict() -> None:
    good = m("elements", 0, high=0), m("latency", 3, high=5), m("busbw", 400, low=340)
    assert key(*good) == "busbw cluster"
    assert key(*good[:2]) == "latency cluster"
    assert key(*good, headlines={}) == "elements cluster"
    assert key(*good, m("share", 0.2, low=0.9)) == "share cluster"  # it failed
    assert key(m("share", 0.2, low=0.9), m("busbw", 300, low=340)) == "busbw cluster"


def test_of_one_headline_the_nearest_to_its_limit_stands_for_it() -> None:
    nodes = [m("busbw", value, low=340, subject=f"{value}") for value in (400, 350, 390)]
    assert key(*nodes) == "busbw 350"
    failed = [m("busbw", value, low=340, subject=f"{value}") for value in (339, 41, 300)]
    assert key(*nodes, *failed) == "busbw 41"


def test_without_a_headline_the_furthest_outside_stands_for_it() -> None:
    failed = m("a", 0.8, low=0.9), m("b", 10, high=1), m("c", 0.1, low=0.9)
    assert key(*failed) == "b cluster"
    assert key(failed[0], failed[2]) == "c cluster"


def test_what_is_not_judged_stands_for_nothing() -> None:
    assert key(Measurement(name="busbw", value=4.0, judged=False)) == ""
    assert key() == ""


@pytest.mark.parametrize(
    ("measurement", "distance"),
    [
        (m("x", 50, low=100), 0.5),
        (m("x", 100, high=50), 0.5),
        (m("x", 100, low=50), -0.5),
        (m("x", 3, high=0), 1.0),
        (m("x", 0, high=0), 0.0),
        (m("x", -1, low=1), 2.0),
        (m("x", 7, low=8, high=8), 0.125),
        (m("x", None, low=1), 0.0),
        (m("x", "eth0", low=1), 0.0),
        (Measurement(name="x", value=1.0), 0.0),
        (m("x", 1.0), 0.0),
    ],
)
def test_a_distance_is_a_share_of_value_or_bound(measurement: Measurement, distance: float) -> None:
    assert distance_outside(measurement) == distance


@pytest.mark.parametrize(
    ("cluster", "work"),
    [
        (ATLAS, "64 GPUs do the work of 33.3"),
        ({"nodes": [{"gpus": 8}] * 64}, "64 GPUs (of 512) do the work of 33.3"),
        ({"nodes": [{}] * 9}, "8 nodes (of 9) do the work of 4.16"),
        ({}, "8 nodes do the work of 4.16"),
        ({"nodes": [{"gpus": 8}, {"gpus": 4}]}, "8 nodes do the work of 4.16"),
        ({"nodes": [{"gpus": ["a", "b"]}]}, "16 GPUs do the work of 8.32"),
        ({"nodes": [{"gpus": True}]}, "8 nodes do the work of 4.16"),
        ({"nodes": [{"gpus": "8"}]}, "8 nodes do the work of 4.16"),
        ({"nodes": ["n0"]}, "8 nodes do the work of 4.16"),
        ({"nodes": "n0"}, "8 nodes do the work of 4.16"),
        ({"nodes": 5}, "8 nodes do the work of 4.16"),
    ],
)
def test_an_efficiency_is_work(cluster: dict[str, Any], work: str) -> None:
    efficiency = m("efficiency", 0.52, low=0.9, unit="ratio", subject="8 nodes, 256 tokens")
    assert work_text(efficiency, cluster) == work


def test_an_efficiency_without_a_number_of_nodes_stays_a_share() -> None:
    efficiency = m("efficiency", 0.52, low=0.9, unit="ratio")
    assert work_text(efficiency, ATLAS) == "efficiency is 52 %"


@pytest.mark.parametrize("gpus", [[], [{"gpus": 0}], [{"name": "n"}], [{"gpus": {}}]])
def test_gpus_that_are_not_known_are_none(gpus: list[Any]) -> None:
    assert gpus_per_node({"nodes": gpus}) == 0


def test_a_value_that_is_missing_is_said() -> None:
    missing = m("busbw", None, low=340, note="no answer")
    text = headline_sentence(FABRIC, missing, {})
    assert text == "Busbw: not measured (no answer)"
    assert claim_end(FABRIC, missing, Verdict.UNPROVEN) == ". Expected: >= 340"


def test_a_sentence_that_a_record_brings_is_only_text() -> None:
    foreign = FABRIC.model_copy(update={"headlines": {"busbw": "{value.__class__} {0} {other}"}})
    assert headline_sentence(foreign, m("busbw", 1, low=0), {}) == "{value.__class__} {0} {other}"


def test_only_a_headline_claims_what_is_proven() -> None:
    assert claim_end(FABRIC, m("busbw", 400, low=340), Verdict.PASS) == " over RDMA"
    assert claim_end(FABRIC, m("share", 1, low=0), Verdict.PASS) == ""
    assert claim_end(SCALING, m("efficiency", 0.5, low=0.9), Verdict.FAIL) == ". Expected: >= 0.9"
    assert claim_end(FABRIC, Measurement(name="busbw"), Verdict.UNPROVEN) == ""


def test_the_row_says_the_regression_that_decides() -> None:
    record = load(RECORDINGS / "healthy-atlas")
    terms = {"FABRIC.latency": 5.0, "FABRIC.busbw": 5.0}  # of the first there is no earlier value
    (fabric,) = record.results_of("FABRIC")
    earlier = values_of([fabric], terms)
    better = [one.model_copy(update={"value": 2 * (one.value or 0)}) for one in earlier]
    contract = record.contract.model_copy(update={"baseline": terms})
    now = {
        "contract": contract,
        "baseline": "old",
        "baseline_problem": "",
        "baseline_values": better,
    }
    rows = {
        row.criterion.id: row for row in summarize_acceptance(record.model_copy(update=now)).rows
    }
    assert [one.verdict.value for one in rows["FABRIC"].regressions] == ["UNPROVEN", "FAIL"]
    assert rows["FABRIC"].verdict is Verdict.FAIL
    assert rows["FABRIC"].problem.startswith("busbw on cluster: 376 GB/s, 50 % worse")
    assert rows["FABRIC"].sentence == rows["FABRIC"].problem
    assert not rows["FABRIC"].shows_limit, "the sentence has the limit of [baseline]"
    assert rows["GANG"].shows_limit
