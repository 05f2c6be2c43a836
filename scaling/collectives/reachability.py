"""Who reaches whom: plain TCP and UDP between nodes, before any collective is tried."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

ESTABLISHED = 1  # include/net/tcp_states.h
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3  # include/uapi/linux/in.h: don't fragment, don't learn
UDP_HEADERS = 28  # IPv4 and UDP
AGAIN = 0.5  # seconds between two tries of a datagram
AT_ONCE = 32  # doors that one node knocks at together

_listeners: list[socket.socket] = []


def listen(address: str) -> int:
    """Accept connections on `address` in the background until this process ends; the port."""
    server = socket.create_server((address, 0))
    _listeners.append(server)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    return int(server.getsockname()[1])


def _accept(server: socket.socket) -> None:
    while True:
        with suppress(OSError):  # one that went away again must not end the others' chance
            server.accept()[0].close()


def patience(doors: int, seconds: float) -> float:
    """Seconds that so many doors may take, where none of them answers."""
    return seconds * -(-doors // AT_ONCE)


def reach(
    own: str, doors: Mapping[str, tuple[str, int] | None], seconds: float = 3
) -> dict[str, bool]:
    """Whether a TCP connection from `own` to each named door is accepted; some tried at once."""

    def knock(door: tuple[str, int] | None) -> bool:
        if door is None:
            return False
        try:
            socket.create_connection(door, timeout=seconds, source_address=(own, 0)).close()
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(doors, pool.map(knock, doors.values()), strict=True))


def connections() -> set[tuple[str, str, int, int]]:
    """This process's established IPv4 TCP connections: (own address, peer, own port, peer's port).

    From /proc/self/fd and /proc/self/net/tcp (kernel Documentation/networking/proc_net_tcp.rst);
    connections within the host's loopback are left out.  Empty where there is no /proc.
    """
    try:
        table = Path("/proc/self/net/tcp").read_text()
        files = list(Path("/proc/self/fd").iterdir())
    except OSError:
        return set()
    mine = set()
    for file in files:
        try:
            mine.add(os.readlink(file))
        except OSError:  # closed meanwhile
            continue
    return {
        ends
        for ends, state, inode in parse_tcp(table)
        if state == ESTABLISHED and f"socket:[{inode}]" in mine and not ends[0].startswith("127.")
    }


def parse_tcp(text: str) -> list[tuple[tuple[str, str, int, int], int, str]]:
    """((own address, peer, own port, peer's port), state, inode) of each line of /proc/net/tcp."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        own, own_port = _end(words[1])
        peer, peer_port = _end(words[2])
        found.append(((own, peer, own_port, peer_port), int(words[3], 16), words[9]))
    return found


def _end(text: str) -> tuple[str, int]:
    """`0100007F:1F90` is 127.0.0.1:8080: the address in host byte order."""
    address, port = text.split(":")
    packed = int(address, 16).to_bytes(4, sys.byteorder)
    return socket.inet_ntoa(packed), int(port, 16)


def echo(address: str) -> int:
    """Answer each datagram on `address` with its size, until this process ends; the port."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)  # all nodes knock at once
    server.bind((address, 0))
    _listeners.append(server)
    threading.Thread(target=_answer, args=(server,), daemon=True).start()
    return int(server.getsockname()[1])


def _answer(server: socket.socket) -> None:
    while True:
        with suppress(OSError):  # a filter on the way back concerns that sender alone
            data, sender = server.recvfrom(1 << 16)
            server.sendto(str(len(data)).encode(), sender)


def passes(
    own: str,
    doors: Mapping[str, tuple[str, int] | None],
    sizes: Mapping[str, int],
    seconds: float = 4,
) -> dict[str, bool]:
    """Whether one unfragmented datagram from `own` is answered by each named door.

    `sizes` are bytes of the IPv4 packet, with its 28 bytes of headers, per door.  Sent again and
    again for `seconds`, for datagrams get lost.
    """
    waiting = {door: name for name, door in doors.items() if door}
    answers = dict.fromkeys(doors, False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        sock.bind((own, 0))
        deadline = time.monotonic() + patience(len(waiting), seconds)
        while waiting and time.monotonic() < deadline:
            some = dict(islice(waiting.items(), AT_ONCE))
            for door, name in some.items():
                with suppress(OSError):  # EMSGSIZE: the own interface is smaller
                    sock.sendto(b"x" * (sizes[name] - UDP_HEADERS), door)
            for door in _answered(sock, min(deadline, time.monotonic() + AGAIN), len(some)):
                if name := waiting.pop(door, ""):
                    answers[name] = True
            for door in some.keys() & waiting.keys():
                waiting[door] = waiting.pop(door)  # those that did not answer go to the end
    return answers


def _answered(sock: socket.socket, until: float, most: int) -> list[tuple[str, int]]:
    """Who answered before `until` (monotonic seconds)."""
    found: list[tuple[str, int]] = []
    while len(found) < most and (left := until - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            sender = sock.recvfrom(64)[1]
        except TimeoutError:
            break
        except OSError:  # an earlier datagram was refused
            continue
        found.append((sender[0], sender[1]))
    return found
