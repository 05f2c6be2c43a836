"""Who reaches whom over TCP, and how large a datagram may be."""

from __future__ import annotations

import socket
from pathlib import Path

from scaling.collectives.reachability import connections, echo, listen, parse_tcp, passes, reach


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


def test_a_datagram_passes_up_to_the_mtu_and_not_beyond() -> None:
    mtu = int(Path("/sys/class/net/lo/mtu").read_text())
    doors = {"here": ("127.0.0.1", echo("127.0.0.1"))}
    assert passes("127.0.0.1", doors, {"here": min(mtu, 60_000)}) == {"here": True}
    both = {**doors, "shut": None}
    assert passes("127.0.0.1", both, dict.fromkeys(both, mtu + 100), 0.3) == {
        "here": False,
        "shut": False,
    }


def test_reach_tells_open_from_closed() -> None:
    port = listen("127.0.0.1")
    doors = {"open": ("127.0.0.1", port), "shut": ("127.0.0.1", 1), "none": None}
    assert reach("127.0.0.1", doors, seconds=2) == {"open": True, "shut": False, "none": False}
