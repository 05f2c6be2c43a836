"""Names for slow ports, nodes and rails, each said once."""

from __future__ import annotations

from dataclasses import replace

from probes.fabric.addresses import RailRanks
from probes.fabric.detect import AT_ONCE, find_slow_ports, only_at_once
from probes.fabric.judge import judge_rails_at_once
from probes.fabric.node_pairs import PairSearch
from reports.measurement import Verdict
from scaling.collectives.fault_search import FaultSearchResult, Link
from tests.support.controls import recorder

NODES = ["n0", "n1", "n2"]
RAILS = [
    RailRanks(f"fab{at}", {f"fab{at} on {n}": 2 * i + at for i, n in enumerate(NODES)}, f"fab{at}")
    for at in range(2)
]


def search(
    slow: dict[str, str] | None = None, links: list[Link] | None = None, bad: float = 0.2
) -> FaultSearchResult:
    """A search over two rails of three nodes: 1 GB/s, and `bad` where it is slow."""
    slow, links = slow or {}, links or []
    senders = {port for port, way in slow.items() if way != "receives"}
    receivers = {port for port, way in slow.items() if way != "sends"}
    speeds = {
        (a, b): bad if (a, b) in links or a in senders or b in receivers else 1.0
        for rail in RAILS
        for a in rail.ports
        for b in rail.ports
        if a != b
    }
    return FaultSearchResult(speeds, 1.0, slow, links, 3, 0, "6 of 6 pairs", 0.8)


def told(found: FaultSearchResult, when: str = "") -> list[tuple[str, list[str]]]:
    return [(one.statement, one.suspects) for one in find_slow_ports(found, RAILS, when)]


def test_a_slow_port_is_named_with_its_node() -> None:
    assert told(search({"fab1 on n2": "sends"})) == [
        (
            "the links of fab1 on n2 are slow when it sends: 0.2 GB/s. Others: 1 GB/s",
            ["n2", "fab1 on n2"],
        )
    ]


def test_what_shows_at_once_only_is_said_so() -> None:
    slow = search({"fab1 on n2": "sends"})
    new = only_at_once(slow, search())
    assert told(new, AT_ONCE) == [
        (
            "the links of fab1 on n2 are slow when it sends with all rails at once: "
            "0.2 GB/s. Others: 1 GB/s",
            ["n2", "fab1 on n2"],
        )
    ]
    assert told(only_at_once(slow, slow), AT_ONCE) == []
    assert told(only_at_once(slow, search(), slow), AT_ONCE) == [], "it loses packets"


def test_a_slow_link_that_shows_one_by_one_is_not_said_twice() -> None:
    link = "fab0 on n0", "fab0 on n1"
    assert told(only_at_once(search(links=[link]), search())) == [
        (
            "the link fab0 on n0 -> fab0 on n1 is slow: 0.2 GB/s. Others: 1 GB/s",
            ["n0", "n1", "fab0 on n0", "fab0 on n1"],
        )
    ]
    assert told(only_at_once(search(links=[link]), search(links=[link]))) == []
    assert told(only_at_once(search(links=[link]), search({"fab0 on n0": "sends"}))) == []
    both = search(links=[link, link[::-1]])  # NCCL ends both directions together
    assert told(only_at_once(both, search(links=[link]))) == []


def test_ports_of_a_node_that_are_slow_in_other_directions_are_named_each() -> None:
    names = [one for _, one in told(search({"fab0 on n1": "sends", "fab1 on n1": "receives"}))]
    assert names == [["n1", "fab0 on n1"], ["n1", "fab1 on n1"]]


def test_a_node_of_one_slow_direction_is_named_once_with_its_slowest_port() -> None:
    ((text, names),) = told(search({"fab0 on n1": "both", "fab1 on n1": "both"}))
    assert text == "the links of n1 are slow both ways: 0.2 GB/s. Others: 1 GB/s"
    assert names == ["n1"]


def test_where_every_rail_is_slow_no_rail_is_blamed_by_the_others() -> None:
    ways = {port: "both" for rail in RAILS for port in rail.ports}
    assert all("on every node" not in text for text, _ in told(search(ways)))


def test_a_rail_that_is_slow_one_by_one_is_not_said_again_for_all_at_once() -> None:
    ways = dict.fromkeys(RAILS[1].ports, "both")
    slow = search(ways)
    text = "fab1 is slow on every node: 0.2 GB/s. Other rails: 1 GB/s"
    assert [text for text, _ in told(slow)] == [text]
    assert told(only_at_once(slow, slow), AT_ONCE) == []


def test_rails_that_are_all_slower_at_once_share_something() -> None:
    alone, at_once = search(), search()
    half = {link: speed / 2 for link, speed in at_once.speeds.items()}
    at_once = replace(at_once, speeds=half, typical=0.5, limit=0.4)
    pairs = PairSearch(alone, alone, {}, {}, {}, RAILS, at_once, one_rail=1.0)
    measure = recorder("FABRIC")
    judge_rails_at_once(pairs, at_once, measure)
    result = measure.result("finished", 1.0)
    (slowest,) = result.measurements
    assert (slowest.value, slowest.verdict) == (0.5, Verdict.FAIL)
    (found,) = result.findings
    assert (found.code, found.suspects) == ("FAB-RAILS-SHARED", NODES)
    assert found.statement == (
        "2 rails of each node send at once and reach 0.5 GB/s each. One rail alone: 1 GB/s"
    )


def test_rails_that_are_as_fast_at_once_share_nothing() -> None:
    pairs = PairSearch(search(), search(), {}, {}, {}, RAILS, search(), one_rail=1.0)
    measure = recorder("FABRIC")
    judge_rails_at_once(pairs, search(), measure)
    result = measure.result("finished", 1.0)
    assert [one.verdict for one in result.measurements] == [Verdict.PASS]
    assert result.findings == []


def test_rails_that_are_as_slow_both_ways_when_they_are_alone_share_nothing() -> None:
    """As a half-duplex link: what is said both ways is compared with both ways alone."""
    half = search()
    half = replace(half, speeds=dict.fromkeys(half.speeds, 0.5), typical=0.5, limit=0.4)
    pairs = PairSearch(search(), search(), {}, {}, {}, RAILS, half, one_rail=0.5)
    measure = recorder("FABRIC")
    judge_rails_at_once(pairs, half, measure)
    result = measure.result("finished", 1.0)
    assert [one.verdict for one in result.measurements] == [Verdict.PASS]
    assert result.findings == []
