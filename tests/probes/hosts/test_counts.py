"""HOSTS against the order: too few, too many and silent nodes are each named."""

from __future__ import annotations

from typing import Any

import pytest

from probes.acceptance.contract import ClusterTerms
from probes.hosts.test_hosts import judge_counts
from reports.record import Finding, Verdict


class Notes:
    """Collects what a probe measures."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.findings: list[Finding] = []

    def __call__(self, name: str, value: Any, *, limit: Any, on: str = "cluster") -> None:
        self.verdicts[f"{name} {on}"] = limit.judge(value) if limit else Verdict.UNPROVEN

    def explain(self, *findings: Finding) -> None:
        self.findings += findings


class Stand:
    """A cluster of the given GPU counts, some of which are silent."""

    emulated = True
    errors: dict[str, str] = {}

    def __init__(self, *gpus: int) -> None:
        self.nodes = [
            {"id": str(i), "name": f"n{i}", "resources": {"GPU": g}} for i, g in enumerate(gpus)
        ]


def judged(
    stand: Stand, terms: ClusterTerms, silent: tuple[int, ...] = (), lost: tuple[str, ...] = ()
) -> Notes:
    notes = Notes()
    facts = [
        {"node": n["id"], "name": n["name"]} for n in stand.nodes if int(n["id"]) not in silent
    ]
    judge_counts(stand, terms, notes, facts, [{"name": name} for name in lost])
    return notes


def codes(notes: Notes) -> list[tuple[str, list[str]]]:
    return [(finding.code, finding.suspects) for finding in notes.findings]


def test_as_ordered() -> None:
    notes = judged(Stand(8, 8), ClusterTerms(nodes=2, gpus_per_node=8))
    assert set(notes.verdicts.values()) == {Verdict.PASS}
    assert codes(notes) == []


def test_a_lost_node_is_named() -> None:
    notes = judged(Stand(8, 8), ClusterTerms(nodes=3, gpus_per_node=8), lost=("n7",))
    assert notes.verdicts["nodes cluster"] is Verdict.FAIL
    assert codes(notes) == [("HOST-MISSING", ["n7"])]


def test_a_lost_node_fails_even_when_no_number_was_ordered() -> None:
    notes = judged(Stand(8, 8), ClusterTerms(), lost=("n7",))
    assert notes.verdicts["nodes cluster"] is Verdict.FAIL


def test_an_agreed_contract_without_a_number_proves_nothing() -> None:
    stand, notes = Stand(8, 8), Notes()
    facts = [{"node": n["id"], "name": n["name"]} for n in stand.nodes]
    judge_counts(stand, ClusterTerms(), notes, facts, [], agreed=True)
    assert notes.verdicts["nodes cluster"] is Verdict.UNPROVEN


def test_the_driver_is_asked_where_there_is_one() -> None:
    stand, notes = Stand(8, 8), Notes()
    stand.emulated = False
    facts = [{"node": n["id"], "name": n["name"], "gpus": [{}] * 8} for n in stand.nodes]
    facts[1]["gpus"] = [{}] * 7
    judge_counts(stand, ClusterTerms(nodes=2, gpus_per_node=8), notes, facts, [])
    assert notes.verdicts["gpus n1"] is Verdict.FAIL
    assert codes(notes) == [("HOST-GPUS", ["n1"])]


def test_too_many_nodes_is_a_finding_too() -> None:
    notes = judged(Stand(8, 8, 8), ClusterTerms(nodes=2, gpus_per_node=8))
    assert notes.verdicts["nodes cluster"] is Verdict.FAIL
    assert codes(notes)[0][0] == "HOST-EXTRA"


@pytest.mark.parametrize("count", [7, 9])
def test_another_number_of_gpus_is_named(count: int) -> None:
    notes = judged(Stand(8, count, 8), ClusterTerms(nodes=3))
    assert notes.verdicts["gpus n1"] is Verdict.FAIL
    assert codes(notes) == [("HOST-GPUS", ["n1"])]


def test_a_silent_node_is_named() -> None:
    notes = judged(Stand(8, 8, 8), ClusterTerms(nodes=3), silent=(1,))
    assert notes.verdicts["nodes cluster"] is Verdict.FAIL
    assert ("HOST-NO-ANSWER", ["n1"]) in codes(notes)
