"""HOSTS against the order: nodes, and GPUs by Ray, NVML, torch and the order."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from probes.hosts.criterion import HEALTH
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.simulated_hosts import (
    StandInHosts,
    emulated,
    findings,
    not_passed,
    run_hosts,
    verdicts,
)

ORDER = {"nodes": 3, "gpus_per_node": 8}
NO_LIBRARY = {"library": False, "error": {"code": 12, "text": "not found"}}


def test_as_ordered() -> None:
    result = run_hosts(StandInHosts(), **ORDER)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    assert {c.name: c.proves for c in result.controls} == {
        "doctored node": [
            *("machines", "gpus", "count_mismatches", "nodes_with_fewer_gpus", "nvml_errors"),
            *("duplicate_gpus", "differences", "system_differences"),
        ],
        "larger order": ["nodes", "gpus"],
        "sick GPU": list(HEALTH),
    }


def test_a_rehearsal_as_declared() -> None:
    result = run_hosts(emulated(), nodes=3, gpus_per_node=1)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    assert "NVML is not used: accelerators are emulated" in result.coverage


def caught(result: ProbeResult) -> dict[str, bool | None]:
    return {control.name: control.caught for control in result.controls}


@pytest.mark.parametrize(
    ("judge", "blind"),
    [
        ("inventory.find_shared_machines", "differences"),
        ("inventory.find_odd_gpus", "differences"),
    ],
)
def test_a_finding_that_is_missing_takes_no_control_away(judge: str, blind: str) -> None:
    """What is judged are measures; a finding only explains."""
    with patch(f"probes.hosts.{judge}", lambda facts: []):
        result = run_hosts(StandInHosts(), **ORDER)
    assert caught(result)["doctored node"] is True


@pytest.mark.parametrize(
    ("judge", "answer"),
    [
        ("inventory.nodes_with_fewer_gpus", []),
        ("inventory.find_shared_gpus", []),
        ("inventory.find_nvml_faults", []),
        ("inventory.software_differences", {}),
    ],
)
def test_a_judge_that_sees_nothing_is_not_proven(judge: str, answer: Any) -> None:
    with (
        patch(f"probes.hosts.{judge}", lambda *_: answer),
        patch("probes.hosts.inventory.find_odd_gpus", lambda *_: []),
    ):
        result = run_hosts(StandInHosts(), **ORDER)
    assert caught(result)["doctored node"] is False


def test_the_controls_on_a_cluster_of_which_only_ray_tells() -> None:
    """Its nodes tell of no GPUs: their number is held to a larger order."""
    result = run_hosts(emulated(), nodes=3, gpus_per_node=1)
    assert {c.name: c.proves for c in result.controls} == {
        "doctored node": ["machines", "differences", "system_differences"],
        "larger order": ["nodes", "gpus"],
    }


def test_a_node_alone_of_which_only_ray_tells_is_compared_with_nothing() -> None:
    result = run_hosts(emulated(1), nodes=1, gpus_per_node=1)
    assert result.verdict is Verdict.PASS
    assert caught(result) == {"larger order": True}


def test_a_node_alone_is_compared_with_its_order() -> None:
    result = run_hosts(emulated(1), nodes=1, gpus_per_node=1, cpus_per_node=64)
    assert {c.name: c.proves for c in result.controls}["doctored node"] == ["cpus"]


def test_what_is_not_compared_is_no_number_of_gpus() -> None:
    cluster = emulated()
    cluster.by_ray["id1"] = 2
    (found,) = run_hosts(cluster, nodes=3, gpus_per_node=1).findings
    compared = "NVML is not compared, torch is not compared"
    assert found.statement == f"n1: 1 GPU was ordered, Ray counts 2, {compared}"


def test_what_nobody_ordered_cannot_be_ordered_larger() -> None:
    result = run_hosts(emulated())
    assert caught(result)["larger order"] is None


@pytest.mark.parametrize("order", [{"nodes": 2}, {"gpus_per_node": 7}, {"gpus_per_node": {7: 3}}])
def test_more_than_was_ordered_blinds_no_control(order: dict[str, Any]) -> None:
    """The larger order is larger than what is there, too."""
    result = run_hosts(StandInHosts(), **{**ORDER, **order})
    assert result.verdict is Verdict.FAIL
    assert caught(result)["larger order"] is True


def test_all_that_is_ordered_of_a_node_is_controlled() -> None:
    terms = {"gpu_model": "NVIDIA H100 80GB HBM3", "gpu_memory_gib": 79, "cpus_per_node": 64}
    versions = {"torch": ">=2"}
    result = run_hosts(
        StandInHosts(), **ORDER, **terms, ram_gib=500, versions=versions, shared="/shared"
    )
    proven = {name for control in result.controls for name in control.proves}
    assert {"gpu_model", "gpu_memory", "cpus", "ram", "ordered_versions"} <= proven
    assert "shared_missing" in proven


# Nodes.


def test_a_lost_node_is_named() -> None:
    cluster = StandInHosts()
    cluster.lost = ["n7"]
    result = run_hosts(cluster, nodes=4, gpus_per_node=8)
    assert not_passed(result) == {"nodes cluster": "FAIL"}
    assert findings(result) == [("HOST-MISSING", ["n7"])]


def test_a_node_that_is_drained_is_named_so_and_is_not_missing() -> None:
    cluster = StandInHosts()
    cluster.drained = ["n3"]
    result = run_hosts(cluster, nodes=4, gpus_per_node=8)
    assert not_passed(result) == {"nodes cluster": "FAIL"}
    assert findings(result) == [("HOST-DRAINED", ["n3"])]
    cluster.lost = ["n4"]
    result = run_hosts(cluster, nodes=5, gpus_per_node=8)
    assert findings(result) == [("HOST-DRAINED", ["n3"]), ("HOST-MISSING", ["n4"])]


def test_a_node_that_died_twice_is_named_once() -> None:
    """Ray keeps an entry for each of its starts."""
    cluster = StandInHosts(2, 1)
    cluster.lost = ["n2", "n2"]
    result = run_hosts(cluster, nodes=3, gpus_per_node=1)
    assert findings(result) == [("HOST-MISSING", ["n2"])]


@pytest.mark.parametrize(
    ("lost", "bystanders", "missing"),
    [
        ([], 0, "a node that never joined"),
        ([], 1, "n3, where Ray counts no GPU"),
        (["n7"], 0, "n7"),
        (["n7"], 1, "n7"),
    ],
)
def test_the_missing_node_is_one_that_died_or_one_without_gpus_or_not_known(
    lost: list[str], bystanders: int, missing: str
) -> None:
    cluster = StandInHosts(3, 8, bystanders)
    cluster.lost = lost
    (found,) = run_hosts(cluster, nodes=4, gpus_per_node=8).findings
    assert found.statement == f"3 of 4 nodes answer; missing: {missing}"


@pytest.mark.parametrize("lost", [[], ["n7"]])
def test_without_an_order_no_number_of_nodes_passes(lost: list[str]) -> None:
    cluster = StandInHosts()
    cluster.lost = lost
    result = run_hosts(cluster, gpus_per_node=8)
    assert not_passed(result) == {"nodes cluster": "UNPROVEN"}
    assert findings(result) == []  # Ray lists also what left it days ago


def test_too_many_nodes_is_a_finding_too() -> None:
    result = run_hosts(StandInHosts(), nodes=2, gpus_per_node=8)
    assert not_passed(result) == {"nodes cluster": "FAIL"}
    assert findings(result) == [("HOST-EXTRA", [])], "nobody knows which is the extra one"


def test_a_silent_node_is_named() -> None:
    cluster = StandInHosts()
    del cluster.facts[1]
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"nodes cluster": "FAIL"}
    assert ("HOST-NO-ANSWER", ["n1"]) in findings(result)


def test_no_node_answers() -> None:
    cluster = StandInHosts()
    cluster.facts = []
    result = run_hosts(cluster, gpus_per_node=8)
    assert Verdict.PASS not in verdicts(result).values()


# GPUs.


def lose_in_nvml(cluster: StandInHosts) -> None:
    del cluster.facts[1]["gpus"][5]


def lose_in_torch(cluster: StandInHosts) -> None:
    cluster.torch["id1"]["all"] = 7


def overcommit_in_ray(cluster: StandInHosts) -> None:
    cluster.by_ray["id1"] = 16


def lose_everywhere(cluster: StandInHosts) -> None:
    lose_in_nvml(cluster)
    lose_in_torch(cluster)
    cluster.by_ray["id1"] = 7


def hide_assignment(cluster: StandInHosts) -> None:
    cluster.torch["id1"]["assigned"] = 8


@pytest.mark.parametrize(
    ("break_it", "words", "measures"),
    [
        (lose_in_nvml, "Ray counts 8, NVML shows 7, torch sees 8", ["gpus", "count_mismatches"]),
        (lose_in_torch, "Ray counts 8, NVML shows 8, torch sees 7", ["gpus", "count_mismatches"]),
        (overcommit_in_ray, "Ray counts 16, NVML shows 8, torch", ["gpus", "count_mismatches"]),
        (lose_everywhere, "Ray counts 7, NVML shows 7, torch sees 7", ["gpus"]),
        (hide_assignment, "a worker with 1 GPU from Ray sees 8", ["count_mismatches"]),
    ],
)
@pytest.mark.parametrize("ordered", [8, None])
def test_each_count_must_agree(
    break_it: Any, words: str, measures: list[str], ordered: int | None
) -> None:
    cluster = StandInHosts()
    break_it(cluster)
    result = run_hosts(cluster, nodes=3, gpus_per_node=ordered)
    failed = {name for name, verdict in not_passed(result).items() if verdict == "FAIL"}
    without = {m for m in measures if m != "gpus"} if ordered is None else set(measures)
    few = (
        {"nodes_with_fewer_gpus cluster"}
        if break_it not in (overcommit_in_ray, hide_assignment)
        else set()
    )
    assert failed == {f"{measure} n1" for measure in without} | few
    assert findings(result) == [("HOST-GPUS", ["n1"])]
    assert words in result.findings[0].statement
    assert f"{'no number of GPUs was' if ordered is None else '8 GPUs were'} ordered" in (
        result.findings[0].statement
    )


def test_without_an_order_no_number_of_gpus_passes() -> None:
    """Seven of eight GPUs on every node: most nodes have as many."""
    result = run_hosts(StandInHosts(gpus=7), nodes=3)
    assert not_passed(result) == {f"gpus n{i}": "UNPROVEN" for i in range(3)}
    assert findings(result) == []


def test_of_two_nodes_the_one_with_fewer_is_named() -> None:
    cluster = StandInHosts(2)
    lose_everywhere(cluster)
    result = run_hosts(cluster, nodes=2)
    assert not_passed(result)["nodes_with_fewer_gpus cluster"] == "FAIL"
    assert findings(result) == [("HOST-GPUS", ["n1"])]


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ({"error": "no GPU was free"}, "no GPU was free"),
        ({"assigned": 1, "error": "ImportError: libcudart"}, "libcudart"),
        ({}, "no worker counted the GPUs"),
    ],
)
def test_a_torch_that_does_not_tell_proves_nothing(seen: dict[str, Any], why: str) -> None:
    cluster = StandInHosts()
    cluster.torch["id1"] = seen
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"gpus n1": "UNPROVEN", "count_mismatches n1": "UNPROVEN"}
    assert all(why in m.note for m in result.measurements if m.subject == "n1" and m.value is None)
    assert findings(result) == []


@pytest.mark.parametrize("seen", [8, 7])
def test_where_the_job_chooses_its_gpu_a_worker_may_see_all(seen: int) -> None:
    """An image with RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES is no fault; a lost GPU is."""
    cluster = StandInHosts()
    cluster.torch["id1"] = {"all": seen, "assigned by": "job"}
    result = run_hosts(cluster, **ORDER)
    assert findings(result) == ([("HOST-GPUS", ["n1"])] if seen == 7 else [])
    assert "Ray hides no GPU from a worker on n1: RAY_EXPERIMENTAL_NOSET" in result.coverage


def test_a_sentence_says_why_a_number_is_not_known() -> None:
    cluster = StandInHosts()
    lose_in_nvml(cluster)
    cluster.torch["id1"] = {"error": "no GPU was free"}
    (found,) = run_hosts(cluster, **ORDER).findings
    counts = "8 GPUs were ordered, Ray counts 8, NVML shows 7"
    assert found.statement == f"n1: {counts}, torch reports no number (no GPU was free)"


def test_a_node_whose_gpus_were_not_free_proves_nothing() -> None:
    cluster = StandInHosts()
    del cluster.torch["id1"]
    result = run_hosts(cluster, **ORDER)
    assert not_passed(result) == {"gpus n1": "UNPROVEN", "count_mismatches n1": "UNPROVEN"}


def test_of_mig_instances_the_assigned_one_counts() -> None:
    cluster = StandInHosts(gpus=4)
    for fact in cluster.facts:
        fact["gpus"] = [{**gpu, "index": 0, "mig": gpu["index"]} for gpu in fact["gpus"]]
        cluster.torch[fact["node"]] = {"all": 1, "assigned": 1}
    assert run_hosts(cluster, nodes=3, gpus_per_node=4).verdict is Verdict.PASS
    cluster.torch["id1"]["assigned"] = 0
    result = run_hosts(cluster, nodes=3, gpus_per_node=4)
    assert not_passed(result) == {"count_mismatches n1": "FAIL"}


# Emulation is declared, and exempts torch alone.


def test_an_emulated_cluster_with_nvml_has_it_everywhere_and_as_ray_counts() -> None:
    cluster = StandInHosts(gpus=1)
    cluster.emulated = True
    assert run_hosts(cluster, nodes=3, gpus_per_node=1).verdict is Verdict.PASS
    cluster.by_ray["id1"] = 2
    result = run_hosts(cluster, nodes=3, gpus_per_node=1)
    assert ("HOST-GPUS", ["n1"]) in findings(result)
    cluster.by_ray["id1"] = 1
    cluster.facts[1] |= {"nvml": NO_LIBRARY, "gpus": []}
    result = run_hosts(cluster, nodes=3, gpus_per_node=1)
    assert not_passed(result)["nvml_errors n1"] == "FAIL"
    assert findings(result) == [("HOST-NO-NVML", ["n1"])]


@pytest.mark.near_miss("HOSTS.gpus", "HOSTS.differences")
def test_raylets_of_one_host_are_not_compared_by_its_gpus() -> None:
    cluster = StandInHosts(gpus=1)
    cluster.kind, cluster.emulated = "local", True
    for fact in cluster.facts:  # as on a developer's machine with eight
        fact |= {"boot_id": "same", "gpus": [{"index": 0, "uuid": "GPU-0", "name": ""}] * 8}
    result = run_hosts(cluster, nodes=3, gpus_per_node=1)
    assert result.verdict is Verdict.PASS
    assert not {m.name for m in result.measurements} & {"machines", "nvml_errors", "duplicate_gpus"}
    assert "machines and NVML are not compared: all raylets share one host" in result.coverage


KINDS = {"nodes": 3, "gpus_per_node": {8: 1, 4: 2}}


def of_sizes(*sizes: int) -> StandInHosts:
    """Make nodes with these numbers of GPUs, which all sources agree on."""
    cluster = StandInHosts(len(sizes))
    for fact, size in zip(cluster.facts, sizes, strict=True):
        del fact["gpus"][size:], fact["gpu_health"]["boards"][size:]
        cluster.by_ray[fact["node"]] = cluster.torch[fact["node"]]["all"] = size
    return cluster


def test_kinds_of_nodes_that_were_ordered_are_no_loss() -> None:
    assert not_passed(run_hosts(of_sizes(4, 8, 4), **KINDS)) == {}
    assert "gpus n0" in not_passed(run_hosts(of_sizes(4, 8, 4), **ORDER))


@pytest.mark.parametrize(
    ("sizes", "node"), [((7, 4, 4), "n0"), ((8, 4, 3), "n2"), ((4, 4, 4), "n2")]
)
def test_a_node_of_no_ordered_kind_is_named(sizes: tuple[int, ...], node: str) -> None:
    result = run_hosts(of_sizes(*sizes), **KINDS)
    failed = not_passed(result)
    assert {name for name in failed if name.startswith("gpus")} == {f"gpus {node}"}
    assert failed["nodes_with_fewer_gpus cluster"] == "FAIL"
    assert ("HOST-GPUS", [node]) in findings(result)


def test_more_gpus_than_any_kind_has_are_no_kind() -> None:
    assert not_passed(run_hosts(of_sizes(8, 8, 4), **KINDS)) == {"gpus n1": "FAIL"}


def test_one_node_more_than_was_ordered_has_no_kind() -> None:
    failed = not_passed(run_hosts(of_sizes(8, 4, 4, 4), **KINDS))
    assert failed == {"nodes cluster": "FAIL", "gpus n3": "UNPROVEN"}


def test_a_node_that_joins_after_the_facts_were_read_is_one_too_many() -> None:
    cluster = StandInHosts(4)
    del cluster.facts[3]  # it was not there yet
    failed = not_passed(run_hosts(cluster, nodes=3, gpus_per_node=8))
    assert failed["nodes cluster"] == "FAIL"
    fewer = not_passed(run_hosts(cluster, nodes=4, gpus_per_node=8))
    assert fewer["nodes cluster"] == "FAIL"  # it does not answer


# A number of nodes that may grow.

RANGE = {"nodes": 3, "nodes_at_most": 5, "gpus_per_node": 8}


@pytest.mark.near_miss("HOSTS.nodes")
@pytest.mark.parametrize("count", [3, 4, 5])
def test_any_agreed_number_of_nodes_is_as_ordered(count: int) -> None:
    result = run_hosts(StandInHosts(count), **RANGE)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    said = f"{count} nodes answer. Ordered: 3 to 5 nodes" in result.coverage
    assert said is (count > 3)
    assert caught(result)["larger order"] is True


@pytest.mark.parametrize(("count", "code"), [(2, "HOST-MISSING"), (6, "HOST-EXTRA")])
def test_fewer_or_more_nodes_than_agreed_fail(count: int, code: str) -> None:
    result = run_hosts(StandInHosts(count), **RANGE)
    assert not_passed(result) == {"nodes cluster": "FAIL"}
    assert [found for found, _ in findings(result)] == [code]
    assert caught(result)["larger order"] is True


def test_an_extra_node_is_inspected_as_every_other() -> None:
    cluster = StandInHosts(4)
    cluster.torch["id3"] = {"all": 7, "assigned": 1}
    assert not_passed(run_hosts(cluster, **RANGE))["count_mismatches n3"] == "FAIL"


@pytest.mark.parametrize(("alive", "verdict"), [(4, "UNPROVEN"), (6, "FAIL")])
def test_an_extra_node_that_was_not_inspected_proves_nothing(alive: int, verdict: str) -> None:
    cluster = StandInHosts(alive)
    silent = cluster.facts.pop()["name"]
    result = run_hosts(cluster, **RANGE)
    assert not_passed(result)["nodes cluster"] == verdict
    assert ("HOST-NO-ANSWER", [silent]) in findings(result)
