"""`seatrial reach`: what a stranger can do at each port."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from click.testing import CliRunner

from probes.cli.main import main
from probes.cluster import endpoints
from tests.support.dashboard import dashboard
from tests.support.endpoints import grpc_endpoint


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    monkeypatch.setattr(endpoints, "ANSWER_SECONDS", (1.0,))


def closed_port() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return str(server.getsockname()[1])


def reach(url: str, gcs: str, client: str = "") -> tuple[list[str], int]:
    ports = {"dashboard": url, "gcs": gcs, "client": client or closed_port(), "agent": ""}
    words = [
        word
        for name, where in ports.items()
        for word in (f"--{name}", where.rpartition(":")[2] or closed_port())
    ]
    ended = CliRunner().invoke(main, ["reach", "127.0.0.1", *words])
    return [line.partition("): ")[2] for line in ended.output.splitlines()], ended.exit_code


@pytest.mark.parametrize("token", ["", "its token"])
def test_each_port_is_told(token: str) -> None:
    with dashboard(token=token) as (url, served), grpc_endpoint(token) as address:
        (first, client, gcs, agent), code = reach(url, address)
    word = "reached, it requires a token" if token else "OPEN, it accepts commands without a token"
    assert (first, gcs) == (word, word)
    assert client.startswith("not reached (UNAVAILABLE")
    assert agent.startswith("not reached (")
    assert code == (0 if token else 1)
    assert served == ([] if token else ["/api/version"])


def test_nothing_is_reached() -> None:
    lines, code = reach("", "")
    assert all(line.startswith("not reached") for line in lines)
    assert (len(lines), code) == (4, 0)


def test_another_program_is_unclear() -> None:
    import grpc

    with grpc_endpoint(code=grpc.StatusCode.UNIMPLEMENTED) as address:
        lines, code = reach("", address)
    assert lines[2] == "unclear (UNIMPLEMENTED: as the test says)"
    assert code == 20
