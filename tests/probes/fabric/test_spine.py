"""Spines that are too narrow for all pairs at once, on clusters too large for every pair to meet.

Two leaves and more, of nodes in a row: all far pairs cross the spine and are slow alike.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from probes.fabric import judge
from probes.fabric.node_pairs import PairSearch, run_pair_search
from reports.measurement import Verdict
from reports.record import ProbeResult
from scaling.collectives.fault_search import near_round, plan_rounds
from scaling.collectives.paths import unmet_rounds
from tests.probes.fabric.rails.test_rail_rounds import Fleet
from tests.support.controls import recorder
from tests.support.simulated_leaves import Leaves
from tests.support.sweep_results import sweep_result

SIZES = [33, 64, 128, 512]
every_size = pytest.mark.parametrize("size", SIZES)


def search(gang: Any, **more: Any) -> PairSearch:
    return run_pair_search(gang, gang.names, **more)


def judged(gang: Any, found: PairSearch) -> ProbeResult:
    """What FABRIC says of these pairs."""
    measure = recorder("FABRIC")
    run = sweep_result(0.1, rank_nodes=[place.node for place in gang.places])
    slow = judge.explain_uplinks(measure, found.speed, found.alone)
    judge.judge_pairs(found, slow, run, measure)
    return measure.result("finished", 1.0)


def verdict(result: ProbeResult) -> Verdict | None:
    found = [one.verdict for one in result.measurements if one.name == "slowest_pair"]
    return max(found, key=lambda one: one.rank if one else 0)


def middle(size: int) -> tuple[str, str]:
    """The two sides of the far pairs: of an odd number, the first node rests."""
    first = size % 2
    half = first + size // 2
    return f"n{first} to n{half - 1}", f"n{half} to n{size - 1}"


FLEETS = {33: 100, 64: 100, 128: 40, 512: 8}
FOUND, FALSE_ALARMS = 0.95, 0.01


def is_clean(result: ProbeResult) -> bool:
    return not result.findings and verdict(result) is not Verdict.FAIL


@every_size
@pytest.mark.parametrize("narrow", [1.5, 2.0])
def test_a_narrow_spine_is_one_finding_that_names_the_groups(size: int, narrow: float) -> None:
    red, named = list[bool](), list[bool]()
    for seed in range(FLEETS[size]):
        gang = Leaves(size, seed, narrow)
        result = judged(gang, search(gang))
        red.append(verdict(result) is Verdict.FAIL)
        told = [(one.code, one.suspects) for one in result.findings]
        named.append(told == [("FAB-SLOW-UPLINK", [*middle(size)])])
    assert sum(red) >= FOUND * len(red)
    assert sum(named) >= FOUND * len(named)


@pytest.mark.near_miss("FABRIC.slowest_pair")
@every_size
@pytest.mark.parametrize(
    "more",
    [{}, {"part": 2, "inside": 1.3}, {"part": 4, "inside": 1.3}, {"part": 18, "inside": 10.0}],
    ids=["one leaf", "two VMs of a host", "four VMs of a host", "NVLink domains"],
)
def test_a_spine_that_carries_all_accuses_nothing(size: int, more: dict[str, Any]) -> None:
    """Near pairs may be faster than the fabric: they are no measure of it."""
    found = []
    for seed in range(FLEETS[size]):
        gang = Leaves(size, seed, **more)
        found.append(is_clean(judged(gang, search(gang))))
    assert found.count(False) <= FALSE_ALARMS * len(found)


@pytest.mark.parametrize(("size", "bad"), [(16, 5), (32, 10), (64, 18)])
def test_many_nodes_at_half_speed_are_all_named(size: int, bad: int) -> None:
    """Most far pairs have one of them, and are as slow alone: that is no path of near nodes."""
    gang = Leaves(size, slow=dict.fromkeys(range(bad), 0.5))
    assert search(gang).speed.slow_nodes.keys() == {f"n{node}" for node in range(bad)}


def test_pairs_in_domains_that_are_not_compared_are_said_and_others_are_still_judged() -> None:
    gang = Leaves(64, part=16, inside=10.0, slow={40: 0.4})
    found = search(gang)
    assert found.speed.slow_nodes == {"n40": "sends"}
    assert "Near nodes are not compared with far ones" in found.speed.coverage
    assert "not compared" not in search(Leaves(64)).speed.coverage


@pytest.mark.parametrize(("part", "inside"), [(4, 1.3), (16, 10.0)])
def test_a_narrow_spine_is_found_by_what_far_pairs_reach_alone(part: int, inside: float) -> None:
    gang = Leaves(64, 0, 2.0, part=part, inside=inside)
    result = judged(gang, search(gang))
    assert verdict(result) is Verdict.FAIL
    assert [(one.code, one.suspects) for one in result.findings] == [
        ("FAB-SLOW-UPLINK", ["n0 to n31", "n32 to n63"])
    ]


@pytest.mark.near_miss("FABRIC.slowest_pair")
def test_two_virtual_machines_that_share_a_port_accuse_no_uplink() -> None:
    """The next node but one is on another host: near and far pairs take as much of the port."""
    gang = Leaves(64, part=2, inside=1.3, shared=True)
    assert is_clean(judged(gang, search(gang)))


@pytest.mark.parametrize(("size", "leaves"), [(72, 3), (64, 4), (120, 5), (67, 2)])
def test_more_leaves_and_odd_numbers_of_nodes(size: int, leaves: int) -> None:
    leaf_of = [at * leaves // size for at in range(size)]
    gang = Leaves(size, 0, 2.0, leaf_of)
    result = judged(gang, search(gang))
    assert verdict(result) is Verdict.FAIL
    (found,) = result.findings
    assert found.code == "FAB-SLOW-UPLINK"
    assert all(" to n" in group for group in found.suspects)
    sound = Leaves(size, 0, 1.0, leaf_of)
    assert is_clean(judged(sound, search(sound)))


@pytest.mark.parametrize("narrow", [1.0, 1.5])
def test_of_nodes_in_no_order_over_the_leaves_none_is_accused_and_the_report_says_so(
    narrow: float,
) -> None:
    """Half of any round crosses the spine, and 1 / 1.5 of all nodes can."""
    clean, size = [], 64
    for seed in range(FLEETS[size]):
        leaf_of = [2 * at // size for at in range(size)]
        random.Random(seed).shuffle(leaf_of)
        gang = Leaves(size, seed, narrow, leaf_of)
        found = search(gang)
        clean.append(is_clean(judged(gang, found)))
        assert "where they are not, a narrow uplink can stay unseen" in found.speed.coverage
    assert clean.count(False) <= (1 if narrow == 1 else 5)


def test_a_bad_node_behind_a_narrow_spine_has_a_finding_of_its_own() -> None:
    gang = Leaves(64, 0, 1.5, slow={40: 0.3})
    told = {one.code: one.suspects for one in judged(gang, search(gang)).findings}
    assert {*told} == {"FAB-SLOW-UPLINK", "FAB-SLOW-LINK"}
    assert told["FAB-SLOW-LINK"] == ["n40"]


# Several rails.


class NarrowFleet(Fleet):
    """Rails of 64 nodes on two leaves, all on one spine, or each on its own.

    The spine carries 1 / `narrow` of the nodes.  16 nodes of one domain reach `inside` of the rate.
    """

    one_spine, narrow, inside = True, 2.0, 1.0

    def able(self, a: int, b: int, per_node: Counter[str], directions: int) -> float:
        domain, peers = (rank // self.rails // 16 for rank in (a, b))
        if domain == peers:
            return self.inside
        far = [pair for pair in self.now if len({rank // self.rails // 32 for rank in pair}) == 2]
        if not self.one_spine:
            far = [pair for pair in far if pair[0] % self.rails == a % self.rails]
        carried = 32 / self.narrow * (self.rails if self.one_spine else 1)
        share = carried / max(len(far), carried) if domain // 2 != peers // 2 else 1.0
        return min(share, super().able(a, b, per_node, directions))


@pytest.mark.parametrize("one_spine", [True, False])
def test_rails_over_a_narrow_spine_are_one_finding(one_spine: bool) -> None:
    fleet = NarrowFleet(64, 2)
    fleet.one_spine = one_spine
    found = fleet.search()
    result = judged(fleet, found)
    assert verdict(result) is Verdict.FAIL
    assert [(one.code, one.suspects) for one in result.findings] == [
        ("FAB-SLOW-UPLINK", ["n0 to n31", "n32 to n63"])
    ]
    alone, at_once = [one for one in result.measurements if one.name == "slowest_pair"]
    assert (alone.verdict is Verdict.PASS) is one_spine
    assert at_once.verdict is Verdict.FAIL


@pytest.mark.parametrize("inside", [1.0, 1.3, 10.0])
def test_rails_over_a_spine_that_carries_all_accuse_nothing(inside: float) -> None:
    fleet = NarrowFleet(64, 2)
    fleet.narrow, fleet.inside = 1.0, inside
    assert is_clean(judged(fleet, fleet.search()))


@pytest.mark.parametrize("one_spine", [True, False])
def test_rails_over_a_narrow_spine_are_found_beside_nvlink_domains(one_spine: bool) -> None:
    fleet = NarrowFleet(64, 2)
    fleet.one_spine, fleet.inside = one_spine, 10.0
    result = judged(fleet, fleet.search())
    assert verdict(result) is Verdict.FAIL
    assert [one.code for one in result.findings] == ["FAB-SLOW-UPLINK"]


# Runs that carry on.


@pytest.mark.parametrize("narrow", [1.0, 1.5])
def test_a_run_that_carries_on_meets_near_pairs_too(narrow: float) -> None:
    gang = Leaves(64, 0, narrow)
    names = [*gang.names]
    first = unmet_rounds([names], {(min(p), max(p)) for p in near_round([names])}, 8)
    assert len(first) == 9
    result = judged(gang, search(gang, first=first))
    assert is_clean(result) is (narrow == 1)
    assert {one.code for one in result.findings} <= {"FAB-SLOW-UPLINK"}


@pytest.mark.parametrize("count", range(8, 40))
def test_near_rounds_are_disjoint_and_share_no_pair_with_the_far_round(count: int) -> None:
    nodes = [f"n{at}" for at in range(count)]
    near = near_round([nodes])
    ends = [node for pair in near for node in pair]
    assert len({*ends}) == len(ends) >= count - 3
    assert all(int(b[1:]) - int(a[1:]) == 2 for a, b in near)
    assert {*near}.isdisjoint(next(plan_rounds([nodes])))
