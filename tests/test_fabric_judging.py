"""What FABRIC says of what it saw: slow links, slow groups, uneven rails, the forced road."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes import pairs, test_fabric
from probes.contract import load as contract
from probes.contract import parse
from probes.fabric_findings import (
    is_slow,
    slow_everywhere,
    slow_in_groups,
    slow_links,
    wrong_links,
)
from probes.ledger import Ledger
from probes.pairs import Crowds, slow_groups
from probes.roads import Journey
from probes.witness import Witness
from reports.record import ProbeResult, Verdict
from reports.store import Store
from scaling.search import Hunt

ROW = {"placement": "in_place", "calls": 10, "wrong": 0, "first_wrong": [], "spread": 0.0}
LAB = contract("lab")


def hunt(nodes: dict[str, str] | None = None, links: list[tuple[str, str]] | None = None) -> Hunt:
    """What a hunt over three nodes found, slow links at half of 0.1 GB/s."""
    names = ["n0", "n1", "n2"]
    slow = {*(links or []), *((a, b) for a in names for b in names if {a, b} & {*(nodes or {})})}
    speeds = {(a, b): 0.05 if (a, b) in slow else 0.1 for a in names for b in names if a != b}
    return Hunt(speeds, 0.1, nodes or {}, links or [], 3, 0, "3 of 3 pairs")


def journey(busbw: float, road: str = "fab0", size: int = 1 << 20, **more: Any) -> Journey:
    """Ten calls among four ranks, whose bytes took this road."""
    row = {**ROW, "size": size, "busbw": busbw}
    sent = {f"n{at}": {road: size * 15} for at in range(4)}  # 2 x 3/4 of each call
    return Journey(ranks=4, backend="gloo", rows=[row], sent=sent, **more)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (hunt(), []),
        (hunt({"n1": "both"}), [["n1"]]),
        (hunt(links=[("n0", "n2"), ("n2", "n0")]), [["n0", "n2"]]),
        (hunt(links=[("n2", "n0")]), [["n2", "n0"]]),
    ],
)
def test_a_slow_link_has_its_place(found: Hunt, said: list[list[str]]) -> None:
    told = slow_links(found)
    assert [one.suspects for one in told] == said
    assert all(one.code == "FAB-SLOW-LINK" for one in told)


def test_a_fabric_may_be_slow_as_a_whole() -> None:
    limit = LAB.limit("FABRIC", "busbw")
    assert not is_slow(journey(0.118), limit)
    assert not is_slow(journey(0.05), None)
    assert is_slow(journey(0.05), limit)
    found = slow_everywhere(journey(0.05))
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
    found = slow_groups(gang, gang.names)  # type: ignore[arg-type]  (a stand-in)
    assert (found.nodes, found.groups) == (nodes, groups)
    assert {node for node, count in found.wrong.items() if count} == {"n3"}
    assert "groups of 4 to 4 nodes" in found.coverage


def test_who_is_slow_in_pairs_is_not_named_again_for_groups() -> None:
    crowds = Crowds(["n1", "n7"], [["n1", "n2"], ["n8", "n9"]], {"n4": 3, "n5": 0}, "")
    told = [(one.code, one.suspects) for one in slow_in_groups(crowds, hunt({"n1": "both"}))]
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
    found = wrong_links({**links, **dict.fromkeys(bad, 7)})
    assert [one.suspects for one in found] == said
    assert all(one.code == "FAB-WRONG-LINK" for one in found)
    assert all(f"{7 * len(bad)} wrong elements" in one.statement for one in found)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Callable[..., Ledger]]:
    """`ledger(contract)`: a real one, of FABRIC."""
    stores: list[Store] = []

    def make(agreed: Any = LAB) -> Ledger:
        stores.append(Store(tmp_path / f"run-{len(stores)}"))
        return Ledger(stores[-1], agreed, "p", "FABRIC", "claim", "again", lambda words: None)

    yield make
    for store in stores:
        store.close()


def result(measure: Ledger) -> ProbeResult:
    """What is judged; a control is there, for without one nothing is proven."""
    measure.control("c", "fault", caught=True, saw="it")
    return measure.finish("finished", 1.0)


RAILS = parse(
    b'schema = 1\ntitle = "t"\n[cluster]\nfabric = "rdma"\nrails = 4\nline_rate_gbps = 400\n', "f"
)


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
    ledger: Callable[..., Ledger], sent: list[int], verdict: Verdict, suspects: list[str]
) -> None:
    """SYNTHETIC: no InfiniBand sent these bytes."""
    even = {f"mlx5_{at}/1": 25_000 for at in range(4)}
    odd = {f"mlx5_{at}/1": count * 1000 for at, count in enumerate(sent)}
    measure = ledger(RAILS)
    test_fabric.judge_rails(
        journey(100, "rdma", rails={"n0": even, "n1": odd}),
        RAILS.cluster,
        lambda name: RAILS.limit("FABRIC", name),
        measure,
    )
    found = result(measure)
    assert found.verdict is verdict
    assert [s for one in found.findings for s in one.suspects] == suspects


TERMS = SimpleNamespace(fabric="fab0", management="eth0")
RDMA = SimpleNamespace(fabric="rdma", management=None)


def astray(road: str, said: str, busbw: float = 10.0) -> Journey:
    """The forced run, as the counters and the library show it."""
    word = Witness("NCCL's log", {f"n{at}": said for at in range(4)})
    return journey(busbw, road, word=word)


@pytest.mark.parametrize(
    ("forced", "straight", "terms", "seen"),
    [
        (astray("eth0", "eth0"), None, TERMS, True),
        (astray("fab0", "fab0"), None, TERMS, False),  # it went where it always goes
        (astray("eth0", "fab0"), None, TERMS, False),  # the library does not show it
        (astray("ib0", "ib0"), None, TERMS, False),  # another road than the one that was forced
        (astray("eth0", "tcp"), journey(300, "rdma"), RDMA, True),
        (astray("eth0", "tcp", 299.0), journey(300, "rdma"), RDMA, False),  # as fast as RDMA
        (astray("rdma", "rdma"), journey(300, "rdma"), RDMA, False),
    ],
)
def test_the_forced_road_must_look_different_to_all_who_look(
    forced: Journey, straight: Journey | None, terms: Any, seen: bool
) -> None:
    assert test_fabric.noticed(forced, straight, terms) is seen


def test_half_of_the_bytes_on_the_forced_road_is_not_seen_as_forced() -> None:
    half = astray("eth0", "eth0")
    half.sent["n2"] = {"eth0": half.sent["n2"]["eth0"] // 2}
    assert not test_fabric.noticed(half, None, TERMS)
