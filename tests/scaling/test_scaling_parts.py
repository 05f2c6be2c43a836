"""Scaling's arithmetic: formulas, who is to blame, and terms that sum to the step."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.fabric.node_pairs import turns
from scaling.collectives.alpha_beta import fit
from scaling.collectives.fault_search import blame, rounds
from scaling.collectives.line_rate import line_rate, rails
from scaling.collectives.nccl_tests_format import bytes_of, document, table
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.reachability import connections, echo, listen, parse_tcp, passes, reach
from scaling.collectives.sweep import moved, plateau, summarise
from scaling.ladder.step_breakdown import (
    Step,
    laggard,
    loss,
    mean_seconds,
    residual,
    slow_node,
    terms,
)

SEGMENTS = ("data", "forward", "backward", "clip", "optimizer", "checkpoint", "other")


ALL_REDUCE = OPERATIONS["all_reduce"]


def test_busbw_is_that_of_nccl_tests() -> None:
    # 8 GiB in 37.2 ms over 16 ranks: algbw 230.9, busbw x 2 x 15 / 16.
    size, seconds = 8 << 30, 0.0372
    algbw = size / seconds / 1e9
    assert ALL_REDUCE.busbw(size, seconds, 16) == pytest.approx(algbw * 1.875)
    assert OPERATIONS["all_gather"].busbw(size, seconds, 16) == pytest.approx(algbw * 15 / 16)
    assert OPERATIONS["alltoall"].busbw(size, seconds, 16) == pytest.approx(algbw * 15 / 16)
    assert OPERATIONS["broadcast"].busbw(size, seconds, 16) == pytest.approx(algbw)
    assert ALL_REDUCE.busbw(8, 1.0, 1) == 0
    assert ALL_REDUCE.count(64, 4) == 16
    assert OPERATIONS["all_gather"].count(64, 4) == 4
    assert moved([{"size": 1000, "calls": 2}], ALL_REDUCE, 4) == 3000


def sweep(rank: int, seconds: list[float], wrong: int = 0) -> dict[str, object]:
    rows = [
        {"size": 1 << (10 + 4 * at), "count": 1 << (8 + 4 * at), "elements": 9,
         "placement": "in_place", "times": [t, t, t], "calls": 5, "slowest": t, "wrong": 0,
         "first_wrong": None}
        for at, t in enumerate(seconds)
    ]  # fmt: skip
    rows[-1] |= {"wrong": wrong, "first_wrong": 3 if wrong else None}
    return {"rank": rank, "ranks": 2, "backend": "gloo", "operation": "all_reduce", "rows": rows}


def test_the_plateau_is_judged_and_not_the_average() -> None:
    rows = summarise([sweep(0, [1e-3, 2e-3]), sweep(1, [1e-3, 4e-3])])
    assert plateau(rows)["size"] == 1 << 14
    assert plateau(rows)["seconds"] == pytest.approx(3e-3)
    assert plateau(rows)["samples"] == 6
    assert plateau(rows)["low"] < plateau(rows)["busbw"] < plateau(rows)["high"]
    assert plateau(rows)["rank_cv"] == pytest.approx(1 / 3)
    assert len(table(rows, ALL_REDUCE).splitlines()) == 6


def test_one_size_that_was_disturbed_does_not_decide_but_two_do() -> None:
    rows = [{"size": 1 << power, "busbw": 10.0} for power in range(3, 27)]
    rows[-1]["busbw"] = 5.0
    assert plateau(rows)["busbw"] == 10.0
    rows[-3]["busbw"] = 6.0
    assert plateau(rows)["busbw"] == 6.0
    assert plateau(rows[:1])["size"] == 8


def test_a_wrong_element_names_rank_and_offset() -> None:
    rows = summarise([sweep(0, [1e-3]), sweep(1, [1e-3], wrong=2)])
    assert rows[0]["wrong"] == 2
    assert rows[0]["first_wrong"] == [(1, 3)]
    assert document(rows, ALL_REDUCE, 2)["out_of_bounds"] == {"count": 2, "okay": False}
    assert table(rows, ALL_REDUCE).endswith("\n# Out of bounds values : 2 FAILED\n")
    sound = table(summarise([sweep(0, [1e-3])]), ALL_REDUCE)
    assert sound.endswith("\n# Out of bounds values : 0 OK\n")


def test_the_document_has_the_keys_of_nccl_tests_and_no_environment() -> None:
    found = document(summarise([sweep(0, [1e-3]), sweep(1, [1e-3])]), ALL_REDUCE, 2)
    (result,) = found["results"]
    assert list(result)[:5] == ["size", "count", "type", "redop", "root"]
    assert result["in_place"]["time"] == pytest.approx(1000)
    assert {"alg_bw", "bus_bw", "nwrong"} <= set(result["in_place"])
    assert result["out_of_place"] is None  # torch has no such all-reduce
    assert "env" not in found


@given(
    st.floats(1e-6, 1e-3),
    st.floats(0.1, 500),
    st.sampled_from(list(OPERATIONS.values())),
    st.integers(2, 64),
)
def test_the_fit_finds_the_latency_and_bandwidth_that_made_the_times(
    alpha: float, gbs: float, operation: object, ranks: int
) -> None:
    factor = operation.factor(ranks)  # type: ignore[attr-defined]
    rows = [
        {"size": 1 << power, "seconds": alpha + (1 << power) * factor / gbs / 1e9}
        for power in range(3, 35)
    ]
    found = fit(rows, operation, ranks)  # type: ignore[arg-type]
    assert found is not None
    assert found.latency_us == pytest.approx(alpha * 1e6, rel=1e-3)
    assert found.bandwidth == pytest.approx(gbs, rel=1e-3)
    assert found.residual < 1e-6


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("4K", 4096), ("64m", 64 << 20), ("1G", 1 << 30)]
)
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "M", "8X", "-"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        bytes_of(text)


def test_our_own_connections_are_seen_and_loopback_is_not() -> None:
    line = "   0: 0100004D:1F90 0200004D:A001 01 00000000:00000000 00:00000000 00000000 0 0 77 1"
    (found,) = parse_tcp("header\n" + line)
    assert found == (("77.0.0.1", "77.0.0.2", 8080, 40961), 1, "77")
    before = connections()
    port = listen("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)):
        assert connections() == before


def test_more_doors_than_are_tried_at_once() -> None:
    here = [f"127.0.1.{at}" for at in range(1, 71)]
    dead = {f"127.0.1.{at}" for at in (3, 33, 64)}
    taken = {name: (name, listen(name)) for name in here if name not in dead}
    doors = {name: taken.get(name) for name in here}
    assert reach("127.0.0.1", doors, seconds=2) == {name: name not in dead for name in here}
    echoes = {name: (name, echo(name)) for name in here}
    echoes |= {name: (name, 9) for name in dead}  # nobody answers there
    sizes = dict.fromkeys(here, 100)
    found = passes("127.0.0.1", echoes, sizes, seconds=0.7)
    assert found == {name: name not in dead for name in here}


@given(st.integers(1, 60))
def test_each_turn_is_of_disjoint_pairs_and_all_meet(nodes: int) -> None:
    table = [turns(node, nodes) for node in range(nodes)]
    assert all(sorted(row) == list(range(nodes)) for row in table)
    for turn in range(nodes):
        met = [row[turn] for row in table]
        assert all(met[met[node]] == node for node in range(nodes))


def test_a_datagram_passes_up_to_the_mtu_and_not_beyond() -> None:
    mtu = int(Path("/sys/class/net/lo/mtu").read_text())
    doors = {"here": ("127.0.0.1", echo("127.0.0.1"))}
    assert passes("127.0.0.1", doors, {"here": min(mtu, 60_000)}) == {"here": True}
    both = {**doors, "shut": None}
    assert passes("127.0.0.1", both, dict.fromkeys(both, mtu + 100), 0.3) == {
        "here": False,
        "shut": False,
    }


def test_a_fit_of_nothing_is_none() -> None:
    assert fit([], ALL_REDUCE, 2) is None
    assert fit([{"size": 8, "seconds": 1e-3}], ALL_REDUCE, 1) is None


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


def port(
    rate: str = "400 Gb/sec (4X NDR)",
    state: str = "4: ACTIVE",
    device: str = "mlx5_0",
    layer: str = "InfiniBand",
) -> dict[str, str]:
    return {"device": device, "port": "1", "rate": rate, "link_layer": layer, "state": state}


def node(
    ports: int, speed: int | None = None, rate: str = "400 Gb/sec (4X NDR)", host: str = "n1"
) -> dict[str, object]:
    return {"host": host, "rdma": [port(rate)] * ports, "interfaces": {"eth0": {"speed": speed}}}


def test_line_rate_has_a_reason_or_is_unknown() -> None:
    rate = line_rate([node(8), node(8)], "rdma")
    assert rate is not None
    assert rate.gbytes == 400
    assert "8 x 400 Gbit/s" in rate.because
    assert "less" not in rate.because
    assert line_rate([node(8), node(0)], "rdma") is None
    assert line_rate([node(0, None)], "eth0") is None
    ethernet = line_rate([node(0, 100_000)], "eth0")
    assert ethernet is not None
    assert ethernet.gbytes == 12.5


@pytest.mark.parametrize(
    ("fabric", "bad"),
    [
        ("rdma", node(8, rate="200 Gb/sec (4X HDR)", host="n2")),  # all its ports trained to half
        ("rdma", node(7, host="n2")),
        ("eth0", node(0, 50_000, host="n2")),
    ],
)
def test_a_node_that_has_less_does_not_lower_what_is_asked_of_all(
    fabric: str, bad: dict[str, object]
) -> None:
    good = node(8, 100_000)
    for facts in ([good, bad], [bad, good, good]):
        rate = line_rate(facts, fabric)
        assert rate is not None
        assert rate.gbytes == (400 if fabric == "rdma" else 12.5)
        assert rate.because.endswith("on n1; less on n2")


def test_ports_of_another_kind_are_no_rails() -> None:
    """Storage on Ethernet ports as fast as the rails would make a sound ring look slow."""
    storage = [port(device="mlx5_8", layer="Ethernet")] * 2
    rate = line_rate([{"host": "n1", "interfaces": {}, "rdma": [*storage, *[port()] * 8]}], "rdma")
    assert rate is not None
    assert rate.gbytes == 400
    assert "8 x 400 Gbit/s active InfiniBand ports" in rate.because
    down = port(state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    for ports in ([*storage, port(), port()], [*storage, port(), down]):  # as many of both kinds
        assert {rail.layer for rail in rails(ports)} == {"InfiniBand"}
    assert [rail.name for rail in rails([*storage, port(), down])] == ["mlx5_0/1"]


@pytest.mark.parametrize(
    ("device", "layer", "rate", "says"),
    [
        ("rocep1s0", "Ethernet", "400 Gb/sec (4X NDR)", "active RoCE ports in sysfs on n1"),
        ("efa_0", "Unknown", "100 Gb/sec (4X EDR)", "EFA ports in sysfs on n1 (which older EFA"),
        ("rdmap16s27", "Unspecified", "200 Gb/sec (4X HDR)", "200 Gbit/s active EFA ports in"),
        ("siw0", "", "10 Gb/sec (4X SDR)", "active RDMA ports in sysfs on n1"),
    ],
)
def test_the_line_rate_says_of_which_kind_its_ports_are(
    device: str, layer: str, rate: str, says: str
) -> None:
    found = line_rate([{"host": "n1", "rdma": [port(rate, "4: ACTIVE", device, layer)]}], "rdma")
    assert found is not None
    assert says in found.because
    assert ("older" in found.because) == (device == "efa_0")


def test_a_port_that_is_down_is_no_rail() -> None:
    down = {"host": "n1", "interfaces": {}, "rdma": [port(), port(state="1: DOWN")]}
    rate = line_rate([down], "rdma")
    assert rate is not None
    assert rate.gbytes == 50
