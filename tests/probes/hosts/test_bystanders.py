"""HOSTS on nodes where Ray counts no GPU: workers, containers, and drivers that did not load."""

from __future__ import annotations

import pytest

from probes.hosts.inventory import without_hosts_gpus
from reports.measurement import Verdict
from reports.orders import fill
from tests.support.simulated_hosts import (
    StandInHosts,
    findings,
    not_passed,
    run_hosts,
)

ORDER = {"nodes": 3, "gpus_per_node": 8}


@pytest.mark.near_miss("HOSTS.nodes", "HOSTS.gpus", "HOSTS.nodes_with_fewer_gpus")
def test_workers_without_gpus_are_neither_nodes_nor_faults() -> None:
    result = run_hosts(StandInHosts(3, bystanders=2), **ORDER)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    assert "nodes without accelerators, which run no ranks: n3, n4" in result.coverage


def test_gpus_that_ray_does_not_count_are_a_fault() -> None:
    cluster = StandInHosts(3)
    cluster.others, cluster.facts = [cluster.facts[2]], cluster.facts[:2]
    cluster.by_ray["id2"] = 0
    result = run_hosts(cluster, nodes=2, gpus_per_node=8)
    assert not_passed(result) == {"count_mismatches n2": "FAIL"}
    assert findings(result) == [("HOST-GPUS", ["n2"])]
    assert "Ray counts 0, NVML shows 8" in result.findings[0].statement


def with_a_desktop_gpu(nodes: int = 3, heads: int = 1) -> StandInHosts:
    """A head with a T4 that Ray does not count, and nodes of 8 H100s."""
    cluster = StandInHosts(nodes, bystanders=heads)
    for head in cluster.others:
        t4 = {"index": 0, "uuid": f"GPU-{head['name']}", "name": "Tesla T4", "memory_gib": 14.6}
        head |= {"gpus": [t4], "nvml": {"library": True, "error": None}}
    return cluster


def lose_registration(cluster: StandInHosts) -> str:
    """Make Ray count no GPU of the last node of the gang; return its name."""
    lost = cluster.facts.pop()
    cluster.others.append(lost)
    cluster.by_ray[lost["node"]] = 0
    return str(lost["name"])


@pytest.mark.near_miss("HOSTS.count_mismatches")
def test_gpus_that_a_contract_leaves_outside_ray_are_noted() -> None:
    result = run_hosts(with_a_desktop_gpu(), **ORDER, gpus_outside_ray=1)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    (note,) = (one for one in result.measurements if one.name == "gpus_outside_ray")
    assert (note.value, note.subject) == (1, "n3")


def test_gpus_outside_ray_count_without_the_key_and_the_finding_names_it() -> None:
    result = run_hosts(with_a_desktop_gpu(), **ORDER)
    assert not_passed(result) == {"count_mismatches n3": "FAIL"}
    (found,) = result.findings
    assert "`gpus_outside_ray` in [cluster]" in found.remedy
    assert any("`gpus_outside_ray`" in step.means for step in fill(found, {}).steps)


@pytest.mark.parametrize("agreed", [1, 8, 9])
def test_no_key_hides_a_node_whose_gpus_ray_lost(agreed: int) -> None:
    """An order that is not complete misses a node, whatever may be outside."""
    cluster = with_a_desktop_gpu()
    lost = lose_registration(cluster)
    result = run_hosts(cluster, **ORDER, gpus_outside_ray=agreed)
    red = {f"count_mismatches {lost}": "FAIL", "count_mismatches n3": "FAIL"}
    assert not_passed(result) == {"nodes cluster": "FAIL", **red}


def test_more_gpus_outside_ray_than_agreed_all_count() -> None:
    two = run_hosts(with_a_desktop_gpu(heads=2), **ORDER, gpus_outside_ray=1)
    assert not_passed(two) == {"count_mismatches n3": "FAIL", "count_mismatches n4": "FAIL"}
    spare = with_a_desktop_gpu(4)  # one more node than ordered, which Ray lost
    lost = lose_registration(spare)
    result = run_hosts(spare, **ORDER, gpus_outside_ray=1)
    assert not_passed(result)[f"count_mismatches {lost}"] == "FAIL"


def test_gpus_outside_ray_count_where_no_number_of_nodes_is_ordered() -> None:
    result = run_hosts(with_a_desktop_gpu(), gpus_per_node=8, gpus_outside_ray=1)
    assert not_passed(result)["count_mismatches n3"] == "FAIL"


@pytest.mark.near_miss("HOSTS.count_mismatches")
def test_a_container_that_sees_its_hosts_gpus_has_none_of_its_own() -> None:
    """A head without GPUs in a CUDA image, on the machine of a node of the gang."""
    cluster = StandInHosts(3, bystanders=1)
    head, host = cluster.others[0], cluster.facts[0]
    head |= {"gpus": host["gpus"], "boot_id": host["boot_id"]}
    head["nvml"] = {"library": True, "error": {"code": 4, "text": "no permission"}}
    result = run_hosts(cluster, **ORDER)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    head |= {"boot_id": "", "nvml": {"library": True, "error": None}}  # known by its GPUs alone
    assert run_hosts(cluster, **ORDER).verdict is Verdict.PASS


def test_a_node_whose_driver_did_not_load_is_the_one_that_is_missing() -> None:
    cluster = StandInHosts(3)
    cluster.others, cluster.facts = [cluster.facts[2]], cluster.facts[:2]
    cluster.by_ray["id2"] = 0
    cluster.others[0] |= {"gpus": [], "nvml": {"library": True, "error": {"code": 9, "text": "no"}}}
    result = run_hosts(cluster, **ORDER)
    assert {code for code, _ in findings(result)} == {"HOST-MISSING", "HOST-NO-DRIVER"}
    assert all(suspects == ["n2"] for _, suspects in findings(result))


def test_a_node_that_died_since_its_facts_were_read_is_missing() -> None:
    cluster = StandInHosts(3)
    cluster.known = cluster.known[:2]
    cluster.lost = ["n2"]
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result)["nodes cluster"] == "FAIL"
    assert findings(result) == [("HOST-MISSING", ["n2"])]


def test_a_worker_without_gpus_that_does_not_answer_proves_nothing() -> None:
    cluster = StandInHosts(3, bystanders=1)
    cluster.others = []
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"count_mismatches n3": "UNPROVEN"}
    assert findings(result) == [("HOST-NO-ANSWER", ["n3"])]


@pytest.mark.parametrize(("code", "fault"), [(9, False), (18, True), (999, True)])
def test_a_driver_that_fails_where_ray_counts_no_gpu(code: int, fault: bool) -> None:
    """Not loaded: the node may have no GPU, as the rest of its image does not say."""
    cluster = StandInHosts(3, bystanders=1)
    cluster.others[0]["nvml"] = {"library": True, "error": {"code": code, "text": "t"}}
    assert not_passed(run_hosts(cluster, **ORDER)) == ({"nvml_errors n3": "FAIL"} if fault else {})


def test_a_worker_on_a_node_of_the_gang_is_not_asked_for_nvml_of_its_own() -> None:
    cluster = StandInHosts(2, bystanders=1)
    worker = cluster.others[0] | {"boot_id": cluster.facts[0]["boot_id"]}
    (own,) = without_hosts_gpus([worker], cluster.facts)
    assert own["nvml"] == {"library": False, "error": None}
