"""HOSTS on what the machines and their GPUs are."""

from __future__ import annotations

from typing import Any

import pytest

from probes.hosts.inventory import AGREEABLE
from reports.measurement import Verdict
from reports.orders import fill
from reports.record import ProbeResult
from tests.support.simulated_hosts import H100, StandInHosts, findings, not_passed, run_hosts

ORDER = {"nodes": 3, "gpus_per_node": 8}


@pytest.mark.parametrize(
    ("code", "finding"),
    [
        (9, "HOST-NO-DRIVER"),
        (15, "HOST-GPU-LOST"),
        (18, "HOST-DRIVER-MISMATCH"),
        (999, "HOST-NVML-ERROR"),
        (4, "HOST-NVML-ERROR"),
    ],
)
def test_an_nvml_that_does_not_answer_is_named_by_its_code(code: int, finding: str) -> None:
    cluster = StandInHosts()
    cluster.facts[1] |= {
        "gpus": [],
        "nvml": {"library": True, "error": {"code": code, "text": "t"}},
    }
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result)["nvml_errors n1"] == "FAIL"
    assert not_passed(result)["gpus n1"] == "UNPROVEN"
    assert findings(result) == [(finding, ["n1"])]
    assert f"error {code}" in result.findings[0].statement


@pytest.mark.parametrize(
    ("code", "finding"), [(15, "HOST-GPU-LOST"), (999, "HOST-NVML-ERROR"), (4, "HOST-NVML-ERROR")]
)
def test_a_gpu_that_cannot_be_asked_is_named(code: int, finding: str) -> None:
    cluster = StandInHosts()
    error = {"code": code, "text": "t"}
    cluster.facts[1]["gpus"][5] |= {"uuid": "", "name": "", "memory_gib": None, "error": error}
    result = run_hosts(cluster, **ORDER)
    failed = not_passed(result)
    assert (failed["nvml_errors n1"], failed["gpus n1"]) == ("FAIL", "FAIL")
    assert failed["count_mismatches n1"] == "FAIL"
    assert findings(result) == [("HOST-GPUS", ["n1"]), (finding, ["n1"])]
    lost = result.findings[1]
    assert "GPU 5" in lost.statement
    assert lost.names["gpu"] == "5"
    assert ("GPU 5" in fill(lost, {}).order) is (code == 15)


def test_no_nvml_on_a_cluster_that_is_not_emulated() -> None:
    cluster = StandInHosts()
    for fact in cluster.facts:
        fact |= {"gpus": [], "nvml": {"library": False, "error": {"code": 12, "text": "none"}}}
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result)["nvml_errors n1"] == "FAIL"
    assert {code for code, _ in findings(result)} == {"HOST-NO-NVML"}
    for fact in cluster.facts:
        fact["amd_driver"] = True
    result = run_hosts(cluster, **ORDER)
    assert set(not_passed(result).values()) == {"UNPROVEN"}
    assert findings(result) == []
    reasons = {m.subject: m.note for m in result.measurements if m.name == "gpus"}
    assert "AMD" in reasons["n1"]


def test_one_gpu_counted_twice() -> None:
    cluster = StandInHosts()
    cluster.facts[2]["gpus"][0]["uuid"] = cluster.facts[0]["gpus"][3]["uuid"]
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"duplicate_gpus cluster": "FAIL"}
    assert findings(result) == [("HOST-GPU-TWICE", ["n0", "n2"])]
    cluster.facts[2]["gpus"][0]["uuid"] = ""
    assert not_passed(run_hosts(cluster, **ORDER)) == {"duplicate_gpus cluster": "UNPROVEN"}


def test_nodes_of_one_machine_are_not_as_many_machines() -> None:
    cluster = StandInHosts(4)
    for fact, boot in zip(cluster.facts, "aabc", strict=True):
        fact["boot_id"] = boot
    result = run_hosts(cluster, nodes=4, gpus_per_node=8)
    assert not_passed(result) == {"machines cluster": "FAIL"}
    assert findings(result) == [("HOST-SAME-MACHINE", ["n0", "n1"])]
    cluster.facts[1]["boot_id"] = ""
    result = run_hosts(cluster, nodes=4, gpus_per_node=8)
    assert not_passed(result) == {"machines cluster": "UNPROVEN"}


def test_another_model_or_memory_is_named_against_the_majority() -> None:
    cluster = StandInHosts()
    for gpu in cluster.facts[1]["gpus"]:
        gpu |= {"name": "Tesla T4", "memory_gib": 15.0}
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"differences cluster": "FAIL"}
    assert findings(result) == [("HOST-GPU-MODEL", ["n1"])] * 2
    assert result.findings[0].statement == f"GPU model: Tesla T4 on n1; {H100} on n0, n2"
    assert result.findings[1].statement == "GPU memory: 15 GiB on n1; 79.65 GiB on n0, n2"


@pytest.mark.near_miss("HOSTS.gpu_memory", "HOSTS.differences")
def test_boards_of_one_model_differ_by_what_the_driver_reserves() -> None:
    cluster = StandInHosts()
    cluster.facts[1]["gpus"][0]["memory_gib"] = 79.2
    assert run_hosts(cluster, **ORDER, gpu_memory_gib=79).verdict is Verdict.PASS


def test_a_board_that_does_not_tell_its_memory_differs() -> None:
    cluster = StandInHosts()
    cluster.facts[1]["gpus"][0]["memory_gib"] = None
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"differences cluster": "FAIL"}
    assert "GPU memory: no size on n1; 79.65 GiB on" in result.findings[0].statement


def test_of_two_kinds_with_as_many_gpus_none_is_the_odd_one() -> None:
    cluster = StandInHosts(2)
    for gpu in cluster.facts[1]["gpus"]:
        gpu["name"] = "NVIDIA A100"
    result = run_hosts(cluster, nodes=2, gpus_per_node=8)
    assert findings(result) == [("HOST-GPU-MODEL", ["n0", "n1"])]


def with_an_h200() -> StandInHosts:
    cluster = StandInHosts(3)
    for gpu in cluster.facts[2]["gpus"]:
        gpu |= {"name": H200, "memory_gib": 140.4}
    return cluster


H200 = "NVIDIA H200"
MIXED = {"gpu_model": {H200: 1, H100: 2}, "gpu_memory_gib": 79}


@pytest.mark.near_miss("HOSTS.gpu_model", "HOSTS.differences", "HOSTS.gpu_memory")
def test_two_models_that_were_both_ordered_are_no_difference() -> None:
    assert run_hosts(with_an_h200(), **ORDER, **MIXED).verdict is Verdict.PASS


def test_fewer_nodes_of_a_model_than_were_ordered_are_named() -> None:
    result = run_hosts(StandInHosts(3), **ORDER, gpu_model={H200: 2, H100: 1})
    assert not_passed(result) == {"gpu_model n1": "FAIL", "gpu_model n2": "FAIL"}
    assert findings(result) == [("HOST-GPU-MODEL", ["n1"]), ("HOST-GPU-MODEL", ["n2"])]
    assert result.findings[0].statement == (
        f"GPU model on n1: {H100}. Expected: {H200} (ordered on 2 nodes, missing on 2 nodes)"
    )


def test_a_node_of_two_ordered_models_is_of_no_kind() -> None:
    cluster = with_an_h200()
    cluster.facts[2]["gpus"][0]["name"] = H100
    failed = not_passed(run_hosts(cluster, **ORDER, **MIXED))
    assert failed == {"gpu_model n2": "FAIL", "differences cluster": "FAIL"}


def test_nodes_of_an_ordered_kind_are_compared_with_each_other_alone() -> None:
    cluster = with_an_h200()
    for board in cluster.facts[2]["gpu_health"]["boards"]:
        board |= {"name": H200, "numa": "0", "clock_mhz": 1830}
    assert run_hosts(cluster, **ORDER, **MIXED).verdict is Verdict.PASS
    cluster.facts[1]["gpu_health"]["boards"][3]["numa"] = "1"
    cluster.facts[1]["gpus"][3]["memory_gib"] = 94.0
    result = run_hosts(cluster, **ORDER, **MIXED)
    failed = {"differences cluster": "FAIL", "system_differences cluster": "FAIL"}
    assert not_passed(result) == failed
    assert ("GPU memory: 94 GiB on n1; 79.65 GiB on n0, n1") in result.findings[1].statement


def test_a_list_has_names_of_one_model_and_orders_no_mix() -> None:
    result = run_hosts(with_an_h200(), **ORDER, gpu_model=[H100, H200])
    assert not_passed(result) == {"differences cluster": "FAIL"}
    assert findings(result) == [("HOST-GPU-MODEL", ["n2"])] * 2
    assert "write `gpu_model` as a table of kinds" in result.findings[0].statement


@pytest.mark.near_miss("HOSTS.differences")
def test_a_list_of_names_passes_where_all_boards_have_one_of_them() -> None:
    assert run_hosts(StandInHosts(), **ORDER, gpu_model=[H100, H200]).verdict is Verdict.PASS


def test_a_better_model_than_was_ordered_is_another() -> None:
    failed = {"gpu_model n2": "FAIL", "differences cluster": "FAIL"}
    assert not_passed(run_hosts(with_an_h200(), **ORDER, gpu_model=H100)) == failed
    assert not_passed(run_hosts(with_an_h200(), **ORDER, gpu_model=[H100])) == failed


# Firmware.


def test_a_gpu_with_other_firmware_than_those_of_its_model() -> None:
    cluster = StandInHosts()
    cluster.facts[1]["gpu_health"]["boards"][2]["vbios"] = "96.00.74.00.01"
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"system_differences cluster": "FAIL"}
    assert findings(result) == [("HOST-FIRMWARE", ["n1"])]
    said = f"vBIOS of {H100}: 96.00.74.00.01 on n1; 96.00.89.00.01 on n0, n1, n2"
    assert result.findings[0].statement == said


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"persistence": False}, f"persistence mode of {H100}: disabled on n1; enabled on n0, n1, n2"),
    ({"clock_mhz": 1410}, f"application clock of {H100}: 1410 MHz on n1; 1980 MHz on n0, n1, n2"),
    (
        {"numa": "1"},
        "NUMA nodes of 8 GPUs: 0, 0, 1, 0, 1, 1, 1, 1 on n1; 0, 0, 0, 0, 1, 1, 1, 1 on n0, n2",
    ),
]


@pytest.mark.parametrize(("board", "said"), SETTINGS)
def test_gpus_that_are_not_set_alike(board: dict[str, Any], said: str) -> None:
    cluster = StandInHosts()
    cluster.facts[1]["gpu_health"]["boards"][2] |= board
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"system_differences cluster": "FAIL"}
    assert findings(result) == [("HOST-GPU-SETTINGS", ["n1"])]
    assert result.findings[0].statement == said


def test_network_cards_near_to_other_cpus() -> None:
    cluster = StandInHosts()
    cluster.facts[2]["nics"][7]["numa"] = "1"
    result = run_hosts(cluster, **ORDER)
    assert findings(result) == [("HOST-GPU-SETTINGS", ["n2"])]
    assert result.findings[0].statement.startswith("NUMA nodes of 8 RDMA devices: 0, 0, 0, 0")


@pytest.mark.near_miss("HOSTS.system_differences")
def test_settings_are_compared_where_they_are_known_and_among_equals() -> None:
    cluster = StandInHosts()
    for board in cluster.facts[1]["gpu_health"]["boards"]:
        for name in ("persistence", "clock_mhz", "numa"):
            del board[name]
    for board in cluster.facts[2]["gpu_health"]["boards"]:
        board["persistence"] = False  # on all that say it
    for board in cluster.facts[0]["gpu_health"]["boards"]:
        board["persistence"] = False
    cluster.facts[2]["nics"] = cluster.facts[2]["nics"][:1]
    cluster.facts[2]["nics"][0]["numa"] = "1"
    assert run_hosts(cluster, **ORDER).verdict is Verdict.PASS


def test_a_network_card_with_other_firmware_than_those_of_its_board() -> None:
    cluster = StandInHosts()
    for nic in cluster.facts[2]["nics"]:
        nic["firmware"] = "28.39.1002"
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"system_differences cluster": "FAIL"}
    assert findings(result) == [("HOST-FIRMWARE", ["n2"])]
    said = "firmware of MT_0000000838: 28.39.1002 on n2; 28.43.2026 on n0, n1"
    assert result.findings[0].statement == said


@pytest.mark.parametrize(("part", "other"), [("kernel", "6.8.0-1014"), ("ofed", "")])
def test_a_node_with_another_kernel_or_ofed(part: str, other: str) -> None:
    cluster = StandInHosts()
    for fact in cluster.facts:
        fact["software"] = {**fact["software"], part: "6.8.0-1021"}
    cluster.facts[2]["software"][part] = other
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"system_differences cluster": "FAIL"}
    assert findings(result) == [("HOST-KERNEL", ["n2"])]
    said = f"{part}: {other or 'none'} on n2; 6.8.0-1021 on n0, n1"
    assert result.findings[0].statement == said


@pytest.mark.near_miss("HOSTS.system_differences")
def test_other_boards_have_firmware_of_their_own() -> None:
    cluster = StandInHosts()
    for fact in cluster.facts:
        fact["nics"].append({"device": "mlx5_8", "board": "MT_0000000359", "firmware": "22.36"})
        fact["nics"].append({"device": "efa_0", "board": "", "firmware": ""})
    cluster.facts[0]["nics"][-1]["firmware"] = "1.0"  # of what has no name, nothing is known
    del cluster.facts[1]["gpu_health"]["boards"][0]["vbios"]  # an old driver
    assert run_hosts(cluster, **ORDER).verdict is Verdict.PASS


# Differences that were agreed.


def with_every_system_difference() -> StandInHosts:
    cluster = StandInHosts()
    for fact in cluster.facts:
        fact["software"] = {**fact["software"], "kernel": "6.8.0-1021", "ofed": "24.10"}
    odd = cluster.facts[1]
    odd["software"] |= {"kernel": "6.8.0-1014", "ofed": "23.10"}
    boards, nics = odd["gpu_health"]["boards"], odd["nics"]
    boards[2] |= {"vbios": "96.00.74.00.01", "persistence": False, "numa": "1"}
    nics[0]["firmware"] = "28.39.1002"
    return cluster


def note_of(result: ProbeResult) -> str:
    return next((str(m.value) for m in result.measurements if m.name == "agreed_differences"), "")


@pytest.mark.near_miss("HOSTS.system_differences")
def test_differences_that_were_agreed_are_noted_and_do_not_count() -> None:
    cluster, names = with_every_system_difference(), list(AGREEABLE)
    result = run_hosts(cluster, **ORDER, agreed_differences=names)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    assert all(part in note_of(result) for part in AGREEABLE.values())
    assert f"vBIOS of {H100}: 96.00.74.00.01 on n1; 96.00.89.00.01 on n0" in note_of(result)


@pytest.mark.parametrize("name", AGREEABLE)
def test_a_difference_counts_unless_it_is_agreed_by_its_name(name: str) -> None:
    cluster, others = with_every_system_difference(), [one for one in AGREEABLE if one != name]
    result = run_hosts(cluster, **ORDER, agreed_differences=others)
    assert not_passed(result) == {"system_differences cluster": "FAIL"}
    (found,) = result.findings
    assert found.statement.startswith(AGREEABLE[name])


def test_what_may_not_be_agreed_counts_with_all_the_rest_agreed() -> None:
    cluster = StandInHosts()
    cluster.facts[1]["gpu_health"]["boards"][2]["clock_mhz"] = 1410
    cluster.facts[2]["software"]["driver"] = "550.54"
    result = run_hosts(cluster, **ORDER, agreed_differences=list(AGREEABLE))
    failed = {"system_differences cluster": "FAIL", "differences cluster": "FAIL"}
    assert not_passed(result) == failed
    assert note_of(result) == ""


@pytest.mark.parametrize("names", [["kernel"], ["kernel", "ofed"]])
def test_the_doctored_node_shows_what_is_still_compared(names: list[str]) -> None:
    result = run_hosts(StandInHosts(), **ORDER, agreed_differences=names)
    (control,) = (one for one in result.controls if one.name == "doctored node")
    assert control.caught is True
    assert "system_differences" in control.proves


# What is ordered of each node.

SOUND: dict[str, Any] = {
    "gpu_model": [H100, "NVIDIA H200"],
    "gpu_memory_gib": 79,
    "cpus_per_node": 192,
    "ram_gib": 2000,
    "disk_gib": 28000,
    "versions": {"driver": ">=550.54"},
}


@pytest.mark.near_miss(
    *("HOSTS.cpus", "HOSTS.ram", "HOSTS.disk", "HOSTS.ordered_versions"),
    *("HOSTS.machines", "HOSTS.duplicate_gpus", "HOSTS.nvml_errors"),
)
def test_what_is_ordered_and_there_passes() -> None:
    result = run_hosts(StandInHosts(), **ORDER, **SOUND)
    assert result.verdict is Verdict.PASS
    ordered = ("gpu_model", "gpu_memory", "cpus", "ram", "disk", "ordered_versions")
    assert [m.name for m in result.measurements].count("gpu_model") == 3
    assert {m.name for m in result.measurements} >= set(ordered)
    assert not {m.name for m in run_hosts(StandInHosts(), **ORDER).measurements} & set(ordered)


@pytest.mark.parametrize(
    ("term", "measure", "change", "words"),
    [
        ("gpu_model", "gpu_model", {"name": "NVIDIA L4"}, "GPU model on n1: NVIDIA L4"),
        ("gpu_memory_gib", "gpu_memory", {"memory_gib": 39.5}, "GPU memory on n1: 39.5 GiB"),
        ("cpus_per_node", "cpus", {"cpus": 2}, "CPUs on n1: 2 CPUs"),
        ("ram_gib", "ram", {"ram_gib": 64.0}, "RAM on n1: 64 GiB"),
        ("disk_gib", "disk", {"disk_gib": 25038.7}, "disk on n1: 25039 GiB"),
        ("versions", "ordered_versions", {"driver": "535.1"}, "driver 535.1"),
    ],
)
def test_what_is_below_the_order_fails_and_what_is_not_known_proves_nothing(
    term: str, measure: str, change: dict[str, Any], words: str
) -> None:
    cluster = StandInHosts()
    fact = cluster.facts[1]
    place = {"gpu_model": fact["gpus"][7], "gpu_memory_gib": fact["gpus"][7]}.get(
        term, fact["software"] if term == "versions" else fact
    )
    place |= change
    result = run_hosts(cluster, **ORDER, **{term: SOUND[term]})
    assert not_passed(result)[f"{measure} n1"] == "FAIL"
    code = "HOST-GPU-MODEL" if term == "gpu_model" else "HOST-BELOW-ORDER"
    (statement,) = (f.statement for f in result.findings if f.code == code and words in f.statement)
    assert statement.startswith(("n1", words))
    key = next(iter(change))
    place[key] = "" if isinstance(change[key], str) else None
    result = run_hosts(cluster, **ORDER, **{term: SOUND[term]})
    assert not_passed(result)[f"{measure} n1"] == "UNPROVEN"


@pytest.mark.parametrize(
    ("has", "order", "met"),
    [
        ("2.13.0+cu128", "2.13.0", True),
        ("2.13.1", "2.13.0", False),
        ("2.13.0+cu128", "2.13.0+cu126", False),
        ("550.54.15", ">=550.54", True),
        ("535.183.01", ">=550.54", False),
        ("2.14.0.dev20260101+cu128", ">=2.13", True),
        ("2.13.0a1", ">=2.13.0", False),
        ("6.8.0-1021-nvidia", ">=6.5", True),
        ("5.15.0-1066-nvidia", ">=6.5", False),
        ("24.10-2.1.8", ">=24.10", True),
        ("", "2.13.0", None),
        ("unknown", ">=1", None),
    ],
)
def test_versions_are_compared_as_versions(has: str, order: str, met: bool | None) -> None:
    from probes.hosts.inventory import version_met

    assert version_met(has, order) is met


def test_a_part_that_is_not_read_proves_nothing() -> None:
    result = run_hosts(StandInHosts(), **ORDER, versions={"nvlsm": "1.0"})
    assert set(not_passed(result).values()) == {"UNPROVEN"}


@pytest.mark.parametrize(("driver", "verdict"), [(">=550", "UNPROVEN"), (">=580", "FAIL")])
def test_a_part_that_is_not_read_hides_no_other(driver: str, verdict: str) -> None:
    result = run_hosts(StandInHosts(), **ORDER, versions={"nvlsm": "1.0", "driver": driver})
    assert set(not_passed(result).values()) == {verdict}


# The shared folder.


def test_blind_nodes_are_named_and_where_none_can_write_nobody_is() -> None:
    cluster = StandInHosts()
    assert run_hosts(cluster, **ORDER, shared="/shared").verdict is Verdict.PASS
    cluster.blind = ["n2"]
    result = run_hosts(cluster, **ORDER, shared="/shared")
    assert not_passed(result) == {"shared_missing /shared": "FAIL"}
    assert findings(result) == [("HOST-SHARED", ["n2"])]
    cluster.blind = None
    result = run_hosts(cluster, **ORDER, shared="/shared")
    assert not_passed(result) == {"shared_missing /shared": "UNPROVEN"}
    assert findings(result) == []
    (shared,) = (m for m in result.measurements if m.name == "shared_missing")
    assert "Read-only file system" in shared.note
