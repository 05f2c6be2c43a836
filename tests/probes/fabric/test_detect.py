"""What FABRIC says of what it saw: slow links, slow groups, uneven rails, the forced road."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.contract.contract import load as contract
from probes.contract.contract import parse
from probes.contract.derived_limits import _fabric_limits, derive_contract
from probes.environment.checks import admitted_facts
from probes.fabric import judge
from probes.fabric import node_pairs as pairs
from probes.fabric.detect import (
    find_off_fabric,
    find_slow_groups,
    find_slow_links,
    find_wrong_links,
    slow_fabric_finding,
)
from probes.fabric.node_pairs import NodeGroupsResult, run_group_search
from probes.fabric.transport import TransportReport
from probes.nccl.parser import read_logs
from probes.nccl.report import judge_log
from reports.measurement import Verdict
from reports.record import ProbeResult
from scaling.collectives.fault_search import FaultSearchResult, search_faults
from tests.recordings.generate.nccl_logs import Job, faulty
from tests.support.controls import recorder as memory_recorder
from tests.support.controls import write_control
from tests.support.rank_parts import Each, groups_of
from tests.support.simulated_links import Cluster
from tests.support.sweep_results import sweep_result

LAB = contract("lab")


def hunt(
    nodes: dict[str, str] | None = None, links: list[tuple[str, str]] | None = None
) -> FaultSearchResult:
    """What a hunt over three nodes found, slow links at half of 0.1 GB/s."""
    names = ["n0", "n1", "n2"]
    slow = {*(links or []), *((a, b) for a in names for b in names if {a, b} & {*(nodes or {})})}
    speeds = {(a, b): 0.05 if (a, b) in slow else 0.1 for a in names for b in names if a != b}
    return FaultSearchResult(speeds, 0.1, nodes or {}, links or [], 3, 0, "3 of 3 pairs")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (hunt(), []),
        (hunt({"n1": "both"}), [["n1"]]),
        (hunt(links=[("n0", "n2"), ("n2", "n0")]), [["n0", "n2"]]),
        (hunt(links=[("n2", "n0")]), [["n2", "n0"]]),
    ],
)
def test_a_slow_link_has_its_place(found: FaultSearchResult, said: list[list[str]]) -> None:
    told = find_slow_links(found)
    assert [one.suspects for one in told] == said
    assert all(one.code == "FAB-SLOW-LINK" for one in told)


@pytest.mark.parametrize(
    ("way", "slow"), [("sends", ("n0", "n1")), ("receives", ("n2", "n0")), ("both", ("n2", "n0"))]
)
def test_a_slow_node_is_shown_with_a_speed_of_the_direction_that_is_slow(
    way: str, slow: tuple[str, str]
) -> None:
    found = hunt()
    speeds = {**found.speeds, slow: 0.02, ("n1", "n2"): 0.01}
    (one,) = find_slow_links(replace(found, speeds=speeds, slow_nodes={"n0": way}))
    assert one.suspects == ["n0"]
    assert "0.02 GB/s. Others: 0.1 GB/s" in one.statement


def test_a_link_that_is_slow_both_ways_is_shown_with_the_slower_one() -> None:
    found = hunt(links=[("n0", "n2"), ("n2", "n0")])
    speeds = {**found.speeds, ("n2", "n0"): 0.02}
    (one,) = find_slow_links(replace(found, speeds=speeds))
    assert one.statement == "the link n0 <-> n2 is slow: 0.02 GB/s. Others: 0.1 GB/s"


def test_without_an_agreed_fabric_no_bytes_are_off_it() -> None:
    assert [*find_off_fabric(sweep_result(0.1, "eth0"), None)] == []


def test_whether_a_fabric_is_slow_is_what_its_limit_says(recorder: Callable[..., Recorder]) -> None:
    agreed, nobody = recorder(), recorder(parse(b"schema = 1\n", "f"))
    assert not agreed.would_fail("busbw", 0.118)
    assert agreed.would_fail("busbw", 0.05)
    assert not nobody.would_fail("busbw", 0.05)


def test_a_fabric_may_be_slow_as_a_whole() -> None:
    found = slow_fabric_finding(sweep_result(0.05))
    assert (found.code, found.suspects) == ("FAB-SLOW", ["n0", "n1", "n2", "n3"])


class Gang:
    """Stands in for one, two ranks a node: what each rank sees, by the group that it is in."""

    def __init__(self, nodes: int, slow: Callable[[set[int]], bool], speed: float = 0.05) -> None:
        self.speed = speed  # of a slow group, GB/s; others have 0.1
        self.places = [SimpleNamespace(node=f"id{at // 2}") for at in range(2 * nodes)]
        self.names = {f"id{at}": f"n{at}" for at in range(nodes)}
        self.slow, self.size = slow, 2 * nodes

    def run(self, function: Any, *_: Any, each: Each, timeout: float) -> list[tuple[float, int]]:
        assert function is pairs.node_groups.group_sweep
        found = [(0.0, 0)] * len(self.places)
        for group in groups_of(each):
            nodes = {rank // 2 for rank in group}
            assert group == sorted(2 * node + rank for node in nodes for rank in (0, 1))
            for rank in group:
                found[rank] = (self.speed if self.slow(nodes) else 0.1, int(rank == 6))
        return found


@pytest.mark.parametrize(
    ("slow", "nodes", "groups"),
    [
        (lambda group: False, [], []),
        (lambda group: 5 in group and len(group) > 2, ["n5"], []),
        (lambda group: {4, 6} <= group, [], [["n4", "n5", "n6", "n7"]]),
    ],
)
def test_groups_of_nodes_show_what_pairs_do_not(
    slow: Callable[[set[int]], bool], nodes: list[str], groups: list[list[str]]
) -> None:
    gang = Gang(16, slow)
    found = run_group_search(gang, gang.names)  # type: ignore[arg-type]  (a stand-in)
    assert (found.nodes, found.groups) == (nodes, groups)
    assert {node for node, count in found.wrong.items() if count} == {"n3"}
    assert "groups of 4 to 4 nodes" in found.coverage


@pytest.mark.parametrize(
    ("speed", "verdict", "codes"),
    [
        (0.05, Verdict.FAIL, {"FAB-SLOW-GROUP", "FAB-WRONG-DATA"}),
        pytest.param(
            *(0.087, Verdict.PASS, {"FAB-WRONG-DATA"}),
            marks=pytest.mark.near_miss("FABRIC.slow_groups"),
        ),
    ],
)
def test_slow_groups_are_judged(
    recorder: Callable[..., Recorder], speed: float, verdict: Verdict, codes: set[str]
) -> None:
    gang, measure = Gang(16, lambda group: 5 in group and len(group) > 2, speed), recorder()
    found = run_group_search(gang, gang.names)  # type: ignore[arg-type]  (a stand-in)
    judge.judge_groups(found, hunt(), measure)
    told = result(measure)
    (groups,) = [one for one in told.measurements if one.name == "slow_groups"]
    assert groups.verdict is verdict
    assert {one.code for one in told.findings} == codes


def test_who_is_slow_in_pairs_is_not_named_again_for_groups() -> None:
    crowds = NodeGroupsResult(["n1", "n7"], [["n1", "n2"], ["n8", "n9"]], {"n4": 3, "n5": 0}, "")
    told = [(one.code, one.suspects) for one in find_slow_groups(crowds, hunt({"n1": "both"}))]
    assert told == [
        ("FAB-SLOW-GROUP", ["n7"]),
        ("FAB-SLOW-GROUP", ["n8", "n9"]),
        ("FAB-WRONG-DATA", ["n4"]),
    ]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([], []),
        ([("n1", "n0"), ("n1", "n2")], [["n1"]]),
        ([("n0", "n2"), ("n1", "n2")], [["n2"]]),
        ([("n0", "n2")], [["n0", "n2"]]),
    ],
)
def test_changed_data_is_located(bad: list[tuple[str, str]], said: list[list[str]]) -> None:
    names = ["n0", "n1", "n2", "n3"]
    links = {(a, b): 0 for a in names for b in names if a != b}
    if said == [["n1"]]:
        bad = [*bad, ("n1", "n3")]
    if said == [["n2"]]:
        bad = [*bad, ("n3", "n2")]
    found = find_wrong_links({**links, **dict.fromkeys(bad, 7)})
    assert [one.suspects for one in found] == said
    assert all(one.code == "FAB-WRONG-LINK" for one in found)
    assert all(f"{7 * len(bad)} wrong elements" in one.statement for one in found)


def result(measure: Recorder) -> ProbeResult:
    """What is judged; a control is there, for without one nothing is proven."""
    write_control(measure)
    return measure.finish("finished", 1.0)


RAILS = parse(b'schema = 1\ntitle = "t"\n[cluster]\nfabric = "rdma"\nrails = 4\n', "f")


@pytest.mark.parametrize(
    ("sent", "verdict", "suspects"),
    [
        ([25, 25, 25, 25], Verdict.PASS, []),
        pytest.param(
            *([28, 26, 24, 22], Verdict.PASS, []),
            marks=pytest.mark.near_miss("FABRIC.rails", "FABRIC.slowest_rail"),
        ),
        ([33, 33, 34, 0], Verdict.FAIL, ["n1", "mlx5_3/1"]),
        ([30, 30, 30, 10], Verdict.FAIL, ["n1", "mlx5_3/1"]),
        ([50, 50], Verdict.FAIL, ["n1"]),
    ],
)
def test_uneven_rails_fail_with_the_rail(
    recorder: Callable[..., Recorder], sent: list[int], verdict: Verdict, suspects: list[str]
) -> None:
    """SYNTHETIC: no InfiniBand sent these bytes."""
    even = {f"mlx5_{at}/1": 25_000 for at in range(4)}
    odd = {f"mlx5_{at}/1": count * 1000 for at, count in enumerate(sent)}
    measure = recorder(RAILS)
    judge.judge_rails(
        sweep_result(100, "rdma", rails={"n0": even, "n1": odd}),
        RAILS.cluster,
        measure,
    )
    found = result(measure)
    assert found.verdict is verdict
    assert [s for one in found.findings for s in one.suspects] == suspects


@pytest.mark.parametrize(
    ("rates", "verdict", "said"),
    [
        ({"n0": 400.0, "n1": 400.0}, Verdict.PASS, []),
        (
            {"n0": 200.0, "n1": 400.0},
            Verdict.FAIL,
            ["n0: each of its 2 rails runs at 200 Gbit/s. Expected:"],
        ),
        (
            {"n0": 400.0, "n1": 200.0},
            Verdict.FAIL,
            ["n1: each of its 2 rails runs at 200 Gbit/s. Expected:"],
        ),
    ],
)
def test_a_node_whose_rails_all_trained_to_half_is_named(
    recorder: Callable[..., Recorder], rates: dict[str, float], verdict: Verdict, said: list[str]
) -> None:
    """SYNTHETIC: without a contract only the other node tells what a rail's rate should be."""
    sent = {"mlx5_0/1": 1000, "mlx5_1/1": 1000}
    measure = recorder(parse(b"schema = 1\n", "f"))
    judge.judge_rails(
        sweep_result(100, "rdma", rails={"n0": sent, "n1": sent}, rail_gbps=rates),
        SimpleNamespace(fabric="rdma", rails=None, line_rate_gbps=None),
        measure,
    )
    found = result(measure)
    assert found.verdict is verdict
    assert [one.statement.partition(" 400")[0] for one in found.findings] == said


def test_rails_that_are_not_active_fail_where_nobody_ordered_a_number(
    recorder: Callable[..., Recorder],
) -> None:
    """SYNTHETIC: two of four rails of every node are not active, so no node tells the other."""
    sent = {"mlx5_0/1": 1000, "mlx5_1/1": 1000}
    run = sweep_result(100, "rdma", rails={"n0": sent, "n1": sent})
    for terms, installed in (
        (SimpleNamespace(fabric="rdma", rails=None, line_rate_gbps=None), 4),
        (
            SimpleNamespace(fabric="rdma", rails=4, line_rate_gbps=None),
            None,
        ),  # as derived, without a contract
    ):
        measure = recorder(derive_contract(None))
        judge.judge_rails(run, terms, measure, installed)
        rails = [m for m in measure.finish("finished", 1.0).measurements if m.name == "rails"]
        assert [m.verdict for m in rails] == [Verdict.FAIL] * 2
        assert "the contract says so" not in rails[0].sentence()


def judge_text(
    recorder: Callable[..., Recorder], folder: Path, text: str, fabric: str
) -> ProbeResult:
    """Judge a sweep with this log of NCCL, where this fabric is agreed."""
    file = folder / "nccl.log"
    file.write_text(text)
    nodes = {f"n{at}": fabric for at in range(4)}
    word = TransportReport("NCCL's log", nodes, report=judge_log(read_logs([file])))
    agreed = parse(f'schema = 1\ntitle = "t"\n[cluster]\nfabric = "{fabric}"\n'.encode(), "f")
    measure = recorder(agreed)
    judge.judge_transport(sweep_result(100, fabric, library=word), fabric, measure)
    return result(measure)


@pytest.mark.parametrize(
    ("fabric", "job", "faults", "verdict"),
    [
        ("rdma", Job(), 0, Verdict.PASS),
        ("rdma", Job(gdr=False), 1, Verdict.FAIL),  # through host memory, however fast
        ("rdma", faulty("2.28.9")["FAB-OPEN-FAILED"], None, Verdict.FAIL),
        pytest.param(  # judged as rails
            *("rdma", faulty("2.28.9")["FAB-PARTIAL-RAILS"], 0, Verdict.PASS),
            marks=pytest.mark.near_miss("FABRIC.log_errors"),
        ),
        ("eth0", faulty("2.28.9")["NCCL-ERROR"], None, Verdict.PASS),
    ],
)
def test_where_rdma_is_agreed_the_faults_of_the_log_are_judged(
    recorder: Callable[..., Recorder],
    tmp_path: Path,
    fabric: str,
    job: Job,
    faults: int | None,
    verdict: Verdict,
) -> None:
    found = judge_text(recorder, tmp_path, job.text(), fabric)
    counts = [one.value for one in found.measurements if one.name == "log_errors"]
    assert (len(counts) == 1) is (fabric == "rdma")
    assert faults is None or counts == [faults]
    bad = {one.name for one in found.measurements if one.verdict is Verdict.FAIL}
    assert bad == ({"log_errors"} if verdict is Verdict.FAIL else set())


def test_sends_that_are_staged_are_neither_a_fault_nor_proven(
    recorder: Callable[..., Recorder], tmp_path: Path
) -> None:
    """Sound without NVLink, and a fault with it: the log does not show which."""
    text, changed = re.subn(r"(\[send\] via NET/\S+?)/GDRDMA", r"\1", Job().text())
    assert changed
    found = judge_text(recorder, tmp_path, text, "rdma")
    (one,) = [one for one in found.measurements if one.name == "log_errors"]
    assert (one.value, one.verdict) == (None, Verdict.UNPROVEN)
    assert one.note == judge.STAGED_SENDS
    assert not found.findings


def test_a_finding_of_the_log_names_its_line_in_the_file_that_is_kept(
    recorder: Callable[..., Recorder], tmp_path: Path
) -> None:
    text = faulty("2.28.9")["NCCL-ERROR"].text()
    file = tmp_path / "nccl.n0.12.log"
    file.write_text(text)
    word = TransportReport(
        source="NCCL's log",
        transports={f"n{at}": "eth0" for at in range(4)},
        report=judge_log(read_logs([file])),
        logs={file.name: gzip.compress(text.encode())},
    )
    measure = recorder(parse(b'schema = 1\ntitle = "t"\n[cluster]\nfabric = "eth0"\n', "f"))
    judge.judge_transport(sweep_result(100, "eth0", library=word), "eth0", measure)
    found = result(measure)
    (place,) = (place for one in found.findings for place in one.evidence)
    path, _, line = place.rpartition(":")
    seen = json.loads((measure.store.path / "evidence" / "networks.json").read_text())
    assert seen["NCCL's log"] == word.transports
    said = (measure.store.path / path).read_text().splitlines()[int(line) - 1]
    assert "NCCL WARN" in said
    # A trial keeps no file: the place is that of the log.
    trial = measure.trial()
    judge.judge_transport(sweep_result(100, "eth0", library=word), "eth0", trial)
    assert [one.evidence for one in trial.findings] == [[f"{file.name}:{line}"]]


def fact(node: str, ports: int, storage: int) -> dict[str, Any]:
    """SYNTHETIC: a node's RDMA ports in sysfs, those for storage as fast as its rails."""
    usual = {"port": "1", "rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE"}
    names = [f"mlx5_{at}" for at in range(ports + storage)]
    found = [{**usual, "device": name, "link_layer": "InfiniBand"} for name in names]
    return {"node": node, "host": node, "rdma": found, "interfaces": {}}


def test_without_a_contract_ports_for_storage_do_not_raise_the_limit() -> None:
    facts = [fact("a", 8, 2), fact("b", 8, 2)]
    rails = "=" + ",".join(f"mlx5_{at}" for at in range(8))
    limits = {
        told: _fabric_limits(facts, admitted_facts(facts, dict.fromkeys("ab", told)), "rdma")[
            "busbw"
        ]
        for told in ("", rails)
    }
    assert [limit.low for limit in limits.values()] == [pytest.approx(400), pytest.approx(320)]
    assert "NCCL_IB_HCA" not in limits[""].because
    assert "(without mlx5_8/1, mlx5_9/1, which NCCL_IB_HCA excludes)" in limits[rails].because


def test_bytes_that_no_port_counts_accuse_nobody() -> None:
    """As over NVLink between hosts: what shows on eth0 is the rendezvous alone."""
    run = sweep_result(400.0)
    away = {node: {"rdma": 0, "eth0": 300_000} for node in run.sent}  # 2 % of what was sent
    lost, probe = replace(run, sent=away), memory_recorder("FABRIC")
    judge.judge_transport(lost, "rdma", probe)
    found = {one.name: one for one in probe.result("finished", 1.0).measurements if one.judged}
    for name in ("network", "fabric_share", "share_on_other_networks"):
        assert found[name].verdict is Verdict.UNPROVEN
        assert found[name].note == (
            "no network port of n0, n1, n2, n3 counted the bytes that were sent"
        )
    seen = replace(run, sent={node: {"rdma": 0, "eth0": 800_000} for node in run.sent})
    probe = memory_recorder("FABRIC")
    judge.judge_transport(seen, "rdma", probe)  # 5 % and more: another road, as far as is known
    found = {one.name: one for one in probe.result("finished", 1.0).measurements if one.judged}
    assert found["network"].value == "eth0"
    assert found["fabric_share"].verdict is Verdict.FAIL


def test_most_links_are_slower_than_the_best() -> None:
    cluster = Cluster(8, sends={f"n{at}": 0.49 for at in range(7)}, noise=0, dips=0)
    found = search_faults(cluster.nodes, cluster.meet, matrix=True)
    assert found.typical == 50
    (told,) = find_slow_links(found)
    assert told.suspects == [f"n{at}" for at in range(7)]
    assert told.statement == (
        "links: most are slower than the best, 49 of 56 links (n0 sends, n1 sends, n2 sends, "
        "n3 sends, n4 sends, n5 sends, n6 sends): 24.5 GB/s or less. n7 -> n0 shows "
        "that 50 GB/s is possible"
    )
