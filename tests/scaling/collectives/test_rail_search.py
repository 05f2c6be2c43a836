"""The search over several rails at once: each port is judged, and only ports of a rail meet."""

from __future__ import annotations

import random

import pytest

from probes.fabric.addresses import RailRanks
from probes.fabric.detect import find_slow_ports, is_slow_everywhere
from scaling.collectives.fault_search import FaultSearchResult, search_faults, search_rails
from tests.support.simulated_links import Cluster

SIZES = [3, 4, 8, 9, 33]
every_size = pytest.mark.parametrize("size", SIZES)


def rails_of(cluster: Cluster) -> list[RailRanks]:
    return [
        RailRanks(f"fab{at}", {port: number for number, port in enumerate(ports)}, f"fab{at}")
        for at, ports in enumerate(cluster.ports)
    ]


def search(cluster: Cluster, matrix: bool = False) -> FaultSearchResult:
    """Search; only ports of one rail have met."""
    found = search_rails(cluster.ports, cluster.meet, matrix)
    assert all(a.split(" on ")[0] == b.split(" on ")[0] for a, b in cluster.meetings)
    assert found.rounds == cluster.rounds
    return found


@every_size
@pytest.mark.parametrize("seed", range(5))
def test_sound_rails_are_not_accused(size: int, seed: int) -> None:
    found = search(Cluster(size, seed, rails=4))
    assert (found.slow_nodes, found.slow_links) == ({}, [])


@every_size
@pytest.mark.parametrize("way", ["sends", "receives", "both"])
def test_one_slow_port_is_named_with_its_direction_and_no_other_port_of_its_node(
    size: int, way: str
) -> None:
    slow = {"fab2 on n1": 0.4}
    cluster = Cluster(size, rails=4)
    cluster.sends = slow if way != "receives" else {}
    cluster.receives = slow if way != "sends" else {}
    assert search(cluster).slow_nodes == {"fab2 on n1": way}


@every_size
def test_ports_of_different_nodes_are_named_each(size: int) -> None:
    cluster = Cluster(size, rails=4, sends={"fab0 on n0": 0.5, "fab3 on n2": 0.0})
    assert search(cluster).slow_nodes == {"fab0 on n0": "sends", "fab3 on n2": "sends"}


@every_size
def test_a_rail_that_is_slow_on_every_node_is_found_by_the_other_rails(size: int) -> None:
    cluster = Cluster(size, rails=4)
    cluster.sends = dict.fromkeys(cluster.ports[1], 0.5)
    found = search(cluster)
    rails = rails_of(cluster)
    assert [rail.name for rail in rails if is_slow_everywhere(rail, found)] == ["fab1"]
    (told,) = find_slow_ports(found, rails)
    assert told.statement.startswith("fab1 is slow on every node: ")
    assert told.suspects == cluster.nodes


def test_the_same_rail_alone_has_nothing_to_be_compared_with() -> None:
    cluster = Cluster(8)
    cluster.sends = dict.fromkeys(cluster.nodes, 0.5)
    found = search_faults(cluster.nodes, cluster.meet)
    assert (found.slow_nodes, found.slow_links) == ({}, [])


@every_size
def test_a_node_whose_rails_are_all_slow_is_named_once(size: int) -> None:
    cluster = Cluster(size, rails=4)
    cluster.sends = {ports[1]: 0.5 for ports in cluster.ports}
    found = search(cluster)
    (told,) = find_slow_ports(found, rails_of(cluster))
    assert told.statement.startswith("the links of n1 are slow when it sends: ")
    assert told.suspects == ["n1"]


def test_a_round_holds_the_pairs_of_all_rails_so_that_their_number_costs_none() -> None:
    one, four = Cluster(33), Cluster(33, rails=4)
    search_faults(one.nodes, one.meet)
    search(four)
    assert four.rounds <= one.rounds + 1


@pytest.mark.parametrize("seed", range(20))
def test_bad_ports_of_a_large_cluster_are_found_and_no_other(seed: int) -> None:
    cluster, chance = Cluster(64, seed, rails=8), random.Random(seed)
    bad = chance.sample([port for ports in cluster.ports for port in ports], 10)
    cluster.sends = dict.fromkeys(bad, 0.4)
    assert search(cluster).slow_nodes == dict.fromkeys(bad, "sends") | {}


def test_a_port_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="found twice: fab0 on n0"):
        search_rails([["fab0 on n0"], ["fab0 on n0"]], lambda rounds: {})


def test_only_some_pairs_of_a_rail_meet_unless_all_are_asked_for() -> None:
    cluster = Cluster(8, noise=0, dips=0)
    assert search_rails([cluster.nodes], cluster.meet).rounds == 2
    assert search_rails([cluster.nodes], cluster.meet, matrix=True).rounds == 7


def test_a_node_at_exactly_the_limit_is_good_and_is_not_tried_again() -> None:
    nodes = [f"n{at}" for at in range(8)]

    def meet(table: list[list[tuple[str, str]]]) -> dict[tuple[str, str], float]:
        links = [link for pairs in table for a, b in pairs for link in ((a, b), (b, a))]
        return {link: 5.0 if link[0] == "n3" else 10.0 for link in links}

    found = search_rails([nodes], meet, matrix=True, effect=0.5)
    assert (found.limit, found.slow_nodes, found.slow_links) == (5.0, {}, [])
    assert (found.rounds, found.rechecks) == (7, 0)
