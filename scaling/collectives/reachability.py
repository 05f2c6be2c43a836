"""Tests plain TCP and UDP between nodes, before any collective is tried."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from ipaddress import ip_address
from itertools import islice
from typing import Any

from reference_trainer.process_group import joins_no_group, open_sockets

# include/uapi/linux/in.h: do not fragment, and ignore the learnt path MTU.
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
UDP_HEADERS = 28  # bytes: 20 of IPv4 and 8 of UDP
RETRY_S = 0.5  # seconds between two tries of a datagram
MAX_PARALLEL = 32  # endpoints that one node tests at the same time
# An answer is a datagram's size in digits. Datagrams this short get no answer, so that two echo
# ports never answer each other.
MAX_ANSWER_BYTES = 5


@joins_no_group
def start_tcp_listener(address: str, seconds: float, is_open: bool = True) -> int:
    """Accept connections on this one address, in the background for `seconds`; return the port.

    Nothing is read from the connections or written to them. If not `is_open`, the port is a
    control: it is closed before it is returned, so connections to it must fail. Raises
    ValueError for the unspecified address.
    """
    _require_one(address)
    server = socket.create_server((address, 0))
    if not is_open:
        with server:
            return int(server.getsockname()[1])
    return _serve(server, _accept_connection, seconds)


@joins_no_group
def start_udp_echo(address: str, seconds: float) -> int:
    """Answer each datagram on this one address with its size, for `seconds`; return the port.

    Raises ValueError for the unspecified address.
    """
    _require_one(address)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)  # all nodes send at once
    server.bind((address, 0))
    return _serve(server, _answer_datagram, seconds)


def _require_one(address: str) -> None:
    """Raise ValueError for the unspecified address.

    It stands for all interfaces, also those of management and of outside networks.
    """
    if ip_address(address).is_unspecified:
        raise ValueError(f"expected the address of one interface, found {address}")


def _serve(server: socket.socket, answer: Callable[[socket.socket], None], seconds: float) -> int:
    """Run `answer` for one client after the other in the background; return the port."""
    port, deadline = int(server.getsockname()[1]), time.monotonic() + seconds

    def run() -> None:
        with server:
            while (remaining_s := deadline - time.monotonic()) > 0:
                server.settimeout(remaining_s)
                # One client's error (it left, or a filter blocks the answer) affects no other.
                with suppress(OSError):
                    answer(server)

    threading.Thread(target=run, daemon=True).start()
    return port


def _accept_connection(server: socket.socket) -> None:
    server.accept()[0].close()


def _answer_datagram(server: socket.socket) -> None:
    data, sender = server.recvfrom(1 << 16)
    if len(data) > MAX_ANSWER_BYTES:
        server.sendto(str(len(data)).encode(), sender)


def max_wait_s(endpoints: int, seconds: float) -> float:
    """Return the most seconds that testing so many endpoints takes, if none of them answers."""
    return seconds * -(-endpoints // MAX_PARALLEL)


@joins_no_group
def check_tcp(
    source: str, endpoints: Mapping[str, tuple[str, int] | None], seconds: float = 3
) -> dict[str, bool]:
    """Check whether a TCP connection from `source` to each named endpoint is accepted.

    Up to MAX_PARALLEL are tried at once. An endpoint that is None counts as not reached.
    """

    def can_connect(endpoint: tuple[str, int] | None) -> bool:
        with suppress(OSError):
            if endpoint is not None:
                own = source, 0
                socket.create_connection(endpoint, timeout=seconds, source_address=own).close()
                return True
        return False

    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return dict(zip(endpoints, pool.map(can_connect, endpoints.values()), strict=True))


def import_psutil() -> Any:
    """Import psutil: Ray's own copy, which `import ray` puts on the path, or the environment's."""
    import_module("ray")
    return import_module("psutil")


def own_sockets(status: str) -> list[Any]:
    """List this process's TCP sockets in a state of psutil, as "LISTEN"; empty if unreadable."""
    psutil = import_psutil()
    try:
        own = psutil.Process()
        list_sockets = getattr(own, "net_connections", None) or own.connections  # before psutil 6
        return [one for one in list_sockets("tcp") if one.status == status]
    except (OSError, psutil.Error):
        return []


def tcp_connections(others: Collection[str] = ()) -> set[tuple[str, str, int, int]]:
    """Return this process's established IPv4 TCP connections, without the `others` (by name).

    Each is (own address, peer address, own port, peer port). Connections over the host's loopback
    are left out. Empty without /proc.
    """
    names = open_sockets()
    return {
        (one.laddr.ip, one.raddr.ip, one.laddr.port, one.raddr.port)
        for one in own_sockets("ESTABLISHED")
        if one.family == socket.AF_INET and not one.laddr.ip.startswith("127.")
        if names.get(one.fd) not in others
    }


@joins_no_group
def check_udp(
    source: str,
    endpoints: Mapping[str, tuple[str, int] | None],
    sizes: Mapping[str, int],
    seconds: float = 4,
) -> dict[str, bool]:
    """Check whether each named endpoint answers an unfragmented datagram from `source`.

    `sizes` are bytes of the IPv4 packet by endpoint name, with 28 bytes of headers. Datagrams
    get lost, so they are sent again every RETRY_S. Each batch of MAX_PARALLEL endpoints adds
    `seconds` to the time limit. An endpoint that is None counts as not reached.
    """
    waiting = {endpoint: name for name, endpoint in endpoints.items() if endpoint}
    answers = dict.fromkeys(endpoints, False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        sock.bind((source, 0))
        deadline = time.monotonic() + max_wait_s(len(waiting), seconds)
        while waiting and time.monotonic() < deadline:
            batch = dict(islice(waiting.items(), MAX_PARALLEL))
            for endpoint, name in batch.items():
                with suppress(OSError):  # EMSGSIZE: larger than the MTU of the own interface
                    sock.sendto(b"x" * (sizes[name] - UDP_HEADERS), endpoint)
            until = min(deadline, time.monotonic() + RETRY_S)
            for endpoint in _wait_for_answers(sock, until, len(batch)):
                if name := waiting.pop(endpoint, ""):
                    answers[name] = True
            for endpoint in batch.keys() & waiting.keys():
                waiting[endpoint] = waiting.pop(endpoint)  # no answer: to the end
    return answers


def _wait_for_answers(sock: socket.socket, deadline: float, most: int) -> list[tuple[str, int]]:
    """Receive answers until `deadline` (monotonic seconds) or `most`; return the senders.

    A sender is (address, port).
    """
    senders: list[tuple[str, int]] = []
    while len(senders) < most and (remaining_s := deadline - time.monotonic()) > 0:
        sock.settimeout(remaining_s)
        try:
            sender = sock.recvfrom(64)[1]
        except TimeoutError:
            break
        except OSError:  # an earlier datagram was refused
            continue
        senders.append((sender[0], sender[1]))
    return senders
