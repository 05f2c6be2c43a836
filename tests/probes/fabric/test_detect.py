"""What FABRIC says of what it saw: slow links, slow groups, uneven rails, the forced road."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.acceptance.contract import load as contract
from probes.acceptance.contract import parse
from probes.acceptance.derived_limits import _fabric_limits
from probes.acceptance.measure import Recorder
from probes.fabric import controls, judge
from probes.fabric import node_pairs as pairs
from probes.fabric.detect import (
    find_slow_groups,
    find_slow_links,
    find_wrong_links,
    slow_fabric_finding,
)
from probes.fabric.library_report import TransportReport
from probes.fabric.node_pairs import NodeGroupsResult, run_group_search
from probes.fabric.sweep import SweepResult
from probes.nccl.parser import read_logs
from probes.nccl.report import judge_log
from reports.record import ProbeResult, Verdict
from reports.store import Store
from scaling.collectives.fault_search import FaultSearchResult
from tests.recordings.generate.nccl_logs import Job, faulty

ROW = {"placement": "in_place", "calls": 10, "wrong": 0, "first_wrong": [], "spread": 0.0}
LAB = contract("lab")


def hunt(
    nodes: dict[str, str] | None = None, links: list[tuple[str, str]] | None = None
) -> FaultSearchResult:
    """What a hunt over three nodes found, slow links at half of 0.1 GB/s."""
    names = ["n0", "n1", "n2"]
    slow = {*(links or []), *((a, b) for a in names for b in names if {a, b} & {*(nodes or {})})}
    speeds = {(a, b): 0.05 if (a, b) in slow else 0.1 for a in names for b in names if a != b}
    return FaultSearchResult(speeds, 0.1, nodes or {}, links or [], 3, 0, "3 of 3 pairs")


def journey(busbw: float, road: str = "fab0", size: int = 1 << 20, **more: Any) -> SweepResult:
    """Ten calls among four ranks, whose bytes took this road."""
    row = {**ROW, "size": size, "busbw": busbw}
    sent = {f"n{at}": {road: size * 15} for at in range(4)}  # 2 x 3/4 of each call
    return SweepResult(ranks=4, backend="gloo", rows=[row], sent=sent, **more)


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


def test_whether_a_fabric_is_slow_is_what_its_limit_says(ledger: Callable[..., Recorder]) -> None:
    agreed, nobody = ledger(), ledger(parse(b"schema = 1\n", "f"))
    assert not agreed.would_fail("busbw", 0.118)
    assert agreed.would_fail("busbw", 0.05)
    assert not nobody.would_fail("busbw", 0.05)


def test_a_fabric_may_be_slow_as_a_whole() -> None:
    found = slow_fabric_finding(journey(0.05))
    assert (found.code, found.suspects) == ("FAB-SLOW", ["n0", "n1", "n2", "n3"])


class Gang:
    """Stands in for one, two ranks a node: what each rank sees, by the group that it is in."""

    def __init__(self, nodes: int, slow: Callable[[set[int]], bool]) -> None:
        self.places = [SimpleNamespace(node=f"id{at // 2}") for at in range(2 * nodes)]
        self.names = {f"id{at}": f"n{at}" for at in range(nodes)}
        self.slow = slow

    def run(
        self, function: Any, groups: list[list[int]], timeout: float
    ) -> list[tuple[float, int]]:
        assert function is pairs.group_sweep
        found = [(0.0, 0)] * len(self.places)
        for group in groups:
            nodes = {rank // 2 for rank in group}
            assert group == sorted(2 * node + rank for node in nodes for rank in (0, 1))
            for rank in group:
                found[rank] = (0.05 if self.slow(nodes) else 0.1, int(rank == 6))
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


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """`ledger(contract)`: a real one, of FABRIC."""
    stores: list[Store] = []

    def make(agreed: Any = LAB) -> Recorder:
        stores.append(Store(tmp_path / f"run-{len(stores)}"))
        return Recorder(stores[-1], agreed, "p", "FABRIC", "claim", "again", lambda words: None)

    yield make
    for store in stores:
        store.close()


def result(measure: Recorder) -> ProbeResult:
    """What is judged; a control is there, for without one nothing is proven."""
    measure.control("c", "fault", caught=True, saw="it")
    return measure.finish("finished", 1.0)


RAILS = parse(b'schema = 1\ntitle = "t"\n[cluster]\nfabric = "rdma"\nrails = 4\n', "f")


@pytest.mark.parametrize(
    ("sent", "verdict", "suspects"),
    [
        ([25, 25, 25, 25], Verdict.PASS, []),
        ([33, 33, 34, 0], Verdict.FAIL, ["n1", "mlx5_3/1"]),
        ([30, 30, 30, 10], Verdict.FAIL, ["n1", "mlx5_3/1"]),
        ([50, 50], Verdict.FAIL, ["n1"]),
    ],
)
def test_uneven_rails_fail_with_the_rail(
    ledger: Callable[..., Recorder], sent: list[int], verdict: Verdict, suspects: list[str]
) -> None:
    """SYNTHETIC: no InfiniBand sent these bytes."""
    even = {f"mlx5_{at}/1": 25_000 for at in range(4)}
    odd = {f"mlx5_{at}/1": count * 1000 for at, count in enumerate(sent)}
    measure = ledger(RAILS)
    judge.judge_rails(
        journey(100, "rdma", rails={"n0": even, "n1": odd}),
        RAILS.cluster,
        lambda name: RAILS.limit("FABRIC", name),
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
            ["n0: its 2 rails run at 200 Gbit/s, others at"],
        ),
        (
            {"n0": 400.0, "n1": 200.0},
            Verdict.FAIL,
            ["n1: its 2 rails run at 200 Gbit/s, others at"],
        ),
    ],
)
def test_a_node_whose_rails_all_trained_to_half_is_named(
    ledger: Callable[..., Recorder], rates: dict[str, float], verdict: Verdict, said: list[str]
) -> None:
    """SYNTHETIC: without a contract only the other node tells what a rail's rate should be."""
    sent = {"mlx5_0/1": 1000, "mlx5_1/1": 1000}
    measure, nobody = ledger(), parse(b"schema = 1\n", "f")
    judge.judge_rails(
        journey(100, "rdma", rails={"n0": sent, "n1": sent}, rail_gbps=rates),
        SimpleNamespace(fabric="rdma", rails=None),
        lambda name: nobody.limit("FABRIC", name),
        measure,
    )
    found = result(measure)
    assert found.verdict is verdict
    assert [one.statement.partition(" 400")[0] for one in found.findings] == said


@pytest.mark.parametrize(
    ("fabric", "job", "faults", "verdict"),
    [
        ("rdma", Job(), 0, Verdict.PASS),
        ("rdma", Job(gdr=False), 1, Verdict.FAIL),  # through host memory, however fast
        ("rdma", faulty("2.28.9")["FAB-OPEN-FAILED"], None, Verdict.FAIL),
        ("rdma", faulty("2.28.9")["FAB-PARTIAL-RAILS"], 0, Verdict.PASS),  # judged as rails
        ("eth0", faulty("2.28.9")["NCCL-ERROR"], None, Verdict.PASS),
    ],
)
def test_where_rdma_is_agreed_the_faults_of_the_log_are_judged(
    ledger: Callable[..., Recorder],
    tmp_path: Path,
    fabric: str,
    job: Job,
    faults: int | None,
    verdict: Verdict,
) -> None:
    file = tmp_path / "nccl.log"
    file.write_text(job.text())
    nodes = {f"n{at}": fabric for at in range(4)}
    word = TransportReport("NCCL's log", nodes, report=judge_log(read_logs([file])))
    agreed = parse(f'schema = 1\ntitle = "t"\n[cluster]\nfabric = "{fabric}"\n'.encode(), "f")
    measure = ledger(agreed)
    judge.judge_transport(journey(100, fabric, library=word), fabric, measure)
    found = result(measure)
    counts = [one.value for one in found.measurements if one.name == "log_errors"]
    assert (len(counts) == 1) is (fabric == "rdma")
    assert faults is None or counts == [faults]
    bad = {one.name for one in found.measurements if one.verdict is Verdict.FAIL}
    assert bad == ({"log_errors"} if verdict is Verdict.FAIL else set())


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
        told: _fabric_limits(facts, "rdma", dict.fromkeys("ab", told) if told else {})["busbw"]
        for told in ("", rails)
    }
    assert [limit.low for limit in limits.values()] == [pytest.approx(425), pytest.approx(340)]
    assert "NCCL_IB_HCA" not in limits[""].because
    assert "(without mlx5_8/1, mlx5_9/1, which NCCL_IB_HCA leaves out)" in limits[rails].because


LAN = SimpleNamespace(fabric="fab0", management="eth0", management_gbps=None)
RDMA = SimpleNamespace(fabric="rdma", management=None)
BOTH = SimpleNamespace(fabric="rdma", management="eth0")


def astray(road: str, said: str, busbw: float = 10.0) -> SweepResult:
    """The forced run, as the counters and the library show it."""
    word = TransportReport("NCCL's log", {f"n{at}": said for at in range(4)})
    return journey(busbw, road, library=word)


def spread(*roads: str) -> SweepResult:
    """A forced run over several interfaces at once."""
    found = astray("eth0", "tcp")
    for node, sent in list(found.sent.items()):
        part = sum(sent.values()) // len(roads)
        found.sent[node] = dict.fromkeys(roads, part)
    return found


@pytest.mark.parametrize(
    ("forced", "terms", "seen"),
    [
        (astray("eth0", "eth0"), LAN, True),
        (astray("fab0", "fab0"), LAN, False),  # it went where it always goes
        (astray("eth0", "fab0"), LAN, False),  # the library does not show it
        (astray("ib0", "ib0"), LAN, False),  # another road than the one that was forced
        (astray("eth0", "tcp"), RDMA, True),
        (astray("rdma", "rdma"), RDMA, False),
        (spread(*(f"ib{at}" for at in range(8))), RDMA, True),
        (spread(*(f"ens{at}np" for at in range(10))), RDMA, True),
        (spread("eth0", "rdma"), RDMA, False),  # half of it
        (astray("eth0", "tcp"), BOTH, True),
        (spread("eth0", "eth1"), BOTH, False),  # one of them was forced
    ],
)
def test_the_forced_road_must_look_different_to_all_who_look(
    forced: SweepResult, terms: Any, seen: bool
) -> None:
    assert controls.forced_path_observed(forced, terms) is seen


def test_half_of_the_bytes_on_the_forced_road_is_not_seen_as_forced() -> None:
    half = astray("eth0", "eth0")
    half.sent["n2"] = {"eth0": half.sent["n2"]["eth0"] // 2}
    assert not controls.forced_path_observed(half, LAN)


def test_each_node_may_call_its_port_otherwise() -> None:
    found = astray("eth0", "tcp")
    for at, node in enumerate(found.sent):
        found.sent[node] = {f"ens{at}": found.sent[node]["eth0"]}
    assert controls.forced_path_observed(found, RDMA)
    assert "bytes on ens0, ens1, ens2, ens3, NCCL's log: tcp" in controls.describe_forced_run(found)


def port(mbits: int | None) -> list[dict[str, Any]]:
    """What a node says of its management port."""
    return [{"host": "n0", "interfaces": {"eth0": {"speed": mbits}}}]


SLOW = SimpleNamespace(fabric="fab0", management="eth0", management_gbps=0.2)


@pytest.mark.parametrize(
    ("forced", "straight", "terms", "speed", "slower", "says"),
    [
        (10.0, 300, RDMA, None, True, "straight 300.000 GB/s"),
        (299.0, 300, RDMA, None, False, "straight 300.000 GB/s"),  # as fast as RDMA
        (10.0, None, RDMA, None, False, "no straight run"),
        (0.024, 0.118, SLOW, None, True, "straight 0.118 GB/s"),
        (0.117, 0.118, SLOW, None, False, "straight 0.118 GB/s"),  # it cannot have gone there
        (0.024, None, SLOW, None, False, "no straight run"),
        (1.1, 11.0, LAN, 10_000, True, "straight 11.000 GB/s"),
        (10.9, 11.0, LAN, 10_000, False, "straight 11.000 GB/s"),
        (10.9, 11.0, LAN, 100_000, None, "eth0 may carry too: bandwidth is not compared"),
        (10.9, 11.0, LAN, None, None, "management_gbps"),
    ],
)
def test_a_slower_road_must_show_less_bandwidth(
    forced: float,
    straight: float | None,
    terms: Any,
    speed: int | None,
    slower: bool | None,
    says: str,
) -> None:
    usual = journey(straight, terms.fabric) if straight else None
    found, said = controls.forced_run_is_slower(
        astray("eth0", "eth0", forced), usual, terms, port(speed)
    )
    assert found is slower
    assert says in said


class Cluster:
    """Stands in for one without GPUs: what is forced is asked of the gang that there is."""

    on_gpu, node_names, facts = False, {}, port(None)


@pytest.mark.parametrize(("forced", "seen"), [(0.024, True), (0.117, False)])
def test_the_control_is_caught_where_all_of_it_shows(
    ledger: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch, forced: float, seen: bool
) -> None:
    run = astray("eth0", "eth0", forced)
    monkeypatch.setattr(controls, "run_sweep", lambda *_, **__: run)
    monkeypatch.setattr(controls, "gang_env", lambda *_: {})
    measure = ledger()
    usual = journey(0.118, "fab0")
    logs: Any = SimpleNamespace(cluster=Cluster)
    controls.control_off_fabric(None, LAB.cluster, usual, logs, measure)
    (control,) = measure.finish("finished", 1.0).controls
    assert control.caught is seen
    assert "straight 0.118 GB/s" in control.saw
