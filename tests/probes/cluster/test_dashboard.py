"""The dashboard that jobs go to: the cluster's own, and the token that it may ask for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probes.cluster import cleanup
from probes.cluster.cluster import Cluster
from probes.cluster.dashboard import authorization_header, find_token
from probes.cluster.endpoints import find_dashboard, ignored_address, leads_to_session
from tests.support.dashboard import dashboard

VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_K8S_TOKEN_AUTH",
             "RAY_API_SERVER_ADDRESS")  # fmt: skip


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a cluster of session `ours` were joined, whose dashboard is at 10.0.0.1:9265."""
    url = "ray._private.services.get_webui_url_from_internal_kv"
    monkeypatch.setattr(url, lambda: "10.0.0.1:9265")
    monkeypatch.setattr("probes.cluster.endpoints._session_name", lambda: "ours")


def joined_cluster(address: str, kind: str) -> Cluster:
    cluster = Cluster.__new__(Cluster)
    cluster.address, cluster.kind, cluster._local = address, kind, None
    return cluster


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(
    ("address", "kind", "expected"),
    [
        ("10.0.0.1:6379", "ray", "http://10.0.0.1:9265"),
        ("ray://mine:10001", "client", "http://mine:9265"),
    ],
)
def test_the_address_follows_from_the_cluster_and_not_from_the_shell(
    monkeypatch: pytest.MonkeyPatch, address: str, kind: str, expected: str
) -> None:
    with dashboard(session="another") as (elsewhere, _):
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", elsewhere)
        monkeypatch.setenv("RAY_OVERRIDE_DASHBOARD_URL", elsewhere)
        found = joined_cluster(address, kind).dashboard
        message = ignored_address(found)
    assert found == expected
    assert elsewhere in message
    assert expected in message


@pytest.mark.usefixtures("joined")
def test_another_way_to_the_same_cluster_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel or an ingress: the cluster's own address may not be reached from here."""
    with dashboard(session="ours") as (tunnel, _):
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", f"{tunnel}/")
        found = joined_cluster("ray://mine:10001", "client").dashboard
        assert found == tunnel
        assert ignored_address(found) == ""


def test_the_shell_is_not_told_of_where_it_names_nothing() -> None:
    assert ignored_address("http://mine:8265") == ""


def test_a_cluster_without_a_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "ray._private.services.get_webui_url_from_internal_kv"
    monkeypatch.setattr(url, lambda: None)
    assert find_dashboard() == ""


def test_what_does_not_answer_as_this_cluster_is_another() -> None:
    with dashboard(session="ours", token="abc") as (address, _):
        assert not leads_to_session(address, "ours")  # it asks for a token, and there is none
    assert not leads_to_session(address, "ours")  # nobody is there any more
    assert not leads_to_session("file:///etc/passwd", "ours")
    with dashboard(session="") as (address, _):
        assert not leads_to_session(address, "")


@pytest.mark.parametrize("place", ["variable", "file", "home"])
def test_the_token_is_found_as_ray_finds_it_and_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    path = tmp_path / ("token" if place == "file" else ".ray/auth_token")
    path.parent.mkdir(exist_ok=True)
    path.write_text("wrong\n" if place == "variable" else " abc \nmore\n")
    if place == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    if place == "file":
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    with dashboard(token="abc") as (address, served):
        cleanup.stop_resource("job", f"{address} raysubmit_1")
        assert leads_to_session(address, "ours")
    assert served == ["/api/jobs/raysubmit_1/stop", "/api/version"]


def test_a_user_without_a_home_has_no_token_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert find_token() == ""


def test_a_mode_that_is_off_sends_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    assert authorization_header() == {"Authorization": "Bearer abc"}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert authorization_header() == {}


@pytest.mark.parametrize(
    ("token", "said"),
    [("", "refuses a request without a token (HTTP 401)"), ("old", "refuses the token that was")],
)
def test_a_refused_stop_is_a_failure_that_is_said(
    monkeypatch: pytest.MonkeyPatch, token: str, said: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    with dashboard(token="abc") as (address, _), pytest.raises(PermissionError) as error:
        cleanup.stop_resource("job", f"{address} raysubmit_1")
    assert said in str(error.value)
    assert "so seatrial cannot stop job raysubmit_1: set" in str(error.value)
    assert "old" not in str(error.value)


@pytest.mark.parametrize(("token", "served"), [("abc", ["/api/jobs/j1/stop"]), ("", [])])
def test_the_process_that_outlives_the_driver_has_the_token(
    monkeypatch: pytest.MonkeyPatch, token: str, served: list[Any]
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    with dashboard(token="abc") as (address, seen):
        child = subprocess.run(
            [sys.executable, "-I", cleanup.__file__],
            input=f'{{"keep": ["job", "{address} j1"]}}\n',
            text=True,
            capture_output=True,
            check=True,
            timeout=30,
        )
    assert seen == served
    assert ("HTTP 401" in child.stderr) is (not token)
    assert "abc" not in child.stderr
