"""Finds rails whose cables are in each other's switch, by who hears whom on each interface.

Every node sends a datagram to all machines of each rail's link (IPv6 ff02::1, RFC 4291), and notes
on which of its interfaces it hears the others.  A rail that hears the others' port of another rail
is plugged into the switch of that rail.  It works below IP addresses, on Ethernet with IPv6.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from probes.fabric.rails.ranks import port_name, suspects
from probes.findings import finding
from reports.record import Finding

ALL_MACHINES = "ff02::1"  # of a link: RFC 4291, 2.7.1
REPEAT_S = 0.2
MAX_BYTES = 1024  # of a datagram
MAX_HEARD = 100_000  # ports on one link: more than the largest clusters have
# include/uapi/linux/in6.h: struct in6_pktinfo is an address and the number of the interface.
PKTINFO = struct.Struct("16sI")

Heard = Mapping[str, list[tuple[str, str]]]  # own interface -> (node, its interface)


def hear_rails(
    interfaces: Sequence[str], port: int, token: str, seconds: float, node: str
) -> dict[str, list[tuple[str, str]]]:
    """Send and listen on these interfaces; return who was heard on which: (node, interface).

    `token` tells this run's datagrams from others.  Empty where IPv6 is off.
    """
    heard: dict[str, set[tuple[str, str]]] = {name: set() for name in interfaces}
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        sock.bind(("::", port))
        names = _numbers(interfaces)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for number, name in names.items():
                data = json.dumps([token, node, name]).encode()
                with suppress(OSError):  # an interface that is down
                    sock.sendto(data, (ALL_MACHINES, port, 0, number))
            until = min(deadline, time.monotonic() + REPEAT_S)
            while (left_s := until - time.monotonic()) > 0:
                if not select.select([sock], [], [], left_s)[0]:
                    break
                message = parse_message(sock.recvmsg(MAX_BYTES, 256), token)
                own = names.get(message[0]) if message else None
                if message and own and message[1] != node and len(heard[own]) < MAX_HEARD:
                    heard[own].add(message[1:])
    return {name: sorted(found) for name, found in heard.items() if found}


def _numbers(interfaces: Sequence[str]) -> dict[int, str]:
    """Map the numbers of these interfaces to their names; those that do not exist are left out."""
    numbers = {}
    for name in interfaces:
        with suppress(OSError):
            numbers[socket.if_nametoindex(name)] = name
    return numbers


def parse_message(received: tuple[Any, ...], token: str) -> tuple[int, str, str] | None:
    """Parse what `recvmsg` returned: (number of the own interface, sender, its interface).

    None for a datagram of somebody else.
    """
    data, control, *_ = received
    with suppress(ValueError, RecursionError, struct.error):
        numbers = [
            PKTINFO.unpack(value[: PKTINFO.size])[1]
            for level, kind, value in control
            if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)
        ]
        said = json.loads(data)
        if numbers and isinstance(said, list) and len(said) == 3 and said[0] == token:
            return numbers[0], str(said[1]), str(said[2])
    return None


def find_swapped(heard: Mapping[str, Heard]) -> dict[str, dict[str, str]]:
    """Find nodes with rails in another rail's switch: node -> interface -> that rail.

    `heard` is by node.  On a link where one node is plugged wrongly, all others hear each other's
    same rail: most of what a node hears decides, and most nodes of the rail must be right.
    """
    swapped: dict[str, dict[str, str]] = {}
    for node, by_interface in heard.items():
        for name, others in ((name, found) for name, found in by_interface.items() if found):
            rails = Counter(rail for _, rail in others)
            most, count = rails.most_common(1)[0]
            if most != name and count * 2 > len(others) and name not in rails:
                swapped.setdefault(node, {})[name] = most
    odd = {
        node: {name: rail for name, rail in rails.items() if _is_sound(heard, swapped, name, rail)}
        for node, rails in swapped.items()
    }
    return {node: rails for node, rails in odd.items() if rails}


def _is_sound(
    heard: Mapping[str, Heard], swapped: Mapping[str, Mapping[str, str]], name: str, rail: str
) -> bool:
    """Return whether more nodes are right than wrong on both rails: else no node is odd."""
    wrong = sum(name in rails or rail in rails for rails in swapped.values())
    return wrong * 2 < len(heard)


def swapped_findings(swapped: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Make one finding per node whose rails are plugged into other rails' switches."""
    findings = []
    for node, rails in swapped.items():
        texts = [f"{name} is plugged into the switch of {rail}" for name, rail in rails.items()]
        message = f"{node}: {', '.join(texts)}. Expected: each rail in its own switch"
        names = {"interface": next(iter(rails))}
        ports = [port_name(name, node) for name in rails]
        findings.append(finding("FAB-RAILS-SWAPPED", message, suspects(ports), names=names))
    return findings
