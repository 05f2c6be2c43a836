"""The shell in which the documented path is typed, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from probes.launch import documented_path
from probes.launch.documented_path import (
    SUBMIT,
    TOKEN_VARIABLES,
    Transcript,
    documented_commands,
    follow_path,
    hide_secrets,
    login_env,
    make_user_home,
)

CLUSTER: Any = SimpleNamespace(dashboard="http://mine:8265")
PRINT = ["sh", "-c", 'echo "$@"']  # the words after the first two: a job's id, and what follows


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


# The commands, as they are typed.


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Transcript]:
    """Type other commands than the page's; what submits only prints its words."""

    def nothing(kind: str, name: str) -> None:
        """Neither register nor stop anything."""

    cleanup = SimpleNamespace(register=nothing, unregister=nothing)
    cluster: Any = SimpleNamespace(dashboard="http://mine:8265", cleanup=cleanup)
    monkeypatch.setattr(documented_path, "SUBMIT", PRINT)
    monkeypatch.setattr(documented_path, "stop_resource", nothing)

    def type_commands(*commands: list[str], **more: Any) -> Transcript:
        monkeypatch.setattr(documented_path, "documented_commands", lambda: [*commands])
        return follow_path(cluster, tmp_path, **more)

    return type_commands


def test_the_page_writes_an_example_enters_it_and_submits_it() -> None:
    example, enter, submit = documented_commands()
    assert (example, enter) == (["seatrial", "example", "myjob"], ["cd", "myjob"])
    assert submit[:5] == [*SUBMIT, "--working-dir", "."]


def test_commands_after_cd_run_in_that_folder(
    typed: Callable[..., Transcript], tmp_path: Path
) -> None:
    transcript = typed(["mkdir", "job"], ["cd", "job"], ["pwd"])
    assert transcript.text == f"$ mkdir job\n$ cd job\n$ pwd\n{tmp_path / 'job'}\n"
    assert (transcript.exit_code, transcript.failed_command) == (0, "")


def test_the_first_command_that_fails_is_the_last(typed: Callable[..., Transcript]) -> None:
    transcript = typed(["true"], ["sh", "-c", "echo broken; exit 3"], ["touch", "never"])
    assert (transcript.exit_code, transcript.lines[-1]) == (3, "broken")
    assert transcript.failed_command == "sh -c 'echo broken; exit 3'"


def test_a_job_gets_an_id_and_all_further_words(typed: Callable[..., Transcript]) -> None:
    transcript = typed([*PRINT, "--working-dir", "."], extra=["--unset", "MASTER_PORT"])
    job_id, *words = transcript.lines[-1].split()
    assert job_id.startswith("seatrial-")
    assert words == ["--working-dir", ".", "--unset", "MASTER_PORT"]


def test_the_first_step_is_timed_from_the_first_command(typed: Callable[..., Transcript]) -> None:
    step = typed(["sleep", "0.2"], ["echo", "step 1/5 loss 4.2"]).first_step
    assert step is not None
    assert 0.2 <= step < 60
    assert typed(["echo", "step 11/5, step 2/5 loss 4.2"]).first_step is None


def test_a_command_is_killed_when_the_time_of_all_is_up(
    typed: Callable[..., Transcript], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documented_path, "PATH_SECONDS", 0.0)
    assert typed(["sleep", "10"]).exit_code == -9


def test_each_user_has_a_home_that_others_cannot_read(tmp_path: Path) -> None:
    homes = {make_user_home(str(tmp_path)) for _ in range(2)}
    assert homes == {*tmp_path.iterdir()}
    assert {home.stat().st_mode & 0o777 for home in homes} == {0o700}
