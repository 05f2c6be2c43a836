"""The table of what is owed is what is collected, and names measures that exist."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from probes.check.declarations import ordered
from probes.check.owed import (
    RUN_S,
    Circumstances,
    disturbed_seconds,
    find_test,
    has_ip_fabric,
    judged_names,
    owed_by,
    owed_event,
    partial_reason,
)
from probes.check.registry import CRITERIA, all_probes, run_order
from probes.contract.terms import ClusterTerms
from probes.hosts.criterion import RATES
from reports.record import TIERS
from tests.support.paths import REPO

CHECKS = {(id, one) for id, row in CRITERIA.items() for one in row.checks}
CONDITIONAL = {(id, str(one)) for id, one in CHECKS if one.when or one.only_agreed} | {
    (id, str(control))
    for id, row in CRITERIA.items()
    for control in row.planted
    if control.when or all(one.when or one.only_agreed for one in control.fails)
}
ALL = ClusterTerms(
    fabric="rdma",
    shared="/shared",
    save_gb=100,
    host_names=True,
    authentication="token",
    queue="kueue",
    gpu_model="NVIDIA H100",
    gpu_memory_gib=79,
    cpus_per_node=96,
    ram_gib=1000,
    disk_gib=1000,
    versions={"torch": ">=2"},
    egress=["https://hub.example/"],
    model_files=["/models/llama"],
    ray_client_port=10001,
    dcgm_diag=True,
)
# Judged only where a contract has a limit for it.
AGREED = frozenset(
    f"HOSTS.{name}" for name in ("lost_lines", "lost_updates", "write_rate", "read_rate")
) | {
    *("FABRIC.all_gather_busbw", "FABRIC.reduce_scatter_busbw", "FABRIC.alltoall_busbw"),
    *("FABRIC.all_reduce_inside_node", "FABRIC.nvlink_busbw"),
}


def here(tier: str = "quick", **changes: object) -> Circumstances:
    given = {"terms": ClusterTerms(), "nodes": 8, "on_gpu": False, **changes}
    return Circumstances(tier=tier, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("tier", TIERS)
def test_every_probe_of_a_tier_is_owed_and_no_other(tier: str) -> None:
    command = ["pytest", "probes", "--collect-only", "-q", "--cluster", "auto", "--tier", tier]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=REPO, capture_output=True, text=True, check=True
    )
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    assert {probe.probe for probe in owed_by(here(tier))} == set(collected)
    *others, last = collected
    assert last == "probes/hosts/test_hosts.py::test_hosts_stay_healthy_to_the_end"
    rows = list(dict.fromkeys(probe.split("/")[1].upper() for probe in others))
    assert rows == list(run_order())
    assert len(collected) > 10


def test_names_are_those_of_the_acceptance_table() -> None:
    owed = {(duty.criterion, name) for duty in all_probes() for name in duty.checks}
    known = {(id, name) for id, row in CRITERIA.items() for name in row.measures}
    assert owed <= known
    never = {(id, one) for id, row in CRITERIA.items() for one in row.checks if one.not_owed}
    assert known - owed == never
    controls = {(duty.criterion, name) for duty in all_probes() for name in duty.controls}
    assert owed | controls >= CONDITIONAL


@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_every_probe_owes_a_measure_and_a_control_anywhere(nodes: int) -> None:
    for probe in owed_by(here("soak", nodes=nodes)):
        assert probe.measures, f"{probe.probe}: no measure is owed on {nodes} nodes"
        assert probe.controls, f"{probe.probe}: no control is owed on {nodes} nodes"


def test_what_is_conditional_is_owed_where_the_condition_holds() -> None:
    def names(of: Circumstances) -> set[tuple[str, str]]:
        return {(p.criterion, n) for p in owed_by(of) for n in [*p.measures, *p.controls]}

    plain = names(here("soak", nodes=1, one_host=True, ip_fabric=False))
    full = names(here("soak", terms=ALL, on_gpu=True, agreed=AGREED, ranks=64))
    alone = names(here("soak", nodes=1, on_gpu=True, ranks=8, terms=ClusterTerms(nodes=1)))
    saves = {("SCALING", "checkpoint_overhead"), ("SCALING", "slow save")}
    agreed = {("SCALING", "tokens_per_s"), *(("HOSTS", name) for name in RATES)}
    one_of_two = {("SCALING", "slow base")}  # for mfu or tokens_per_s: one of both is always owed
    varying = (plain | full | alone) - (plain & full & alone)
    assert varying - agreed == CONDITIONAL - saves - agreed - one_of_two
    assert plain - full == {("SCALING", "tokens_per_s")}
    assert not names(here("quick")) & saves
    assert names(here("standard")) >= saves


def test_the_speed_of_storage_is_owed_where_agreed_and_not_in_a_quick_run() -> None:
    def names(tier: str, agreed: frozenset[str]) -> set[str]:
        return {n for p in owed_by(here(tier, terms=ALL, agreed=agreed)) for n in p.measures}

    rates = {"write_rate", "read_rate"}
    assert not names("standard", frozenset()) & {*rates, "lost_lines", "lost_updates"}
    assert names("standard", AGREED) >= {*rates, "lost_lines", "lost_updates"}
    assert names("quick", AGREED) & {*rates, "lost_lines"} == {"lost_lines"}


def test_what_needs_other_nodes_is_owed_from_there_on() -> None:
    """One node shares no folder; of two nodes no pair is the slow one."""

    def names(nodes: int) -> set[str]:
        probes = owed_by(here("standard", nodes=nodes, terms=ALL))
        return {n for p in probes for n in [*p.measures, *p.controls]}

    assert ["own folder" in names(nodes) for nodes in (1, 2)] == [False, True]
    assert ["closed_ports" in names(nodes) for nodes in (1, 2)] == [True, True]
    assert ["loopback_names" in names(nodes) for nodes in (1, 2)] == [False, True]
    assert ["unseen_files" in names(nodes) for nodes in (1, 2)] == [False, True]
    assert ["shard_write" in names(nodes) for nodes in (2, 3)] == [False, True]
    assert ["failed_shards" in names(nodes) for nodes in (1, 2)] == [True, True]
    assert ["slowest_pair" in names(nodes) for nodes in (2, 3)] == [False, True]


@pytest.mark.parametrize(
    ("agreed", "owed"),
    [
        ([], {"mfu"}),
        (["SCALING.mfu"], {"mfu"}),
        (["SCALING.tokens_per_s"], {"tokens_per_s"}),
        (["SCALING.mfu", "SCALING.tokens_per_s"], {"mfu", "tokens_per_s"}),
    ],
)
def test_a_real_gpu_owes_the_speed_that_was_agreed(agreed: list[str], owed: set[str]) -> None:
    (probe,) = [
        probe
        for probe in owed_by(here(on_gpu=True, agreed=frozenset(agreed)))
        if probe.criterion == "SCALING"
    ]
    assert {"mfu", "tokens_per_s"} & {*probe.measures} == owed


@pytest.mark.parametrize("name", RATES)
def test_a_rate_of_each_gpu_is_owed_where_it_was_agreed(name: str) -> None:
    def names(*agreed: str, **changes: object) -> set[str]:
        probes = owed_by(here(agreed=frozenset(agreed), **changes))
        return {n for p in probes if p.criterion == "HOSTS" for n in [*p.measures, *p.controls]}

    assert names(f"HOSTS.{name}") - names() == {name}
    # One emulated accelerator has no other to be compared with, but an agreed figure.
    assert names(f"HOSTS.{name}", nodes=1) - names(nodes=1) == {name, "slowed GPU"}
    assert {"slow_gpus", "gemm_hash_differs"} <= names(nodes=1, on_gpu=True) - names(nodes=1)


@pytest.mark.parametrize(
    ("only", "tier", "agreed", "reason"),
    [
        ([], "quick", "quick", ""),
        ([], "soak", "standard", ""),
        (["GANG", "HOSTS"], "quick", "quick", "only GANG and HOSTS were asked for (--only)"),
        ([], "quick", "soak", "tier quick was run, and the contract asks for tier soak"),
    ],
)
def test_what_makes_a_run_partial(only: list[str], tier: str, agreed: str, reason: str) -> None:
    assert partial_reason(only, tier, agreed) == reason


@pytest.mark.parametrize(
    ("tier", "agreed", "nodes", "on_gpu", "seconds"),
    [
        ("quick", "quick", 4, False, RUN_S["quick"]),
        ("quick", "standard", 4, False, RUN_S["standard"]),
        ("standard", "quick", 4, False, RUN_S["quick"]),
        ("quick", "soak", 4, False, None),
        ("quick", "quick", 8, False, None),
        ("quick", "quick", 4, True, None),
    ],
)
def test_a_full_run_has_the_time_of_one_that_was_measured(
    tier: str, agreed: str, nodes: int, on_gpu: bool, seconds: int | None
) -> None:
    owed = owed_event(tier, agreed, ["GANG"], terms=ClusterTerms(), nodes=nodes, on_gpu=on_gpu)
    assert owed["full_run_s"] == seconds


@pytest.mark.parametrize(
    ("ranks", "one_host", "inside"), [(16, False, True), (15, False, False), (16, True, False)]
)
def test_ranks_reduce_inside_nodes_from_two_on(ranks: int, one_host: bool, inside: bool) -> None:
    assert here(nodes=8, ranks=ranks, one_host=one_host).ranks_inside is inside


def test_one_of_several_terms_is_enough() -> None:
    either = ordered("shared", "queue")
    terms = ({}, {"shared": "/shared"}, {"queue": "kueue"})
    found = [either(here(terms=ClusterTerms(**one))) for one in terms]
    assert found == [False, True, True]


def test_which_rows_need_the_shared_folder_and_go_on_without_nodes() -> None:
    assert {id for id, row in CRITERIA.items() if row.keeps_in_shared} == {"HOSTS", "RESTART"}
    assert {id for id, row in CRITERIA.items() if row.reports_lost_nodes} == {"HOSTS"}


def test_only_a_measure_without_a_control_has_a_reason() -> None:
    owed = [probe for tier in TIERS for probe in owed_by(here(tier, terms=ALL, agreed=AGREED))]
    assert any(probe.uncontrolled for probe in owed)
    for probe in owed:
        assert all(probe.uncontrolled.values())
        assert probe.uncontrolled.keys() <= {*probe.measures}


KILLED = "restart/test_restart.py::test_killed_run_resumes_as_if_never_killed"
LOADED = "hosts/test_hosts.py::test_no_gpu_slows_down_under_load"
REPEATED = "restart/test_restart.py::test_a_run_can_be_repeated"


def test_a_test_of_several_cases_takes_its_time_once() -> None:
    cases = [f"{KILLED}[stopped-not-killed]", f"{KILLED}[told-to-leave]"]
    once, more = find_test(KILLED).usual_s, find_test(REPEATED).usual_s
    assert once
    assert more
    assert disturbed_seconds([*cases, REPEATED]) == once + more
    assert disturbed_seconds([*cases, LOADED]) is None  # nobody measured it


FACT: dict[str, Any] = {
    "interfaces": {"eth1": {"address": "10.1.0.1"}, "eth2": {"address": None}},
    "rdma": [{"netdev": "eth1"}],
}


@pytest.mark.parametrize(
    ("fabric", "facts", "has_ip"),
    [
        ("rdma", [FACT], True),
        ("rdma", [{**FACT, "rdma": [{"netdev": "eth2"}]}, FACT], True),
        ("rdma", [{**FACT, "rdma": [{"netdev": "eth2"}]}], False),
        ("rdma", [{**FACT, "rdma": [{"netdev": ""}]}], False),
        ("rdma", [{**FACT, "rdma": [{}]}], True),  # a modified record: it does not say
        ("rdma", [{"rdma": 5}], True),
        ("fab0", [{**FACT, "rdma": []}], True),
        (None, [], True),
    ],
)
def test_only_rdma_without_addresses_has_no_packet_size(
    fabric: str | None, facts: list[dict[str, Any]], has_ip: bool
) -> None:
    assert has_ip_fabric(fabric, facts) is has_ip


def test_a_run_on_gpus_may_be_judged_by_what_only_gpus_show() -> None:
    names = judged_names("quick", ClusterTerms(), frozenset())
    assert {"FABRIC.busbw", "HOSTS.gpus", "GANG.unregistered_use"} <= names
    assert "GANG.deadlocks" not in names, "the standard tier owes it"


def test_of_what_cannot_be_proven_only_the_data_is_owed() -> None:
    def owed(not_provable: frozenset[str]) -> set[str]:
        probes = owed_by(here("quick", not_provable=not_provable))
        return {name for probe in probes if probe.criterion == "FABRIC" for name in probe.measures}

    assert owed(frozenset({"FABRIC"})) == {"wrong_elements"}
    assert owed(frozenset({"FABRIC"})) < owed(frozenset())


def test_a_criterion_needs_one_node_with_one_gpu_unless_it_says_more() -> None:
    least = {id: (row.least_nodes, row.least_gpus) for id, row in CRITERIA.items()}
    more = {"FABRIC": (2, 1), "SCALING": (2, 1), "GANG": (1, 2)}
    assert least == dict.fromkeys(CRITERIA, (1, 1)) | more
