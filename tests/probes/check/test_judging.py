"""The shapes that most checks have: each node, equal faults, the worst, planted faults."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.check.judging import (
    SILENT,
    explain_alike,
    is_agreed,
    judge_if_agreed,
    judge_or_explain,
    plant,
    plant_on,
    record_each,
    silent_names,
    worst_of,
)
from probes.check.recorder import Trial
from probes.hosts import criterion as check
from reports.record import Finding
from tests.support.controls import MemoryRecorder, recorder

NODES = [{"id": "a", "name": "n0"}, {"id": "b", "name": "n1"}]


@pytest.fixture
def measure() -> MemoryRecorder:
    return recorder("HOSTS")


def written(measure: MemoryRecorder) -> list[tuple[str, Any, str]]:
    result = measure.result("finished", 1.0)
    return [(one.subject, one.value, one.note) for one in result.measurements]


def test_each_node_has_its_value_and_a_silent_one_none(measure: MemoryRecorder) -> None:
    values = {"n0": 4096, "n1": None}
    record_each(measure, check.OPEN_FILES, values, ["n2"], notes={"n1": "unread"})
    assert written(measure) == [("n0", 4096, ""), ("n1", None, "unread"), ("n2", None, SILENT)]


def test_one_note_may_be_that_of_all(measure: MemoryRecorder) -> None:
    record_each(measure, check.OPEN_FILES, {"n0": None}, notes="nothing was read")
    assert written(measure) == [("n0", None, "nothing was read")]


def test_equal_faults_are_one_finding(measure: MemoryRecorder) -> None:
    faults = {"n0": "full", "n1": "torn", "n2": "full"}
    names = {"full": {"folder": "/a"}}
    explain_alike(
        *(measure, "HOST-TEMP-FULL", faults, "{nodes}: {text}."), names=names, folder="/b"
    )
    found = [(one.statement, one.suspects, one.names["folder"]) for one in measure.findings]
    assert found == [("n0, n2: full.", ["n0", "n2"], "/a"), ("n1: torn.", ["n1"], "/b")]


@pytest.mark.parametrize(("asked", "where"), [(0, "n0, n1"), (2, "each node"), (3, "n0, n1")])
def test_a_fault_of_all_that_were_asked_says_so(
    measure: MemoryRecorder, asked: int, where: str
) -> None:
    faults = dict.fromkeys(("n0", "n1"), "full")
    explain_alike(measure, "HOST-TEMP-FULL", faults, "{nodes}: {text}", asked=asked)
    assert [one.statement for one in measure.findings] == [f"{where}: full"]


def test_one_node_alone_is_named(measure: MemoryRecorder) -> None:
    explain_alike(measure, "HOST-TEMP-FULL", {"n0": "full"}, "{nodes}: {text}", asked=1)
    assert [one.statement for one in measure.findings] == ["n0: full"]


def test_what_others_wrote_is_filled_in_and_never_formatted(measure: MemoryRecorder) -> None:
    path = "/models/{nodes}{0}{nothing}"
    faults = {"n0": "{text} is missing"}
    explain_alike(measure, "HOST-MODEL-FILES", faults, "{file} on {nodes}: {text}", file=path)
    assert [one.statement for one in measure.findings] == [f"{path} on n0: {faults['n0']}"]


def test_what_is_unknown_decides_before_the_worst() -> None:
    assert worst_of({"a": 1.0, "b": 3.0, "c": 2.0}) == ("b", 3.0)
    assert worst_of({"a": 2.0, "b": 1.0}, min) == ("b", 1.0)
    assert worst_of({"a": 9.0, "b": None}) == ("b", None)
    assert worst_of({}) == (None, None)


def test_a_value_without_an_agreed_limit_informs(measure: MemoryRecorder) -> None:
    assert is_agreed(measure, check.OPEN_FILES)
    assert not is_agreed(measure, check.GEMM_TFLOPS)
    judge_if_agreed(measure, check.OPEN_FILES, 9000, "files", on="n0")
    judge_if_agreed(measure, check.GEMM_TFLOPS, 700.0, "TFLOP/s", on="n0", note="alone")
    judged, informs = measure.result("finished", 1.0).measurements
    assert (judged.judged, informs.judged) == (True, False)
    assert (informs.unit, informs.note) == ("TFLOP/s", "alone")


@pytest.mark.parametrize(
    ("value", "failed", "explained"),
    [
        (0, None, False),
        (None, None, False),
        (2, None, True),
        (0, True, True),
        (None, True, True),
        (2, False, False),
    ],
)
def test_the_cause_is_that_of_a_failure(
    measure: MemoryRecorder, value: int | None, failed: bool | None, explained: bool
) -> None:
    cause = Finding(code="X", statement="x", remedy="x")
    judge_or_explain(measure, check.NODES_CHANGED, value, cause, failed, on="n0", note="seen")
    assert written(measure) == [("n0", value, "seen")]
    assert measure.findings == [cause] * explained


@pytest.mark.parametrize(
    ("located", "caught"), [(None, True), (True, True), (False, False)], ids=str
)
def test_a_planted_fault_is_caught_where_it_was_planted(
    measure: MemoryRecorder, located: bool | None, caught: bool
) -> None:
    def judge(trial: Trial) -> bool | None:
        trial(check.NODES_CHANGED, 1, on="n1")
        return located

    plant(measure, check.RESTARTED_NODE, "n1 restarts", judge)
    (control,) = measure.result("finished", 1.0).controls
    assert (control.name, control.caught) == ("restarted node", caught)


def test_a_fault_that_fails_nothing_is_not_caught(measure: MemoryRecorder) -> None:
    plant(measure, check.RESTARTED_NODE, "n1", lambda trial: trial(check.NODES_CHANGED, 0))
    (control,) = measure.result("finished", 1.0).controls
    assert control.caught is False


def test_what_could_not_be_planted_proves_nothing(measure: MemoryRecorder) -> None:
    plant(measure, check.RESTARTED_NODE, "n1", lambda trial: None, unable="no node restarts")
    (control,) = measure.result("finished", 1.0).controls
    assert (control.caught, control.saw) == (None, "no node restarts")


@pytest.mark.parametrize("answer", [None, 3])
def test_a_fault_is_read_on_its_victim_alone(measure: MemoryRecorder, answer: int | None) -> None:
    asked: list[Any] = []

    def on_each_node(function: Any, *arguments: Any, nodes: Any) -> dict[str, Any]:
        asked.append((arguments, nodes))
        return {} if answer is None else {"b": answer}

    cluster = cast("Any", SimpleNamespace(nodes=NODES, errors={}, on_each_node=on_each_node))
    plant_on(
        *(cluster, measure, check.RESTARTED_NODE, "restarts", {"node": "b", "name": "n1"}),
        *(int, "7"),
        judge=lambda found, trial: trial(check.NODES_CHANGED, found),
    )
    (control,) = measure.result("finished", 1.0).controls
    assert asked == [(("7",), [NODES[1]])]
    assert control.fault == "n1 restarts"
    if answer is None:
        assert (control.caught, control.saw) == (None, "n1 does not answer")
    else:
        assert control.caught is True


def test_silent_nodes_have_names() -> None:
    assert silent_names(NODES, {"a"}) == ["n1"]
