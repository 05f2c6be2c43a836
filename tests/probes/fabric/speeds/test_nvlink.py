"""NVLink between nodes has a sweep of its own, with new ranks; SIMULATED, no GPU was there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import load
from probes.fabric import speeds
from probes.fabric.speeds import has_nvlink_between, measure_nvlink, record_nvlink
from probes.fabric.sweep import SweepResult
from reference_trainer.launch.gang import GangError
from reports.measurement import Measurement, Verdict
from tests.support.controls import MemoryRecorder, recorder
from tests.support.sweep_results import sweep_result

RACK = load("gb200-nvl72")
NODES = [f"n{at}" for at in range(4)]


def facts(*models: str) -> list[dict[str, Any]]:
    return [{"gpus": [{"name": model}] * 4 if model else []} for model in models]


@pytest.mark.parametrize(
    ("models", "has"),
    [
        (("NVIDIA GB200", "NVIDIA GB200"), True),
        (("NVIDIA GB300", "NVIDIA GB200"), True),
        (("NVIDIA GB200", "NVIDIA B200"), False),
        (("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"), False),
        (("NVIDIA GB200", ""), False),  # a node that shows none
        (("NVIDIA GB200",), False),  # one node has no other
    ],
)
def test_all_nodes_need_gpus_that_reach_other_nodes(models: tuple[str, ...], has: bool) -> None:
    assert has_nvlink_between(facts(*models)) is has


def swept(busbw: float, rdma: float = 0.0, only: int = 4) -> SweepResult:
    """A sweep that sent this share of its bytes by RDMA, on the first nodes."""
    run = sweep_result(busbw)
    sent = {node: {"rdma": int(rdma * run.expected_bytes) * (at < only), "eth0": 900}
            for at, node in enumerate(NODES)}  # fmt: skip
    return replace(run, sent=sent)


def recorded(run: SweepResult | None, problem: str = "", agreed: bool = True) -> Measurement:
    measure = recorder("FABRIC", RACK if agreed else load("h100-ndr400"))
    record_nvlink(run, problem, measure)
    (found,) = measure.result("finished", 1.0).measurements
    assert found.name == "nvlink_busbw"
    return found


def test_the_agreed_figure_is_judged() -> None:
    assert recorded(swept(590)).verdict is Verdict.FAIL
    assert recorded(swept(0.001)).verdict is Verdict.FAIL


@pytest.mark.near_miss("FABRIC.nvlink_busbw")
def test_just_above_it_passes() -> None:
    measure = recorder("FABRIC", RACK)
    record_nvlink(swept(601, rdma=0.04), "", measure)
    (found,) = measure.result("finished", 1.0).measurements
    assert found.verdict is Verdict.PASS


def test_without_an_agreed_figure_it_is_a_note() -> None:
    found = recorded(swept(590), agreed=False)
    assert (found.verdict, found.value) == (None, 590)


@pytest.mark.parametrize("only", [1, 4])
def test_bytes_that_crossed_the_network_prove_no_nvlink(only: int) -> None:
    found = recorded(swept(900, rdma=0.5, only=only))
    assert (found.verdict, found.value) == (Verdict.UNPROVEN, None)
    assert found.note == "data between nodes used rdma, not NVLink"


def test_a_sweep_that_failed_proves_nothing_and_says_why() -> None:
    found = recorded(None, "rank 3 does not answer")
    assert (found.verdict, found.note) == (Verdict.UNPROVEN, "rank 3 does not answer")


class Gang:
    """A gang; `done` is what happens to it, and what its ranks are told."""

    def __init__(self, done: list[Any]) -> None:
        self.done = done

    def remove(self) -> None:
        self.done.append("removed")

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("left")


def run_probe(
    monkeypatch: pytest.MonkeyPatch, model: str, on_gpu: bool = True, fails: bool = False
) -> tuple[list[Any], MemoryRecorder]:
    done: list[Any] = []

    def gang(environment: dict[str, Any]) -> Gang:
        done.append(environment)
        return Gang(done)

    def sweep(*_: Any) -> SweepResult:
        if fails:
            raise GangError("rank 3 does not answer")
        return swept(700)

    monkeypatch.setattr(speeds, "run_sweep", sweep)
    monkeypatch.setattr(speeds, "gang_env", lambda _: {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"})
    cluster = SimpleNamespace(on_gpu=on_gpu, facts=facts(model, model), node_names={}, gang=gang)
    measure = recorder("FABRIC", RACK)
    rig: Any = SimpleNamespace(gang=Gang(done), measure=measure, terms=RACK.cluster)
    logs: Any = SimpleNamespace(cluster=cluster)
    measure_nvlink(rig, logs)
    return done, measure


def test_new_ranks_choose_by_themselves_after_the_old_ones_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, measure = run_probe(monkeypatch, "NVIDIA GB200")
    own = {"NCCL_ALGO": None, "NCCL_DEBUG": "INFO", "NCCL_MNNVL_ENABLE": None}
    assert done == ["removed", own, "left"]
    (found,) = measure.result("finished", 1.0).measurements
    assert (found.verdict, found.value) == (Verdict.PASS, 700)


def test_ranks_that_fail_leave_it_unproven_and_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, measure = run_probe(monkeypatch, "NVIDIA GB200", fails=True)
    assert done[-1] == "left"
    (found,) = measure.result("finished", 1.0).measurements
    assert found.verdict is Verdict.UNPROVEN


@pytest.mark.parametrize(("model", "on_gpu"), [("NVIDIA H100", True), ("NVIDIA GB200", False)])
def test_elsewhere_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, model: str, on_gpu: bool
) -> None:
    done, measure = run_probe(monkeypatch, model, on_gpu)
    assert (done, measure.result("finished", 1.0).measurements) == ([], [])
