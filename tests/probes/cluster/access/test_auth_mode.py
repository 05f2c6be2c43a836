"""The driver follows the cluster's authentication, or says in one sentence why it cannot."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from probes.cluster import address as auth_mode
from probes.cluster import endpoints
from probes.cluster.address import ClusterUnreachable, follow_auth_mode
from probes.cluster.endpoints import CLIENT, GCS
from tests.support.endpoints import grpc_endpoint

RIGHT = "5ecret"
VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS",
             "RAY_ENABLE_K8S_TOKEN_AUTH")  # fmt: skip


@pytest.fixture(autouse=True)
def turned_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """A shell without a token; and how often the driver turned on tokens."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(endpoints, "ANSWER_SECONDS", (2.0,))
    calls: list[bool] = []
    monkeypatch.setattr(auth_mode, "turn_on_tokens", lambda: calls.append(True))
    return calls


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("mode", ["", "token"])
@pytest.mark.parametrize("where", ["variable", "file", "home"])
def test_the_token_is_sent_where_the_cluster_asks(
    where: str, mode: str, scheme: str,
    turned_on: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / ".ray" / "auth_token" if where == "home" else tmp_path / "elsewhere"
    if where == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", RIGHT)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{RIGHT}\n")
    if where == "file":
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with grpc_endpoint(RIGHT) as address:
        follow_auth_mode(f"{scheme}{address}")
    assert turned_on == ([] if mode else [True])


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "requires a token, but none was found in RAY_AUTH_TOKEN or "),
        ({"RAY_AUTH_MODE": "token"}, "but none was found in RAY_AUTH_TOKEN or "),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": RIGHT}, "RAY_AUTH_MODE is disabled here"),
        ({"RAY_AUTH_TOKEN": "wrong"}, "refuses the token of RAY_AUTH_TOKEN: set RAY_AUTH_MODE"),
    ],
)
def test_one_sentence_says_what_is_missing(
    variables: dict[str, str], says: str, turned_on: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with grpc_endpoint(RIGHT) as address, pytest.raises(ClusterUnreachable) as caught:
        follow_auth_mode(address)
    assert says in str(caught.value)
    assert f"the cluster at {address}" in str(caught.value)
    assert "RAY_AUTH_TOKEN_PATH" in str(caught.value)
    assert RIGHT not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert turned_on == []


def test_a_wrong_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("wrong")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "mine"))
    refused = pytest.raises(ClusterUnreachable, match=str(tmp_path / "mine"))
    with grpc_endpoint(RIGHT) as address, refused:
        follow_auth_mode(address)


def test_a_cluster_without_tokens_is_joined_without(
    turned_on: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that another cluster left in the home folder makes no difference."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "left over")
    with grpc_endpoint() as address:
        follow_auth_mode(address)
    assert turned_on == []


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("kind", ["closed", "silent", "not Ray"])
def test_a_port_at_which_no_ray_answers_is_said(kind: str, scheme: str) -> None:
    """Ray would wait for ever, as at the end of a dead tunnel."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if kind == "closed":
            server.close()
        if kind == "not Ray":
            other = threading.Thread(target=answer_as_http, args=(server,), daemon=True)
            other.start()
            # Its end is waited for: else it takes connections of the next socket with this number.
            stack.callback(other.join, 10)
            stack.callback(server.shutdown, socket.SHUT_RDWR)
        said = f"no Ray answers at {scheme}{address} "
        with pytest.raises(ClusterUnreachable, match=said) as raised:
            follow_auth_mode(f"{scheme}{address}")
        assert "\n" not in str(raised.value)


def answer_as_http(server: socket.socket) -> None:
    """Answer each connection as another server would, until the port is closed."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()


def test_a_driver_that_insists_on_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with (
        grpc_endpoint() as address,
        pytest.raises(ClusterUnreachable, match=r"requires no token: set RAY_AUTH_MODE=disabled"),
    ):
        follow_auth_mode(address)


def test_ray_and_our_children_see_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._raylet import AuthenticationMode, Config, get_authentication_mode

    monkeypatch.undo()
    before = os.environ.pop("RAY_AUTH_MODE", None)
    try:
        Config.initialize("")
        auth_mode.turn_on_tokens()
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert get_authentication_mode() == AuthenticationMode.TOKEN
    finally:
        os.environ.pop("RAY_AUTH_MODE")
        if before is not None:
            os.environ["RAY_AUTH_MODE"] = before
        Config.initialize("")


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.1:6379", (GCS, "10.0.0.1:6379")), ("ray://head:10001", (CLIENT, "head:10001"))],
)
def test_the_endpoint_that_the_driver_takes_is_asked(
    address: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def answer(door: endpoints.Endpoint, _: str) -> str:
        asked.append((door.kind, door.address))
        return endpoints.TAKEN

    monkeypatch.setattr(auth_mode, "try_request", answer)
    follow_auth_mode(address)
    assert asked == [expected]
