"""What an endpoint does with a request without a token, with a wrong one, and with the right."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.error import HTTPError

import grpc
import pytest

from probes.cluster import endpoints
from probes.cluster.endpoints import (
    AGENT,
    DASHBOARD,
    GCS,
    NEEDS_TLS,
    REFUSED,
    TAKEN,
    Endpoint,
    EndpointAnswers,
    ask_endpoint,
    ask_endpoints,
    ask_from_node,
    join_address,
    send_request,
)
from tests.support.dashboard import dashboard
from tests.support.endpoints import grpc_endpoint

RIGHT = "the token"


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    monkeypatch.setattr(endpoints, "ANSWER_SECONDS", (0.5, 0.5))


@contextmanager
def answering(code: int, **headers: str) -> Iterator[tuple[Endpoint, list[str]]]:
    """An HTTP server that answers everything with this code, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield Endpoint(AGENT, "n1", f"http://127.0.0.1:{server.server_port}"), asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("asks_for", "known", "expected"),
    [
        ("", RIGHT, EndpointAnswers(TAKEN)),
        (RIGHT, RIGHT, EndpointAnswers(REFUSED, REFUSED, TAKEN)),
        (RIGHT, "another", EndpointAnswers(REFUSED, REFUSED, REFUSED)),
        (RIGHT, "", EndpointAnswers(REFUSED, REFUSED)),
    ],
)
def test_http_and_grpc_answer_alike(asks_for: str, known: str, expected: EndpointAnswers) -> None:
    with dashboard(token=asks_for) as (url, _), grpc_endpoint(asks_for) as address:
        both = [Endpoint(DASHBOARD, "n0", url), Endpoint(GCS, "n0", address)]
        assert ask_endpoints(both, known) == [expected, expected]


def test_a_worker_asks_with_the_token_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", RIGHT)
    with dashboard(token=RIGHT) as (url, _):
        answers = ask_from_node([Endpoint(DASHBOARD, "n0", url)])
    assert answers == [{"without": REFUSED, "wrong": REFUSED, "right": TAKEN}]


@pytest.mark.parametrize(
    ("code", "expected"),
    [(200, TAKEN), (404, TAKEN), (401, REFUSED), (403, REFUSED), (500, "HTTP 500"),
     (405, "HTTP 405"), (502, "HTTP 502")],
)  # fmt: skip
def test_what_a_status_means(code: int, expected: str) -> None:
    with answering(code) as (endpoint, asked):
        assert send_request(endpoint, "", 2) == expected
    assert asked == ["/api/seatrial"]


def test_the_connection_of_a_refusal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only once nothing holds the error any more, as here."""
    body = io.BytesIO(b"no")
    error = HTTPError("http://head", 401, "no", Message(), body)

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(endpoints, "open_url", refuse)
    assert send_request(Endpoint(AGENT, "n1", "http://head"), "", 2) == REFUSED
    assert body.closed


def test_a_page_for_a_login_is_no_answer_of_ray() -> None:
    with answering(302, Location="/login") as (endpoint, asked):
        assert send_request(endpoint, "", 2) == "HTTP 302"
    assert len(asked) == 1


def test_the_proxies_of_the_shell_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with answering(200) as (endpoint, _), grpc_endpoint() as address:
        assert send_request(endpoint, "", 2) == TAKEN
        assert send_request(Endpoint(GCS, "", address), "", 2) == TAKEN


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, REFUSED),
        (grpc.StatusCode.PERMISSION_DENIED, REFUSED),
        (grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED: as the test says"),
        (grpc.StatusCode.INTERNAL, "INTERNAL: as the test says"),
    ],
)
def test_what_a_grpc_status_means(code: Any, expected: str) -> None:
    with grpc_endpoint(code=code) as address:
        assert send_request(Endpoint(GCS, "", address), "", 2) == expected


def test_another_clusters_id_is_no_refusal_of_a_token() -> None:
    code, details = grpc.StatusCode.UNAUTHENTICATED, "WrongClusterID: Perhaps"
    with grpc_endpoint(code=code, details=details) as address:
        answer = send_request(Endpoint(GCS, "", address), "", 2)
    assert answer == f"UNAUTHENTICATED: {details}"


def test_a_closed_port_is_a_problem() -> None:
    here = "127.0.0.1:1"
    assert "refused" in send_request(Endpoint(DASHBOARD, "", f"http://{here}"), "", 2)
    answer = send_request(Endpoint(GCS, "", here), "", 2)
    assert answer.startswith("UNAVAILABLE: ")
    assert "Connection refused" in answer


def test_what_cannot_be_asked_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    gcs = Endpoint(GCS, "", "127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert ask_endpoint(gcs, RIGHT) == EndpointAnswers("the package grpcio is not installed")


def test_a_port_of_tls_is_closed_to_who_has_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up() -> None:
        with suppress(OSError):  # closed at the end
            while True:
                server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=hang_up, daemon=True).start()
        gcs = Endpoint(GCS, "", f"127.0.0.1:{server.getsockname()[1]}")
        assert ask_endpoint(gcs, RIGHT).without.startswith("UNAVAILABLE")
        monkeypatch.setenv("RAY_USE_TLS", "1")
        assert ask_endpoint(gcs, RIGHT) == EndpointAnswers(NEEDS_TLS)
        server.shutdown(socket.SHUT_RDWR)
    assert ask_endpoint(gcs, RIGHT).without.startswith("UNAVAILABLE"), "nothing listens"
    with grpc_endpoint() as address:
        assert ask_endpoint(Endpoint(GCS, "", address), RIGHT) == EndpointAnswers(TAKEN)


def test_a_late_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def send(_: Endpoint, token: str, seconds: float) -> str:
        waits.append(seconds)
        return TAKEN if len(waits) == 2 else "timed out"

    monkeypatch.setattr(endpoints, "ANSWER_SECONDS", (1.0, 2.0))
    monkeypatch.setattr(endpoints, "send_request", send)
    assert ask_endpoint(Endpoint(GCS, "", "x"), "") == EndpointAnswers(TAKEN)
    assert waits == [1.0, 2.0]


def test_the_name_of_an_endpoint_has_no_scheme() -> None:
    assert Endpoint(AGENT, "n1", "http://10.0.0.2:1").text == "dashboard agent of n1 (10.0.0.2:1)"
    assert Endpoint(DASHBOARD, "", "https://x").text == "dashboard (https://x)"


def test_an_address_of_ipv6_has_brackets() -> None:
    assert join_address("10.0.0.1", 1) == "10.0.0.1:1"
    assert join_address("fd00::1", 1) == "[fd00::1]:1"
