"""How nodes try each other, and what is found out by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.network_facts import list_pairs
from probes.fabric import addresses as fabric_ports
from probes.fabric import reach
from probes.fabric.addresses import (
    DOCTORED_BYTES,
    DoctoredPort,
    FabricPorts,
    choose_ports,
    read_arp,
    read_node_ports,
)
from probes.fabric.reach import (
    BLINK_SECONDS,
    CALL_SECONDS,
    SMALL_BYTES,
    FabricNodes,
    ReachabilityResult,
    check_reach,
    find_unreachable,
)
from scaling.collectives.reachability import (
    check_tcp,
    check_udp,
    max_wait_s,
    start_tcp_listener,
    start_udp_echo,
)


class LocalGang:
    """Ranks in this process, each of a node of its own, and what they were called with."""

    def __init__(self, *addresses: str) -> None:
        self.places = [SimpleNamespace(address=address) for address in addresses]
        self.calls: list[tuple[Any, list[Any], float]] = []

    def run(self, function: Any, timeout: float, each: Any, groups: list[list[int]]) -> list[Any]:
        self.calls += [(function, each[rank], timeout) for (rank,) in groups]
        return [function(*each[rank]) for (rank,) in groups]


def nodes_at(gang: Any, dead: dict[str, str] | None = None) -> FabricNodes:
    """Nodes a, b and so on, each tried at its address in Ray."""
    names = [*"abc", *(f"n{at}" for at in range(3, len(gang.places)))][: len(gang.places)]
    chosen = FabricPorts({}, dict.fromkeys(names), dead or {})
    ranks = {name: rank for rank, name in enumerate(names)}
    return FabricNodes(gang, ranks, None, {}, chosen)


def test_on_a_large_cluster_each_node_connects_to_some_and_one_that_none_reaches_is_named() -> None:
    """Of all pairs, 2,145, a fifth is tried: each node connects to 12 others."""
    gang = LocalGang(*(f"127.0.1.{at + 1}" for at in range(66)))
    nodes = nodes_at(gang)
    pairs = nodes.unreachable_pairs(closed=["n7"])
    tried = [pair for pair in list_pairs(nodes.names) if "n7" in pair]
    assert (pairs, len(tried)) == (tried, 12)
    (found,) = find_unreachable(ReachabilityResult(nodes.names, pairs, {}))
    assert (found.code, found.suspects) == ("FAB-LINK-DOWN", ["n7"])
    assert "it reaches none of the nodes that it tried by TCP" in found.statement
    (found,) = find_unreachable(ReachabilityResult(nodes.names, pairs[:1], {}))
    assert (found.code, found.suspects) == ("FAB-PAIR-BLOCKED", [*pairs[0]])


def test_a_node_whose_fabric_port_is_dead_opens_no_door() -> None:
    gang = LocalGang("127.0.0.1", "127.0.0.2", "127.0.0.3")
    nodes = nodes_at(gang, {"b": "fab0 is down"})
    assert nodes.unreachable_pairs() == [("a", "b"), ("b", "c")]
    opened = [arguments for function, arguments, _ in gang.calls if function is start_tcp_listener]
    assert [address for address, _ in opened] == ["127.0.0.1", "127.0.0.3"]


@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_a_door_that_is_closed_is_that_nodes_alone(victim: str) -> None:
    gang = LocalGang("127.0.0.1", "127.0.0.2", "127.0.0.3")
    pairs = nodes_at(gang).unreachable_pairs(closed={victim})
    assert pairs == [pair for pair in [("a", "b"), ("a", "c"), ("b", "c")] if victim in pair]


def test_a_door_outlasts_all_who_may_knock() -> None:
    gang = LocalGang(*["127.0.0.1"] * 3)
    assert nodes_at(gang).unreachable_pairs() == []
    open_s = {arguments[1] for function, arguments, _ in gang.calls[:3]}
    limits = {timeout for _, _, timeout in (gang.calls[0], gang.calls[-1])}
    assert open_s == {sum(limits)} == {2 * CALL_SECONDS + max_wait_s(3, 4)}


def test_no_usable_node_opens_no_door() -> None:
    gang = LocalGang("127.0.0.1", "127.0.0.1")
    assert nodes_at(gang, {"a": "-", "b": "-"}).unreachable_pairs() == [("a", "b")]
    assert all(function is check_tcp for function, _, _ in gang.calls)


def port(address: str | None, **more: Any) -> dict[str, Any]:
    return {"address": address, "mac": f"02:{address}", "mtu": 9000, "state": "up", **more}


def node(number: int, rails: dict[str, str] | None = None, **interfaces: Any) -> dict[str, Any]:
    """What one node says: eth0 is Ray's, and has another MTU."""
    eth0 = port(f"10.0.0.{number}", mtu=1500)
    return {"interfaces": {"eth0": eth0, **interfaces}, "rails": rails or {}}


RAY = {"n0": "10.0.0.0", "n1": "10.0.0.1"}


def test_an_agreed_interface_is_tried_or_is_dead() -> None:
    up, down = port("10.1.0.0"), port("10.1.0.1", state="down")
    chosen = choose_ports({"n0": node(0, fab0=up), "n1": node(1, fab0=down)}, "fab0", RAY)
    assert chosen.names == {"n0": "fab0", "n1": "fab0"}
    assert chosen.dead == {"n1": "fab0 is down and has 10.1.0.1"}
    chosen = choose_ports({"n0": node(0, fab0=up), "n1": node(1)}, "fab0", RAY)
    assert chosen.dead == {"n1": "the node has no interface fab0"}


def test_without_an_agreed_fabric_rays_address_is_tried() -> None:
    chosen = choose_ports({"n0": node(0), "n1": node(1)}, None, RAY)
    assert chosen.names == {"n0": "eth0", "n1": "eth0"}
    assert (chosen.note, chosen.has_ip) == ("", True)


def test_rdma_is_tried_on_the_addresses_of_one_rail() -> None:
    rails = {"mlx5_0/1": "eth1", "mlx5_1/1": "eth2"}
    readings = {
        "n0": node(0, rails, eth1=port("10.1.0.0"), eth2=port("10.2.0.0")),
        "n1": node(1, rails, eth1=port(None), eth2=port("10.2.0.1")),
    }
    chosen = choose_ports(readings, "rdma", RAY)
    assert chosen.names == {"n0": "eth2", "n1": "eth2"}
    assert {p["mtu"] for p in chosen.ports.values() if p} == {9000}
    assert (chosen.dead, chosen.note) == ({}, "")


def test_a_rail_whose_interface_is_down_is_not_tried() -> None:
    rails = {"mlx5_0/1": "eth1", "mlx5_1/1": "eth2"}
    down = port("10.1.0.0", state="down")
    readings = {
        "n0": node(0, rails, eth1=down, eth2=port("10.2.0.0")),
        "n1": node(1, rails, eth1=port("10.1.0.1"), eth2=port("10.2.0.1")),
    }
    assert choose_ports(readings, "rdma", RAY).names == {"n0": "eth2", "n1": "eth2"}


@pytest.mark.parametrize("rails", [{}, {"mlx5_0/1": ""}, {"mlx5_0/1": "eth1"}])
def test_rdma_without_addresses_is_tried_on_rays_and_says_so(rails: dict[str, str]) -> None:
    readings = {name: node(number, rails, eth1=port(None)) for number, name in enumerate(RAY)}
    chosen = choose_ports(readings, "rdma", RAY)
    assert chosen.names == {"n0": "eth0", "n1": "eth0"}
    assert not chosen.has_ip
    assert chosen.note == "no RDMA port has an IP address on n0, n1"


def test_rdma_with_an_address_on_some_nodes_proves_nothing_of_packet_sizes() -> None:
    rails = {"mlx5_0/1": "eth1"}
    readings = {"n0": node(0, rails, eth1=port("10.1.0.0")), "n1": node(1, rails, eth1=port(None))}
    chosen = choose_ports(readings, "rdma", RAY)
    assert (chosen.has_ip, chosen.note) == (True, "no RDMA port has an IP address on n1")


@pytest.mark.parametrize(
    ("doctored", "address", "more_bytes"),
    [
        (None, "10.1.0.0", 0),
        (DoctoredPort("fab0", "10.1.0.1"), "10.1.0.1", DOCTORED_BYTES),
        (DoctoredPort("", None), "10.1.0.0", 0),  # Ray's address is on no interface
    ],
)
def test_a_node_says_what_is_there_but_for_the_interface_that_a_control_doctors(
    monkeypatch: pytest.MonkeyPatch, doctored: DoctoredPort | None, address: str, more_bytes: int
) -> None:
    sound = node(0, fab0=port("10.1.0.0"))
    monkeypatch.setattr(fabric_ports, "read_interfaces", lambda: {**sound["interfaces"]})
    told = {**port("10.1.0.0"), "address": address, "mtu": 9000 + more_bytes}
    expected = {"interfaces": {**sound["interfaces"], "fab0": told}, "rails": {}}
    assert read_node_ports("fab0", doctored) == expected


class Reachable:
    """A gang of two nodes in this process whose ports are told, and all of whom are reached."""

    def __init__(self, *readings: dict[str, dict[str, Any]]) -> None:
        self.readings = list(readings)
        self.neighbours: list[dict[str, str] | None] = [{}, {}]
        self.sizes: list[Any] = []  # bytes that each node sent to each peer, test after test
        self.places = [
            SimpleNamespace(node=f"id{number}", address=f"10.0.0.{number}") for number in range(2)
        ]

    def run(
        self, function: Any, *_: Any, timeout: float, groups: Any, each: Any = None
    ) -> list[Any]:
        if function is read_node_ports:
            found = self.readings.pop(0)
            return [found["n0"], found["n1"]]
        if function is read_arp:
            return self.neighbours
        if function in (start_tcp_listener, start_udp_echo):
            return [4000 for _ in groups]
        assert function in (check_tcp, check_udp)
        if function is check_udp:
            self.sizes.append([each[rank][2] for (rank,) in groups])
        return [{name: each[rank][1].get(name) is not None for name in RAY} for (rank,) in groups]


NAMES = {"id0": "n0", "id1": "n1"}


def test_a_port_that_is_down_for_a_moment_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(reach.time, "sleep", pauses.append)
    back = {"n0": node(0, fab0=port("10.1.0.0")), "n1": node(1, fab0=port("10.1.0.1"))}
    blinked = {**back, "n1": node(1, fab0=port("10.1.0.1", state="down"))}
    gang: Any = Reachable(blinked, back)
    assert check_reach(gang, NAMES, "fab0").dead == {}
    assert pauses == [BLINK_SECONDS]
    gang = Reachable(blinked, blinked)
    found = check_reach(gang, NAMES, "fab0")
    assert found.dead == {"n1": "fab0 is down and has 10.1.0.1"}
    assert found.pairs == [("n0", "n1")]


def test_packet_sizes_of_the_fabric_and_not_of_rays_network() -> None:
    rails = {"mlx5_0/1": "eth1"}
    agreed = {n: node(i, rails, eth1=port(f"10.1.0.{i}")) for i, n in enumerate(RAY)}
    gang: Any = Reachable(agreed)
    found = check_reach(gang, NAMES, "rdma")
    assert found.mtu == {"n0": 9000, "n1": 9000}
    assert found.ports == {"n0": "eth1", "n1": "eth1"}
    bare: Any = Reachable({n: node(i, {"mlx5_0/1": ""}) for i, n in enumerate(RAY)})
    found = check_reach(bare, NAMES, "rdma")
    assert (found.mtu, found.narrow, found.has_ip) == ({}, None, False)


def test_full_size_is_the_mtu_and_no_byte_more() -> None:
    gang: Any = Reachable({n: node(i, fab0=port(f"10.1.0.{i}")) for i, n in enumerate(RAY)})
    assert check_reach(gang, NAMES, "fab0").narrow == []
    small, full = ([{"n1": size}, {"n0": size}] for size in (SMALL_BYTES, 9000))
    assert gang.sizes == [small, full]


def test_a_loopback_is_tried_with_the_largest_packet_there_is() -> None:
    """A container without a network has only `lo`, with an MTU of 65536: no packet is so large."""
    ports = {n: node(i, lo=port(f"127.0.0.{i + 1}", mtu=65_536)) for i, n in enumerate(RAY)}
    gang: Any = Reachable(ports)
    assert check_reach(gang, NAMES, "lo").narrow == []
    assert gang.sizes[1] == [{"n1": 65_535}, {"n0": 65_535}]
    door = "127.0.0.1", start_udp_echo("127.0.0.1", 20)
    for size, passes in ((65_535, True), (65_536, False)):
        assert check_udp("127.0.0.1", {"n": door}, {"n": size}, 4) == {"n": passes}


def test_one_node_of_unknown_mtu_leaves_packet_sizes_untested() -> None:
    readings = {"n0": node(0, fab0=port("10.1.0.0")), "n1": node(1, fab0=port("10.1.0.1", mtu=0))}
    gang: Any = Reachable(readings)
    found = check_reach(gang, NAMES, "fab0")
    assert found.narrow is None
    assert found.note == "the MTU of the fabric's interface is unknown on n1"


@pytest.mark.parametrize(("shown", "saw"), [(({}, None), True), ((None, None), False)])
def test_one_node_that_shows_its_neighbours_is_enough(shown: Any, saw: bool) -> None:
    gang: Any = Reachable({n: node(i, fab0=port(f"10.1.0.{i}")) for i, n in enumerate(RAY)})
    gang.neighbours = [*shown]
    assert check_reach(gang, NAMES, "fab0").saw_neighbours is saw


def test_a_node_without_the_interface_has_no_address_to_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach.time, "sleep", lambda seconds: None)
    lacks = {"n0": node(0, fab0=port("10.1.0.0")), "n1": node(1)}
    gang: Any = Reachable(lacks, lacks)
    found = check_reach(gang, NAMES, "fab0")
    assert (found.duplicates, found.dead) == ([], {"n1": "the node has no interface fab0"})
