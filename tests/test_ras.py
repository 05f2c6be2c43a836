"""NCCL's RAS client, against a service that speaks the documented protocol (SYNTHETIC)."""

from __future__ import annotations

import socket
import threading

from probes.ras import ras_status


def service(answer: bytes, greeting: bytes = b"SERVER PROTOCOL 2\n") -> int:
    """Answer one client as NCCL's RAS thread does; the port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = server.accept()
        with client, server:
            lines = client.makefile("rb")
            assert lines.readline().startswith(b"CLIENT PROTOCOL ")
            client.sendall(greeting)
            if lines.readline() == b"VERBOSE STATUS\n":
                client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def test_the_status_comes_back_whole() -> None:
    answer = b"NCCL version 2.28.9\n#0-0 (27a0) MISSING\n  1 rank is missing: 3\n"
    assert ras_status(service(answer)) == answer.decode()


def test_another_service_on_that_port_is_nobody() -> None:
    assert ras_status(service(b"", greeting=b"HTTP/1.1 400 Bad Request\n")) == ""


def test_nobody_there_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    assert ras_status(port, 1) == ""


def test_a_service_that_says_nothing_does_not_hold_us() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert ras_status(int(server.getsockname()[1]), 0.3) == ""
