"""On which addresses a port listens, by the kernel's own tables."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from probes.cluster.endpoints import parse_address, public_addresses, read_listeners


def test_real_sockets_are_found() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as local,
        socket.create_server(("0.0.0.0", 0)) as everywhere,
    ):
        ports = [one.getsockname()[1] for one in (local, everywhere)]
        assert read_listeners([*ports, 1]) == {
            ports[0]: ["127.0.0.1"],
            ports[1]: ["0.0.0.0"],
            1: [],
        }


@pytest.mark.skipif(not socket.has_ipv6, reason="this kernel has no IPv6")
def test_a_real_socket_of_ipv6() -> None:
    try:
        server = socket.create_server(("::", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this host has no IPv6")
    with server:
        port = server.getsockname()[1]
        # Another test may listen at the same port, on an address of IPv4.
        assert "::" in read_listeners([port])[port]


@pytest.mark.parametrize(("text", "expected"), [
    ("0100007F:18EB", ("127.0.0.1", 6379)),
    ("00000000:2049", ("0.0.0.0", 8265)),
    ("0000000000000000FFFF00000100000A:0050", ("10.0.0.1", 80)),
    ("00000000000000000000000001000000:0050", ("::1", 80)),
])  # fmt: skip
def test_addresses_of_the_table(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


def test_only_sockets_that_listen_count(tmp_path: Path) -> None:
    rows = [
        "  sl  local_address rem_address st",
        " 0: 0100007F:1000 0:0 01",
        " 1: 0100007F:1001 0:0 0A",
        " 2: 0100007F:1002 0:0",  # half a row, as of a table that is cut off
    ]
    (tmp_path / "tcp").write_text("\n".join(rows))
    assert read_listeners([4096, 4097], str(tmp_path)) == {4096: [], 4097: ["127.0.0.1"]}


def test_unreadable_tables_are_not_empty(tmp_path: Path) -> None:
    assert read_listeners([1], str(tmp_path)) is None


def test_public_addresses_are_globally_routable() -> None:
    own = ["127.0.0.1", "10.0.0.1", "8.8.8.8", "fe80::1%eth0", "2a00:1450::1", "no address"]
    assert public_addresses(["0.0.0.0"], own) == ["8.8.8.8"]
    assert public_addresses(["::"], own) == ["8.8.8.8", "2a00:1450::1"]
    assert public_addresses(["2a00:1450::1", "10.0.0.1"], own) == ["2a00:1450::1"]
    assert public_addresses([], own) == []
