"""What the driver says where it cannot join a cluster."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.cluster import cluster
from probes.cluster.address import ClusterUnreachable
from probes.cluster.cluster import PATIENCE, Cluster, VersionMismatch

pytestmark = pytest.mark.alone


def join(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Cluster:
    """Join a cluster whose Ray answers with this error; no helper process is started."""

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("ray.init", refuse)
    monkeypatch.setattr(cluster, "follow_auth_mode", lambda address: None)
    monkeypatch.setattr(cluster, "CleanupProcess", lambda: SimpleNamespace(close=lambda: None))
    return Cluster("10.0.0.1:6379", "ray")


def test_another_ray_on_the_cluster_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.59.0")
    with pytest.raises(VersionMismatch, match=r"^Version mismatch: .* Ray: 2\.59\.0$"):
        join(monkeypatch, error)


def test_another_error_of_ray_is_no_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        join(monkeypatch, RuntimeError("out of memory"))
    assert not isinstance(caught.value, VersionMismatch)


@pytest.mark.parametrize("error", [ConnectionError("refused\nby it"), ValueError("no address")])
def test_a_cluster_that_does_not_answer(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    words = " ".join(str(error).split())
    with pytest.raises(ClusterUnreachable, match=f"10.0.0.1:6379 cannot be joined: {words}"):
        join(monkeypatch, error)


def test_a_token_that_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str) -> None:
        raise ClusterUnreachable(f"the cluster at {address} asks for a token")

    monkeypatch.setattr(cluster, "CleanupProcess", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(cluster, "follow_auth_mode", refuse)
    with pytest.raises(ClusterUnreachable, match=r"^the cluster at 10.0.0.1:6379 asks"):
        Cluster("10.0.0.1:6379", "ray")


def test_an_embedded_cluster_has_the_drivers_own_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("ray.init", lambda *_, **__: None)
    monkeypatch.setattr(cluster, "CleanupProcess", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(cluster, "follow_auth_mode", asked.append)
    Cluster("10.0.0.1:6379", "local")
    assert asked == []
    Cluster("10.0.0.1:6379", "ray")
    assert asked == ["10.0.0.1:6379"]


def test_a_cluster_is_left_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost head: the embedded cluster ends, and what is left is cleaned up."""
    done: list[str] = []
    monkeypatch.setattr("ray.shutdown", lambda: os.stat("/no/such/place"))
    joined = Cluster.__new__(Cluster)
    joined.cleanup = cast(Any, SimpleNamespace(close=lambda: done.append("cleanup")))
    joined._local = cast(Any, SimpleNamespace(close=lambda: done.append("cluster")))
    with pytest.raises(FileNotFoundError):
        joined.close()
    assert done == ["cluster", "cleanup"]


@pytest.mark.parametrize("own", [None, "99"])
def test_only_this_process_waits_longer_for_a_head(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    """A job that the suite submits, or an embedded cluster, keeps its variable."""
    ((name, patience),), seen = PATIENCE.items(), []
    monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(name, own)
    monkeypatch.setattr(cluster, "follow_auth_mode", lambda address: None)
    monkeypatch.setattr("ray.init", lambda *_, **__: seen.append(os.environ[name]))
    monkeypatch.setattr(cluster, "CleanupProcess", lambda: SimpleNamespace(close=lambda: None))
    Cluster("10.0.0.1:6379", "ray")
    assert seen == [patience]
    assert os.environ.get(name) == own
