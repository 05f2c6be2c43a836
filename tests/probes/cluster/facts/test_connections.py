"""Connections to ports, with the proof that the right program answers there.  All are real."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from probes.cluster import network_facts
from probes.cluster.network_facts import (
    GRPC,
    NO_ANSWER,
    NO_PROOF,
    NOT_CONNECTED,
    OTHER_ANSWER,
    NodePorts,
    TriedPort,
    find_worker_port,
    max_try_seconds,
    own_listening_ports,
    try_endpoint,
    try_endpoints,
)
from scaling.collectives.reachability import import_psutil

HERE = "127.0.0.1"
SETTINGS_FRAME = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@contextmanager
def serving(answer: Callable[[socket.socket, int], None]) -> Iterator[int]:
    """A server that answers each client by its number."""
    with closing(socket.create_server((HERE, 0))) as server:

        def run() -> None:
            number = 0
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    answer(client, number)
                number += 1

        threading.Thread(target=run, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def endpoint(port: int, proof: str = NO_PROOF) -> TriedPort:
    return TriedPort("job", "id1", HERE, port, proof)


@pytest.fixture
def listener() -> Iterator[tuple[NodePorts, int]]:
    ports = NodePorts()
    yield ports, ports.start_listener(HERE)
    assert ports._server is not None
    ports._server.close()


def test_a_listener_proves_itself_by_its_token(listener: tuple[NodePorts, int]) -> None:
    ports, port = listener
    token = ports._token
    tries = [endpoint(port, token), endpoint(port, "other"), endpoint(port, f"{token}0")]
    assert try_endpoints([*tries, endpoint(port, token[:-1])], 1, 1) == [
        "",
        *[OTHER_ANSWER] * 3,
    ]
    assert ports.try_ports([endpoint(port, token)]) == [""]


def test_two_listeners_have_different_tokens(listener: tuple[NodePorts, int]) -> None:
    assert NodePorts()._token != listener[0]._token


def test_a_control_answers_as_another_and_closes_a_port(listener: tuple[NodePorts, int]) -> None:
    ports, port = listener
    token = ports._token
    closed = ports.plant_fault(HERE)
    assert 0 < closed != port
    assert try_endpoint(endpoint(port, token), 1) == OTHER_ANSWER
    assert try_endpoint(endpoint(closed), 1) == "Connection refused"


def test_a_grpc_server_sends_its_settings() -> None:
    got = []

    def answer(client: socket.socket, _: int) -> None:
        got.append(client.recv(64))
        client.sendall(SETTINGS_FRAME)

    with serving(answer) as port:
        assert try_endpoint(endpoint(port, GRPC), 2) == ""
    assert got[0].startswith(b"PRI * HTTP/2.0")


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", SETTINGS_FRAME[:8], bytes(9)]
)
def test_another_server_is_not_taken_for_grpc(sent: bytes) -> None:
    with serving(lambda client, _: client.sendall(sent)) as port:
        assert try_endpoint(endpoint(port, GRPC), 2) in (OTHER_ANSWER, "Connection reset by peer")
        assert try_endpoint(endpoint(port), 2) == ""


def test_a_server_that_never_answers_is_not_waited_for() -> None:
    with serving(lambda *_: time.sleep(0.5)) as port:
        started = time.monotonic()
        assert try_endpoint(endpoint(port, GRPC), 0.1) == NO_ANSWER
        assert time.monotonic() - started < 0.4


def test_packets_that_are_dropped_are_not_waited_for() -> None:
    with closing(socket.socket()) as full:  # a full queue drops what else comes, as a filter does
        full.bind((HERE, 0))
        full.listen(0)
        port = full.getsockname()[1]
        held = [socket.socket() for _ in range(4)]
        for one in held:
            one.setblocking(False)
            one.connect_ex((HERE, port))
        assert try_endpoint(endpoint(port), 0.2) == NOT_CONNECTED
        for one in held:
            one.close()


def test_a_number_that_is_no_port_is_a_problem() -> None:
    assert try_endpoint(endpoint(70000), 1)
    assert try_endpoint(TriedPort("job", "id1", "no address", 1), 1)


def test_what_fails_is_tried_once_more() -> None:
    """A busy node that answers late is sound."""

    def answer(client: socket.socket, number: int) -> None:
        client.sendall(b"token" if number else b"")

    with serving(answer) as port:
        assert try_endpoints([endpoint(port, "token")], 1, 1) == [""]


def test_what_answers_is_tried_once() -> None:
    def answer(client: socket.socket, number: int) -> None:
        client.sendall(b"" if number else b"token")

    with serving(answer) as port:
        assert try_endpoints([endpoint(port, "token")], 1, 1) == [""]


def test_results_are_in_the_order_of_the_endpoints(listener: tuple[NodePorts, int]) -> None:
    ports, port = listener
    closed = endpoint(ports.plant_fault(HERE))
    ends = [closed, endpoint(port), closed, endpoint(port, ports._token)]
    assert try_endpoints(ends, 1, 1) == ["Connection refused", "", "Connection refused", ""]
    assert try_endpoints([]) == []


def test_a_node_with_many_peers_needs_more_time() -> None:
    once = 2 * (network_facts.FIRST_SECONDS + network_facts.SECOND_SECONDS)
    assert [max_try_seconds(n) for n in (0, 1, 32, 33, 64)] == [0, once, once, 2 * once, 2 * once]


LISTEN = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    input()
"""


def test_a_process_knows_its_own_ports(listener: tuple[NodePorts, int]) -> None:
    with (
        socket.create_connection((HERE, listener[1])) as client,
        subprocess.Popen(
            [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other,
    ):
        assert other.stdout is not None
        others = int(other.stdout.readline())
        own = own_listening_ports()
        assert listener[1] in own
        assert client.getsockname()[1] not in own, "a port of a connection"
        assert others not in own, "a port of another process"
        other.communicate(b"\n")


def test_ports_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_psutil().Process, "net_connections", lambda *_: os.stat("/nothing"))
    assert own_listening_ports() == []


def test_the_port_of_a_worker_is_one_that_answers_as_grpc(
    monkeypatch: pytest.MonkeyPatch, listener: tuple[NodePorts, int]
) -> None:
    with serving(lambda client, _: client.sendall(SETTINGS_FRAME)) as port:
        monkeypatch.setattr(network_facts, "own_listening_ports", lambda: [listener[1], port])
        assert find_worker_port(HERE, GRPC) == port
        assert find_worker_port(HERE, NO_PROOF) == listener[1]
    monkeypatch.setattr(network_facts, "own_listening_ports", lambda: [listener[1]])
    assert find_worker_port(HERE, GRPC) is None


def test_names_are_looked_up_where_the_actor_is() -> None:
    found = NodePorts().look_up_names(["localhost"])
    assert found["localhost"] is not None


@pytest.mark.parametrize(("variable", "tls"), [(None, False), ("0", False), ("1", True)])
def test_a_node_opens_its_ports(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, tls: bool
) -> None:
    import ray

    context = SimpleNamespace(gcs_address="10.0.0.1:6379")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_USE_TLS", variable)
    proofs = []
    monkeypatch.setattr(
        network_facts, "find_worker_port", lambda address, proof: proofs.append(proof) or 10002
    )
    ports = NodePorts()
    opened = ports.open_ports(HERE)
    assert (opened["gcs"], opened["worker"], opened["tls"]) == ("10.0.0.1:6379", 10002, tls)
    assert proofs == [NO_PROOF if tls else GRPC]
    assert opened["error"] == ""
    assert try_endpoint(endpoint(opened["job"], opened["token"]), 1) == ""
    refused = NodePorts().open_ports("192.0.2.77")  # RFC 5737: it belongs to nobody
    assert refused["job"] is None
    assert refused["error"].startswith("Cannot assign requested address")
