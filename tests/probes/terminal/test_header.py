"""The first lines of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import load, parse
from probes.session.session import RunSession

LACKS = (
    "UNPROVEN  no run under this contract can be accepted: no limit for the speed of one node: "
    "none is published for NVIDIA A40. Add [SCALING.mfu] or [SCALING.tokens_per_s]"
)


def header(contract: Any, model: str, rehearsal: str = "", ordered: int | None = 2) -> list[str]:
    gpu = {"name": model}
    cluster = SimpleNamespace(
        rehearsal=rehearsal, facts=[{"gpus": [gpu]}], nodes=[1, 2], size=16, resource="GPU"
    )
    run: Any = SimpleNamespace(
        contract=contract,
        contract_arg="mine.toml",
        cluster=cluster,
        ordered=ordered,
        store=SimpleNamespace(path=Path("runs/r")),
        tier="standard",
        only=[],
        waited_s=0.0,
        held_s=0.0,
        held="",
        name="n",
    )
    return [line for line in RunSession.header(run) if line.startswith("UNPROVEN")]


@pytest.mark.parametrize(
    ("model", "rehearsal", "lines"),
    [
        ("NVIDIA A40", "", [LACKS]),
        ("NVIDIA H100 80GB HBM3", "", []),
        ("NVIDIA A40", "2 raylets embedded on one host", []),
    ],
)
def test_a_run_says_at_its_start_what_its_contract_lacks(
    model: str, rehearsal: str, lines: list[str]
) -> None:
    text = load("ethernet").text.decode()
    contract = parse(text.replace("[cluster]\n", "[cluster]\ngpus_per_node = 8\n").encode(), "m")
    assert header(contract, model, rehearsal) == lines


def test_a_run_without_a_number_of_nodes_says_so() -> None:
    contract = load("h100-ndr400")
    assert header(contract, "NVIDIA H100 80GB HBM3") == []
    (line,) = header(contract, "NVIDIA H100 80GB HBM3", ordered=None)
    assert "no number of nodes" in line


def test_a_run_has_the_limits_of_its_number_of_nodes() -> None:
    run: Any = SimpleNamespace(
        cluster=None,
        settings=SimpleNamespace(nodes=2),
        _describe_cluster=lambda: {"alive": 2, "ranks": 16},
    )
    RunSession._describe(run, load("h100-ndr400"))
    limit = run.contract.limit("FABRIC", "alltoall_busbw")
    assert (limit.low, limit.derived) == (56.25, True)
    run._describe_cluster = lambda: {"note": "could not be joined"}
    RunSession._describe(run, load("h100-ndr400"))
    assert run.contract.limit("FABRIC", "alltoall_busbw") is None
