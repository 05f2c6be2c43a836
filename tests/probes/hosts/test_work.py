"""HOSTS on the sums and the speed of each GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.contract.contract import load
from probes.findings import finding
from probes.hosts.compute_controls import is_located
from probes.hosts.compute_fleet import Accelerator
from reports.measurement import Verdict, title_of
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_work import (
    OTHER,
    RIGHT,
    SimulatedGpu,
    SimulatedWork,
    agree,
    emulated,
    gpu_of,
    run_work,
    statement_of,
)

JUDGED = ("work_errors", "gemm_wrong", "gemm_hash_differs", "slow_gpus")
KNOWN = ("gemm_tflops", "hbm_gbs", "h2d_gbs", "d2h_gbs")  # an H100 has limits of its own
OPERATIONS = dict(
    zip(
        ("gemm_tflops", "fp8_tflops", *KNOWN[1:]), ("gemm", "fp8", "hbm", "h2d", "d2h"), strict=True
    )
)
RATES = {
    "gemm_tflops": 600.0,
    "fp8_tflops": 1000.0,
    "hbm_gbs": 2500.0,
    "h2d_gbs": 45.0,
    "d2h_gbs": 45.0,
}


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in JUDGED))
@pytest.mark.parametrize("on_gpu", [True, False])
def test_sound_accelerators_pass_and_controls_are_caught(on_gpu: bool) -> None:
    cluster = SimulatedWork() if on_gpu else emulated()
    result = run_work(cluster)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    links = ["old link"] * on_gpu
    assert {one.name: one.caught for one in result.controls} == {
        "wrong element": True,
        "failing GEMM": True,
        "slowed GPU": True,
        **dict.fromkeys(links, True),
    }
    last = "GPU 7 (GPU-2-7) on n2" if on_gpu else "GPU 0 on n3"
    assert all(last in one.fault for one in result.controls)
    names = (*JUDGED, "slow_pcie", *KNOWN) if on_gpu else JUDGED
    judged = {f"{name} n{i}" for name in names for i in range(len(cluster.gpus))}
    assert verdicts(result).keys() == judged
    notes = {(one.name, one.value) for one in result.measurements if not one.judged}
    assert ("launch_latency", 4.5) in notes
    assert (("fp8_tflops", 1200.0) if on_gpu else ("gemm_tflops", 0.05)) in notes
    kind = "24 of 24 GPUs" if on_gpu else "4 of 4 emulated accelerators, each on one thread"
    assert result.coverage.startswith(kind)


def test_a_wrong_sum_is_named() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).wrong = 3
    result = run_work(cluster)
    assert not_passed(result) == {"gemm_wrong n1": "FAIL"}
    assert findings(result) == [("HOST-WRONG-SUM", ["n1"])]
    text = "GPU 3 (GPU-1-3) on n1: wrong elements in a GEMM with a known result: 3"
    assert statement_of(result) == text


def test_other_bits_than_most_are_named() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).hashes = [OTHER] * 8
    result = run_work(cluster)
    assert not_passed(result) == {"gemm_hash_differs n1": "FAIL"}
    assert findings(result) == [("HOST-WRONG-SUM", ["n1"])]
    text = (
        "GPU 3 (GPU-1-3) on n1: a GEMM gives hash b7b7b7b7, "
        "and most GPUs of the same kind give 0a0a0a0a"
    )
    assert statement_of(result) == text


def test_bits_that_change_from_run_to_run_are_named() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).hashes = [RIGHT] * 7 + [OTHER]
    result = run_work(cluster)
    assert not_passed(result) == {"gemm_hash_differs n1": "FAIL"}
    text = "GPU 3 (GPU-1-3) on n1: the same GEMM returns 2 different results in 8 runs"
    assert statement_of(result) == text


def test_without_a_majority_all_are_suspects() -> None:
    cluster = SimulatedWork(2, 1)
    gpu_of(cluster, 1, 0).hashes = [OTHER] * 8
    result = run_work(cluster)
    assert not_passed(result) == {
        "gemm_hash_differs n0": "FAIL",
        "gemm_hash_differs n1": "FAIL",
    }
    assert findings(result) == [("HOST-WRONG-SUM", ["n0", "n1"])]
    assert statement_of(result) == (
        "GPU 0 (GPU-0-0) on n0, GPU 0 (GPU-1-0) on n1: they return different results of the "
        "same GEMM, and no result has a majority"
    )


@pytest.mark.near_miss("HOSTS.gemm_hash_differs")
def test_bits_of_another_build_are_not_compared() -> None:
    cluster = SimulatedWork()
    for gpu in cluster.gpus[1]:
        gpu.build, gpu.hashes = [*gpu.build[:-1], "12.8"], [OTHER] * 8
    assert run_work(cluster).verdict is Verdict.PASS


def test_one_of_its_build_proves_nothing() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).build = ["another"]
    result = run_work(cluster)
    assert not_passed(result) == {"gemm_hash_differs n1": "UNPROVEN"}
    (note,) = [one.note for one in result.measurements if one.verdict is Verdict.UNPROVEN]
    assert note == (
        "GPU 3 (GPU-1-3) on n1: no other NVIDIA H100 80GB HBM3 with this software gave a result"
    )


def test_the_only_one_that_answers_proves_nothing() -> None:
    cluster = SimulatedWork(2, 1)
    gpu_of(cluster, 1, 0).silent.add("prepare")
    result = run_work(cluster)
    assert not_passed(result)["gemm_hash_differs n0"] == "UNPROVEN"
    assert not_passed(result)["slow_gpus n0"] == "UNPROVEN"


def test_one_emulated_accelerator_is_not_compared() -> None:
    result = run_work(emulated(1))
    assert result.verdict is Verdict.PASS
    assert verdicts(result).keys() == {"work_errors n0", "gemm_wrong n0"}
    assert "accelerators are not compared: all are emulated on one node" in result.coverage
    assert [one.name for one in result.controls] == ["wrong element", "failing GEMM"]


def test_a_node_without_gpus_computes_on_its_cpu() -> None:
    cluster = emulated(3, 0)
    result = run_work(cluster)
    assert result.verdict is Verdict.PASS
    assert result.coverage.startswith("3 of 3 emulated accelerators")


def test_two_workers_of_one_gpu_are_named() -> None:
    """One board works for both, and another one is never used: all rates could look right."""
    cluster = SimulatedWork()
    gpu_of(cluster).uuid = cluster.gpus[1][0].uuid
    result = run_work(cluster)
    assert not_passed(result)["work_errors n1"] == "FAIL"
    assert findings(result) == [("HOST-SHARED-GPU", ["n1"])]
    assert statement_of(result) == (
        "GPU 3 (GPU-1-0) on n1: Ray gave the same board to another worker, as GPU 0"
    )


@pytest.mark.parametrize("method", ["prepare", "check_sums", "measure_speed"])
def test_an_error_of_torch_is_named(method: str) -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).errors[method] = "CUDA error: uncorrectable ECC error encountered"
    result = run_work(cluster)
    assert not_passed(result)["work_errors n1"] == "FAIL"
    assert set(not_passed(result).values()) == {"FAIL", "UNPROVEN"}
    assert findings(result) == [("HOST-GPU-ERROR", ["n1"])]
    assert statement_of(result) == (
        "GPU 3 (GPU-1-3) on n1: torch stops with: CUDA error: uncorrectable ECC error encountered"
        if method != "prepare"
        else "GPU 3 on n1: torch stops with: CUDA error: uncorrectable ECC error encountered"
    )


def test_a_torch_without_gpus_is_one_finding_and_no_fault_of_a_gpu() -> None:
    cluster = SimulatedWork()
    for gpu in cluster.every:
        gpu.errors["prepare"] = "torch 2.13.0+cpu is a build without GPU support"
    result = run_work(cluster)
    assert not_passed(result)["work_errors n1"] == "FAIL"
    assert findings(result) == [("HOST-TORCH-BUILD", ["n0", "n1", "n2"])]
    assert statement_of(result) == "torch 2.13.0+cpu is a build without GPU support, on n0, n1, n2"
    mixed = SimulatedWork()
    for gpu in mixed.every:
        gpu.errors["prepare"] = "torch 2.13.0+cpu is a build without GPU support"
    gpu_of(mixed).errors["prepare"] = "CUDA error: out of memory"
    found = findings(run_work(mixed))
    assert [code for code, _ in found] == ["HOST-TORCH-BUILD", "HOST-GPU-ERROR"]


def test_a_worker_that_does_not_start_proves_nothing() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).silent.add("prepare")
    result = run_work(cluster)
    assert not_passed(result) == {
        f"{name} n1": "UNPROVEN" for name in (*JUDGED, "slow_pcie", *KNOWN)
    }
    assert findings(result) == []
    notes = {one.note for one in result.measurements if one.verdict is Verdict.UNPROVEN}
    silent = "an accelerator of n1 does not answer: no answer within 60 s"
    assert notes == {silent, "1 of 8 accelerators have no measured rate"}
    assert result.coverage.startswith("23 of 24 GPUs")


@pytest.mark.parametrize("method", ["check_sums", "measure_speed"])
def test_a_worker_that_stops_to_answer_is_named(method: str) -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).silent.add(method)
    result = run_work(cluster)
    assert not_passed(result)["work_errors n1"] == "FAIL"
    assert ("HOST-GPU-ERROR", ["n1"]) in findings(result)
    assert "its worker stops answering: no answer within 60 s" in statement_of(result)


@pytest.mark.parametrize("method", ["check_sums", "measure_speed"])
def test_a_worker_that_ends_with_its_node_accuses_no_gpu(method: str) -> None:
    """Nothing is known of its GPU; another probe names the node."""
    cluster = SimulatedWork()
    gpu_of(cluster).silent.add(method)
    cluster.ending = True
    result = run_work(cluster)
    assert not_passed(result)["work_errors n1"] == "UNPROVEN"
    assert findings(result) == []


def test_no_answer_at_all_proves_nothing() -> None:
    cluster = SimulatedWork()
    for gpu in cluster.every:
        gpu.silent.add("prepare")
    result = run_work(cluster)
    assert set(not_passed(result).values()) == {"UNPROVEN"}
    assert [one.caught for one in result.controls] == [None] * 4


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in RATES))
def test_what_was_agreed_and_is_there_passes() -> None:
    contract = agree(load("h100-ndr400"), **RATES)
    result = run_work(SimulatedWork(), contract)
    assert result.verdict is Verdict.PASS
    assert {f"{name} n{i}" for name in RATES for i in range(3)} <= verdicts(result).keys()
    (slowed,) = [one for one in result.controls if one.name == "slowed GPU"]
    assert slowed.caught
    assert set(slowed.proves) == {"slow_gpus", *RATES}
    assert "does each piece of work 5 times" in slowed.fault


@pytest.mark.parametrize("name", RATES)
def test_a_rate_below_what_was_agreed_is_named(name: str) -> None:
    cluster = SimulatedWork()
    for gpu in cluster.every:
        gpu.rates[OPERATIONS[name]] *= 0.5
    result = run_work(cluster, agree(load("h100-ndr400"), **{name: RATES[name]}))
    assert not_passed(result) == {f"{name} n{i}": "FAIL" for i in range(3)}
    assert findings(result) == [("HOST-GPU-RATE", [f"n{i}"]) for i in range(3)]
    text = f"GPU 0 (GPU-0-0) on n0: {title_of(name)} is "
    assert text in result.findings[0].statement


def test_an_agreed_rate_that_some_do_not_measure_is_not_proven() -> None:
    cluster = SimulatedWork()
    del gpu_of(cluster).rates["fp8"]
    result = run_work(cluster, agree(load("h100-ndr400"), fp8_tflops=1000.0))
    assert not_passed(result) == {"fp8_tflops n1": "UNPROVEN", "slow_gpus n1": "UNPROVEN"}
    notes = [one.note for one in result.measurements if one.verdict is Verdict.UNPROVEN]
    assert "1 of 8 accelerators have no measured rate" in notes


def test_controls_without_effect_are_not_caught() -> None:
    cluster = SimulatedWork()
    cluster.gpus[2][7].obeys = False
    result = run_work(cluster)
    assert {one.name: one.caught for one in result.controls} == {
        "wrong element": False,
        "failing GEMM": False,
        "slowed GPU": False,
        "old link": False,
    }


@pytest.mark.parametrize(
    ("nodes", "gpus", "cores", "times"),
    [(4, 1, 2, 8), (4, 8, 2, 64), (4, 4, 4, 16), (16, 8, 2, 64)],
)
def test_an_emulated_accelerator_works_more_than_its_share_of_the_cores_grows(
    monkeypatch: pytest.MonkeyPatch, nodes: int, gpus: int, cores: int, times: int
) -> None:
    """It runs alone: of n on a core, it is n times as fast as among the others."""
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    result = run_work(emulated(nodes, gpus))
    (slowed,) = [one for one in result.controls if one.name == "slowed GPU"]
    assert f"does each piece of work {times} times" in slowed.fault


def test_copies_between_gpus_are_noted() -> None:
    cluster = SimulatedWork(2, 2)
    cluster.peers = {"id0": {"gbs": [[None, 300.0], [280.0, None]]}, "id1": {"gbs": [[None]]}}
    result = run_work(cluster)
    notes = [(one.subject, one.value) for one in result.measurements if "peer" in one.name]
    assert notes == [("n0", 280.0)]


def test_many_gpus_of_a_node_are_one_finding() -> None:
    cluster = SimulatedWork(2, 10)
    for gpu in cluster.gpus[1][:9]:
        gpu.wrong = 1
    result = run_work(cluster)
    assert findings(result) == [("HOST-WRONG-SUM", ["n1"])]
    assert statement_of(result).startswith("GPU 0 (GPU-1-0) on n1: wrong elements in a GEMM")
    assert statement_of(result).endswith(
        "GPU 7 (GPU-1-7) on n1: wrong elements in a GEMM with a known result: 1, and 1 more"
    )
    (count,) = [one.value for one in result.measurements if one.verdict is Verdict.FAIL]
    assert count == 9


def test_a_slow_gpu_and_one_that_fails_are_both_named() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster, 1, 3).rates["gemm"] *= 0.8
    gpu_of(cluster, 1, 4).errors["measure_speed"] = "CUDA error"
    result = run_work(cluster)
    assert findings(result) == [("HOST-GPU-ERROR", ["n1"]), ("HOST-GPU-SLOW", ["n1"])]
    unproven = {f"{name} n1": "UNPROVEN" for name in KNOWN}
    assert not_passed(result) == {"slow_gpus n1": "FAIL", "work_errors n1": "FAIL", **unproven}


def test_workers_end_when_the_start_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimulatedWork(1, 2)

    def interrupt(self: SimulatedGpu, on_gpu: bool) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatedGpu, "prepare", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_work(cluster)
    assert cluster.killed == cluster.every


def test_only_the_gpu_below_what_was_agreed_is_named() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).rates["fp8"] = 1170.0
    result = run_work(cluster, agree(load("h100-ndr400"), fp8_tflops=1180.0))
    assert not_passed(result) == {"fp8_tflops n1": "FAIL"}
    text = "GPU 3 (GPU-1-3) on n1: FP8 rate is 1170 TFLOP/s. Agreed: >= 1180 TFLOP/s"
    assert statement_of(result) == text


def test_bits_that_change_are_not_compared_with_others() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).hashes = [OTHER] + [RIGHT] * 7
    text = "GPU 3 (GPU-1-3) on n1: the same GEMM returns 2 different results in 8 runs"
    assert statement_of(run_work(cluster)) == text


def test_eight_gpus_are_all_listed_and_many_reasons_are_not() -> None:
    cluster = SimulatedWork(2, 8)
    for gpu in cluster.gpus[1]:
        gpu.wrong = 1
    assert "more" not in statement_of(run_work(cluster))
    cluster = SimulatedWork(2, 8)
    for slot in range(3):
        gpu_of(cluster, 1, slot).rates["gemm"] = 5000.0 + slot
    notes = {one.note for one in run_work(cluster).measurements if one.name == "slow_gpus"}
    assert any(note.endswith("which is above its peak and 1 more") for note in notes)


def test_a_control_is_located_by_label_and_node() -> None:
    victim = Accelerator("id1:3", "n1", 3, "3")
    right = finding("HOST-GPU-SLOW", "GPU 3 on n1: slow", ["n1"])
    for other in (
        finding("HOST-GPU-SLOW", "GPU 4 on n1: slow", ["n1"]),
        finding("HOST-GPU-SLOW", "GPU 3 on n1: slow", ["n2"]),
    ):
        assert not is_located(cast(Any, SimpleNamespace(findings=[other])), victim)
        assert is_located(cast(Any, SimpleNamespace(findings=[other, right])), victim)
