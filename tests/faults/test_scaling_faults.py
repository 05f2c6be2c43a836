"""Why a job scales badly, planted: SCALING names the cause, first the largest, and its place."""

from __future__ import annotations

import shutil

import pytest

from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.launchers.faulty_rung import (
    BRISK,
    CHECKPOINTS,
    EVERY,
    HALF_PACE,
    NAMED,
    SLOW_LINK,
    STRICT,
)
from tests.faults.launchers.injected_faults import failed, findings, said_of
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import acceptance, agreed

pytestmark = pytest.mark.soak(criterion="scaling")


def seen(lab: Lab, fault: str, contract: str = "lab") -> RunRecord:
    """The record of a run with this fault."""
    arguments = ["probes/scaling/test_scaling.py", "--tier", "standard"]
    plugin = ("faulty_rung", fault)
    try:
        record, _ = acceptance(lab, fault, *arguments, fault=plugin, contract=contract)
    finally:
        shutil.rmtree(lab.home / CHECKPOINTS.lstrip("/"), ignore_errors=True)
    return record


def causes(record: RunRecord) -> list[tuple[str, list[str]]]:
    """What was named beside the loss itself, in order: code and suspects."""
    return [(f.code, f.suspects) for f in findings(record) if f.code != "SCALE-EFFICIENCY"]


@pytest.mark.parametrize(("fault", "named"), NAMED.items(), ids=NAMED)
def test_a_planted_cause_is_named_and_no_other(
    lab: Lab, fault: str, named: list[tuple[str, list[str]]]
) -> None:
    record = seen(lab, fault)
    said = said_of(record)
    assert record.verdict("SCALING") is Verdict.FAIL, said
    assert "efficiency" in failed(record)
    assert causes(record) == named, said


@pytest.mark.parametrize("fault", HALF_PACE)
def test_half_the_pace_is_told_of_one_node_and_of_all(lab: Lab, fault: str) -> None:
    """Where all nodes are slow no rung loses anything: only what was agreed tells it."""
    measure, named = HALF_PACE[fault]
    record = seen(lab, fault)
    said = said_of(record)
    assert record.verdict("SCALING") is Verdict.FAIL, said
    assert measure in failed(record), said
    assert causes(record) == named, said


@pytest.mark.parametrize(
    ("fault", "says", "rung", "others"),
    [
        (
            *("breaks", "rank 2 failed: torch.OutOfMemoryError: no memory for the model"),
            *("4 nodes", ["2 nodes"]),
        ),
        ("dies", "rank 2 died", "4 nodes", ["2 nodes"]),
        ("dies-in-the-middle", "rank 1 died", "2 nodes", ["4 nodes"]),
    ],
)
def test_a_rung_that_breaks_costs_no_other_its_figures(
    lab: Lab, fault: str, says: str, rung: str, others: list[str]
) -> None:
    record = seen(lab, fault)
    (result,) = record.results
    assert record.verdict("SCALING") is Verdict.UNPROVEN
    efficiency = {
        m.subject.split(",")[0]: m.value for m in result.measurements if m.name == "efficiency"
    }
    assert efficiency.pop(rung) is None
    assert [*efficiency] == others
    assert all(value > 0.5 for value in efficiency.values())
    assert causes(record)[0][0] == "SCALE-RUNG-FAILED"
    assert any(says in one.statement for one in findings(record))


@pytest.mark.parametrize(
    ("fault", "measure", "code"),
    [("explodes", "non_finite", "SCALE-NAN"), ("apart", "disagreements", "SCALE-RANKS-DISAGREE")],
)
def test_a_rung_that_is_fast_and_wrong_fails(lab: Lab, fault: str, measure: str, code: str) -> None:
    record = seen(lab, fault)
    said = [(one.code, one.statement) for one in findings(record)]
    assert record.verdict("SCALING") is Verdict.FAIL, said
    assert measure in failed(record)
    assert any(one == code and statement.startswith("at 4 nodes") for one, statement in said), said


@pytest.mark.parametrize(
    ("fault", "suspects", "says"),
    [
        ("late-storage", ["node2"], "The others wait while node2 writes"),
        ("slow-storage", [], "No single node writes slowly"),
    ],
)
def test_saves_that_hold_training_up_are_named_with_their_node(
    lab: Lab, fault: str, suspects: list[str], says: str
) -> None:
    """Saves of 4 s, and one agreed for every minute; every half hour they would pass."""
    contract = agreed(lab, {"pace_seconds = 0.25": "pace_seconds = 0.25\nsave_minutes = 1"})
    record = seen(lab, fault, contract)
    said = said_of(record)
    assert record.verdict("SCALING") is Verdict.FAIL, said
    assert failed(record) == {"checkpoint_overhead"}, said
    assert causes(record) == [("SCALE-CHECKPOINT", suspects)], said
    assert says in said[0][2]
    (result,) = record.results
    assert all(control.caught for control in result.controls), result.controls


@pytest.mark.parametrize(
    ("busbw", "code"),
    [("0.090", "SCALE-LINK"), ("0.004", "SCALE-TOKENS")],
    ids=["1gbit", SLOW_LINK],
)
def test_slow_links_are_told_from_too_few_tokens(lab: Lab, busbw: str, code: str) -> None:
    """By what was agreed: the same links, as slow everywhere, and a quarter of the computing."""
    for node in lab.nodes:
        inject(lab, "slow-link", str(node.index), SLOW_LINK)
    contract = agreed(lab, {**BRISK, "at_least = 0.090": f"at_least = {busbw}"})
    options = ["probes/scaling/test_scaling.py", "--tier", "standard"]
    record, _ = acceptance(lab, f"agreed-{busbw}", *options, contract=contract)
    said = [(one.code, one.statement) for one in findings(record)]
    assert record.verdict("SCALING") is Verdict.FAIL, said
    assert causes(record)[0] == (code, []), said


@pytest.mark.parametrize(
    ("fault", "terms", "code", "nodes", "says"),
    [
        (["slow-link", "2", SLOW_LINK], {}, "SCALE-LINK", ["node2"], "the links of node2 are slow"),
        (["wrong-interface"], STRICT, "SCALE-NETWORK", EVERY, "used eth0"),
    ],
    ids=["slow-link", "wrong-interface"],
)
def test_a_road_that_is_bad_is_named_with_its_nodes(
    lab: Lab, fault: list[str], terms: dict[str, str], code: str, nodes: list[str], says: str
) -> None:
    """One slow link slows every rank down alike, and so does another network."""
    inject(lab, *fault)
    options = ["probes/scaling/test_scaling.py", "--tier", "standard"]
    contract = agreed(lab, {**BRISK, **terms})
    record, _ = acceptance(lab, f"road-{fault[0]}", *options, contract=contract)
    said = said_of(record)
    assert record.verdict("SCALING") is Verdict.FAIL, said
    assert causes(record)[0] == (code, nodes), said
    assert any(one == code and says in statement for one, _, statement in said), said
