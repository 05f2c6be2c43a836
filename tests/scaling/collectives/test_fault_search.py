"""Finding the bad one: planted faults in simulated clusters, against the truth and brute force."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.collectives.fault_search import (
    Link,
    Pair,
    attribute_slow_links,
    classify,
    pack_rounds,
    round_robin,
    search_faults,
    typical_speed,
    valid_speed,
)
from tests.support.simulated_links import RATE, Cluster, brute_force, planted

SIZES = [3, 4, 5, 8, 9, 16, 33, 64]
either_mode = pytest.mark.parametrize("matrix", [False, True], ids=["quick", "matrix"])
every_size = pytest.mark.parametrize("size", SIZES)


def found(cluster: Cluster, **options: object) -> tuple[dict[str, str], set[Link]]:
    """What a hunt blames; its own count of rounds is checked on the way."""
    told = search_faults(cluster.nodes, cluster.meet, **options)  # type: ignore[arg-type]
    assert told.rounds == cluster.rounds
    assert len(told.slow_links) == len(set(told.slow_links))
    assert told.rechecks <= len(cluster.meetings)
    assert told.speeds.keys() == {
        link for a, b in cluster.meetings for link in ((a, b), (b, a))
    }  # both directions of whoever met, and of nobody else
    return told.slow_nodes, set(told.slow_links)


# Rounds


@given(st.integers(0, 40))
def test_rounds_let_everybody_meet_once(count: int) -> None:
    table = list(round_robin(list(range(count))))
    met = [tuple(sorted(pair)) for pairs in table for pair in pairs]
    assert sorted(met) == list(combinations(range(count), 2))
    assert len(table) == (0 if count < 2 else count - 1 + count % 2)
    for pairs in table:
        assert len({player for pair in pairs for player in pair}) == 2 * len(pairs)


@given(st.sets(st.tuples(st.sampled_from("abcdef"), st.sampled_from("ghijkl"))))
def test_packed_rounds_are_disjoint_and_complete(pairs: set[tuple[str, str]]) -> None:
    table = pack_rounds(sorted(pairs))
    assert sorted(pair for meetings in table for pair in meetings) == sorted(pairs)
    for meetings in table:
        assert len({node for pair in meetings for node in pair}) == 2 * len(meetings)
    most = max((sum(node in pair for pair in pairs) for node in "abcdefghijkl"), default=0)
    assert len(table) <= max(2 * most - 1, 0)


# Outliers


def low(speeds: Mapping[Any, float]) -> set[Any]:
    """The keys whose speed, in any unit, is below the limit."""
    limit = typical_speed(speeds.values())[1]
    return {key for key, speed in speeds.items() if valid_speed(speed) < limit}


healthy_speeds = st.lists(st.floats(0.95, 1.05), min_size=4, max_size=60)


@given(healthy_speeds, st.lists(st.floats(0, 0.7), max_size=60), st.sampled_from([1e-3, 1.0, 50.0]))
def test_outliers_are_the_low_ones_though_nearly_half_are(
    good: list[float], bad: list[float], unit: float
) -> None:
    bad = bad[: len(good) - 1]
    speeds = {at: value * unit for at, value in enumerate([*bad, *good])}
    assert low(speeds) == set(range(len(bad)))


@given(healthy_speeds)
def test_a_dip_of_15_percent_is_no_outlier(good: list[float]) -> None:
    assert low(dict(enumerate([0.85, *good]))) == set()


def test_equal_speeds_are_no_outliers_and_what_failed_is_one() -> None:
    nothing: dict[str, float] = {}
    assert low(nothing) == set()
    assert low({"a": 7.0}) == set()
    assert low(dict.fromkeys("abcd", 7.0)) == set()  # MAD 0
    assert low({**dict.fromkeys("abcd", 7.0), "e": 5.0}) == {"e"}
    assert low(dict.fromkeys("abcd", 7.0) | {"e": math.nan, "f": 0.0}) == {"e", "f"}
    assert low(dict.fromkeys("ab", 0.0)) == {"a", "b"}
    assert low({"a": math.inf, "b": 1.0}) == {"a"}


def test_what_is_within_the_noise_is_no_outlier_however_small_the_effect_may_be() -> None:
    noisy = [0.82, 0.88, 0.94, 1.0, 1.06, 1.12, 1.18]
    even = [0.98, 0.99, 1.0, 1.0, 1.0, 1.01, 1.02]
    assert low(dict(enumerate([0.75, *even]))) == {0}
    assert low(dict(enumerate([0.75, *noisy]))) == set()


def test_two_healthy_values_do_not_say_what_the_noise_is() -> None:
    assert low(dict(enumerate([0.0, 0.0, 0.56, 0.56, 0.84, 1.0]))) == {0, 1, 2, 3}


@pytest.mark.parametrize(("options", "limit"), [({}, 8.0), ({"effect": 0.5}, 5.0)])
def test_slow_is_below_a_share_of_the_typical_speed(
    options: dict[str, float], limit: float
) -> None:
    usual, slow = typical_speed([10.0] * 5, **options)
    assert usual == 10
    assert slow == pytest.approx(limit)


def test_one_value_that_is_too_fast_accuses_no_other_of_many() -> None:
    """A receiver that began late finds the data in its buffers.  Two such links show a rate."""
    one = [10.0] * 11 + [20.0]
    assert typical_speed(one) == pytest.approx((10.0, 8.0))
    assert typical_speed([10.0] * 10 + [20.0] * 2)[0] == 20.0


# Healthy clusters


@either_mode
@every_size
def test_a_healthy_cluster_is_clean(size: int, matrix: bool) -> None:
    for seed in range(100 if size < 33 else 20):
        cluster = Cluster(size, seed)
        assert found(cluster, matrix=matrix) == ({}, set()), f"seed {seed}"


@either_mode
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.08])
def test_more_noise_is_no_fault_either(noise: float, matrix: bool) -> None:
    for seed in range(40):
        cluster = Cluster(8 + seed % 9, seed, noise=noise)
        assert found(cluster, matrix=matrix) == ({}, set()), f"seed {seed}"


def test_a_healthy_cluster_takes_a_far_and_a_near_round_or_all() -> None:
    for size, whole, quick in [(8, 7, 2), (9, 9, 2), (64, 63, 2), (7, 7, 7), (2, 1, 1)]:
        cluster = Cluster(size, noise=0, dips=0)
        assert search_faults(cluster.nodes, cluster.meet).rounds == quick
        assert search_faults(cluster.nodes, cluster.meet, matrix=True).rounds == whole


@either_mode
@pytest.mark.parametrize("size", [3, 4, 8, 9])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_one_meeting_that_went_wrong_is_nobodys_fault(
    size: int, share: float, matrix: bool
) -> None:
    last = len(list(round_robin(range(size)))) * (size // 2) + 3
    for number in range(1, last):
        cluster = Cluster(size, number, spoilt={number: share}, dips=0)
        assert found(cluster, matrix=matrix) == ({}, set()), f"meeting {number}"


def test_a_node_that_was_busy_during_all_of_the_first_pass_is_nobodys_fault() -> None:
    cluster = Cluster(8)
    first = [pair for pairs in round_robin(cluster.nodes) for pair in pairs]
    cluster.spoilt = {at: 0.2 for at, pair in enumerate(first, 1) if "n3" in pair}
    assert len(cluster.spoilt) == 7
    assert found(cluster, matrix=True) == ({}, set())


# One fault


@either_mode
@every_size
@pytest.mark.parametrize("share", [0.0, 0.6])
@pytest.mark.parametrize("way", ["sends", "receives", "both"])
def test_a_slow_node_is_found_and_which_way(
    way: str, share: float, size: int, matrix: bool
) -> None:
    for name in {"n0", f"n{size // 2}", f"n{size - 1}"}:  # the last sits out where n is odd
        slow = {name: share}
        cluster = Cluster(
            size,
            seed=size,
            sends=slow if way != "receives" else {},
            receives=slow if way != "sends" else {},
        )
        assert found(cluster, matrix=matrix) == ({name: way}, set())


@every_size
@pytest.mark.parametrize("share", [0.0, 0.6])
@pytest.mark.parametrize("one_way", [True, False], ids=["one way", "both ways"])
def test_a_slow_link_is_found_and_which_way(one_way: bool, share: float, size: int) -> None:
    for a, b in [("n0", f"n{size - 1}"), (f"n{size // 2}", "n0")]:
        links = {(a, b): share} if one_way else {(a, b): share, (b, a): share}
        cluster = Cluster(size, seed=size, links=links)
        assert found(cluster, matrix=True) == ({}, set(links))


def test_quick_finds_the_slow_link_that_meets_and_says_which_it_did_not_see() -> None:
    links = {("n0", "n15"): 0.0, ("n2", "n3"): 0.0}
    cluster = Cluster(16, links=links)
    told = search_faults(cluster.nodes, cluster.meet)
    assert told.slow_links == [("n0", "n15")]
    assert told.slow_nodes == {}
    assert ("n2", "n3") not in told.speeds
    assert "Links that were not tested are not judged" in told.coverage
    whole = search_faults(cluster.nodes, cluster.meet, matrix=True)
    assert set(whole.slow_links) == links.keys()
    assert "did not meet" not in whole.coverage


# Two nodes, and nobody to compare with


def test_of_two_nodes_neither_can_be_blamed() -> None:
    told = search_faults(["n0", "n1"], Cluster(2, sends={"n0": 0.3}).meet)
    assert (told.slow_nodes, told.slow_links) == ({}, [("n0", "n1")])
    told = search_faults(["n0", "n1"], Cluster(2, sends={"n0": 0}, receives={"n0": 0}).meet)
    assert (told.slow_nodes, set(told.slow_links)) == ({}, {("n0", "n1"), ("n1", "n0")})
    assert "No link is known to be good" in told.coverage


@pytest.mark.parametrize("size", [2, 3, 8, 9])
def test_a_fault_that_all_share_does_not_show_unless_nothing_arrives(size: int) -> None:
    everybody = {f"n{at}": 0.5 for at in range(size)}
    relative = search_faults(list(everybody), Cluster(size, sends=everybody).meet)
    assert (relative.slow_nodes, relative.slow_links) == ({}, [])
    assert "a fault of all links cannot be found" in relative.coverage
    silent = dict.fromkeys(everybody, 0.0)
    none = search_faults(list(silent), Cluster(size, sends=silent).meet)
    assert set(none.slow_links) == none.speeds.keys()  # slow, and nobody good to blame one by
    assert none.slow_nodes == {}
    assert "No link is known to be good" in none.coverage
    assert none.rounds <= 2 * size


@pytest.mark.parametrize("size", [0, 1])
def test_fewer_than_two_nodes_have_no_links(size: int) -> None:
    told = search_faults([f"n{at}" for at in range(size)], Cluster(size).meet)
    assert (told.slow_nodes, told.slow_links, told.rounds, told.speeds) == ({}, [], 0, {})
    assert told.coverage.startswith("0 of 0 pairs")


def test_a_meeting_that_failed_is_slow() -> None:
    def meet(table: list[list[Link]]) -> dict[Link, float]:
        speeds = Cluster(5).meet(table)
        gone = {link: math.nan for link in speeds if link[0] == "n2"}
        return {link: speed for link, speed in (speeds | gone).items() if link[1] != "n2"}

    told = search_faults([f"n{at}" for at in range(5)], meet)
    assert told.slow_nodes == {"n2": "both"}
    assert told.speeds["n2", "n0"] == told.speeds["n0", "n2"] == 0
    assert told.typical == pytest.approx(RATE, rel=0.1)


def test_a_node_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="found twice: a"):
        search_faults(["a", "b", "a"], Cluster(2).meet)


def test_coverage_is_one_sentence_with_its_numbers() -> None:
    told = search_faults([f"n{at}" for at in range(4)], Cluster(4).meet)
    assert told.coverage == (
        "6 of 6 pairs, both directions, 3 rounds. "
        "Links are only compared with each other: a fault of all links cannot be found"
    )
    told = search_faults([f"n{at}" for at in range(8)], Cluster(8).meet)
    assert told.coverage.startswith("8 of 28 pairs, both directions, 2 rounds.")
    assert told.rechecks == 0


def test_confirmations_are_counted() -> None:
    cluster = Cluster(8, sends={"n0": 0.3})
    told = search_faults(cluster.nodes, cluster.meet)
    # Rounds 1 (far) and 2 (near) suspect n0 alone; two good ones check it, one of them again.
    assert (told.rounds, told.rechecks, len(cluster.meetings)) == (4, 1, 4 + 4 + 1 + 1)


def test_blame_takes_four_different_partners() -> None:
    cluster = Cluster(8, receives={"n7": 0.3})
    assert found(cluster) == ({"n7": "receives"}, set())
    partners = [set(pair) - {"n7"} for pair in cluster.meetings if "n7" in pair]
    assert len(partners) == len(set(map(frozenset, partners))) == 4


def test_what_was_fast_once_stays_fast() -> None:
    cluster = Cluster(8, sends={"n3": 0.3}, spoilt=dict.fromkeys(range(29, 99), 0.3))
    assert found(cluster, matrix=True) == ({"n3": "sends"}, set())  # it did receive at speed
    assert len(cluster.meetings) > 28


def test_a_first_round_that_proves_nobody_good_is_followed_by_others() -> None:
    first = next(round_robin([f"n{at}" for at in range(8)]))
    cluster = Cluster(8, links=dict.fromkeys([*first, *(pair[::-1] for pair in first)], 0.0))
    told = search_faults(cluster.nodes, cluster.meet)
    assert (told.slow_nodes, set(told.slow_links)) == ({}, set(cluster.links))
    assert "nobody" not in told.coverage


# Several faults at once

sizes_and_bad = st.integers(5, 40).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(0, max(1, size * 3 // 10)))
)


@settings(deadline=None)
@given(sizes_and_bad, st.integers(0, 10**6), st.booleans())
def test_any_set_of_bad_nodes_is_found(
    size_and_bad: tuple[int, int], seed: int, matrix: bool
) -> None:
    cluster = planted(*size_and_bad, seed)
    assert found(cluster, matrix=matrix) == (cluster.guilty(), set())


@settings(deadline=None, max_examples=60)
@given(st.integers(8, 24), st.integers(0, 2), st.integers(0, 3), st.integers(0, 10**6))
def test_the_matrix_agrees_with_brute_force(size: int, bad: int, links: int, seed: int) -> None:
    cluster, again = planted(size, bad, seed, links), planted(size, bad, seed, links)
    truth = cluster.guilty(), cluster.guilty_links()
    assert found(cluster, matrix=True) == truth
    assert brute_force(again) == truth
    assert cluster.rounds < again.rounds


@settings(deadline=None, max_examples=60)
@given(st.integers(8, 40), st.integers(0, 3), st.integers(0, 10**6))
def test_quick_never_blames_what_is_good(size: int, links: int, seed: int) -> None:
    cluster = planted(size, size // 8, seed, links)
    nodes, slow = found(cluster)
    assert nodes == cluster.guilty()
    assert slow <= cluster.guilty_links()
    assert slow >= {link for link in cluster.guilty_links() if set(link) in met_first(cluster)}


def met_first(cluster: Cluster) -> list[set[str]]:
    """The pairs of the first, far round."""
    return [set(pair) for pair in cluster.meetings[: cluster.size // 2]]


def test_bad_nodes_take_few_rounds() -> None:
    for seed in range(20):
        cluster = planted(64, 6, seed)
        search_faults(cluster.nodes, cluster.meet)
        assert cluster.rounds <= 5


def test_a_node_and_a_link_elsewhere_are_told_apart() -> None:
    links = {("n0", "n1"): 0.0, ("n1", "n0"): 0.0}
    cluster = Cluster(6, receives={"n4": 0.5}, links=links)
    assert found(cluster) == ({"n4": "receives"}, set(links))


def test_two_slow_links_of_one_node_are_not_the_node() -> None:
    links = {("n0", "n1"): 0.5, ("n0", "n5"): 0.0, ("n6", "n0"): 0.0}
    assert found(Cluster(8, links=links), matrix=True) == ({}, set(links))


def test_of_three_nodes_one_may_be_all_there_is_to_go_by() -> None:
    cluster = Cluster(3, sends={"n1": 0.3}, receives={"n2": 0.3})
    assert found(cluster) == ({"n1": "sends", "n2": "receives"}, set())


def test_the_order_of_the_nodes_does_not_matter() -> None:
    cluster = planted(12, 3, seed=5)
    for nodes in (cluster.nodes, cluster.nodes[::-1], sorted(cluster.nodes)):
        assert search_faults(nodes, cluster.meet).slow_nodes == cluster.guilty()


def test_attribution_takes_the_fewest_that_explain_all() -> None:
    met = [(a, b) for a in "abcd" for b in "abcd" if a != b]
    assert attribute_slow_links([], met, 4) == ([], [])
    assert attribute_slow_links([("a", "b")], met, 4) == ([], [("a", "b")])
    assert attribute_slow_links([("a", "b")], [("a", "b"), ("b", "a")], 2) == ([], [("a", "b")])
    assert attribute_slow_links([("a", "b"), ("a", "c")], met, 4) == ([], [("a", "b"), ("a", "c")])
    sends = [link for link in met if link[0] == "c"]
    assert attribute_slow_links(sends, met, 4) == ([("c", "sends")], [])
    most = [link for link in met if link[0] != "a"]  # so "a" receives slowly from all of them
    assert attribute_slow_links(most, met, 4) == ([(end, "sends") for end in "bcd"], [])
    assert attribute_slow_links([*sends, ("a", "b")], met, 4) == ([("c", "sends")], [("a", "b")])
    guilty, left = attribute_slow_links([link for link in met if "c" in link], met, 4)
    assert (sorted(guilty), left) == ([("c", "receives"), ("c", "sends")], [])


def test_the_end_with_the_largest_share_of_slow_links_is_blamed_first() -> None:
    """Of a's other links then too few are slow, whichever is named first."""
    met = [(a, b) for a in "abcdef" for b in "abcdef" if a != b]
    of_a = [("a", "c"), ("a", "d"), ("a", "e")]
    slow = [("a", "b"), *of_a, *((other, "b") for other in "cdef")]
    for links in (slow, slow[::-1]):
        guilty, left = attribute_slow_links(links, met, 6)
        assert (guilty, sorted(left)) == ([("b", "receives")], of_a)


def test_an_end_that_only_met_two_is_blamed_if_both_links_are_slow() -> None:
    slow = [("a", "b"), ("a", "c")]
    met = [*slow, ("b", "c"), ("c", "d"), ("d", "e")]
    assert attribute_slow_links(slow, met, 5) == ([("a", "sends")], [])


def test_of_three_nodes_an_end_all_of_whose_slow_links_are_explained_is_not_blamed() -> None:
    met = [(a, b) for a in "abc" for b in "abc" if a != b]
    slow = [link for link in met if link[0] != "b"]
    assert attribute_slow_links(slow, met, 3) == ([("a", "sends"), ("c", "sends")], [])


def blame(bad: list[Pair], nodes: str) -> tuple[list[str], list[Pair]]:
    """Classify the bad pairs of nodes of which each has met all others."""
    return classify(bad, list(nodes), list(combinations(nodes, 2)))


def test_blame_finds_the_node_else_the_pair() -> None:
    assert blame([("a", "c"), ("b", "c"), ("c", "d")], "abcd") == (["c"], [])
    assert blame([("a", "b")], "abcd") == ([], [("a", "b")])
    assert blame([], "abcd") == ([], [])
    assert blame([("a", "b"), ("a", "c")], "abcd") == ([], [("a", "b"), ("a", "c")])
    assert blame([("a", "b")], "ab") == ([], [("a", "b")])
    assert blame([("a", "b"), ("a", "c")], "abc") == (["a"], [])
    both = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]
    assert blame(both, "abcd") == (["a", "b"], [])
    assert blame([("a", "c"), ("b", "c"), ("c", "d"), ("a", "b")], "abcd") == (["c"], [("a", "b")])


def test_a_node_that_met_few_others_is_blamed_by_those_that_it_met() -> None:
    ring = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("a", "e")]
    assert classify([("b", "c"), ("c", "d")], list("abcde"), ring) == (["c"], [])
    assert classify([("b", "c")], list("abcde"), ring) == ([], [("b", "c")])
    # c has most bad pairs, and a good one; a and b have two of two.
    met = [("a", "c"), ("b", "c"), ("c", "d"), ("c", "f"), ("a", "e"), ("b", "e")]
    bad = [("a", "c"), ("b", "c"), ("c", "d"), ("a", "e"), ("b", "e")]
    assert classify(bad, list("abcdef"), met) == (["a", "b"], [("c", "d")])
