"""Rails that meet all at once first: who is named, and how many rounds that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.network_facts import RDMA
from probes.fabric import judge, links
from probes.fabric.addresses import RailRanks, find_rails, node_of
from probes.fabric.node_pairs import MIN_RATIO, PairSearch, run_pair_search
from probes.fabric.rails import is_own_rail
from reference_trainer.launch.gang import GangError
from reports.measurement import Verdict
from reports.record import ProbeResult
from scaling.collectives.fault_search import Link, search_rails
from scaling.collectives.node_groups import BOTH_WAYS, ONE_WAY, RankMeetings
from tests.support.controls import recorder
from tests.support.rank_parts import Each, rounds_of
from tests.support.sweep_results import sweep_result

RATE, SIZE, TRIES, PACKET = 50.0, 256 << 20, 6, 4096
MAX_LOST = 1e-3


@dataclass
class Fleet:
    """Nodes of several rails that meet on request; a share of 1 is the full rate, one way.

    `links` are slow one way, by (sender's port, receiver's).  `loaded` are so while several rails
    of their nodes send.  `shared` is the rate of all rails of
    a node together.  Nodes of `half_duplex` send and receive with one rate together.  `joint`: both
    directions end together, as with NCCL.  `lost` are shares of packets, `off` are links that leave
    over eth0.  RDMA counts all ports of a node together.
    """

    nodes: int = 8
    rails: int = 8
    fabric: str = RDMA
    joint: bool = True
    links: dict[Link, float] = field(default_factory=dict)
    loaded: dict[Link, float] = field(default_factory=dict)
    shared: dict[str, float] = field(default_factory=dict)
    half_duplex: set[str] = field(default_factory=set)
    lost: dict[Link, float] = field(default_factory=dict)
    off: set[Link] = field(default_factory=set)
    others_bytes: float = 0.0  # of other jobs on eth0, as a share of what a rank sends
    dies_at_once: bool = False
    table: list[tuple[tuple[str, ...], list[list[int]]]] = field(default_factory=list)
    now: list[list[int]] = field(default_factory=list)  # the pairs that meet

    def __post_init__(self) -> None:
        self.size = self.nodes * self.rails
        names = [f"n{rank // self.rails}" for rank in range(self.size)]
        if self.fabric != RDMA:
            self.fabric = ",".join(f"fab{at}" for at in range(self.rails))
        self.places = [SimpleNamespace(node=name) for name in names]
        backend = "nccl" if self.fabric == RDMA else "gloo"
        self.found: list[RailRanks] = find_rails(names, self.fabric, backend)
        self.port_of = {rank: port for one in self.found for port, rank in one.ports.items()}
        self.fabric_of = {port: str(one.fabric) for one in self.found for port in one.ports}

    def run(
        self, function: Any, repeats: int, _: Any, reader: Any, slow: Any, ways: Any, *, each: Each,
        **__: Any,
    ) -> list[RankMeetings]:  # fmt: skip
        if self.dies_at_once and ways == (BOTH_WAYS,):
            raise GangError("rank 2 does not answer")
        found = [RankMeetings() for _ in self.places]
        for pairs in rounds_of(each):
            self.table.append((ways, pairs))
            self.now = pairs
            per_node = Counter(node_of(self.port_of[rank]) for pair in pairs for rank in pair)
            for pair in pairs:
                for a, b in (pair, pair[::-1]):
                    one_way = RATE * self.able(a, b, per_node, 1)
                    both = RATE * self.able(a, b, per_node, 2)
                    if self.joint:
                        both = min(both, RATE * self.able(b, a, per_node, 2))
                    if ONE_WAY in ways:
                        found[b].received[a] = one_way, 0
                        found[a].sent[b] = self.readings([(a, b)], (a, b), TRIES)
                    if BOTH_WAYS in ways:
                        found[b].exchanged[a] = both, 0, TRIES * SIZE
                    if ways == (BOTH_WAYS,):
                        every = [link for one in pairs for link in (one, one[::-1])]
                        found[a].sent[b] = self.readings(every, (a, b), 1)
        return found

    def able(self, a: int, b: int, per_node: Counter[str], directions: int) -> float:
        """The share of the rate of this link, while so many ranks of each node send."""
        sender, receiver = self.port_of[a], self.port_of[b]
        shares = [1.0, self.links.get((sender, receiver), 1.0)]
        if per_node[node_of(sender)] > 1:
            shares.append(self.loaded.get((sender, receiver), 1.0))
        for node in (node_of(sender), node_of(receiver)):
            shares.append(self.shared.get(node, self.rails) / per_node[node])
            shares.append(1 / directions if node in self.half_duplex else 1.0)
        return min(shares)

    def readings(self, every: list[Any], own: tuple[int, int], parts: int) -> list[dict[str, Any]]:
        """What the sender of a link reads, in so many parts of all tries."""
        node = node_of(self.port_of[own[0]])
        mine = [link for link in every if node_of(self.port_of[link[0]]) == node]
        grown: Counter[str] = Counter({"eth0": int(self.others_bytes * TRIES * SIZE)})
        packets = {"rdma": Counter[str](), "tcp": Counter[str]()}
        for a, b in mine:
            link = self.port_of[a], self.port_of[b]
            kind = "rdma" if self.fabric == RDMA else "tcp"
            grown["eth0" if link in self.off else self.fabric_of[link[0]]] += TRIES * SIZE
            if kind == "rdma" or (a, b) == own:  # TCP's are those of the rank's own connections
                packets[kind]["sent"] += TRIES * SIZE // PACKET
                packets[kind]["resent"] += round(self.lost.get(link, 0) * TRIES * SIZE / PACKET)
        devices = dict.fromkeys([*self.fabric_of.values(), "eth0"], 0)
        return [
            {
                "bytes": {name: grown[name] * at // parts for name in devices},
                "tcp": {name: packets["tcp"][name] * at // parts for name in ("sent", "resent")}
                | {"twice": 0},
                "rdma": {name: packets["rdma"][name] * at // parts for name in ("sent", "resent")},
            }
            for at in range(parts + 1)
        ]

    def search(self, full: bool = False) -> PairSearch:
        gang: Any = self
        return run_pair_search(gang, {}, MAX_LOST, full, self.found)

    def count(self, *ways: str) -> int:
        """How many rounds met in just these ways."""
        return sum(met == ways for met, _ in self.table)


def judged(fleet: Fleet, found: PairSearch) -> ProbeResult:
    """What FABRIC says of these pairs."""
    measure = recorder("FABRIC")
    expected = {link: fleet.fabric_of[link[0]] for link in found.sent}
    run = sweep_result(0.1, rank_nodes=[place.node for place in fleet.places])
    off = links.links_off(found, expected)
    shares = links.name_links(found.lost)
    links.record_worst(measure, links.check.LOST_PACKETS, shares, links.UNCOUNTED)
    measure.explain(links.find_loss(found.lossy, found.lost, {}, MAX_LOST, []))
    links.judge_networks(found, expected, {}, measure)
    slow = links.unexplained(found, off)
    judge.judge_pairs(found, slow, run, measure)
    return measure.result("finished", 1.0)


def told(result: ProbeResult) -> list[tuple[str, list[str]]]:
    return [(one.code, one.suspects) for one in result.findings]


def failed(result: ProbeResult) -> set[str]:
    return {one.name for one in result.measurements if one.verdict is Verdict.FAIL}


def sends(port: str, share: float, fleet: Fleet) -> None:
    """All that this port sends is slow."""
    rail = next(one for one in fleet.found if port in one.ports)
    fleet.links |= {(port, peer): share for peer in rail.ports if peer != port}


every_fabric = pytest.mark.parametrize("fleet_of", [(RDMA, True), ("", False)], ids=["rdma", "tcp"])
Kind = tuple[str, bool]


def rail_name(fleet: Fleet, at: int) -> str:
    return fleet.found[at].name


@every_fabric
def test_sound_rails_meet_all_at_once_and_then_each_rail_alone_once(fleet_of: Kind) -> None:
    fleet = Fleet(fabric=fleet_of[0], joint=fleet_of[1])
    found = fleet.search()
    assert (fleet.count(BOTH_WAYS), fleet.count(ONE_WAY, BOTH_WAYS)) == (7, 8)
    assert len(fleet.table) <= 16, "rail by rail alone it took 63"
    assert len(found.speed.speeds) == 8 * 8 * 7
    result = judged(fleet, found)
    assert (told(result), failed(result)) == ([], set())
    assert "192 of these pairs were tested with all rails at once only" in found.speed.coverage


@pytest.mark.parametrize(("nodes", "rounds"), [(2, 1), (3, 3), (7, 7), (9, 2), (32, 2)])
def test_sound_clusters_of_other_sizes_take_no_more(nodes: int, rounds: int) -> None:
    fleet = Fleet(nodes, 4)
    result = judged(fleet, fleet.search())
    assert (told(result), failed(result)) == ([], set())
    assert [fleet.count(BOTH_WAYS), fleet.count(ONE_WAY, BOTH_WAYS)] == [rounds, 4]
    assert fleet.count(ONE_WAY) == 0


@every_fabric
@pytest.mark.parametrize("nodes", [8, 12])
def test_one_slow_rail_of_eight_in_one_direction_is_named(fleet_of: Kind, nodes: int) -> None:
    fleet = Fleet(nodes, fabric=fleet_of[0], joint=fleet_of[1])
    port = f"{rail_name(fleet, 3)} on n2"
    sends(port, 0.4, fleet)
    result = judged(fleet, found := fleet.search())
    assert told(result) == [("FAB-SLOW-LINK", ["n2", port])]
    assert f"the links of {port} are slow when it sends: 20 GB/s. " in result.findings[0].statement
    assert found.speed.slow_nodes == {port: "sends"}
    assert "slowest_pair" in failed(result)
    assert fleet.count(ONE_WAY) < 12, "one port: its pairs alone, and two more with good ones"


@every_fabric
def test_one_slow_link_of_a_rail_is_named_once(fleet_of: Kind) -> None:
    fleet = Fleet(fabric=fleet_of[0], joint=fleet_of[1])
    name = rail_name(fleet, 5)
    fleet.links = {(f"{name} on n1", f"{name} on n4"): 0.5}
    result = judged(fleet, fleet.search())
    (found,) = result.findings
    assert found.code == "FAB-SLOW-LINK"
    assert f"the link {name} on n1 -> {name} on n4 is slow: " in found.statement
    assert fleet.count(ONE_WAY) <= 3


@pytest.mark.near_miss("FABRIC.slowest_pair")
@every_fabric
def test_a_rail_that_is_a_little_slower_is_not_named(fleet_of: Kind) -> None:
    fleet = Fleet(fabric=fleet_of[0], joint=fleet_of[1])
    sends(f"{rail_name(fleet, 3)} on n2", 0.9, fleet)
    result = judged(fleet, fleet.search())
    assert (told(result), failed(result)) == ([], set())
    assert len(fleet.table) <= 16


@every_fabric
def test_rails_that_share_a_switch_on_every_node_are_named_so(fleet_of: Kind) -> None:
    fleet = Fleet(fabric=fleet_of[0], joint=fleet_of[1])
    fleet.shared = {f"n{at}": 4.0 for at in range(8)}  # two to one
    result = judged(fleet, found := fleet.search())
    assert told(result) == [("FAB-RAILS-SHARED", [f"n{at}" for at in range(8)])]
    assert result.findings[0].statement == (
        "8 rails of each node send at once and reach 25 GB/s each. One rail alone: 50 GB/s"
    )
    assert (found.speed.slow_nodes, found.speed.slow_links) == ({}, [])


def test_a_link_that_sharing_hides_is_named_by_its_own_rounds() -> None:
    """At half its speed a rail cannot vouch for a link that alone has 60 %: all meet alone."""
    fleet = Fleet()
    fleet.shared = {f"n{at}": 4.0 for at in range(8)}
    fleet.links = {("rail 2 on n1", "rail 2 on n6"): 0.6}
    assert [code for code, _ in told(judged(fleet, fleet.search()))] == [
        "FAB-SLOW-LINK",
        "FAB-RAILS-SHARED",
    ]


@pytest.mark.near_miss("FABRIC.slowest_pair")
def test_rails_that_share_a_little_are_not_named() -> None:
    fleet = Fleet()
    fleet.shared = {f"n{at}": 7.2 for at in range(8)}
    result = judged(fleet, fleet.search())
    assert (told(result), failed(result)) == ([], set())
    assert len(fleet.table) <= 16


def test_a_node_whose_rails_share_a_switch_is_named_when_all_send() -> None:
    fleet = Fleet(shared={"n5": 4.0})
    (found,) = judged(fleet, fleet.search()).findings
    assert (found.code, found.suspects) == ("FAB-SLOW-LINK", ["n5"])
    assert "with all rails at once" in found.statement


@every_fabric
def test_a_link_that_is_slow_under_load_alone_meets_again_under_load(fleet_of: Kind) -> None:
    """Without the others it is fast: its whole round is repeated."""
    fleet = Fleet(fabric=fleet_of[0], joint=fleet_of[1])
    name = rail_name(fleet, 5)
    fleet.loaded = {(f"{name} on n1", f"{name} on n4"): 0.5}
    result = judged(fleet, found := fleet.search())
    assert (found.speed.slow_nodes, found.speed.slow_links) == ({}, [])
    assert [code for code, _ in told(result)] == ["FAB-SLOW-LINK"]
    assert "with all rails at once" in result.findings[0].statement
    assert [len(pairs) for ways, pairs in fleet.table if ways == (BOTH_WAYS,)] == [32] * 8


def test_a_half_duplex_node_is_named_by_what_it_does_both_ways() -> None:
    fleet = Fleet(half_duplex={"n5"})
    result = judged(fleet, found := fleet.search())
    assert (found.speed.slow_nodes, found.speed.slow_links) == ({}, []), "fast one way"
    assert told(result) == [("FAB-SLOW-LINK", ["n5"])]
    assert "with all rails at once" in result.findings[0].statement


def test_a_fabric_that_is_half_duplex_everywhere_shares_nothing() -> None:
    """Both ways one rail alone is as slow; one way all are measured alone, as nothing vouches."""
    fleet = Fleet(half_duplex={f"n{at}" for at in range(8)})
    fleet.links = {("rail 2 on n1", "rail 2 on n6"): 0.6}
    result = judged(fleet, found := fleet.search())
    assert found.speed.slow_links == [("rail 2 on n1", "rail 2 on n6")]
    assert [code for code, _ in told(result)] == ["FAB-SLOW-LINK"]


@every_fabric
@pytest.mark.parametrize("nodes", [8, 12])
def test_a_rail_that_loses_packets_is_named_though_its_node_counts_all(
    fleet_of: Kind, nodes: int
) -> None:
    """Twice what is allowed is a quarter of it among eight rails."""
    fleet = Fleet(nodes, fabric=fleet_of[0], joint=fleet_of[1])
    port = f"{rail_name(fleet, 3)} on n2"
    sends(port, 1.0, fleet)
    fleet.lost = dict.fromkeys(fleet.links, 2 * MAX_LOST)
    fleet.links = {}
    result = judged(fleet, fleet.search())
    assert told(result) == [("FAB-LOSS", ["n2", port])]
    assert failed(result) == {"lost_packets"}


@pytest.mark.near_miss("FABRIC.lost_packets")
@every_fabric
def test_few_lost_packets_are_none_of_a_fault(fleet_of: Kind) -> None:
    fleet = Fleet(fabric=fleet_of[0], joint=fleet_of[1])
    sends(f"{rail_name(fleet, 3)} on n2", 1.0, fleet)
    fleet.lost = dict.fromkeys(fleet.links, 8e-5 if fleet_of[1] else 1e-5)
    result = judged(fleet, found := fleet.search())
    assert told(result) == []
    lost = max(share for share in found.lost.values() if share is not None)
    assert 0 < lost < MAX_LOST / 2, "what is not known to be of another rail counts"
    assert {one.verdict for one in result.measurements} == {Verdict.PASS}


@every_fabric
def test_one_link_that_leaves_its_rail_is_named(fleet_of: Kind) -> None:
    fleet = Fleet(fabric=fleet_of[0], joint=fleet_of[1])
    name = rail_name(fleet, 6)
    fleet.off = {(f"{name} on n1", f"{name} on n4")}
    result = judged(fleet, fleet.search())
    ((code, suspects),) = told(result)
    assert (code, suspects[0]) == ("FAB-DETOUR", "n1")
    assert failed(result) == {"links_on_other_networks"}


@pytest.mark.near_miss("FABRIC.links_on_other_networks")
@pytest.mark.parametrize(("share", "alone"), [(0.4, 0), (0.6, 48)])
def test_bytes_of_other_jobs_cost_rounds_and_accuse_nobody(share: float, alone: int) -> None:
    fleet = Fleet(others_bytes=share)
    result = judged(fleet, fleet.search())
    assert (told(result), failed(result)) == ([], set())
    assert fleet.count(ONE_WAY) == alone


def test_bytes_that_cannot_be_counted_prove_no_rail() -> None:
    (rail, *_), sent = (rails := Fleet(2, 2).found), 100
    assert is_own_rail(rail, rails, {RDMA: 200, "eth0": 0}, sent)
    assert not is_own_rail(rail, rails, {RDMA: 200, "eth0": None}, sent)
    assert not is_own_rail(rail, rails, {RDMA: 100, "eth0": 100}, sent)
    assert not is_own_rail(rail, rails, {RDMA: 0, "eth0": 0}, 0)
    own, other = (rails := Fleet(2, 2, "").found)
    grown = {"fab0": 0, "fab1": 200, "eth0": 0}  # both took the second
    assert [is_own_rail(one, rails, grown, sent) for one in (own, other)] == [False, True]


def test_where_all_at_once_does_not_end_the_ranks_are_asked_nothing_more() -> None:
    """They still wait in it: another call would find them in a group that is about to go."""
    fleet = Fleet(4, 2, dies_at_once=True)
    with pytest.raises(GangError, match="rank 2 does not answer"):
        fleet.search()
    assert not fleet.table


def test_halves_behind_a_slow_uplink_are_seen_where_the_first_round_only_crosses() -> None:
    """Then each rail alone was slow in all of its pairs, and no pair looked slow beside them."""
    nodes = [f"n{at}" for at in range(8)]

    def measure(rounds: list[list[tuple[str, str]]]) -> dict[Link, float]:
        half = {node: at // 4 for at, node in enumerate(nodes)}
        pairs = [pair for one in rounds for pair in one]
        return {
            link: 50.0 if half[link[0]] == half[link[1]] else 20.0
            for pair in pairs
            for link in (pair, pair[::-1])
        }

    found = search_rails([nodes], measure, True, MIN_RATIO, (20.0, 17.0))
    assert found.typical == 50.0
    assert len(found.slow_links) == 32
