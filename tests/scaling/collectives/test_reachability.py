"""Who reaches whom over TCP, and how large a datagram may be."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from scaling.collectives.reachability import (
    check_tcp,
    check_udp,
    own_sockets,
    start_tcp_listener,
    start_udp_echo,
    tcp_connections,
)

OPEN_S = 60  # seconds: longer than any of these tests, and not for ever


def test_our_own_connections_are_seen_and_loopback_is_not() -> None:
    ends = (SimpleNamespace(ip="77.0.0.1", port=8080), SimpleNamespace(ip="77.0.0.2", port=40961))
    own = SimpleNamespace(fd=-1, family=socket.AF_INET, laddr=ends[0], raddr=ends[1])
    ipv6 = SimpleNamespace(family=socket.AF_INET6, laddr=ends[0], raddr=ends[1])
    with patch("scaling.collectives.reachability.own_sockets", lambda state: [own, ipv6]):
        assert tcp_connections() == {("77.0.0.1", "77.0.0.2", 8080, 40961)}
    before = tcp_connections()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert tcp_connections() == before
        found = {(*one.laddr, *one.raddr) for one in own_sockets("ESTABLISHED")}
        assert (*client.getsockname(), *client.getpeername()) in found


def test_more_doors_than_are_tried_at_once() -> None:
    here = [f"127.0.1.{at}" for at in range(1, 71)]
    dead = {f"127.0.1.{at}" for at in (3, 33, 64)}
    taken = {name: (name, start_tcp_listener(name, OPEN_S)) for name in here if name not in dead}
    doors = {name: taken.get(name) for name in here}
    assert check_tcp("127.0.0.1", doors, seconds=2) == {name: name not in dead for name in here}
    echoes = {name: (name, start_udp_echo(name, OPEN_S)) for name in here}
    echoes |= {name: (name, 9) for name in dead}  # nobody answers there
    sizes = dict.fromkeys(here, 100)
    found = check_udp("127.0.0.1", echoes, sizes, seconds=0.7)
    assert found == {name: name not in dead for name in here}


def test_a_datagram_passes_up_to_the_mtu_and_not_beyond() -> None:
    mtu = int(Path("/sys/class/net/lo/mtu").read_text())
    doors = {"here": ("127.0.0.1", start_udp_echo("127.0.0.1", OPEN_S))}
    assert check_udp("127.0.0.1", doors, {"here": min(mtu, 60_000)}) == {"here": True}
    both = {**doors, "shut": None}
    assert check_udp("127.0.0.1", both, dict.fromkeys(both, mtu + 100), 0.3) == {
        "here": False,
        "shut": False,
    }


def test_reach_tells_open_from_closed() -> None:
    port = start_tcp_listener("127.0.0.1", OPEN_S)
    doors = {"open": ("127.0.0.1", port), "shut": ("127.0.0.1", 1), "none": None}
    assert check_tcp("127.0.0.1", doors, seconds=2) == {"open": True, "shut": False, "none": False}


@pytest.mark.parametrize("start", [start_tcp_listener, start_udp_echo])
def test_a_door_is_open_on_its_own_address_and_closes(start) -> None:
    port = start("127.0.0.1", 0.5)
    check = check_tcp if start is start_tcp_listener else check_udp
    sizes = [{"it": 100}] if check is check_udp else []

    def knock(address: str) -> bool:
        return check("127.0.0.1", {"it": (address, port)}, *sizes, seconds=0.2)["it"]

    assert knock("127.0.0.1")
    assert not knock("127.0.0.2")  # another interface of the same node
    time.sleep(0.8)
    assert not knock("127.0.0.1")
    kind = socket.SOCK_STREAM if start is start_tcp_listener else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))  # it is free again


@pytest.mark.parametrize("start", [start_tcp_listener, start_udp_echo])
@pytest.mark.parametrize("address", ["", "0.0.0.0"])
def test_a_door_on_all_interfaces_is_refused(start, address: str) -> None:
    with pytest.raises(ValueError, match=r"found 0\.0\.0\.0|does not appear to be an IPv4"):
        start(address, OPEN_S)


def test_an_answer_is_not_answered() -> None:
    """Else one forged datagram would have two doors talk to each other until they close."""
    port = start_udp_echo("127.0.0.1", OPEN_S)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", port))
        sock.settimeout(0.3)
        sock.send(b"x" * 60_000)
        answer = sock.recv(64)
        assert answer == b"60000"
        sock.send(answer)
        with pytest.raises(TimeoutError):
            sock.recv(64)
