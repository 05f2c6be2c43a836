"""Ports of RDMA on which TCP does not pass, as in a cloud whose network carries RDMA alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.network_facts import list_pairs
from probes.contract.contract import load
from probes.fabric import judge
from probes.fabric import test_fabric as probe
from probes.fabric.addresses import DuplicateAddress
from probes.fabric.reach import ReachabilityResult, fails_by_tcp_alone
from probes.fabric.sweep import SweepResult
from probes.fabric.transport import TransportReport
from reference_trainer.launch.gang import GangError
from reports.measurement import Verdict
from tests.support.controls import MemoryRecorder, recorder
from tests.support.sweep_results import sweep_result

CLOUD = load("a3-ultra")
NODES = [f"n{at}" for at in range(4)]
MTU = dict.fromkeys(NODES, 8896)
BLOCKED = ReachabilityResult(NODES, list_pairs(NODES), {}, [], MTU)
SOUND = ReachabilityResult(NODES, [], {}, [], dict.fromkeys(NODES, 1460))


def run_over(device: str, busbw: float) -> SweepResult:
    library = TransportReport("NCCL's log", dict.fromkeys(NODES, device))
    return sweep_result(busbw, device, library=library)


def rig_with(measure: MemoryRecorder, fabric: str = "rdma") -> Any:
    terms = CLOUD.cluster.model_copy(update={"fabric": fabric})
    return SimpleNamespace(
        gang=None, node_names={}, terms=terms, measure=measure, judge_agreed_ports=lambda: None
    )


@pytest.mark.parametrize(
    ("reach", "alone"),
    [
        ({"rdma": BLOCKED}, True),
        ({"rdma": SOUND}, False),
        ({"rdma": replace(BLOCKED, pairs=[("n0", "n3")])}, False),  # no cloud's rule: a fault
        ({"rdma": replace(BLOCKED, pairs=BLOCKED.pairs[1:])}, False),
        ({"fab0": BLOCKED}, False),  # no RDMA on this port
        ({None: BLOCKED}, False),
        ({"rdma": replace(BLOCKED, note="no RDMA port has an IP address on n0")}, False),
        ({"rdma": replace(BLOCKED, narrow=[("n0", "n2")])}, False),
        ({"rdma": replace(BLOCKED, duplicates=[DuplicateAddress("a", ["n0"], "")])}, False),
    ],
)
def test_only_on_ports_of_rdma_tcp_alone_may_fail(
    reach: dict[str | None, ReachabilityResult], alone: bool
) -> None:
    assert fails_by_tcp_alone(reach) is alone


@pytest.mark.parametrize(
    ("run", "replaced"),
    [
        (run_over("rdma", 350), True),
        (run_over("rdma", 260), True),  # MARGINAL
        (run_over("rdma", 240), False),  # too slow
        (run_over("eth0", 350), False),
    ],
)
def test_rays_network_counts_where_rdma_passes_and_is_fast_enough(
    monkeypatch: pytest.MonkeyPatch, run: SweepResult, replaced: bool
) -> None:
    asked, said, measure = list[str | None](), list[str](), recorder("FABRIC", CLOUD)

    def check_reach(_: Any, __: Any, fabric: str | None) -> ReachabilityResult:
        asked.append(fabric)
        return SOUND

    monkeypatch.setattr(measure, "covered", said.append)
    monkeypatch.setattr(judge, "check_reach", check_reach)
    reach = judge.replace_reach(rig_with(measure), {"rdma": BLOCKED}, run)
    assert reach == ({None: SOUND} if replaced else {"rdma": BLOCKED})
    assert (asked, len(said)) == ([None] * replaced, replaced)
    assert not measure.result("finished", 1.0).measurements


def measured(
    monkeypatch: pytest.MonkeyPatch, fabric: str, error: GangError | None
) -> tuple[MemoryRecorder, bool]:
    """Measure until the sweep of a fabric whose pairs do not connect; return whether it began."""
    began: list[Any] = []

    def sweep(*call: Any) -> None:
        began.append(call)
        raise error or GangError("it began")

    monkeypatch.setattr(probe, "check_reach", lambda *_: BLOCKED)
    monkeypatch.setattr(probe, "start_and_sweep", sweep)
    measure = recorder("FABRIC", CLOUD)
    try:
        probe.measure_fabric(rig_with(measure, fabric), None)
    except GangError:
        assert began
    return measure, bool(began)


def test_where_tcp_alone_fails_rdma_is_tried_and_else_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = GangError("rank 3 does not answer")
    assert measured(monkeypatch, "rdma", error)[1]
    measure, began = measured(monkeypatch, "fab0", None)
    assert not began
    assert measure.worst("unreachable_pairs").verdict is Verdict.FAIL


def test_where_rdma_does_not_pass_either_the_pairs_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    measure, _ = measured(monkeypatch, "rdma", GangError("rank 3 does not answer"))
    found = measure.worst("unreachable_pairs")
    assert (found.verdict, found.value) == (Verdict.FAIL, 6)
    assert {one.code for one in measure.findings} == {"FAB-PAIR-BLOCKED", "FAB-LINK-DOWN"}
