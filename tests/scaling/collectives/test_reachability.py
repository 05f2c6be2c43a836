"""Who reaches whom over TCP, and how large a datagram may be."""

from __future__ import annotations

import socket
from pathlib import Path

from scaling.collectives.reachability import (
    check_tcp,
    check_udp,
    parse_tcp,
    start_tcp_listener,
    start_udp_echo,
    tcp_connections,
)


def test_our_own_connections_are_seen_and_loopback_is_not() -> None:
    line = "   0: 0100004D:1F90 0200004D:A001 01 00000000:00000000 00:00000000 00000000 0 0 77 1"
    (found,) = parse_tcp("header\n" + line)
    assert found == (("77.0.0.1", "77.0.0.2", 8080, 40961), 1, "77")
    before = tcp_connections()
    port = start_tcp_listener("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)):
        assert tcp_connections() == before


def test_more_doors_than_are_tried_at_once() -> None:
    here = [f"127.0.1.{at}" for at in range(1, 71)]
    dead = {f"127.0.1.{at}" for at in (3, 33, 64)}
    taken = {name: (name, start_tcp_listener(name)) for name in here if name not in dead}
    doors = {name: taken.get(name) for name in here}
    assert check_tcp("127.0.0.1", doors, seconds=2) == {name: name not in dead for name in here}
    echoes = {name: (name, start_udp_echo(name)) for name in here}
    echoes |= {name: (name, 9) for name in dead}  # nobody answers there
    sizes = dict.fromkeys(here, 100)
    found = check_udp("127.0.0.1", echoes, sizes, seconds=0.7)
    assert found == {name: name not in dead for name in here}


def test_a_datagram_passes_up_to_the_mtu_and_not_beyond() -> None:
    mtu = int(Path("/sys/class/net/lo/mtu").read_text())
    doors = {"here": ("127.0.0.1", start_udp_echo("127.0.0.1"))}
    assert check_udp("127.0.0.1", doors, {"here": min(mtu, 60_000)}) == {"here": True}
    both = {**doors, "shut": None}
    assert check_udp("127.0.0.1", both, dict.fromkeys(both, mtu + 100), 0.3) == {
        "here": False,
        "shut": False,
    }


def test_reach_tells_open_from_closed() -> None:
    port = start_tcp_listener("127.0.0.1")
    doors = {"open": ("127.0.0.1", port), "shut": ("127.0.0.1", 1), "none": None}
    assert check_tcp("127.0.0.1", doors, seconds=2) == {"open": True, "shut": False, "none": False}
