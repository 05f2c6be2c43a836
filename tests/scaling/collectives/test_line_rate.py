"""The line rate that a node's ports give, with its reason."""

from __future__ import annotations

import pytest

from scaling.collectives.line_rate import active_rails, installed_rails, limit_reason, line_rate


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
    assert rate.gbytes_per_s == 400
    assert "8 x 400 Gbit/s" in rate.because
    assert "less" not in rate.because
    assert line_rate([node(8), node(0)], "rdma") is None
    assert line_rate([node(0, None)], "eth0") is None
    ethernet = line_rate([node(0, 100_000)], "eth0")
    assert ethernet is not None
    assert ethernet.gbytes_per_s == 12.5


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
        assert rate.gbytes_per_s == (400 if fabric == "rdma" else 12.5)
        assert rate.because.endswith("on n1; a lower rate on n2")


def test_of_many_nodes_that_have_less_eight_are_named() -> None:
    facts = [node(8), *(node(7, host=f"n{number}") for number in range(2, 12))]
    rate = line_rate(facts, "rdma")
    assert rate is not None
    assert rate.because.endswith("; a lower rate on n2, n3, n4, n5, n6, n7, n8, n9 and 2 more")


def test_the_reason_of_a_limit_says_what_a_sound_ring_reaches() -> None:
    assert "a healthy ring reaches 96" in limit_reason(0.8, "400 GB/s")


def test_ports_of_another_kind_are_no_rails() -> None:
    """Storage on Ethernet ports as fast as the rails would make a sound ring look slow."""
    storage = [port(device="mlx5_8", layer="Ethernet")] * 2
    rate = line_rate([{"host": "n1", "interfaces": {}, "rdma": [*storage, *[port()] * 8]}], "rdma")
    assert rate is not None
    assert rate.gbytes_per_s == 400
    assert "8 x 400 Gbit/s InfiniBand ports" in rate.because
    down = port(state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    for ports in ([*storage, port(), port()], [*storage, port(), down]):  # as many of both kinds
        assert {rail.layer for rail in active_rails(ports)} == {"InfiniBand"}
    assert [rail.name for rail in active_rails([*storage, port(), down])] == ["mlx5_0/1"]


@pytest.mark.parametrize(
    ("device", "layer", "rate", "says"),
    [
        ("rocep1s0", "Ethernet", "400 Gb/sec (4X NDR)", "RoCE ports in sysfs on n1"),
        ("efa_0", "Unknown", "100 Gb/sec (4X EDR)", "EFA ports in sysfs on n1 (older EFA"),
        ("rdmap16s27", "Unspecified", "200 Gb/sec (4X HDR)", "200 Gbit/s EFA ports in"),
        ("siw0", "", "10 Gb/sec (4X SDR)", "RDMA ports in sysfs on n1"),
    ],
)
def test_the_line_rate_says_of_which_kind_its_ports_are(
    device: str, layer: str, rate: str, says: str
) -> None:
    found = line_rate([{"host": "n1", "rdma": [port(rate, "4: ACTIVE", device, layer)]}], "rdma")
    assert found is not None
    assert says in found.because
    assert ("older" in found.because) == (device == "efa_0")


INIT, DOWN = "2: INIT", "1: DOWN"
BASE = "10 Gb/sec (4X SDR)"  # what sysfs shows of a port without a link


def rails_of(ports: list[dict[str, str]]) -> dict[str, object]:
    return {"host": "n1", "interfaces": {}, "rdma": ports}


@pytest.mark.parametrize(
    "half",
    [[port(state=INIT)] * 4, [port(state=DOWN, rate=BASE)] * 4, [port(state=DOWN)] * 4],
    ids=["not configured", "without a link", "without a link, with its rate"],
)
def test_the_state_of_the_rails_does_not_lower_the_line_rate(half: list[dict[str, str]]) -> None:
    """Half the rails of every node are not active: what is asked of the fabric stays."""
    rate = line_rate([rails_of([*[port()] * 4, *half])] * 2, "rdma")
    assert rate is not None
    assert rate.gbytes_per_s == 400
    assert "8 x 400 Gbit/s InfiniBand ports in sysfs on n1, 4 of them not active" in rate.because
    assert len(active_rails([*[port()] * 4, *half])) == 4


def test_with_the_subnet_manager_dead_the_rails_are_still_the_rails() -> None:
    management = port("25 Gb/sec (1X EDR)", device="mlx5_8", layer="Ethernet")
    ports = [management, *[port(state=INIT)] * 8]
    rate = line_rate([rails_of(ports)] * 2, "rdma")
    assert rate is not None
    assert rate.gbytes_per_s == 400
    assert active_rails(ports) == [], "the management port is no rail because others are not active"


def test_a_rate_that_no_port_of_the_kind_shows_is_unknown() -> None:
    management = port("25 Gb/sec (1X EDR)", device="mlx5_8", layer="Ethernet")
    dead = [port(state=DOWN, rate=BASE)] * 8
    assert line_rate([rails_of(dead)] * 2, "rdma") is None
    assert line_rate([rails_of([management, *dead])] * 2, "rdma") is None
    assert active_rails([management, *dead]) == []
    spare = [port(state=DOWN, rate=BASE)]
    fast = [port(device="mlx5_8", layer="Ethernet")] * 8
    rate = line_rate([rails_of([*fast, *spare])], "rdma")
    assert rate is not None, "a spare port of another kind hides nothing"
    assert rate.gbytes_per_s == 400


@pytest.mark.parametrize("rate", ["", "unknown", "0 Gb/sec"])
def test_an_active_port_that_shows_no_rate_is_a_rail(rate: str) -> None:
    """Without a rate the limit would be 0, and each speed would pass."""
    mute = port(rate)
    assert line_rate([rails_of([mute] * 8)] * 2, "rdma") is None
    known = line_rate([rails_of([*[port()] * 7, mute])] * 2, "rdma")
    assert known is not None
    assert known.gbytes_per_s == 400


def test_a_node_that_is_down_takes_its_rate_from_the_others() -> None:
    dead = {**rails_of([port(state=DOWN, rate=BASE)] * 8), "host": "n2"}
    rate = line_rate([rails_of([port()] * 8), dead], "rdma")
    assert rate is not None
    assert rate.gbytes_per_s == 400
    (_, rails) = installed_rails([[port()] * 8, [port(state=DOWN, rate=BASE)] * 8])
    assert rails is not None
    assert {(rail.gbps, rail.active) for rail in rails} == {(400.0, False)}


def test_slower_ports_are_for_storage() -> None:
    storage = [port("100 Gb/sec (4X EDR)", device="mlx5_8")] * 2
    rate = line_rate([rails_of([*[port()] * 8, *storage])], "rdma")
    assert rate is not None
    assert rate.gbytes_per_s == 400
