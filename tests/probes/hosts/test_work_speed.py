"""HOSTS on the speed of each GPU, against those of its model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.ask import Answers
from probes.contract.contract import load
from probes.hosts import compute_fleet
from probes.hosts.compute_fleet import WorkFleet
from reports.measurement import Verdict
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_work import (
    RATES,
    SimulatedWork,
    WorkCall,
    agree,
    emulated,
    gpu_of,
    run_work,
    statement_of,
)


@pytest.mark.parametrize("operation", ["gemm", "hbm", "h2d", "d2h"])
def test_a_slow_gpu_is_named(operation: str) -> None:
    cluster = SimulatedWork()
    gpu = gpu_of(cluster)
    gpu.rates[operation] *= 0.9
    gpu.alone = {operation: 1.01}
    result = run_work(cluster)
    assert not_passed(result) == {"slow_gpus n1": "FAIL"}
    assert findings(result) == [("HOST-GPU-SLOW", ["n1"])]
    assert "90 % of the typical rate of 24 GPUs of its model; " in statement_of(result)
    # The work, the same again, and then alone; the last GPU is measured for the control as well.
    assert gpu.asked == [(3, 0.2, 1, False), (3, 0.2, 1, False), (3, 0.2, 1, True)]
    assert cluster.gpus[2][7].asked == [(3, 0.2, 1, False)] * 2 + [(1, 0.2, 6, True)]


def test_a_slow_gpu_has_its_rates_in_the_finding() -> None:
    cluster = SimulatedWork()
    gpu = gpu_of(cluster)
    gpu.rates["gemm"], gpu.factors, gpu.alone = 340.0, [1.0, 1.1, 1.0], {"gemm": 2.0}
    assert run_work(cluster).findings[0].statement == (
        "GPU 3 (GPU-1-3) on n1: GEMM 374 TFLOP/s, 55 % of the typical rate of 24 GPUs of its "
        "model; 680 TFLOP/s when it runs alone"
    )


NEAR = {
    "within 5 %": {"rates": {**RATES, "gemm": 680 * 0.951}},
    "once": {"factors": [0.5, 1.0]},
    "again": {"factors": [1.0, 0.5]},
    "copies that others hold up": {
        "rates": {**RATES, "h2d": 27, "d2h": 26},
        "alone": {"h2d": 2.0, "d2h": 2.0},
    },
}


@pytest.mark.near_miss("HOSTS.slow_gpus")
@pytest.mark.parametrize("change", NEAR.values(), ids=NEAR)
def test_what_is_not_slow_twice_passes(change: dict[str, object]) -> None:
    cluster = SimulatedWork()
    for name, value in change.items():
        setattr(gpu_of(cluster), name, value)
    result = run_work(cluster)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []


@pytest.mark.near_miss("HOSTS.slow_gpus")
def test_the_spread_of_a_model_is_allowed() -> None:
    cluster = SimulatedWork()
    for index, gpu in enumerate(cluster.every):
        gpu.rates["gemm"] *= 1 - 0.003 * (index % 20)
    assert run_work(cluster).verdict is Verdict.PASS


@pytest.mark.parametrize(("share", "verdict"), [(0.91, Verdict.PASS), (0.89, Verdict.FAIL)])
def test_few_gpus_are_compared_with_more_tolerance(share: float, verdict: Verdict) -> None:
    cluster = SimulatedWork(2, 2)
    gpu_of(cluster, 1, 1).rates["gemm"] *= share
    assert run_work(cluster).verdict is verdict


def test_slow_gpus_are_compared_with_those_of_their_model() -> None:
    cluster = SimulatedWork()
    for gpu in cluster.gpus[0]:
        gpu.model, gpu.rates = "NVIDIA L40S", {"gemm": 250, "hbm": 700, "h2d": 25, "d2h": 25}
    assert run_work(cluster).verdict is Verdict.PASS
    cluster.gpus[0][2].rates = {**cluster.gpus[0][2].rates, "gemm": 200}
    for gpu in cluster.every:
        gpu.calls = 0
    cluster.killed.clear()
    assert findings(run_work(cluster)) == [("HOST-GPU-SLOW", ["n0"])]


def test_the_same_slot_of_each_node_is_one_finding() -> None:
    cluster = SimulatedWork()
    for own in cluster.gpus:
        own[5].rates["gemm"] *= 0.8
    gpu_of(cluster).rates["hbm"] *= 0.5
    result = run_work(cluster)
    slow = [("HOST-GPU-SLOW", ["n0", "n1", "n2"]), ("HOST-GPU-SLOW", ["n1"])]
    assert findings(result) == [*slow, ("HOST-GPU-RATE", ["n1"])]
    assert result.findings[0].names["gpu"] == "GPU-0-5", "as n0, which its text describes"
    first, second, _ = (one.statement for one in result.findings)
    example = "GPU 5 is slow on each of 3 nodes. For example on n0: GEMM 544 TFLOP/s, 80 %"
    assert first.startswith(example)
    assert second.startswith("GPU 3 (GPU-1-3) on n1: copy in its memory 1450 GB/s, 50 %")


def test_a_slot_that_one_node_alone_has_is_named_by_its_gpu() -> None:
    one: Any = {key: SimpleNamespace(number="5", node=f"node {key}") for key in "ab"}
    assert WorkFleet(one, True).same_slot(["a", "b"]) == {"5": ["a", "b"]}
    assert WorkFleet(one, True).same_slot(["a"]) == {}
    assert WorkFleet({"a": one["a"]}, True).same_slot(["a"]) == {}


def test_half_of_the_fleet_may_be_slow() -> None:
    cluster = SimulatedWork(2)
    for gpu in cluster.gpus[1]:
        gpu.rates["gemm"] *= 0.7
    result = run_work(cluster)
    assert findings(result) == [("HOST-GPU-SLOW", ["n1"]), ("HOST-GPU-RATE", ["n1"])]
    assert verdicts(result)["slow_gpus n0"] is Verdict.PASS


def test_one_gpu_alone_proves_nothing_of_its_speed() -> None:
    result = run_work(SimulatedWork(1, 1))
    unproven = {"gemm_hash_differs n0": "UNPROVEN", "slow_gpus n0": "UNPROVEN"}
    assert not_passed(result) == unproven
    notes = {one.note for one in result.measurements if one.verdict is Verdict.UNPROVEN}
    assert "there is no other GPU of this model to compare with: NVIDIA H100 80GB HBM3" in notes


@pytest.mark.parametrize(("alone", "verdict"), [(1.0, Verdict.FAIL), (2.0, Verdict.PASS)])
def test_an_emulated_accelerator_is_slow_only_if_it_is_slow_alone(
    alone: float, verdict: Verdict
) -> None:
    cluster = emulated()
    gpu = gpu_of(cluster, 2, 0)
    gpu.rates = {name: rate * 0.4 for name, rate in gpu.rates.items()}
    gpu.alone = dict.fromkeys(gpu.rates, alone)
    assert run_work(cluster).verdict is verdict


@pytest.mark.near_miss("HOSTS.slow_gpus")
@pytest.mark.parametrize("sound_turn", range(5))
def test_a_machine_that_was_slow_for_a_while_is_no_slow_accelerator(sound_turn: int) -> None:
    """As in a sound rehearsal: a copy of 17 GB/s beside one of 82, and then of 39 alone."""
    cluster = emulated(2)
    cluster.gpus[1][0].factors = [0.21, *[0.4] * sound_turn, 0.6, 0.4]
    assert run_work(cluster).verdict is Verdict.PASS
    cluster = emulated(2)
    cluster.gpus[1][0].factors = [0.21, 0.48]
    cluster.gpus[0][0].factors = [1.0, 0.5]
    assert run_work(cluster).verdict is Verdict.PASS, "the other is slower by now too"


def test_an_emulated_accelerator_that_is_slow_in_each_turn_is_named() -> None:
    cluster = emulated(2)
    cluster.gpus[1][0].factors = [0.21, 0.49]
    result = run_work(cluster)
    assert findings(result) == [("HOST-GPU-SLOW", ["n1"])]
    assert statement_of(result).startswith(
        "GPU 0 on n1: GEMM 0.0105 TFLOP/s, 21 % of the typical rate of 2 GPUs of its model; "
        "0.0245 TFLOP/s when it runs alone (GPU 0 on n0 alone: 0.05 TFLOP/s); copy in its memory"
    )
    assert [one.asked[1:6] for one in cluster.every] == [[(1, 0.2, 1, True)] * 5] * 2


@pytest.mark.parametrize("what", ["silent", "failing", "no number"])
def test_an_emulated_suspect_proves_nothing_without_the_fastest_alone(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = emulated(2)
    cluster.gpus[1][0].factors = [0.2]
    fastest = cluster.gpus[0][0]
    with_others = fastest.measure_speed

    def fail_alone(*values: Any, is_alone: bool) -> dict[str, Any]:
        answer = with_others(*values, is_alone=is_alone)
        if not is_alone:
            return answer
        if what == "silent":
            fastest.silent.add("measure_speed")
        if what == "failing":
            return {**answer, "error": "no memory", "rates": {}}
        return {**answer, "rates": {**answer["rates"], "hbm": [float("nan")]}}

    monkeypatch.setattr(fastest, "measure_speed", fail_alone)
    result = run_work(cluster)
    assert not_passed(result)["slow_gpus n1"] == "UNPROVEN"
    assert "HOST-GPU-SLOW" not in [one.code for one in result.findings]


@pytest.mark.near_miss("HOSTS.slow_gpus")
def test_emulated_accelerators_that_share_cores_pass() -> None:
    cluster = emulated()
    gpu_of(cluster, 2, 0).rates = {"gemm": 0.031, "hbm": 12.5, "h2d": 9.5, "d2h": 9.0}
    assert run_work(cluster).verdict is Verdict.PASS


def test_a_rate_above_the_peak_proves_nothing() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).rates["gemm"] = 5000.0
    result = run_work(cluster)
    assert not_passed(result) == {"slow_gpus n1": "UNPROVEN"}
    (note,) = [one.note for one in result.measurements if one.verdict is Verdict.UNPROVEN]
    assert note == "GPU 3 (GPU-1-3) on n1 measured 5000 TFLOP/s, which is above its peak"


def test_a_rate_that_is_missing_proves_nothing() -> None:
    cluster = SimulatedWork()
    del gpu_of(cluster).rates["h2d"]
    result = run_work(cluster)
    assert not_passed(result) == {"slow_gpus n1": "UNPROVEN", "h2d_gbs n1": "UNPROVEN"}


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_no_positive_number_proves_nothing(bad: float) -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).rates["hbm"] = bad
    result = run_work(cluster, agree(load("h100-ndr400"), hbm_gbs=2000.0))
    assert not_passed(result) == {"slow_gpus n1": "UNPROVEN", "hbm_gbs n1": "UNPROVEN"}
    notes = {one.note for one in result.measurements if one.verdict is Verdict.UNPROVEN}
    assert "GPU 3 (GPU-1-3) on n1 has no measured rate of copy in its memory" in notes


def test_a_slot_that_one_node_has_is_no_slot_of_each_node() -> None:
    cluster = SimulatedWork(2, 4)
    cluster.gpus[0] = cluster.gpus[0][:3]
    gpu_of(cluster, 1, 3).rates["gemm"] *= 0.8
    assert statement_of(run_work(cluster)).startswith("GPU 3 (GPU-1-3) on n1: GEMM 544 TFLOP/s")


def test_one_that_looks_slow_only_without_those_that_prove_nothing_is_not_proven() -> None:
    """Half of the others did not measure each copy: what is typical rises without them."""
    cluster = emulated(6)
    for gpu in cluster.every[2:5]:
        gpu.rates = {name: rate * 0.6 for name, rate in gpu.rates.items()}
        del gpu.rates["d2h"]
    cluster.every[5].rates["gemm"] *= 0.4
    result = run_work(cluster)
    slow = {one.subject: one.note for one in result.measurements if one.name == "slow_gpus"}
    assert not_passed(result) == {f"slow_gpus n{node}": "UNPROVEN" for node in (2, 3, 4, 5)}
    assert slow["n2"] == "GPU 0 on n2 has no measured rate of copy to the host"
    assert slow["n5"] == "GPU 0 on n5 was not measured alone"


def test_slow_gpus_of_one_node_are_measured_alone_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = SimulatedWork()
    for node, slot in ((0, 1), (0, 2), (1, 3)):
        gpu_of(cluster, node, slot).rates["hbm"] *= 0.8
    with_others = cluster.collect_answers
    batches = []

    def watch(calls: dict[WorkCall, str], seconds: float) -> Answers:
        if {call.method for call in calls} == {"measure_speed"}:
            batches.append([key for call, key in calls.items()])
        return with_others(calls, seconds)

    monkeypatch.setattr(cluster, "collect_answers", watch)
    run_work(cluster)
    assert [len(batch) for batch in batches[:2]] == [24, 24]
    assert batches[2:] == [["id0:1", "id1:3"], ["id0:2"], ["id2:7"]]


def test_a_very_slow_gpu_has_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimulatedWork(1, 2)
    with_others = cluster.collect_answers
    limits = []

    def watch(calls: dict[WorkCall, str], seconds: float) -> Answers:
        for call in calls:
            if call.method == "measure_speed":
                rounds, each_s, *_ = call.values
                limits.append(
                    (
                        seconds,
                        compute_fleet.CALL_SECONDS + compute_fleet.MOST_EXTRA * rounds * each_s,
                    )
                )
        return with_others(calls, seconds)

    monkeypatch.setattr(cluster, "collect_answers", watch)
    run_work(cluster)
    assert limits
    assert all(given == needed for given, needed in limits)


def test_a_round_of_emulated_accelerators_is_shorter() -> None:
    cluster = emulated(2)
    run_work(cluster)
    with_others, *of_the_control = cluster.gpus[0][0].asked
    assert with_others == (2, 0.1, 1, False)
    assert of_the_control == [(1, 0.1, 1, True)]


@pytest.mark.near_miss("HOSTS.slow_gpus")
def test_a_rate_at_the_limit_is_not_slow() -> None:
    cluster = SimulatedWork(2, 1)
    gpu_of(cluster, 1, 0).rates["gemm"] = 680 * 0.9
    assert run_work(cluster).verdict is Verdict.PASS
    shared = emulated()
    gpu_of(shared, 2, 0).rates["gemm"] = 0.02
    gpu_of(shared, 2, 0).alone = {"gemm": 0.025 / 0.02}
    assert run_work(shared).verdict is Verdict.PASS


def test_a_slow_gpu_that_gives_no_rate_alone_is_not_accused() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).rates["gemm"] *= 0.8
    gpu_of(cluster).alone = {"gemm": float("nan")}
    result = run_work(cluster)
    assert not_passed(result) == {"slow_gpus n1": "UNPROVEN", "gemm_tflops n1": "MARGINAL"}
    assert findings(result) == []
