"""The endpoint that HOSTS' control plants: a real server, and the actor that is gone after it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from probes.hosts import endpoints
from probes.hosts.endpoints import StandInEndpoint, StandInMissing, make_server, open_stand_in
from tests.support.simulated_exposure import GUARDED, SimulatedEndpoints, run_exposure

HERE = "127.0.0.1"
NODE = {"id": "node-id", "name": "n1", "address": HERE}


@pytest.fixture
def servers() -> Iterator[Any]:
    """Start servers: start(refuses) -> the URL of one."""
    started = []

    def start(refuses: bool) -> str:
        server = make_server(HERE, refuses)
        started.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://{HERE}:{server.server_port}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def ask(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("body", [None, b'{"entrypoint": "true"}'])
def test_one_that_takes_all_answers_as_if_the_job_ran(servers: Any, body: bytes | None) -> None:
    code, text = ask(f"{servers(False)}/api/jobs/raysubmit_1", body)
    assert code == 200, "Ray's own answers are 200: another code is no endpoint that takes orders"
    assert json.loads(text) == {"status": "SUCCEEDED", "logs": "/api/jobs/raysubmit_1"}


@pytest.mark.parametrize("body", [None, b"x"])
def test_one_that_refuses_says_only_that(servers: Any, body: bytes | None) -> None:
    assert ask(f"{servers(True)}/api/version", body) == (401, b"")


def test_the_body_of_an_order_is_read_before_the_answer(servers: Any) -> None:
    """Else the connection is reset while the caller still sends, and nothing is known of it."""
    assert ask(f"{servers(True)}/api/jobs/", b"x" * (8 << 20))[0] == 401


def test_the_kernel_picks_a_free_port_for_each(servers: Any) -> None:
    ports = {int(servers(True).rpartition(":")[2]) for _ in range(3)}
    assert len(ports) == 3
    assert min(ports) >= 1024


class StandInActor:
    """Stands in for the Ray actor: calls run at once, in this process."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.start_server, self.problem = self, problem

    def remote(self, address: str, refuses: bool) -> int:
        if self.problem:
            raise self.problem
        return StandInEndpoint().start_server(address, refuses)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the actors that were killed."""
    gone: list[Any] = []
    monkeypatch.setattr(ray, "get", lambda value, timeout: value)
    monkeypatch.setattr(ray, "kill", gone.append)
    return gone


def place(monkeypatch: pytest.MonkeyPatch, actor: StandInActor) -> list[str]:
    """Let `on_node` give this actor; return the nodes that were asked for."""
    nodes: list[str] = []

    def on_node(_: Any, node: str) -> Any:
        nodes.append(node)
        return SimpleNamespace(remote=lambda: actor)

    monkeypatch.setattr(endpoints, "on_node", on_node)
    return nodes


@pytest.mark.parametrize(("refuses", "code"), [(True, 401), (False, 200)])
def test_it_answers_on_its_node_as_long_as_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, killed: list[Any], refuses: bool, code: int
) -> None:
    actor = StandInActor()
    nodes = place(monkeypatch, actor)
    with open_stand_in(NODE, refuses) as url:
        assert ask(url)[0] == code
        assert killed == []
    assert (nodes, killed) == (["node-id"], [actor])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Traceback:\n  File\nOSError: no address\n", "OSError: no address"),
        ("\n", "the fake endpoint died"),
    ],
)
def test_one_that_does_not_start_says_why_and_is_gone(
    monkeypatch: pytest.MonkeyPatch, killed: list[Any], words: str, said: str
) -> None:
    actor = StandInActor(ray.exceptions.RayError(words))
    place(monkeypatch, actor)
    with pytest.raises(StandInMissing, match=f"^{said}$"), open_stand_in(NODE, True):
        pass
    assert killed == [actor]


@pytest.mark.parametrize(
    ("cluster", "does"),
    [
        (SimulatedEndpoints(), "requires a token"),
        (SimulatedEndpoints(GUARDED), "accepts every request"),
    ],
)
def test_what_was_planted_is_the_opposite_of_the_mode(
    cluster: SimulatedEndpoints, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.hosts.endpoints.POLL_SECONDS", 0.001)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (control,) = run_exposure(cluster).controls
    assert control.fault.endswith(does)
