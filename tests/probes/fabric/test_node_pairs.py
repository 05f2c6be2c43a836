"""Meetings of pairs of nodes: who meets whom, for how long, and what a control plants."""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes.fabric.addresses import RailRanks, find_rails
from probes.fabric.judge import has_port_for_each
from probes.fabric.node_pairs import (
    BadSender,
    first_rail,
    run_few_pairs,
    run_group_search,
    run_pair_search,
)
from scaling.collectives.node_groups import BOTH_WAYS, ONE_WAY, SLOW_TRANSFER_S, RankMeetings
from tests.support.rank_parts import Each, groups_of, rounds_of
from tests.support.sweep_results import sweep_result


class Gang:
    """Sound nodes of one rank each, and the jobs that they were given."""

    def __init__(self, nodes: int) -> None:
        self.places = [SimpleNamespace(node=f"n{number}") for number in range(nodes)]
        self.size = nodes
        self.names = {place.node: place.node for place in self.places}
        self.met: Counter[tuple[int, int]] = Counter()
        self.slow: set[frozenset[int]] = set()  # pairs of ranks
        self.jobs: list[tuple[int, int, float]] = []  # rounds, tries each way, seconds at most
        self.readers: list[Any] = []
        self.table: list[list[list[int]]] = []
        self.ways: list[tuple[str, ...]] = []  # of each job

    def run(
        self,
        function: Any,
        repeats: int,
        size: None,
        make_reader: Any,
        slow: Any,
        ways: tuple[str, ...],
        *,
        each: Each,
        timeout: float,
        **__: Any,
    ) -> list[RankMeetings]:
        rounds = rounds_of(each)
        self.jobs.append((len(rounds), repeats, timeout))
        self.readers.append(make_reader)
        self.ways.append(ways)
        self.table += rounds
        found = [RankMeetings() for _ in self.places]
        for a, b in (pair for pairs in rounds for pair in pairs):
            self.met[min(a, b), max(a, b)] += 1
            speed = 0.01 if {a, b} in self.slow else 0.1
            if ONE_WAY in ways:
                found[a].received[b] = found[b].received[a] = speed, 0
            if BOTH_WAYS in ways:
                found[a].exchanged[b] = found[b].exchanged[a] = speed, 0, 1 << 20
            found[a].sent[b] = found[b].sent[a] = []
        return found


@pytest.mark.parametrize(
    ("nodes", "full", "all_meet"),
    [(2, False, True), (8, False, True), (9, False, False), (9, True, True), (20, True, True)],
)
def test_up_to_eight_nodes_every_pair_meets_and_of_more_where_the_matrix_is_asked_for(
    nodes: int, full: bool, all_meet: bool
) -> None:
    gang: Any = Gang(nodes)
    run_pair_search(gang, gang.names, full=full)
    assert (len(gang.met) == nodes * (nodes - 1) // 2) is all_meet
    assert {*gang.met.values()} == {1}


@pytest.mark.parametrize("nodes", [12, 40])
def test_a_fabric_that_is_hardly_fast_enough_has_time_for_every_try(nodes: int) -> None:
    gang: Any = Gang(nodes)
    run_pair_search(gang, gang.names, full=True)
    assert sum(rounds for rounds, _, _ in gang.jobs) == nodes - 1
    for rounds, repeats, timeout in gang.jobs:
        assert gang.ways[0] == (ONE_WAY,)
        # Two minutes and more to connect, by the number of ranks, and the rounds both ways.
        connect_s = 120 + 0.1 * nodes
        assert timeout == pytest.approx(connect_s + 2 * rounds * repeats * SLOW_TRANSFER_S)


def test_a_job_holds_connections_to_at_most_16_others_and_each_pair_tries_6_times() -> None:
    gang: Any = Gang(40)
    run_pair_search(gang, gang.names, full=True)
    assert [(rounds, repeats) for rounds, repeats, _ in gang.jobs] == [(16, 6), (16, 6), (7, 6)]


def test_no_rank_waits_in_a_round_in_which_its_rail_has_no_pair() -> None:
    gang, (first, second) = rails_of(4)
    few = replace(second, ports=dict([*second.ports.items()][:2]))
    run_pair_search(gang, {}, rails=[first, few])
    assert all(gang.table)


def resent_share(make_reader: Any) -> float:
    """Send ten messages to another address of this host; return what the reader says was lost."""
    reader = make_reader()
    with socket.create_server(("127.0.0.2", 0)) as server:
        ours = socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 0))
        theirs, _ = server.accept()
        with ours, theirs:
            for _ in range(10):
                ours.sendall(b"x" * 4096)
                theirs.recv(4096)
            counts = reader()["tcp"]
    return float(counts["resent"] / counts["sent"])


def test_of_a_controls_ranks_only_the_bad_one_reports_packets_as_resent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gang: Any = Gang(4)
    run_few_pairs(gang, first_rail(gang, gang.names), 3, bad=BadSender(2, 0.01, 0.5))
    assert {rank for pair in gang.met for rank in pair} == {0, 1, 2}
    (make_reader,) = gang.readers
    ((_, tries, _),) = gang.jobs
    assert tries == 2, "its fault is there at every try"
    shares = []
    for rank in ("0", "1", "2"):
        monkeypatch.setenv("RANK", rank)
        shares.append(resent_share(make_reader))
    assert shares[:2] == [0.0, 0.0]
    assert shares[2] == pytest.approx(0.5, abs=0.05)


def rails_of(nodes: int) -> tuple[Any, list[RailRanks]]:
    """A gang of two ranks for each node, and its two rails."""
    gang: Any = Gang(2 * nodes)
    return gang, find_rails([f"n{rank // 2}" for rank in range(2 * nodes)], "fab0,fab1", "gloo")


def test_rails_meet_all_at_once_and_then_one_by_one() -> None:
    """Nothing was counted at once, so each rail is measured alone."""
    gang, rails = rails_of(4)
    found = run_pair_search(gang, {}, rails=rails)
    together, base, single = gang.table[:3], gang.table[3:5], gang.table[5:]
    assert gang.ways == [(BOTH_WAYS,), (ONE_WAY, BOTH_WAYS), (ONE_WAY,)]
    assert [len(pairs) for pairs in together] == [4, 4, 4]
    assert [{rank % 2 for pair in pairs for rank in pair} for pairs in base] == [{0}, {1}]
    assert [{rank % 2 for pair in pairs for rank in pair} for pairs in single] == 2 * [{0}, {1}]
    assert all(a % 2 == b % 2 for pairs in gang.table for a, b in pairs), "rails never meet"
    assert {*found.speed.speeds} == {
        (f"fab{rail} on n{a}", f"fab{rail} on n{b}")
        for rail in range(2)
        for a in range(4)
        for b in range(4)
        if a != b
    }
    assert found.at_once is not None
    assert found.at_once.speeds.keys() == found.speed.speeds.keys()
    assert set(gang.met.values()) == {2}


def test_where_ranks_share_ports_all_at_once_are_not_compared() -> None:
    gang, rails = rails_of(4)
    found = run_pair_search(gang, {}, rails=rails, at_once=False)
    assert (found.at_once, len(found.rails)) == (None, 2)
    assert set(gang.met.values()) == {1}


def test_one_rail_meets_once() -> None:
    gang: Any = Gang(4)
    found = run_pair_search(gang, gang.names)
    assert found.at_once is None
    assert set(gang.met.values()) == {1}
    assert gang.ways == [(ONE_WAY,)]


@pytest.mark.parametrize(
    ("fabric", "ports", "shared"),
    [("rdma", 8, False), ("rdma", 2, False), ("rdma", 1, True), ("fab0,fab1", 0, False)],
)
def test_each_rail_of_rdma_needs_a_port_of_its_own(fabric: str, ports: int, shared: bool) -> None:
    _, rails = rails_of(2)
    counted: dict[str, dict[str, int | None]] = {
        "n0": {f"mlx5_{at}/1": 0 for at in range(8)},
        "n1": {f"mlx5_{at}/1": 0 for at in range(ports)},
    }
    terms: Any = SimpleNamespace(fabric=fabric)
    assert has_port_for_each(rails, sweep_result(0.1, rails=counted), terms) is not shared


@pytest.mark.parametrize(
    ("slow", "alone"), [([{0, 1}], 0), ([{0, 1}, {2, 3}], 2), ([{0, 1}, {2, 3}, {4, 5}], 3)]
)
def test_pairs_that_are_slow_together_are_measured_alone(slow: list[set[int]], alone: int) -> None:
    gang: Any = Gang(8)
    gang.slow = {*map(frozenset, slow)}
    found = run_pair_search(gang, gang.names)
    assert len(found.speed.slow_links) == 2 * len(slow)
    assert [*found.alone.values()] == [0.01] * 2 * alone


def test_at_most_16_slow_pairs_are_measured_alone() -> None:
    gang: Any = Gang(12)
    gang.slow = {frozenset((at, (at + step) % 12)) for at in range(12) for step in (1, 2)}
    found = run_pair_search(gang, gang.names, full=True)
    assert len(found.speed.slow_links) == 2 * 24
    assert len(found.alone) == 2 * 16


@pytest.mark.parametrize(("slow_gbs", "is_fast"), [(0.8, False), (0.85, True)])
def test_groups_at_full_speed_are_those_of_the_first_partition(
    slow_gbs: float, is_fast: bool
) -> None:
    """At 85 % of the best speed a group is no suspect."""
    places = [SimpleNamespace(node=f"n{number}") for number in range(16)]
    partitions: list[list[list[int]]] = []

    def run(*_: Any, each: Each, **__: Any) -> list[tuple[float, int]]:
        groups = groups_of(each)
        partitions.append(groups)
        slow = {rank for group in groups if 5 in group for rank in group}
        return [(slow_gbs if rank in slow else 1.0, 0) for rank in range(16)]

    gang: Any = SimpleNamespace(places=places, size=16, run=run)
    found = run_group_search(gang, {place.node: place.node for place in places})
    assert found.fast == [
        [f"n{rank}" for rank in group] for group in partitions[0] if is_fast or 5 not in group
    ]
    assert len(found.fast) == len(partitions[0]) - (not is_fast)


def test_a_rank_without_a_speed_is_an_error() -> None:
    places = [SimpleNamespace(node=f"n{number}") for number in range(16)]
    gang: Any = SimpleNamespace(places=places, size=16, run=lambda *_, **__: [(1.0, 0)] * 15)
    with pytest.raises(ValueError, match="is shorter than"):
        run_group_search(gang, {place.node: place.node for place in places})
