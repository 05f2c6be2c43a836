"""Reads on which addresses of a node a port listens, from the kernel's tables of sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path

LISTEN = "0A"  # include/net/tcp_states.h, as in /proc/net/tcp
WILD_V4, WILD_V6 = "0.0.0.0", "::"  # noqa: S104  all addresses of a node


def read_listeners(ports: Sequence[int], net: str = "/proc/net") -> dict[int, list[str]] | None:
    """Read the addresses on which each of these ports listens; None if no table is readable."""
    texts = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # a kernel without IPv6
            texts.append(Path(net, table).read_text())
    if not texts:
        return None
    found = parse_listeners("\n".join(texts))
    return {
        port: sorted({address for address, number in found if number == port}) for port in ports
    }


def parse_listeners(text: str) -> list[tuple[str, int]]:
    """Parse lines of /proc/net/tcp and tcp6 into (address, port) of the sockets that listen."""
    rows = [line.split() for line in text.splitlines()]
    return [parse_address(row[1]) for row in rows if len(row) > 3 and row[3] == LISTEN]


def parse_address(text: str) -> tuple[str, int]:
    """Parse `0100007F:18EB`: the address in words of 32 bits of the host, and the port."""
    words, _, port = text.partition(":")
    parts = [int(words[at : at + 8], 16) for at in range(0, len(words), 8)]
    packed = struct.pack(f"={len(parts)}I", *parts)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    address = ip_address(socket.inet_ntop(family, packed))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), int(port, 16)


def public_addresses(listens: Sequence[str], own: Sequence[str]) -> list[str]:
    """List the globally routable addresses of a node at which a listener is reached.

    `listens` are the addresses of the listener, and `own` those of the node's interfaces.  A
    listener on :: takes IPv4 as well, unless another setting of the socket forbids it.
    """
    reached = []
    for text in own:
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError:
            continue
        is_wild = WILD_V6 in listens or (address.version == 4 and WILD_V4 in listens)
        if address.is_global and (is_wild or str(address) in listens):
            reached.append(str(address))
    return reached
