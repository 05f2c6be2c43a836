"""Scaling's arithmetic: formulas, who is to blame, and terms that sum to the step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.collectives import busbw, moved, plateau, rounds, summarise, table
from scaling.decompose import Step, laggard, loss, mean_seconds, residual, slow_node, terms
from scaling.linerate import line_rate
from scaling.search import blame, listen, reach, typical

SEGMENTS = ("data", "forward", "backward", "clip", "optimizer", "checkpoint", "other")


def test_busbw_is_that_of_nccl_tests() -> None:
    # 8 GiB in 37.2 ms over 16 ranks: algbw 230.9, busbw x 2 x 15 / 16.
    assert busbw(8 << 30, 0.0372, 16) == pytest.approx((8 << 30) / 0.0372 / 1e9 * 1.875)
    assert busbw(8, 1.0, 1) == 0
    assert moved(1000, 4) == 1500


def sweep(rank: int, seconds: list[float], wrong: int = 0) -> dict[str, object]:
    rows = [
        {"size": 1 << (10 + 4 * at), "times": [t, t, t], "calls": 5, "slowest": t, "wrong": 0,
         "first_wrong": None} for at, t in enumerate(seconds)
    ]  # fmt: skip
    rows[-1] |= {"wrong": wrong, "first_wrong": 3 if wrong else None}
    return {"rank": rank, "ranks": 2, "backend": "gloo", "rows": rows}


def test_the_plateau_is_judged_and_not_the_average() -> None:
    rows = summarise([sweep(0, [1e-3, 2e-3]), sweep(1, [1e-3, 4e-3])])
    assert plateau(rows)["size"] == 1 << 14
    assert plateau(rows)["seconds"] == pytest.approx(3e-3)
    assert plateau(rows)["samples"] == 6
    assert plateau(rows)["low"] < plateau(rows)["busbw"] < plateau(rows)["high"]
    assert len(table(rows).splitlines()) == 4


def test_a_wrong_element_names_rank_and_offset() -> None:
    rows = summarise([sweep(0, [1e-3]), sweep(1, [1e-3], wrong=2)])
    assert rows[0]["wrong"] == 2
    assert rows[0]["first_wrong"] == [(1, 3)]


@given(st.integers(2, 12))
def test_rounds_let_everybody_meet_once(count: int) -> None:
    table = rounds(list(range(count)))
    pairs = [tuple(sorted(pair)) for meetings in table for pair in meetings]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for meetings in table:
        busy = [player for pair in meetings for player in pair]
        assert len(busy) == len(set(busy))


def test_blame_finds_the_node_else_the_pair() -> None:
    nodes = ["a", "b", "c", "d"]
    assert blame([("a", "c"), ("b", "c"), ("c", "d")], nodes) == (["c"], [])
    assert blame([("a", "b")], nodes) == ([], [("a", "b")])
    assert blame([], nodes) == ([], [])
    assert blame([("a", "b")], ["a", "b"]) == ([], [("a", "b")])
    both = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]
    assert blame(both, nodes) == (["a", "b"], [])
    assert blame([("a", "c"), ("b", "c"), ("c", "d"), ("a", "b")], nodes) == (["c"], [("a", "b")])


def test_typical_is_not_spoilt_by_one_bad_node() -> None:
    pairs = {("a", "b"): 1.0, ("a", "c"): 0.1, ("a", "d"): 1.0, ("b", "c"): 0.1, ("b", "d"): 1.0,
             ("c", "d"): 0.1}  # fmt: skip
    assert typical(pairs) == 1.0
    assert typical({("a", "b"): 0.5}) == 0.5


def test_reach_tells_open_from_closed() -> None:
    port = listen("127.0.0.1")
    doors = {"open": ("127.0.0.1", port), "shut": ("127.0.0.1", 1), "none": None}
    assert reach("127.0.0.1", doors, seconds=2) == {"open": True, "shut": False, "none": False}


seconds = st.floats(0, 100, allow_nan=False)
step = st.fixed_dictionaries(dict.fromkeys(SEGMENTS, seconds)).map(
    lambda s: Step(sum(s.values()), s)
)
ranks = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(step, min_size=n, max_size=n), min_size=1, max_size=4)
)


@given(ranks, ranks)
def test_what_a_rung_loses_is_the_sum_of_its_terms(
    first: list[list[Step]], other: list[list[Step]]
) -> None:
    base, here = terms(first), terms(other)
    total = sum(here.values())
    if total < 1e-6:
        return
    lost = 1 - mean_seconds(first) / mean_seconds(other)
    assert sum(loss(base, here).values()) == pytest.approx(lost, rel=1e-9, abs=1e-9)
    assert residual(first, other) < 1e-6


def test_residual_sees_a_term_that_is_missing() -> None:
    whole = [[Step(0.7, dict.fromkeys(SEGMENTS, 0.1))]]
    torn = [[Step(1.0, dict.fromkeys(SEGMENTS, 0.1))]]
    assert residual(whole, whole) == 0
    assert residual(whole, torn) == pytest.approx(0.3)


def test_laggard_names_rank_and_segment() -> None:
    even = dict.fromkeys(SEGMENTS, 0.1)
    slow = {**even, "data": 0.5}
    steps = [[Step(0.7, even)] * 3, [Step(1.1, slow)] * 3, [Step(0.7, even)] * 3]
    found = laggard(steps)
    assert (found.rank, found.segment) == (1, "data")
    assert found.share == pytest.approx(0.4 / (2.5 / 3))


def test_laggard_does_not_blame_inside_a_collective() -> None:
    even = dict.fromkeys(SEGMENTS, 0.1)
    waits = {**even, "forward": 0.9}
    assert laggard([[Step(0.7, even)], [Step(1.5, waits)]]).share == 0


def test_slow_node_alone() -> None:
    assert slow_node({"a": 1.0, "b": 1.3, "c": 1.0}) == ("b", pytest.approx(0.3))
    assert slow_node({"a": 1.0}) == ("a", 0.0)


def port(rate: str = "400 Gb/sec (4X NDR)", state: str = "4: ACTIVE") -> dict[str, str]:
    return {
        "device": "mlx5_0",
        "port": "1",
        "rate": rate,
        "link_layer": "InfiniBand",
        "state": state,
    }


def node(ports: int, speed: int | None = None) -> dict[str, object]:
    return {"host": "n1", "rdma": [port()] * ports, "interfaces": {"eth0": {"speed": speed}}}


def test_line_rate_has_a_reason_or_is_unknown() -> None:
    rate = line_rate([node(8), node(8)], "rdma")
    assert rate is not None
    assert rate.gbytes == 400
    assert "8 x 400 Gbit/s" in rate.because
    slowest = line_rate([node(8), node(7)], "rdma")
    assert slowest is not None
    assert slowest.gbytes == 350
    assert line_rate([node(8), node(0)], "rdma") is None
    assert line_rate([node(0, None)], "eth0") is None
    ethernet = line_rate([node(0, 100_000)], "eth0")
    assert ethernet is not None
    assert ethernet.gbytes == 12.5


def test_a_port_that_is_down_is_no_rail() -> None:
    down = {"host": "n1", "interfaces": {}, "rdma": [port(), port(state="1: DOWN")]}
    rate = line_rate([down], "rdma")
    assert rate is not None
    assert rate.gbytes == 50
