"""HOSTS on NVLinks, and on what a GPU may lack: compared with the GPUs of its model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.hosts import controls
from reports.measurement import Verdict
from tests.support.simulated_hosts import (
    H100,
    StandInHosts,
    board_of,
    cluster_with,
    not_passed,
    run_hosts,
)

ORDER = {"nodes": 3, "gpus_per_node": 8}


def links(cluster: StandInHosts, active: int, model: str, count: int = 12) -> StandInHosts:
    """Give all GPUs of a cluster this model with some active links."""
    for fact in cluster.facts:
        for board in fact["gpu_health"]["boards"]:
            board |= {"name": model, "nvlinks": {"active": active, "all": count}}
            board |= {"power_limit_mw": 1_000_000, "power_default_mw": 1_000_000}
    return cluster


PCIE, SXM = "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-80GB"


@pytest.mark.near_miss("HOSTS.nvlinks_down")
@pytest.mark.parametrize("active", [0, 4, 12])
def test_pcie_boards_have_the_bridges_that_they_have(active: int) -> None:
    cluster = links(StandInHosts(), active, PCIE)
    assert run_hosts(cluster, **ORDER).verdict is Verdict.PASS


@pytest.mark.near_miss("HOSTS.nvlinks_down")
def test_a_bridge_between_every_second_pair_accuses_no_other_pair() -> None:
    cluster = links(StandInHosts(), 12, PCIE)
    for fact in cluster.facts:
        for board in fact["gpu_health"]["boards"][::2]:
            board["nvlinks"]["active"] = 0
    assert run_hosts(cluster, **ORDER).verdict is Verdict.PASS


def test_a_pcie_board_without_the_bridge_that_others_have() -> None:
    cluster = links(StandInHosts(), 12, PCIE)
    board_of(cluster, 2, 1)["nvlinks"]["active"] = 8
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"nvlinks_down n2": "FAIL"}
    statement = result.findings[0].statement
    assert "GPU 1 (GPU-2-1, slot 00000000:11:00.0) on n2: 8 of 12 NVLinks" in statement


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        *((SXM, 8), ("NVIDIA H200", 8), ("NVIDIA B200", 8), ("NVIDIA H100 80GB HBM3", 8)),
        ("NVIDIA GB200", 4),
    ],
)
@pytest.mark.parametrize("active", [0, 11])
def test_a_whole_node_has_all_its_links(model: str, gpus: int, active: int) -> None:
    cluster = links(StandInHosts(gpus=gpus), active, model)
    failed = not_passed(run_hosts(cluster, nodes=3, gpus_per_node=gpus))
    assert failed == {f"nvlinks_down n{i}": "FAIL" for i in range(3)}


@pytest.mark.near_miss("HOSTS.nvlinks_down")
@pytest.mark.parametrize(
    ("model", "gpus", "active"),
    [
        *(("NVIDIA H100 NVL", 8, 0), ("NVIDIA H200 NVL", 8, 0), ("NVIDIA H100 PCIe", 8, 0)),
        *(("NVIDIA L40S", 8, 0), ("NVIDIA GH200 480GB", 4, 0)),
        (SXM, 1, 0),  # a virtual machine with one GPU of a board
        *((SXM, 2, 6), (SXM, 4, 8)),  # with some: the links to the others are off
        ("NVIDIA GB200", 2, 0),
    ],
)
def test_boards_and_machines_that_need_no_links(model: str, gpus: int, active: int) -> None:
    cluster = links(StandInHosts(gpus=gpus), active, model)
    result = run_hosts(cluster, nodes=3, gpus_per_node=gpus)
    assert result.verdict is Verdict.PASS, not_passed(result)
    (control,) = [one for one in result.controls if one.name == "sick GPU"]
    assert ("nvlinks_down" in control.proves) is (gpus == 8)


@pytest.mark.near_miss("HOSTS.nvlinks_down")
def test_mig_trains_the_links_of_an_a100_off() -> None:
    cluster = links(StandInHosts(), 0, SXM)
    for fact in cluster.facts:
        for board, gpu in zip(fact["gpu_health"]["boards"], fact["gpus"], strict=True):
            board["mig"] = True
            gpu["mig"] = 0
    assert run_hosts(cluster, gpu_model=H100, **ORDER).verdict is Verdict.PASS


def test_the_flag_of_mig_excuses_no_gpu_that_is_not_split() -> None:
    result = run_hosts(cluster_with({"mig": True, "nvlinks": {"active": 0, "all": 18}}), **ORDER)
    assert not_passed(result) == {"nvlinks_down n1": "FAIL"}


@pytest.mark.parametrize(("model", "usual"), [(H100, 18), (SXM, 12), ("NVIDIA H200", 18)])
def test_a_link_that_a_board_does_not_list_is_missing(model: str, usual: int) -> None:
    """NVML says of such a link that it is not supported, as of one that the model lacks."""
    cluster = links(StandInHosts(), usual, model, usual)
    board_of(cluster, 1, 3)["nvlinks"] = {"active": usual - 2, "all": usual - 2}
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"nvlinks_down n1": "FAIL"}
    assert f"{usual - 2} of {usual} NVLinks are active" in result.findings[0].statement


def test_links_that_no_board_lists_are_missing() -> None:
    failed = not_passed(run_hosts(links(StandInHosts(), 9, H100, 9), **ORDER))
    assert failed == {f"nvlinks_down n{i}": "FAIL" for i in range(3)}


@pytest.mark.near_miss("HOSTS.nvlinks_down")
def test_a_model_with_fewer_links_has_all_that_it_lists() -> None:
    cluster = links(StandInHosts(), 8, "NVIDIA A800-SXM4-80GB", 8)
    assert run_hosts(cluster, **ORDER).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("query", "measure"),
    [
        ("recovery_action", "gpus_to_reset"),
        ("nvlinks", "nvlinks_down"),
        ("fabric", "fabric_faults"),
    ],
)
def test_one_board_that_lacks_what_others_of_its_model_have(query: str, measure: str) -> None:
    result = run_hosts(cluster_with({"name": PCIE}), **ORDER)
    assert result.verdict is Verdict.PASS, not_passed(result)
    result = run_hosts(cluster_with({}, without=query), **ORDER)
    assert not_passed(result) == {f"{measure} n1": "UNPROVEN"}


def test_whole_nodes_whose_links_are_switched_off_prove_nothing() -> None:
    cluster = StandInHosts()
    for fact in cluster.facts:
        for board in fact["gpu_health"]["boards"]:
            del board["nvlinks"]
            board["unsupported"].append("nvlinks")
    failed = not_passed(run_hosts(cluster, **ORDER))
    assert failed == {f"nvlinks_down n{i}": "UNPROVEN" for i in range(3)}


def test_ecc_that_is_off_without_a_known_default_proves_nothing() -> None:
    result = run_hosts(cluster_with({"ecc": False}, without="ecc_default"), **ORDER)
    assert not_passed(result) == {"gpus_without_ecc n1": "UNPROVEN"}


def test_what_a_container_may_not_ask_proves_nothing_and_is_no_error() -> None:
    cluster = StandInHosts()
    del board_of(cluster, 1, 3)["pcie_width"]  # NVML refused it: in no list
    assert not_passed(run_hosts(cluster, **ORDER)) == {"narrow_pcie n1": "UNPROVEN"}


@pytest.mark.near_miss("HOSTS.gpus_to_reset", "HOSTS.nvlinks_down", "HOSTS.fabric_faults")
@pytest.mark.parametrize("query", ["recovery_action", "nvlinks", "fabric", "sram_threshold"])
def test_what_all_sound_boards_of_a_model_may_lack(query: str) -> None:
    cluster = links(StandInHosts(), 0, PCIE)
    for fact in cluster.facts:
        for board in fact["gpu_health"]["boards"]:
            del board[query]
            board |= {"unsupported": [query], "retired_pending": False}
    result = run_hosts(cluster, **ORDER)
    assert result.verdict is Verdict.PASS, not_passed(result)


def test_a_control_that_accuses_another_gpu_too_is_not_located() -> None:
    said = [SimpleNamespace(statement=f"GPU {index} of n0: is sick") for index in (7, 3)]
    assert controls.names_gpu(cast(Any, SimpleNamespace(findings=said[:1])), 7)
    assert not controls.names_gpu(cast(Any, SimpleNamespace(findings=said)), 7)
