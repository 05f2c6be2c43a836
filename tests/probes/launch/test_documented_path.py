"""The shell in which the documented path is typed, and what is kept of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from probes.launch import documented_path
from probes.launch.documented_path import TOKEN_VARIABLES, follow_path, hide_secrets, login_env

CLUSTER: Any = SimpleNamespace(dashboard="http://mine:8265")


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in TOKEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "ours"))


def test_a_clean_shell_has_nothing_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://other:8265")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    shell = login_env(CLUSTER, tmp_path)
    assert set(shell) == {"PATH", "HOME", "LANG", "RAY_API_SERVER_ADDRESS"}
    assert shell["RAY_API_SERVER_ADDRESS"] == "http://mine:8265"


def test_the_shell_has_the_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    shell = login_env(CLUSTER, tmp_path)
    assert (shell["RAY_AUTH_MODE"], shell["RAY_AUTH_TOKEN"]) == ("token", "abc")
    assert "RAY_AUTH_TOKEN_PATH" not in shell


def test_the_token_of_our_home_is_named_to_a_shell_with_another(tmp_path: Path) -> None:
    path = tmp_path / "ours" / ".ray" / "auth_token"
    path.parent.mkdir(parents=True)
    path.write_text("abc\n")
    assert login_env(CLUSTER, tmp_path / "user")["RAY_AUTH_TOKEN_PATH"] == str(path)


def test_the_token_stands_in_no_line() -> None:
    assert hide_secrets("curl -H abc-123 http://x", "abc-123") == "curl -H <redacted> http://x"
    assert hide_secrets("RAY_AUTH_TOKEN=other", "") == "RAY_AUTH_TOKEN=<redacted>"


@pytest.mark.parametrize(
    ("error", "kept", "told"),
    [
        (PermissionError("HTTP 401"), True, "HTTP 401"),
        (HTTPError("u", 404, "gone", None, None), False, ""),  # type: ignore[arg-type]
        (HTTPError("u", 500, "broken", None, None), True, ""),  # type: ignore[arg-type]
        (OSError("refused"), True, ""),
    ],
)
def test_a_job_that_was_not_stopped_stays_known_and_a_refusal_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, kept: bool, told: str
) -> None:
    registered: set[str] = set()
    cleanup = SimpleNamespace(
        register=lambda kind, name: registered.add(name),
        unregister=lambda kind, name: registered.discard(name),
    )
    cluster: Any = SimpleNamespace(dashboard="http://mine:8265", cleanup=cleanup)

    def stop(kind: str, name: str) -> None:
        raise error

    monkeypatch.setattr(documented_path, "stop_resource", stop)
    monkeypatch.setattr(documented_path, "SUBMIT", ["true"])
    monkeypatch.setattr(documented_path, "documented_commands", lambda: [["true"]])
    monkeypatch.setattr(documented_path, "_transcribe_output", lambda child, *_: child.wait())
    assert follow_path(cluster, tmp_path).stop_error == told
    assert bool(registered) is kept
