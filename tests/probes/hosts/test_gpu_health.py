"""HOSTS on the health of GPUs, as their driver reports it."""

from __future__ import annotations

from typing import Any

import pytest

from probes.hosts.criterion import HEALTH
from probes.hosts.gpu_health import board_name
from reports.measurement import Verdict
from tests.support.simulated_hosts import (
    FABRIC,
    StandInHosts,
    board_of,
    cluster_with,
    emulated,
    findings,
    hide_nvml,
    not_passed,
    run_hosts,
    verdicts,
)

ORDER = {"nodes": 3, "gpus_per_node": 8}
ROWS = {"correctable": 0, "uncorrectable": 0, "pending": 0, "failed": 0}


@pytest.mark.parametrize(
    ("board", "measure", "code", "says"),
    [
        ({"recovery_action": 1}, "gpus_to_reset", "HOST-GPU-RECOVERY", "a reset of the GPU"),
        ({"recovery_action": 2}, "gpus_to_reset", "HOST-GPU-RECOVERY", "a reboot of the node"),
        ({"recovery_action": 99}, "gpus_to_reset", "HOST-GPU-RECOVERY", "action 99"),
        ({"uncorrected_errors": 1}, "memory_errors", "HOST-ECC", "1 uncorrected memory error "),
        ({"uncorrected_errors": 12}, "memory_errors", "HOST-ECC", "12 uncorrected memory errors"),
        ({"sram_threshold": True}, "memory_errors", "HOST-ECC", "above the threshold"),
        (
            {"remapped_rows": {**ROWS, "pending": 1}},
            *("row_remaps", "HOST-ROW-REMAP", "a memory row waits to be remapped"),
        ),
        (
            {"remapped_rows": {**ROWS, "failed": 1, "pending": 1}},
            *("row_remaps", "HOST-ROW-REMAP", "a memory row could not be remapped"),
        ),
        ({"retired_pending": True}, "row_remaps", "HOST-ROW-REMAP", "waits to be remapped"),
        ({"ecc": False}, "gpus_without_ecc", "HOST-ECC-OFF", "ECC is off"),
        ({"slowdown_reasons": 0x20}, "slowed_gpus", "HOST-GPU-SLOWED", "software thermal"),
        (
            {"slowdown_reasons": 0x48},
            *("slowed_gpus", "HOST-GPU-SLOWED", "slowed: hardware thermal."),
        ),
        ({"slowdown_reasons": 0x80}, "slowed_gpus", "HOST-GPU-SLOWED", "power brake"),
        (
            {"power_limit_mw": 500_000},
            *("power_limit", "HOST-POWER-LIMIT", "power limit is 71.4 % of the default"),
        ),
        ({"pcie_width": 8}, "narrow_pcie", "HOST-PCIE", "PCIe runs x8 of x16"),
        (
            {"nvlinks": {"active": 17, "all": 18}},
            *("nvlinks_down", "HOST-NVLINK", "17 of 18 NVLinks are active"),
        ),
        ({"fabric": {**FABRIC, "state": 1}}, "fabric_faults", "HOST-NVSWITCH", "is not started"),
        ({"fabric": {**FABRIC, "state": 2}}, "fabric_faults", "HOST-NVSWITCH", "is in progress"),
        ({"fabric": {**FABRIC, "status": 999}}, "fabric_faults", "HOST-NVSWITCH", "error 999"),
        (
            {"fabric": {**FABRIC, "health": 0b01}},
            *("fabric_faults", "HOST-NVSWITCH", "bandwidth is degraded"),
        ),
        (
            {"fabric": {**FABRIC, "health": 0b01_0000}},
            *("fabric_faults", "HOST-NVSWITCH", "a route is unhealthy"),
        ),
        (
            {"fabric": {**FABRIC, "health": 0x200}},
            *("fabric_faults", "HOST-NVSWITCH", "configuration is wrong"),
        ),
        ({"compute_mode": 2}, "closed_gpus", "HOST-COMPUTE-MODE", "compute mode is Prohibited"),
        ({"recovery_action": 4}, "gpus_to_reset", "HOST-GPU-RECOVERY", "and a reset of the GPU"),
    ],
)
def test_a_sick_gpu_is_named(board: dict[str, Any], measure: str, code: str, says: str) -> None:
    result = run_hosts(cluster_with(board), **ORDER)
    assert not_passed(result) == {f"{measure} n1": "FAIL"}
    assert findings(result) == [(code, ["n1"])]
    statement = result.findings[0].statement
    assert statement.startswith("GPU 3 (GPU-1-3, slot 00000000:13:00.0) on n1: ")
    assert says in statement
    assert "Expected: " in statement


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in HEALTH))
@pytest.mark.parametrize(
    "board",
    [
        {"remapped_rows": {**ROWS, "correctable": 3, "uncorrectable": 2}},  # done, nothing waits
        {"lifetime_errors": 5},  # of earlier times: a reset has fixed them
        {"slowdown_reasons": 0x1 | 0x2 | 0x4 | 0x10 | 0x100},  # idle, set clocks, power cap
        {"slowdown_reasons": 0x8},  # alone it may be a change of clocks
        {"power_limit_mw": 700_001},
        {"power_limit_mw": 699_900},  # as NVML rounds it on some boards
        {"pcie_width": 16, "pcie_max_width": 8},  # in a virtual machine
        {"fabric": {**FABRIC, "state": 0, "status": 3}},  # no NVSwitch
        {"fabric": {**FABRIC, "health": 0b10_0000_0001_0010_1010}},  # all say "no fault"
        {"compute_mode": 3},  # one process at a time
        {"compute_mode": 1},
        {"ecc_default": False},
    ],
)
def test_what_a_sound_gpu_reports(board: dict[str, Any]) -> None:
    result = run_hosts(cluster_with(board), **ORDER)
    assert result.verdict is Verdict.PASS, not_passed(result)
    assert findings(result) == []


def test_ecc_that_is_off_by_default_is_no_fault_but_hides_memory_errors() -> None:
    board = {"ecc": False, "ecc_default": False}
    result = run_hosts(cluster_with(board, without="uncorrected_errors"), **ORDER)
    assert not_passed(result) == {"memory_errors n1": "UNPROVEN"}
    (memory,) = [m for m in result.measurements if m.value is None and m.judged]
    assert "does not support" in memory.note


@pytest.mark.parametrize(
    ("query", "measure"),
    [
        ("uncorrected_errors", "memory_errors"),
        ("remapped_rows", "row_remaps"),
        ("ecc", "gpus_without_ecc"),
        ("slowdown_reasons", "slowed_gpus"),
        ("power_limit_mw", "power_limit"),
        ("power_default_mw", "power_limit"),
        ("pcie_width", "narrow_pcie"),
        ("compute_mode", "closed_gpus"),
    ],
)
def test_what_the_driver_does_not_know_proves_nothing(query: str, measure: str) -> None:
    result = run_hosts(cluster_with({}, without=query), **ORDER)
    assert not_passed(result) == {f"{measure} n1": "UNPROVEN"}
    assert findings(result) == []


@pytest.mark.parametrize(
    ("query", "measure"),
    [
        ("recovery_action", "gpus_to_reset"),
        ("uncorrected_errors", "memory_errors"),
        ("remapped_rows", "row_remaps"),
        ("ecc", "gpus_without_ecc"),
        ("slowdown_reasons", "slowed_gpus"),
        ("power_limit_mw", "power_limit"),
        ("pcie_width", "narrow_pcie"),
        ("nvlinks", "nvlinks_down"),
        ("fabric", "fabric_faults"),
        ("compute_mode", "closed_gpus"),
    ],
)
def test_a_query_that_fails_fails_the_node(query: str, measure: str) -> None:
    failed = {"failed": {query: {"code": 999, "text": "Unknown Error"}}}
    result = run_hosts(cluster_with(failed, without=query), **ORDER)
    assert not_passed(result) == {"health_errors n1": "FAIL", f"{measure} n1": "UNPROVEN"}
    assert findings(result) == [("HOST-NVML-ERROR", ["n1"])]
    assert f"NVML does not answer the query {query}: error 999" in result.findings[0].statement


def test_an_error_that_hides_no_measure_fails_too() -> None:
    failed = {"failed": {"persistence": {"code": 4, "text": "Insufficient Permissions"}}}
    result = run_hosts(cluster_with(failed, without="persistence"), **ORDER)
    assert not_passed(result) == {"health_errors n1": "FAIL"}


def test_a_lost_gpu_has_one_finding_and_no_proof() -> None:
    cluster = StandInHosts()
    error = {"code": 15, "text": "GPU is lost"}
    cluster.facts[1]["gpus"][3] |= {"uuid": "", "name": "", "memory_gib": None, "error": error}
    boards = cluster.facts[1]["gpu_health"]["boards"]
    boards[3] = {"index": 3, "uuid": "", "slot": "", "unsupported": [], "failed": {"GPU": error}}
    result = run_hosts(cluster, **ORDER)
    failed = not_passed(result)
    assert failed["health_errors n1"] == "FAIL"
    assert {failed[f"{name} n1"] for name in HEALTH if name != "health_errors"} == {"UNPROVEN"}
    assert [code for code, _ in findings(result)] == ["HOST-GPUS", "HOST-GPU-LOST"]


def test_a_lost_gpu_does_not_hide_a_sick_one() -> None:
    cluster = cluster_with({"uncorrected_errors": 1, "power_limit_mw": 1})
    boards = cluster.facts[1]["gpu_health"]["boards"]
    error = {"code": 15, "text": "GPU is lost"}
    boards[0] = {"index": 0, "uuid": "", "slot": "", "unsupported": [], "failed": {"GPU": error}}
    failed = not_passed(run_hosts(cluster, **ORDER))
    assert (failed["memory_errors n1"], failed["power_limit n1"]) == ("FAIL", "FAIL")
    assert failed["row_remaps n1"] == "UNPROVEN"


def test_a_driver_that_does_not_answer_proves_no_health() -> None:
    cluster = StandInHosts()
    cluster.facts[1]["gpu_health"] = {"error": {"code": 10, "text": "no answer"}, "boards": []}
    result = run_hosts(cluster, **ORDER)
    failed = not_passed(result)
    assert failed.keys() == {f"{name} n1" for name in HEALTH}
    assert failed.pop("health_errors n1") == "FAIL"
    assert set(failed.values()) == {"UNPROVEN"}


def test_a_gpu_whose_health_was_not_read_is_not_healthy() -> None:
    cluster = StandInHosts()
    del cluster.facts[1]["gpu_health"]["boards"][3]
    failed = not_passed(run_hosts(cluster, **ORDER))
    assert failed.pop("health_errors n1") == "FAIL"
    assert set(failed) == {f"{name} n1" for name in HEALTH if name != "health_errors"}
    assert set(failed.values()) == {"UNPROVEN"}


def test_many_sick_gpus_of_a_node_are_one_finding() -> None:
    cluster = StandInHosts()
    for board in cluster.facts[1]["gpu_health"]["boards"]:
        board["slowdown_reasons"] = 0x80
    result = run_hosts(cluster, **ORDER)
    assert findings(result) == [("HOST-GPU-SLOWED", ["n1"])]
    statement = result.findings[0].statement
    assert "GPU 3" in statement
    assert "GPU 4" not in statement
    assert statement.endswith(
        " and 4 more on n1: clocks are slowed: power brake. Expected: no slowdown"
    )
    (count,) = [m.value for m in result.measurements if m.name == "slowed_gpus" and m.value]
    assert count == 8


def test_what_is_no_fault_is_noted() -> None:
    result = run_hosts(cluster_with({"persistence": False, "lifetime_errors": 7}), **ORDER)
    notes = {(m.name, m.subject): m.value for m in result.measurements if not m.judged}
    assert notes["GPUs without persistence mode", "n1"] == 1
    assert notes["uncorrected memory errors (ECC) since the GPUs were new", "n1"] == 7
    assert notes["GPUs without persistence mode", "n0"] == 0


def test_the_control_sees_each_fault_on_the_last_node() -> None:
    result = run_hosts(StandInHosts(), **ORDER)
    (control,) = [one for one in result.controls if one.name == "sick GPU"]
    assert (control.caught, control.proves) == (True, list(HEALTH))
    assert control.fault == "NVML on n2 reports GPU 7 with every kind of fault"


def test_a_control_that_is_not_answered_proves_nothing() -> None:
    class Silent(StandInHosts):
        def on_each_node(self, function: Any, *_: Any, **how: Any) -> dict[str, Any]:
            answers = super().on_each_node(function, **how)
            return {} if function.__name__ == "read_sick_health" else answers

    result = run_hosts(Silent(), **ORDER)
    (control,) = [one for one in result.controls if one.name == "sick GPU"]
    assert (control.caught, control.saw) == (None, "n2 does not answer")
    assert result.verdict is Verdict.UNPROVEN


def test_a_control_that_finds_the_fault_on_another_gpu_is_not_caught() -> None:
    class Elsewhere(StandInHosts):
        def on_each_node(self, function: Any, *_: Any, **how: Any) -> dict[str, Any]:
            answers = super().on_each_node(function, **how)
            if function.__name__ == "read_sick_health":
                (health,) = answers.values()
                health["boards"][0]["index"], health["boards"][-1]["index"] = 7, 0
            return answers

    result = run_hosts(Elsewhere(), **ORDER)
    (control,) = [one for one in result.controls if one.name == "sick GPU"]
    assert control.caught is False


def test_a_node_that_is_really_sick_does_not_stand_in_for_the_control() -> None:
    class Blind(StandInHosts):
        def on_each_node(self, function: Any, *_: Any, **how: Any) -> dict[str, Any]:
            answers = super().on_each_node(function, **how)
            if function.__name__ == "read_sick_health":  # a reader that no longer sees any fault
                return dict.fromkeys(answers, self.facts[2]["gpu_health"])
            return answers

    cluster = Blind()
    board_of(cluster, 1, 3)["uncorrected_errors"] = 1
    result = run_hosts(cluster, **ORDER)
    (control,) = [one for one in result.controls if one.name == "sick GPU"]
    assert control.caught is False


def test_an_emulated_cluster_without_nvml_has_no_health_to_judge() -> None:
    result = run_hosts(emulated(), nodes=3, gpus_per_node=1)
    assert not {name.split()[0] for name in verdicts(result)} & set(HEALTH)
    assert "sick GPU" not in {one.name for one in result.controls}
    assert result.verdict is Verdict.PASS, not_passed(result)


def test_real_gpus_without_nvml_are_not_healthy() -> None:
    cluster = StandInHosts()
    for fact in cluster.facts:
        hide_nvml(fact)
    failed = not_passed(run_hosts(cluster, **ORDER))
    assert {failed[f"{name} n0"] for name in HEALTH} == {"UNPROVEN"}


def test_a_gpu_without_uuid_or_slot_has_its_number() -> None:
    assert board_name({"index": 2, "uuid": "", "slot": ""}) == "GPU 2"
    assert board_name({"index": 2, "uuid": "", "slot": "0:1:0"}) == "GPU 2 (slot 0:1:0)"
