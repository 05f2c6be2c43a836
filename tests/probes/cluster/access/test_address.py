"""Where the address of a cluster comes from, and what is said where nothing answers."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from typing import Any

import pytest
import ray
from ray._private import services

from probes.cluster.access import address
from probes.cluster.access.address import (
    CONNECT_SECONDS,
    ClusterUnreachable,
    check_spec,
    count_raylets,
    find_address,
    read_size,
)


def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("spec", ["auto", "local", "local:1", "local:32", "ray://10.0.0.1:10001"])
def test_what_names_a_cluster(spec: str) -> None:
    check_spec(spec)
    assert count_raylets(spec) == {"local": 2, "local:1": 1, "local:32": 32}.get(spec, 0)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("atuo", "did you mean auto?"),
        ("lcoal:4", "did you mean local?"),
        ("10.0.0.1:6379", "found '10.0.0.1:6379'"),
        ("ray://host", "found 'ray://host'"),
        ("local:0", "takes 1 to 32 raylets, found 0"),
        ("local:33", "takes 1 to 32 raylets, found 33"),
        ("", "found ''"),
    ],
)
def test_what_names_no_cluster(spec: str, says: str) -> None:
    with pytest.raises(ClusterUnreachable) as caught:
        check_spec(spec)
    assert says in str(caught.value)
    assert ("did you mean" in str(caught.value)) is ("did you mean" in says)


@pytest.mark.parametrize(
    ("variable", "processes", "origin"),
    [
        ("127.0.0.1:{port}", set(), "from RAY_ADDRESS"),
        ("", {"127.0.0.1:{port}"}, "from a Ray process of this host"),
        ("", set(), "from the last `ray start` of this host"),
    ],
)
def test_a_dead_address_is_said_with_its_origin(
    variable: str, processes: set[str], origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = closed_port()
    found = f"127.0.0.1:{port}"
    monkeypatch.setenv("RAY_ADDRESS", variable.format(port=port))
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: processes and {found})
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: found)
    monkeypatch.setattr(services, "resolve_ip_for_localhost", lambda host: host)
    begun = time.monotonic()
    with pytest.raises(ClusterUnreachable) as caught:
        find_address("auto")
    assert time.monotonic() - begun < 2 * CONNECT_SECONDS
    assert str(caught.value).startswith(
        f"no Ray at {found} ({origin}: Connection refused). Is the head up? Try `ray status`"
    )


def test_a_client_address_in_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{closed_port()}")
    with pytest.raises(ClusterUnreachable, match=r"no Ray at ray://127.* \(from RAY_ADDRESS: "):
        find_address("auto")
    monkeypatch.setenv("RAY_ADDRESS", "ray://nowhere")
    with pytest.raises(ClusterUnreachable, match="found 'ray://nowhere'"):
        find_address("auto")


def test_no_address_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: None)
    with pytest.raises(ClusterUnreachable, match="found no running Ray cluster: run this on"):
        find_address("auto")


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head")
    with pytest.raises(ClusterUnreachable, match="RAY_ADDRESS is no address"):
        find_address("auto")


def test_an_address_that_answers() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        spec = f"ray://127.0.0.1:{server.getsockname()[1]}"
        assert find_address(spec) == spec


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A cluster that answers; what was asked of Ray."""
    asked: list[Any] = []
    monkeypatch.setattr(address, "find_address", lambda spec: "10.0.0.1:6379")
    monkeypatch.setattr(address, "follow_auth_mode", asked.append)
    monkeypatch.setattr(ray, "init", lambda *_, **options: asked.append(sorted(options)))
    monkeypatch.setattr(ray, "shutdown", lambda: asked.append("left"))
    return asked


@pytest.mark.parametrize(
    ("resources", "size"),
    [
        ([{"GPU": 8.0}, {"GPU": 8.0}, {"CPU": 4.0}], (2, 16)),
        ([{"CPU": 4.0}] * 3, (3, 0)),
        ([], (0, 0)),
    ],
)
def test_a_size_is_read_and_nothing_is_placed(
    joined: list[Any],
    resources: list[dict[str, float]],
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [{"Alive": True, "Resources": one} for one in resources]
    dead = {"Alive": False, "Resources": {"GPU": 8.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, dead])
    assert read_size("auto") == size
    options = ["configure_logging", "log_to_driver", "logging_level"]  # and no runtime_env
    assert joined == ["10.0.0.1:6379", options, "left"]


def test_a_cluster_that_refuses_is_left(joined: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConnectionError("not\nnow")

    monkeypatch.setattr(ray, "nodes", refuse)
    with pytest.raises(ClusterUnreachable, match=r"^10.0.0.1:6379 cannot be joined: not now$"):
        read_size("auto")
    assert joined[-1] == "left"
