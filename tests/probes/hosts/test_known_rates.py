"""HOSTS on the speed of GPUs in absolute terms: a fleet that is slow alike is slow."""

from __future__ import annotations

import pytest

from probes.contract.contract import load
from probes.contract.limits import LANE_GBS, derived_limit
from reports.measurement import Verdict
from tests.support.simulated_hosts import StandInHosts, findings, not_passed, run_hosts
from tests.support.simulated_work import H100, SimulatedWork, agree, gpu_of, run_work, statement_of

MEASURES = {"gemm": "gemm_tflops", "hbm": "hbm_gbs", "h2d": "h2d_gbs", "d2h": "d2h_gbs"}
# By model: what sound ones were measured with (devices.toml), and the generation of their links.
SOUND = {
    H100: (640.0, 2900.0, 51.0, 52.0, 5),
    "NVIDIA H200": (668.0, 4197.0, 54.8, 55.1, 5),
    "NVIDIA A100-SXM4-80GB": (253.7, 1610.0, 26.3, 25.7, 4),
    "NVIDIA L40S": (217.0, 543.0, 25.9, 25.8, 4),
}


def cluster_of(model: str, nodes: int = 2) -> SimulatedWork:
    """Make nodes of eight sound GPUs of a model."""
    cluster, (*rates, generation) = SimulatedWork(nodes), SOUND.get(model, SOUND[H100])
    for gpu in cluster.every:
        gpu.model, gpu.rates = model, dict(zip(MEASURES, rates, strict=True))
        gpu.link |= dict.fromkeys(
            ("generation", "most_generation", "board_generation"), int(generation)
        )
    return cluster


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in MEASURES.values()), "HOSTS.slow_pcie")
@pytest.mark.parametrize("model", SOUND)
def test_sound_gpus_of_each_model_pass(model: str) -> None:
    result = run_work(cluster_of(model))
    assert result.verdict is Verdict.PASS, not_passed(result)
    assert {f"{name} n0" for name in MEASURES.values()} <= {
        f"{one.name} {one.subject}" for one in result.measurements if one.judged
    }
    (slowed,) = [one for one in result.controls if one.name == "slowed GPU"]
    assert slowed.caught
    assert {*MEASURES.values()} <= {*slowed.proves}


@pytest.mark.parametrize("operation", MEASURES)
def test_64_gpus_at_half_of_a_rate_are_slow(operation: str) -> None:
    cluster = cluster_of(H100, nodes=8)
    for gpu in cluster.every:
        gpu.rates[operation] *= 0.5
    result = run_work(cluster)
    assert not_passed(result) == {f"{MEASURES[operation]} n{i}": "FAIL" for i in range(8)}
    assert findings(result) == [("HOST-GPU-RATE", [f"n{i}"]) for i in range(8)]
    assert ". Expected: >= " in result.findings[0].statement


@pytest.mark.parametrize(
    ("gemm", "verdict"),
    [
        (498.0, Verdict.FAIL),  # clocks locked to 990 of 1,980 MHz
        (502.0, Verdict.MARGINAL),
        (570.0, Verdict.PASS),
    ],
)
def test_locked_clocks_are_seen_by_what_a_gpu_computes(gemm: float, verdict: Verdict) -> None:
    cluster = cluster_of(H100)
    for gpu in cluster.every:
        gpu.rates["gemm"] = gemm
    assert run_work(cluster).verdict is verdict


@pytest.mark.parametrize(
    ("alone", "verdict"),
    [
        pytest.param(2.0, Verdict.PASS, marks=pytest.mark.near_miss("HOSTS.h2d_gbs")),
        (1.0, Verdict.FAIL),
    ],
)
def test_copies_that_share_a_switch_are_judged_alone(alone: float, verdict: Verdict) -> None:
    """Two GPUs of an A100 machine share the link of their switch to the host."""
    cluster = cluster_of("NVIDIA A100-SXM4-80GB")
    for gpu in cluster.every:
        gpu.rates["h2d"], gpu.alone = 13.0, {"h2d": alone}
    assert run_work(cluster).verdict is verdict


@pytest.mark.near_miss("HOSTS.gemm_tflops")
def test_one_disturbed_run_is_forgiven() -> None:
    cluster = cluster_of(H100)
    for gpu in cluster.every:
        gpu.factors = [0.5, 1.0]
    assert run_work(cluster).verdict is Verdict.PASS


def test_an_agreed_rate_replaces_the_derived_one() -> None:
    cluster = cluster_of(H100)
    for gpu in cluster.every:
        gpu.rates["gemm"] = 400.0
    contract = agree(load("h100-ndr400"), gemm_tflops=390.0)
    assert run_work(cluster, contract).verdict is Verdict.PASS


def test_of_an_unknown_model_it_is_said_which_rates_have_no_limit() -> None:
    result = run_work(cluster_of("NVIDIA T400"))
    assert result.verdict is Verdict.PASS
    text = "no limit is known or agreed for gemm_tflops, hbm_gbs, h2d_gbs, d2h_gbs of NVIDIA T400"
    assert text in result.coverage
    assert derived_limit("NVIDIA GB200", "h2d", "GB/s") is None  # NVLink-C2C
    assert derived_limit("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "gemm", "TFLOP/s") is None


def slots_of(model: str, generation: int, width: int, copies: float) -> SimulatedWork:
    """Make a cluster whose slots are all slower than its boards."""
    cluster = cluster_of(model)
    for gpu in cluster.every:
        gpu.link |= {"generation": generation, "most_generation": generation}
        gpu.link |= {"width": width, "most_width": width}
        gpu.rates |= {"h2d": copies, "d2h": copies}
    return cluster


@pytest.mark.parametrize(("generation", "width"), [(4, 16), (3, 8), (5, 8)])
def test_boards_in_slower_slots_fail_though_all_are_alike(generation: int, width: int) -> None:
    copies = 0.85 * LANE_GBS[generation] * width
    slots = (H100, generation, width, copies)
    failed = ["slow_pcie", "h2d_gbs", "d2h_gbs"]
    assert not_passed(run_work(slots_of(*slots))) == {
        f"{m} n{i}": "FAIL" for m in failed for i in range(2)
    }
    agreed = agree(load("h100-ndr400"), h2d_gbs=0.9 * copies, d2h_gbs=0.9 * copies)
    assert run_work(slots_of(*slots), agreed).verdict is Verdict.PASS


@pytest.mark.near_miss("HOSTS.slow_pcie")
def test_a_slot_is_not_believed_where_copies_are_faster_than_it_can_be() -> None:
    """Virtual machines may report any link."""
    assert run_work(slots_of(H100, 4, 16, 51.0)).verdict is Verdict.PASS


def test_a_board_that_nothing_is_known_of_is_held_to_what_nvml_says_of_itself() -> None:
    cluster = slots_of("NVIDIA T400", 3, 16, 12.0)
    for gpu in cluster.every:
        gpu.link |= {"board_generation": 4}
    assert not_passed(run_work(cluster)) == {f"slow_pcie n{i}": "FAIL" for i in range(2)}


def test_a_gpu_that_falls_after_the_first_part_of_long_work_is_named() -> None:
    cluster = cluster_of(H100)
    gpu_of(cluster).factors = [1.0, 0.6]
    result = run_work(cluster, tier="standard")
    assert not_passed(result) == {"slowing_gpus n1": "FAIL"}
    assert findings(result) == [("HOST-GPU-DRIFT", ["n1"])]
    assert "GEMM is 384 TFLOP/s at the end of the work. Expected: >= " in statement_of(result)


@pytest.mark.parametrize("model", [H100, "NVIDIA T400"])
@pytest.mark.parametrize(("end", "verdict"), [(0.6, Verdict.FAIL), (0.82, Verdict.PASS)])
def test_gpus_that_all_fall_alike_are_compared_with_their_cold_speed(
    model: str, end: float, verdict: Verdict
) -> None:
    cluster = cluster_of(model)
    for gpu in cluster.every:
        gpu.factors = [1.0, end]
    assert run_work(cluster, tier="standard").verdict is verdict


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        pytest.param(0.91, Verdict.PASS, marks=pytest.mark.near_miss("HOSTS.slowing_gpus")),
        (0.89, Verdict.FAIL),
    ],
)
def test_hot_gpus_are_compared_with_each_other(share: float, verdict: Verdict) -> None:
    cluster = cluster_of(H100)
    gpu_of(cluster).factors = [share]
    assert run_work(cluster, tier="standard").verdict is verdict


def test_gpus_that_are_slow_from_the_start_are_slow_at_the_end_too() -> None:
    cluster = cluster_of(H100)
    for gpu in cluster.every:
        gpu.factors = [0.5]
    result = run_work(cluster, tier="standard")
    assert not_passed(result) == {f"slowing_gpus n{i}": "FAIL" for i in range(2)}


def test_boards_whose_bios_lowers_the_power_itself_are_named() -> None:
    cluster = StandInHosts()
    for fact in cluster.facts:
        for board in fact["gpu_health"]["boards"]:
            board |= {"power_limit_mw": 350_000, "power_default_mw": 350_000}
    result = run_hosts(cluster, nodes=3, gpus_per_node=8)
    assert not_passed(result) == {f"power_limit n{i}": "FAIL" for i in range(3)}
    assert "power limit is 50 % of the model's 700 W" in result.findings[0].statement
