"""Connections out of the cluster, over real servers and a real proxy on this host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from probes.cluster.network_facts import try_closed_target, try_targets

SHORT = 2.0  # s; a server of this host answers at once
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY")


class Answers(BaseHTTPRequestHandler):
    """Answers HEAD with the status that the path names; CONNECT with 403, as a strict proxy."""

    def do_HEAD(self) -> None:
        code = int(self.path.rsplit("/", 1)[1] or 200)
        self.send_response(code)
        if code in (301, 307):
            self.send_header("Location", "http://127.0.0.1:1/nowhere")
        self.end_headers()

    def do_CONNECT(self) -> None:
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[str]:
    """A web server; returns its host:port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()


@pytest.mark.parametrize("code", [200, 301, 307, 401, 403, 404, 405, 429, 500])
def test_any_answer_of_the_target_is_sound(server: str, code: int) -> None:
    url = f"http://{server}/{code}"
    assert try_targets([url], SHORT) == {url: ""}


@pytest.mark.parametrize("code", [407, 502, 503, 504])
def test_an_answer_of_a_gateway_is_none_of_the_target(server: str, code: int) -> None:
    url = f"http://{server}/{code}"
    assert try_targets([url], SHORT) == {url: f"HTTP status {code}"}


def test_a_proxy_is_used_and_its_refusal_counts(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:secret@{server}")
    monkeypatch.setenv("https_proxy", f"http://user:secret@{server}")
    urls = ["http://hub.invalid/200", "http://hub.invalid/403", "https://hub.invalid/200"]
    sound, refused, no_tunnel = try_targets(urls, SHORT).values()
    assert (sound, refused) == ("", "HTTP status 403")
    assert "403" in no_tunnel
    assert "secret" not in no_tunnel
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert try_targets([f"http://{server}/403"], SHORT) == {f"http://{server}/403": ""}


def test_ports_and_urls_where_nothing_listens() -> None:
    assert set(try_closed_target().values()) == {"Connection refused"}


def test_a_port_that_accepts_is_reached(server: str) -> None:
    assert try_targets([server], SHORT) == {server: ""}


def test_a_server_that_never_answers_is_not_reached() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert try_targets([url], 0.2) == {url: "timed out"}


def test_a_server_that_speaks_no_tls_is_not_reached(server: str) -> None:
    url = f"https://{server}/200"
    (problem,) = try_targets([url], SHORT).values()
    assert problem


@pytest.mark.parametrize("target", ["no.such.host.invalid:443", "https://no.such.host.invalid/"])
def test_a_name_without_an_address_is_not_reached(target: str) -> None:
    (problem,) = try_targets([target], SHORT).values()
    assert problem


def test_one_lost_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = ["timed out", ""]
    monkeypatch.setattr("probes.cluster.network_facts.try_port", lambda *_: problems.pop(0))
    assert try_targets(["a:1"], SHORT) == {"a:1": ""}
    assert problems == []


def test_the_certificates_that_requests_trusts_are_loaded(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    loaded = []
    monkeypatch.setattr(
        "ssl.SSLContext.load_verify_locations", lambda _, path=None, **__: loaded.append(path)
    )
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", __file__)
    monkeypatch.setenv("CURL_CA_BUNDLE", "/no/such/file")
    assert try_targets([f"http://{server}/200"], SHORT) == {f"http://{server}/200": ""}
    assert __file__ in loaded
    assert "/no/such/file" not in loaded
