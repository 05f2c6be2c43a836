"""An address that two machines have, and networks where nothing is wrong though it looks so."""

from __future__ import annotations

from typing import Any

import pytest

from probes.fabric.addresses import choose_ports, find_duplicates, parse_arp, read_arp

HEAD = "IP address       HW type     Flags       HW address            Mask     Device\n"
GATEWAY = "42:01:0a:00:00:01"


def mac(node: int, port: int = 0) -> str:
    return f"02:00:00:00:{port:02x}:{node:02x}"


def network(nodes: int) -> tuple[dict[str, Any], dict[str, list[str]], dict[str, Any]]:
    """Nodes of two ports each, that have seen each other's own hardware addresses."""
    ports = {f"n{n}": {"address": f"10.0.0.{n}", "mac": mac(n)} for n in range(nodes)}
    macs = {f"n{n}": [mac(n), mac(n, 1)] for n in range(nodes)}
    seen: dict[str, Any] = {
        f"n{n}": {f"10.0.0.{peer}": mac(peer) for peer in range(nodes) if peer != n}
        for n in range(nodes)
    }
    return ports, macs, seen


def test_the_kernels_table_is_read() -> None:
    table = HEAD + (
        "10.0.0.1  0x1  0x2  02:00:00:00:00:0A  *  fab0\n"
        "10.0.0.2  0x1  0x0  00:00:00:00:00:00  *  fab0\n"  # nobody has answered
        "10.0.0.3  0x1  0x6  02:00:00:00:00:03  *  fab0\n"  # set by hand, complete
        "10.0.0.4  0x1  0x2  00:00:00:00:00:00  *  fab0\n"
        "10.0.0.5  0x20  0x2  80:00:02:08:fe:80:00:00:00:00:00:00  *  ib0\n"  # InfiniBand, cut
        "10.0.0.6  0x1  0x2  02:00:00\n"
        "\n"
    )
    assert parse_arp(table) == {"10.0.0.1": mac(10), "10.0.0.3": mac(3)}
    assert parse_arp("") == {}
    assert read_arp("/no/such/file") is None
    assert read_arp() is not None  # this machine's


def test_two_nodes_that_have_one_address() -> None:
    ports, macs, seen = network(4)
    ports["n2"]["address"] = "10.0.0.1"
    (found,) = find_duplicates(ports, macs, seen)
    assert (found.address, found.nodes) == ("10.0.0.1", ["n1", "n2"])
    assert found.message == "n1, n2 have the same address 10.0.0.1"


def test_another_machine_that_answers_for_a_nodes_address() -> None:
    ports, macs, seen = network(4)
    for node in ("n0", "n3"):
        seen[node]["10.0.0.1"] = "02:99:00:00:00:01"
    (found,) = find_duplicates(ports, macs, seen)
    assert (found.address, found.nodes) == ("10.0.0.1", ["n1"])
    assert found.message == (
        "a machine that is not in this cluster (02:99:00:00:00:01) answers ARP requests of n0, n3 "
        "for 10.0.0.1, the address of n1"
    )


def test_another_node_that_answers_for_a_nodes_address() -> None:
    ports, macs, seen = network(4)
    seen["n0"]["10.0.0.1"] = mac(3, 1)  # by its other port
    (found,) = find_duplicates(ports, macs, seen)
    assert found.nodes == ["n1", "n3"]


def test_of_two_nodes_one_address_of_another_machine() -> None:
    ports, macs, seen = network(2)
    seen["n0"]["10.0.0.1"] = GATEWAY
    assert [found.nodes for found in find_duplicates(ports, macs, seen)] == [["n1"]]


def sound() -> dict[str, Any]:
    cases: dict[str, Any] = {"plain": network(4), "alone": network(1)}
    ports, macs, seen = network(4)
    cases["routed"] = ports, macs, {node: {"10.0.0.254": GATEWAY} for node in seen}
    cases["no neighbours"] = ports, macs, dict.fromkeys(seen)
    cloud = {node: dict.fromkeys(rows, GATEWAY) for node, rows in seen.items()}
    cases["a gateway answers for all"] = ports, macs, cloud
    far = {node: {**rows} for node, rows in seen.items()}
    for node in ("n0", "n1"):  # n2 and n3 are in another rack
        far[node] |= {"10.0.0.2": GATEWAY, "10.0.0.3": GATEWAY}
    cases["a gateway answers for another rack"] = ports, macs, far
    numbers = range(4)
    flux = {
        f"n{n}": {f"10.0.0.{peer}": mac(peer, 1) for peer in numbers if peer != n} for n in numbers
    }
    cases["another port of the node answers"] = ports, macs, flux
    one = {node: {**port, "address": "10.0.0.7", "mac": mac(7)} for node, port in ports.items()}
    cases["raylets of one host"] = one, macs, {}
    unknown = {node: {**port, "mac": ""} for node, port in one.items()}
    cases["hardware addresses that nobody knows"] = unknown, macs, {}
    cases["no addresses"] = {n: {**port, "address": None} for n, port in ports.items()}, macs, {}
    return cases


@pytest.mark.parametrize("name", sound())
def test_a_sound_network_accuses_nobody(name: str) -> None:
    assert find_duplicates(*sound()[name]) == []


def test_rays_own_interface_is_tested_where_no_other_was_agreed() -> None:
    ports = {"eth0": {"address": "10.0.0.{}"}, "eth1": {"address": "10.1.0.{}"}}
    readings = {
        f"n{n}": {
            "interfaces": {name: {"address": p["address"].format(n)} for name, p in ports.items()},
            "rails": {},
        }
        for n in range(2)
    }
    chosen = choose_ports(readings, None, {"n0": "10.1.0.0", "n1": "10.0.0.9"})
    assert chosen.names == {"n0": "eth1", "n1": ""}
    assert chosen.ports == {"n0": {"address": "10.1.0.0"}, "n1": None}
