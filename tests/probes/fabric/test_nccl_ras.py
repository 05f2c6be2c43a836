"""NCCL's RAS client, against a service that speaks the documented protocol (SYNTHETIC)."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from probes.fabric.hangs import RAS_SECONDS, ras_status


def service(
    answer: bytes, greeting: bytes = b"SERVER PROTOCOL 2\n", address: str = "127.0.0.1"
) -> int:
    """Answer one client as NCCL's RAS thread does; the port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family)

    def serve() -> None:
        client, _ = server.accept()
        with client, server:
            lines = client.makefile("rb")
            assert lines.readline().startswith(b"CLIENT PROTOCOL ")
            client.sendall(greeting)
            if lines.readline() == b"VERBOSE STATUS\n":
                client.sendall(answer)
            if not answer.endswith(b"\n"):  # more will come, some day
                client.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def test_the_status_comes_back_whole() -> None:
    answer = b"NCCL version 2.28.9\n#0-0 (27a0) MISSING\n  1 rank is missing: 3\n"
    assert ras_status(service(answer)) == answer.decode()


def test_what_came_is_kept_where_the_rest_does_not() -> None:
    assert (
        ras_status(service(b"2 communicators\n  rank 3 of"), 0.5) == "2 communicators\n  rank 3 of"
    )


def test_nccl_has_time_to_wait_for_its_own_ranks() -> None:
    assert RAS_SECONDS > 2 * 5  # NCCL's RAS_COLLECTIVE_LEG_TIMEOUT_SEC, and the answer after it


def test_the_service_is_where_localhost_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL binds it: ::1 on most machines."""
    try:
        port = service(b"up\n", address="::1")
    except OSError:
        # Told aloud: "localhost" cannot mean ::1 here, and 127.0.0.1 is tried by the tests above.
        pytest.skip("NOT RUN: this machine has no ::1")
    ask = socket.getaddrinfo

    def both(host: str, *more: Any, **others: Any) -> Any:
        addresses = ("::1", "127.0.0.1") if host == "localhost" else (host,)
        return [found for one in addresses for found in ask(one, *more, **others)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert ras_status(port) == "up\n"


def test_another_service_on_that_port_is_nobody() -> None:
    assert ras_status(service(b"", greeting=b"HTTP/1.1 400 Bad Request\n")) == ""


def test_nobody_there_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    assert ras_status(port, 1) == ""


def test_a_service_that_says_nothing_does_not_hold_us() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert ras_status(int(server.getsockname()[1]), 0.3) == ""
