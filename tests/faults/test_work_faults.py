"""Accelerators that compute wrongly or slowly: caught, named and located by HOSTS, live."""

from __future__ import annotations

import time

import pytest

from reports.record import RunRecord
from tests.faults.launchers.injected_faults import all_caught, failed, findings, is_sound
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.support.trial import Trial, acceptance, agreed, start

# In `make test`, test_hosts_families.py plants a fault of each family.
pytestmark = pytest.mark.soak(criterion="hosts")
LAB = {"nodes": 3, "name": "work"}
HOSTS = "probes/hosts/test_hosts.py"
COMPUTES = f"{HOSTS}::test_each_gpu_computes_rightly_and_as_fast_as_the_others"
DRIFTS = f"{HOSTS}::test_no_gpu_slows_down_under_load"
SLOW = "0.2"  # of one CPU: alone, it is still slower than three that share two cores
DRIFT_AFTER = 3.0  # s: the first third is over then, and the last has not begun
NAMES = ("work_errors", "gemm_wrong", "gemm_hash_differs", "slow_gpus")
# Rates far below what a thread of any CPU does, so that a contract may agree on them.
LEAST = {"gemm_tflops": 0.005, "hbm_gbs": 4.0, "h2d_gbs": 2.0, "d2h_gbs": 2.0}
TOO_FAST = 9999.0  # in each of their units


def figures(least: dict[str, float]) -> str:
    """Write the lines of a contract that agrees on these rates."""
    return "".join(
        f'[HOSTS.{name}]\nat_least = {rate}\nbecause = "agreed for this test"\n'
        f'unit = "{"TFLOP/s" if name.endswith("tflops") else "GB/s"}"\n'
        for name, rate in least.items()
    )


def judge_work(lab: Lab, name: str, more: str = "", tier: str = "quick") -> tuple[RunRecord, Trial]:
    """Run the probe on the lab as it is, by the lab's contract with these lines."""
    return acceptance(lab, name, COMPUTES, DRIFTS, "--tier", tier, contract=agreed(lab, {}, more))


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in NAMES))
def test_a_sound_lab_passes(lab: Lab) -> None:
    is_sound(*judge_work(lab, "sound"))
    nothing_left(lab)


@pytest.mark.near_miss("HOSTS.slowing_gpus", *(f"HOSTS.{name}" for name in LEAST))
@pytest.mark.parametrize("number", range(3))
def test_a_sound_lab_passes_again_and_after_long_work(lab: Lab, number: int) -> None:
    is_sound(*judge_work(lab, f"sound-{number}", figures(LEAST), "standard"))


def test_wrong_and_slow_accelerators_are_each_named(lab: Lab) -> None:
    inject(lab, "gemm", "1", "wrong")
    inject(lab, "slow-cpu", "2", SLOW)
    record, trial = judge_work(lab, "both")
    assert failed(record) == {"gemm_wrong", "gemm_hash_differs", "slow_gpus"}, trial.log.read_text()
    found = {(one.code, tuple(one.suspects)): one.statement for one in findings(record)}
    assert found.keys() == {("HOST-WRONG-SUM", ("node1",)), ("HOST-GPU-SLOW", ("node2",))}
    wrong = [one.statement for one in findings(record) if one.code == "HOST-WRONG-SUM"]
    assert wrong[0].endswith("on node1: wrong elements in a GEMM with a known result: 1")
    assert "on node1: a GEMM gives hash " in wrong[1]
    slow = found["HOST-GPU-SLOW", ("node2",)]
    assert "on node2: GEMM " in slow
    assert " when it runs alone" in slow
    assert trial.process.returncode == 1
    nothing_left(lab)


def test_an_accelerator_that_slows_down_is_named(lab: Lab) -> None:
    trial = start(lab, "drift", DRIFTS, "--tier", "standard")
    trial.wait_until(lambda: any(event["event"] == "probe_updated" for event in trial.events()), 60)
    time.sleep(DRIFT_AFTER)
    inject(lab, "slow-cpu", "1", "0.1")
    record = trial.wait()
    assert failed(record) == {"slowing_gpus"}, trial.log.read_text()
    assert {(one.code, tuple(one.suspects)) for one in findings(record)} == {
        ("HOST-GPU-DRIFT", ("node1",))
    }
    assert "on node1: GEMM went from " in findings(record)[0].statement


def test_a_gemm_that_fails_is_named(lab: Lab) -> None:
    inject(lab, "gemm", "1", "fails")
    record, trial = judge_work(lab, "fails")
    assert failed(record) == {"work_errors"}, trial.log.read_text()
    (one,) = findings(record)
    assert (one.code, one.suspects) == ("HOST-GPU-ERROR", ["node1"])
    assert "torch stops with: CUDA error: uncorrectable ECC error" in one.statement


@pytest.mark.parametrize("name", LEAST)
def test_less_than_was_agreed_is_named(lab: Lab, name: str) -> None:
    contract = figures({**LEAST, name: TOO_FAST})
    record, trial = judge_work(lab, f"agreed-{name}", contract)
    assert failed(record) == {name}, trial.log.read_text()
    suspects = {(one.code, tuple(one.suspects)) for one in findings(record)}
    assert suspects == {("HOST-GPU-RATE", (f"node{index}",)) for index in range(3)}
    assert all_caught(record)
