"""Findings that differ only in their node are one, and each says how to test again."""

from __future__ import annotations

from typing import Any

import pytest

from reports.acceptance import summarize_acceptance
from reports.orders import again_command
from reports.record import ContractFacts, Criterion, Finding, ProbeResult, RunRecord

GPUS = ContractFacts(name="c", criteria=[Criterion(id="HOSTS", title="t", how="h")])


def result(*findings: Finding, probe: str = "p", **more: Any) -> ProbeResult:
    return ProbeResult(probe=probe, criterion="HOSTS", findings=list(findings), **more)


def record(*results: ProbeResult, **more: Any) -> RunRecord:
    fields = {"id": "first", "started": "2026-11-20T22:17:03Z", "tier": "quick", "contract": GPUS}
    return RunRecord(**{"command": "pytest probes", **fields, **more}, results=list(results))


def gpu(node: str, number: int = 0, text: str = "torch stops with: no memory", **more: Any) -> Any:
    statement = f"GPU {number} on {node}: {text}"
    return Finding(code="HOST-GPU-ERROR", statement=statement, suspects=[node], remedy="r", **more)


def listed(*findings: Finding) -> list[tuple[str, list[str]]]:
    found = summarize_acceptance(record(result(*findings))).findings
    return [(one.statement, one.suspects) for one in found]


def test_one_fault_of_many_nodes_is_one_finding() -> None:
    first = "GPU 0 on node1: torch stops with: no memory"
    assert listed(gpu("node1")) == [(first, ["node1"])]
    assert listed(gpu("node1"), gpu("node2", 3), gpu("node12")) == [
        (f"{first}. The same was found on node2, node12", ["node1", "node2", "node12"])
    ]
    many = [gpu(f"node{n}") for n in range(1, 65)]
    ((text, suspects),) = listed(*many)
    assert text == f"{first}. The same was found on {', '.join(suspects[1:9])} and 55 others"
    assert len(suspects) == 64
    assert listed(*many[:10])[0][0].endswith(" and 1 other")
    assert listed(*many[:9])[0][0].endswith(", node9")
    assert listed(gpu("node1"), gpu("node1", 1))[0] == (
        f"{first}. The same was found 2 times",
        ["node1"],
    )


def test_what_ended_the_run_comes_first() -> None:
    lost = Finding(code="HOST-NODE-LOST", statement="node2 is lost", remedy="r")
    found = [text for text, _ in listed(gpu("node1"), lost)]
    assert found == [lost.statement, gpu("node1").statement]


def test_a_name_within_another_name_is_no_name() -> None:
    one, other = (
        Finding(code="A", statement=f"{a} and {b} differ", suspects=[a, b], remedy="r")
        for a, b in (("n", "n-1"), ("m", "m-2"))
    )
    assert listed(one, other) == [
        ("n and n-1 differ. The same was found on m, m-2", ["n", "n-1", "m", "m-2"])
    ]


def test_what_says_something_else_stays_apart() -> None:
    other = gpu("node2", text="torch stops with: an illegal address")
    assert len(listed(gpu("node1"), other)) == 2
    assert len(listed(gpu("node1"), gpu("node2").model_copy(update={"code": "HOST-XID"}))) == 2
    assert len(listed(gpu("node1"), gpu("node1"))) == 1
    nameless = Finding(code="A", statement="it is", remedy="r")
    assert listed(nameless, nameless.model_copy(update={"statement": "it was"})) == [
        ("it is", []), ("it was", []),
    ]  # fmt: skip


def test_a_name_is_a_whole_word() -> None:
    """The letter `n` of a node is in many words."""
    one = Finding(code="A", statement="n runs no torch", suspects=["n"], remedy="r")
    two = Finding(code="A", statement="m runs no torch", suspects=["m"], remedy="r")
    assert listed(one, two) == [("n runs no torch. The same was found on m", ["n", "m"])]


def test_joined_findings_keep_all_evidence() -> None:
    both = result(gpu("a", evidence=["x"]), gpu("b", evidence=["y", "x"]))
    (found,) = summarize_acceptance(record(both)).findings
    assert found.evidence == ["x", "y"]


@pytest.mark.parametrize(
    ("command", "again"),
    [
        ("pytest probes", "seatrial again HOSTS --run runs/first"),
        ("pytest probes --run-dir /data/r1 -k x", "seatrial again HOSTS --run /data/r1"),
        ("pytest probes --run-dir='/data/my run'", "seatrial again HOSTS --run RUN"),
        ("pytest probes --run-dir '$(reboot)'", "seatrial again HOSTS --run RUN"),
    ],
)
def test_a_criterion_is_tested_again_by_one_command(command: str, again: str) -> None:
    of = gpu("a", reproduce="pytest p")
    told = record(result(of, reproduce="pytest p"), command=command)
    assert again_command(told, of) == again_command(told, told.results[0]) == again


def test_a_command_of_its_own_stays() -> None:
    own = gpu("a", reproduce="ray status --token=hunter2secret")
    told = record(result(own, reproduce="pytest p"))
    assert again_command(told, own) == "ray status --token=<redacted>"
    foreign = result(reproduce="pytest mine").model_copy(update={"criterion": "MINE"})
    assert again_command(record(foreign), foreign) == "pytest mine"
    assert again_command(record(result()), result()) == ""
