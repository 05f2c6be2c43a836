"""HOSTS on GPUs that become slower under load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.hosts.compute_controls import (
    UNFOLLOWED,
    control_tiring,
    describe_heat,
    find_changes,
    find_unfollowed,
)
from probes.hosts.compute_fleet import Accelerator, Speed, WorkFleet
from reports.measurement import Verdict
from tests.support.controls import recorder
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_work import SimulatedWork, emulated, run_work

COLD = 1.2  # a GPU that is not warm yet is faster


@pytest.mark.near_miss("HOSTS.slowing_gpus")
@pytest.mark.parametrize("on_gpu", [True, False])
def test_sound_accelerators_pass_and_controls_are_caught(on_gpu: bool) -> None:
    cluster = SimulatedWork() if on_gpu else emulated()
    for gpu in cluster.every:
        gpu.factors = [COLD, 1.0, 1.0, 0.97]
    result = run_work(cluster, tier="standard")
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    assert {one.name: one.caught for one in result.controls} == {
        "wrong element": True,
        "failing GEMM": True,
        "tiring GPU": True,
    }
    names = {"work_errors", "gemm_wrong", "slowing_gpus"}
    assert verdicts(result).keys() == {
        f"{name} n{i}" for name in names for i in range(len(cluster.gpus))
    }


def test_a_gpu_that_tires_is_named_with_its_temperature() -> None:
    cluster = SimulatedWork()
    gpu = cluster.gpus[1][3]
    gpu.factors, gpu.celsius = [1.0, 1.0, 1.0, 0.95, 0.9, 0.9], [40.0, 60.0, 75.0, 87.0]
    result = run_work(cluster, tier="standard")
    assert not_passed(result) == {"slowing_gpus n1": "FAIL"}
    assert findings(result) == [("HOST-GPU-DRIFT", ["n1"])]
    assert result.findings[0].statement == (
        "GPU 3 (GPU-1-3) on n1: GEMM went from 680 TFLOP/s to 612 TFLOP/s (90 % of the first "
        "rate); copy in its memory went from 2900 GB/s to 2610 GB/s (90 % of the first rate); "
        "temperature from 40 to 87 degrees Celsius"
    )


@pytest.mark.parametrize(("end", "verdict"), [(0.951, Verdict.PASS), (0.949, Verdict.FAIL)])
def test_the_last_third_is_compared_with_the_first(end: float, verdict: Verdict) -> None:
    cluster = SimulatedWork()
    cluster.gpus[0][0].factors = [1.0, 1.0, 1.0, 1.0, 1.0, end, end]
    assert run_work(cluster, tier="standard").verdict is verdict


def test_all_gpus_that_tire_are_named() -> None:
    cluster = SimulatedWork()
    for gpu in cluster.every:
        gpu.factors = [1.0, 1.0, 1.0, 0.8]
    result = run_work(cluster, tier="standard")
    assert findings(result) == [("HOST-GPU-DRIFT", [f"n{i}"]) for i in range(3)]


@pytest.mark.near_miss("HOSTS.slowing_gpus")
def test_a_machine_that_slows_all_emulated_accelerators_is_not_theirs() -> None:
    cluster = emulated()
    for gpu in cluster.every:
        gpu.factors = [1.0, 1.0, 0.4]
    assert run_work(cluster, tier="standard").verdict is Verdict.PASS


@pytest.mark.parametrize("on_gpu", [True, False])
def test_neighbours_that_disturb_some_rounds_are_forgiven_of_emulated_accelerators(
    on_gpu: bool,
) -> None:
    """As in a sound lab: two of the last three copies ran at 29 %."""
    steady, disturbed = [14.9, 14.8, 14.9], [4.28, 14.1, 4.1]
    sound = Speed({"gemm": steady, "hbm": steady})
    parts = [dict.fromkeys("abc", sound)] * 5
    parts += [{**parts[0], "a": Speed({"gemm": steady, "hbm": disturbed})}]
    gemm, copy = find_changes(parts, [*"abc"], on_gpu)["a"]
    assert gemm.share == 1.0
    assert (copy.share < 0.5) is on_gpu


def test_an_emulated_accelerator_that_had_half_a_core_at_the_end_tries_again_alone() -> None:
    """As in a sound lab of 3 nodes on 2 cores: a copy went from 52.9 to 25.2 GB/s."""
    cluster = emulated()
    cluster.gpus[1][0].factors = [1.0, 1.0, 1.0, 1.0, 1.0, 0.45, 1.0]
    result = run_work(cluster, tier="standard")
    assert (result.verdict, findings(result)) == (Verdict.PASS, [])


def test_a_machine_that_is_slower_at_the_end_makes_no_emulated_accelerator_tire() -> None:
    """All do the last part again, so a machine that is slow by then slows all of them."""
    cluster = emulated()
    for gpu in cluster.every:
        gpu.factors = [1.0] * 6 + [0.45]
    cluster.gpus[1][0].factors = [1.0] * 5 + [0.45]
    result = run_work(cluster, tier="standard")
    assert (result.verdict, findings(result)) == (Verdict.PASS, [])


def test_an_emulated_accelerator_that_tires_is_named() -> None:
    cluster = emulated()
    cluster.gpus[2][0].factors = [1.0, 1.0, 0.6, 0.3]
    result = run_work(cluster, tier="standard")
    assert not_passed(result) == {"slowing_gpus n2": "FAIL"}
    assert findings(result) == [("HOST-GPU-DRIFT", ["n2"])]


def test_a_gpu_that_stops_in_between_is_named_and_proves_nothing() -> None:
    cluster = SimulatedWork()
    cluster.gpus[1][3].errors["measure_speed"] = "CUDA error: unspecified launch failure"
    result = run_work(cluster, tier="soak")
    assert not_passed(result) == {"slowing_gpus n1": "UNPROVEN", "work_errors n1": "FAIL"}
    assert findings(result) == [("HOST-GPU-ERROR", ["n1"])]


def test_a_wrong_sum_after_long_work_is_named() -> None:
    cluster = SimulatedWork()
    cluster.gpus[1][3].wrong = 1
    result = run_work(cluster, tier="standard")
    assert not_passed(result) == {"gemm_wrong n1": "FAIL"}


def test_work_lasts_as_long_as_its_tier() -> None:
    for tier, parts in (("standard", 7), ("soak", 61)):
        cluster = SimulatedWork(1, 2)
        run_work(cluster, tier=tier)
        assert cluster.gpus[0][0].asked == [(10, 0.5, 1, False)] * parts


def test_work_of_emulated_accelerators_is_shorter() -> None:
    for tier, parts in (("standard", 6), ("soak", 13)):
        cluster = emulated(2)
        run_work(cluster, tier=tier)
        assert cluster.gpus[0][0].asked == [(3, 0.2, 1, False)] * parts


@pytest.mark.parametrize(("on_gpu", "seconds"), [(True, 0.5), (False, 0.2)])
def test_a_control_measures_as_long_as_one_round_of_a_part(on_gpu: bool, seconds: float) -> None:
    cluster = SimulatedWork(1, 2) if on_gpu else emulated(2)
    run_work(cluster, tier="standard")
    assert cluster.every[-1].asked[-1][:2] == (1, seconds)


@pytest.mark.near_miss("HOSTS.slowing_gpus")
def test_one_slow_part_of_long_work_is_forgiven() -> None:
    cluster = SimulatedWork(1, 2)
    cluster.gpus[0][0].factors = [1.0] * 60 + [0.5]
    assert run_work(cluster, tier="soak").verdict is Verdict.PASS


@pytest.mark.parametrize("is_silent", [True, False])
def test_why_an_accelerator_was_not_followed(is_silent: bool) -> None:
    cluster = SimulatedWork()
    gpu = cluster.gpus[1][3]
    if is_silent:
        gpu.silent.add("measure_speed")
    else:
        gpu.errors["measure_speed"] = "CUDA error: launch failure"
    result = run_work(cluster, tier="standard")
    notes = {one.note for one in result.measurements if one.name == "slowing_gpus"}
    silent = "GPU 3 (GPU-1-3) on n1 does not answer: no answer within 60 s"
    assert (silent if is_silent else "CUDA error: launch failure") in notes


def test_four_parts_are_enough_to_follow_an_accelerator() -> None:
    fleet = WorkFleet({"a": Accelerator("a", "n0", 0, "0")}, True)
    part = {"a": Speed({"gemm": [680.0], "hbm": [2900.0]})}
    assert find_unfollowed(fleet, [part] * 4) == {}
    assert find_unfollowed(fleet, [part] * 3) == {"a": "the work was too short"}


def test_an_accelerator_that_fails_in_one_part_was_not_followed() -> None:
    fleet = WorkFleet({"a": Accelerator("a", "n0", 0, "0")}, True)
    part = {"a": Speed({"gemm": [680.0], "hbm": [2900.0]})}
    failed = {"a": Speed({}, error="CUDA error")}
    assert find_unfollowed(fleet, [part, part, failed, part]) == {"a": "CUDA error"}


def test_a_temperature_that_was_not_read_is_left_out() -> None:
    heats = (None, 60.0, 70.0, None)
    parts = [{"a": Speed({}, celsius=heat)} for heat in heats]
    assert describe_heat(parts, "a") == "; temperature from 60 to 70 degrees Celsius"
    assert describe_heat(parts[:1], "a") == ""


def test_an_accelerator_that_left_one_part_cannot_be_the_one_that_tires() -> None:
    last: Any = SimpleNamespace(key="last", label="GPU 7 on n2")
    fleet: Any = SimpleNamespace(working={"last": last})
    parts: list[dict[str, Speed]] = [{"last": Speed({})}, {}, {"last": Speed({})}]
    measure = recorder("HOSTS")
    control_tiring(fleet, parts, measure)
    (control,) = measure.result("finished", 1.0).controls
    assert (control.caught, control.saw) == (None, UNFOLLOWED)
