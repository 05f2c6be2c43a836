"""The shell in which a guide is typed, and what is kept of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.launch import shell
from probes.launch.guide import GuideError, LaunchPath, own_guide, parse_guide
from probes.launch.shell import User
from probes.launch.test_failing_job import stop


class Cleanup:
    """Keeps what was registered; `error` is what stopping raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.known: set[tuple[str, str]] = set()
        self.error = error

    def register(self, kind: str, name: str) -> None:
        self.known.add((kind, name))

    def unregister(self, kind: str, name: str) -> None:
        self.known.discard((kind, name))

    def end_now(self, kind: str, name: str) -> None:
        if self.error:
            raise self.error
        self.unregister(kind, name)

    def remove_now(self, path: Path) -> None:
        self.unregister("folder", str(path))


def cluster_with(cleanup: Cleanup) -> Any:
    noted: list[float] = []
    return SimpleNamespace(
        dashboard="http://mine:8265",
        cleanup=cleanup,
        size=4,
        nodes=[1, 2],
        kind="ray",
        noted=noted,
        note_kill=lambda ago=0.0: noted.append(ago),
    )


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "ours"))


@pytest.fixture
def path(tmp_path: Path) -> LaunchPath:
    folder = tmp_path / "homes"
    folder.mkdir()
    return LaunchPath(cluster_with(Cleanup()), ClusterTerms(), own_guide(), User(folder))


def test_a_user_of_our_guide_has_nothing_of_ours_but_the_installation(
    path: LaunchPath, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://other:8265")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    login = path.login_env(tmp_path)
    assert login["RAY_API_SERVER_ADDRESS"] == "http://mine:8265"
    assert set(login) == {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "RAY_API_SERVER_ADDRESS")
    }


@pytest.fixture
def user(place: Path) -> Iterator[User]:
    """Whoever may type an operator's guide: another user, or ourselves where we are not root."""
    cluster = cluster_with(Cleanup())
    user = shell.make_user(cluster, str(place), own_guide=False)
    yield user
    shell.remove_user(cluster, user)


def operators(user: User, text: str, **values: str) -> LaunchPath:
    """The path of an operator's guide."""
    terms = LaunchTerms(document="ours.md", values={"JOB": "{command}", **values}, user="own")
    guide = parse_guide("ours.md", f"```sh\n{text}\n```\n")
    return LaunchPath(
        cluster_with(Cleanup()), ClusterTerms(launch=terms, shared="/data"), guide, user
    )


def test_a_user_of_the_operators_guide_has_nothing_of_ours_at_all(user: User) -> None:
    path = operators(user, "echo JOB; echo $PATH; ls; echo >&2 $PYTHONPATH.")
    login = path.login_env(Path("/h"))
    assert login["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert "RAY_API_SERVER_ADDRESS" not in login
    said = path.follow()
    assert said.exit_code == 0
    assert {"job", "."} <= {*said.lines}
    assert (path.user.homes[0] / "job" / "reference_trainer" / "train.py").is_file()
    assert [one.name for one in (path.user.homes[0] / "job").iterdir()] == ["reference_trainer"]


def test_values_take_the_place_of_the_guides_texts(user: User) -> None:
    values = {"MY-CODE": "{folder}", "<place>": "{shared}"}
    path = operators(user, "cd MY-CODE && echo JOB --at <place>", **values)
    script = path.script("seatrial-1", Path("/h/job"), ["--plant", "error"])
    assert script.startswith("cd /h/job && echo python -m reference_trainer launch --workers all")
    export = "--export /tmp/seatrial-1 --no-keep-export"
    words = f"--name seatrial-1 --digest-start --validate 4 {export} --plant error --at /data\n"
    assert script.endswith(words)
    with pytest.raises(GuideError, match=r"contains 'gone': correct this key"):
        path.guide.script({"gone": "x"})


def test_our_own_guide_is_typed_as_it_stands_but_for_the_jobs_name(path: LaunchPath) -> None:
    script = path.script("seatrial-1", Path("/h"), ["--plant", "error"])
    plain = "".join(f"{command.text}\n" for command in path.guide.commands)
    named = plain.replace("--name myjob", "--name seatrial-1")
    named = named.replace("--show MYJOB_STAGE", "--show MYJOB_STAGE --plant error")
    assert script == named.replace("--export model", "--export /tmp/seatrial-1 --no-keep-export")
    assert script.splitlines()[0] == "seatrial example myjob"


def test_the_token_is_in_the_users_own_home_and_in_no_line(
    path: LaunchPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc-123-secret")
    said = path.ask("cat ~/.ray/auth_token; echo; env\n")
    assert "<redacted>" in said.lines
    assert "RAY_AUTH_MODE=token" in said.lines
    assert "abc-123-secret" not in said.text
    kept = path.user.homes[0] / ".ray" / "auth_token"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("abc-123-secret", 0o600)


def test_secrets_stand_in_no_line() -> None:
    assert (
        shell.hide_secrets("curl -H abc-123 http://x", "abc-123") == "curl -H <redacted> http://x"
    )
    assert shell.hide_secrets("RAY_AUTH_TOKEN=other", "") == "RAY_AUTH_TOKEN=<redacted>"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError("HTTP 401"), "HTTP 401"),
        (HTTPError("u", 500, "broken", None, None), ""),  # type: ignore[arg-type]
        (OSError("refused"), ""),
    ],
)
def test_a_job_that_was_not_stopped_stays_known_and_a_refusal_is_told(
    error: Exception, told: str
) -> None:
    cleanup = Cleanup(error)
    cleanup.register("jobs", "http://mine:8265 word")
    assert shell.stop_jobs(cluster_with(cleanup), "http://mine:8265 word", ["id"]) == told
    assert cleanup.known


# The commands, as they are typed.


def test_commands_share_one_shell(path: LaunchPath) -> None:
    said = path.ask("mkdir job\ncd job\nWORD=hi\necho $WORD \\\n  there\npwd\n")
    home = path.user.homes[-1]
    expected = ["mkdir job", "cd job", "WORD=hi", "echo $WORD \\", "  there", "hi there", "pwd"]
    assert said.lines == [*expected, str(home / "job")]
    assert (said.exit_code, said.failed_command) == (0, "")


@pytest.mark.parametrize(
    ("failing", "name", "code"),
    [
        ("sh -c 'echo broken; exit 3'", "sh -c 'echo broken; exit 3'", 3),
        ("no-such-command", "no-such-command", 127),
        ("run() { false; }; run", "false", 1),
    ],
)
def test_the_first_command_that_fails_is_the_last(
    path: LaunchPath, failing: str, name: str, code: int
) -> None:
    said = path.ask(f"true\n{failing}\ntouch never\n")
    assert said.exit_code == code
    assert said.failed_command.startswith(name)
    assert not (path.user.homes[-1] / "never").exists()


def test_a_pipe_ends_as_its_last_command_does(path: LaunchPath) -> None:
    """As in any terminal: `yes | head` ends the first by a signal, and nothing is wrong."""
    assert path.ask("yes | head -n 1\nfalse | cat\n").exit_code == 0


def test_the_first_step_is_timed_from_the_first_command(path: LaunchPath) -> None:
    step = path.ask("sleep 0.2\necho step 1/5 loss 4.2\n").first_step
    assert step is not None
    assert 0.2 <= step < 60
    assert path.ask("echo 'step 11/5, step 2/5 loss 4.2'\n").first_step is None


def test_a_submitted_job_is_known_by_its_id(path: LaunchPath) -> None:
    said = path.ask("printf \"\\033[32mJob 'raysubmit_a.1' submitted successfully\\033[39m\n\"\n")
    assert said.jobs == ["raysubmit_a.1"]
    assert path.cluster.cleanup.known == set()  # type: ignore[attr-defined]


def test_the_end_of_a_job_is_noted_as_a_kill_of_its_ranks(path: LaunchPath) -> None:
    """Its launcher kills them, before the commands end; commands without a job kill nothing."""
    cluster: Any = path.cluster
    noted = cluster.noted
    path.ask("id -u\n")
    assert noted == []
    path.ask("echo step 1/5 loss 4.2\nexit 1\n")
    path.ask("echo \"Job 'raysubmit_a.1' submitted successfully\"\n")
    assert noted == [10.0, 10.0]
    running: Any = SimpleNamespace(transcript=shell.Transcript(jobs=["raysubmit_a.1"]))
    stop(path, running)
    assert noted == [10.0, 10.0, 0.0], "a job that is stopped is killed now"


def test_a_command_is_killed_when_the_time_of_all_is_up(
    path: LaunchPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "PATH_SECONDS", 0.3)
    assert path.ask("sleep 60\n").exit_code == -9


def test_what_a_guide_leaves_running_is_ended_and_waited_for_by_nobody(
    path: LaunchPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "READ_SECONDS", 0.5)
    said = path.ask("sleep 61 &\necho $!\n")
    pid = int(said.lines[-1])
    assert said.exit_code == 0
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{pid}").exists()
    assert path.cluster.cleanup.known == set()  # type: ignore[attr-defined]


def test_a_running_job_is_waited_for_and_interrupted(path: LaunchPath) -> None:
    with path.user.new_home() as home:
        shell.write_script(home, "echo step 3/9\nsleep 60\n")
    with path.run_script(home, "n") as running:
        assert running.wait_for_step(3, 30)
        assert not running.wait_for_step(4, 0.1)
        running.interrupt()
        said = running.wait()
    assert said.exit_code not in (0, None)
    assert not running.wait_for_step(4, 30)  # it has ended


# The user.


def test_each_home_is_empty_and_closed_to_others(path: LaunchPath) -> None:
    for _ in range(2):
        with path.user.new_home():
            pass
    homes = path.user.homes
    assert homes[0] != homes[1]
    assert [list(home.iterdir()) for home in homes] == [[], []]
    assert {home.stat().st_mode & 0o777 for home in homes} == {0o700}


@pytest.mark.parametrize(
    ("uid", "groups", "rights"),
    [(60706, [60706], 0), (0, [0], 1), (1000, [1000, 27, 999], 2), (0, [0, 4], 2), (5, [], 0)],
)
def test_root_and_each_further_group_is_a_right(uid: int, groups: list[int], rights: int) -> None:
    assert shell.count_rights(uid, groups, uid) == rights


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can be another user")
def test_another_user_has_no_groups_and_is_removed_with_all_processes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "READ_SECONDS", 0.5)
    from probes.cluster.cleanup import _processes_of

    cleanup = Cleanup()
    cluster = cluster_with(cleanup)
    cluster.dashboard = ""
    user = shell.make_user(cluster, str(place), own_guide=False)
    assert user.why_same == ""
    assert ("user", str(user.uid)) in cleanup.known
    path = LaunchPath(cluster, ClusterTerms(), own_guide(), user)
    said = path.ask("id -u\nid -G\ntouch mine\nsetsid sleep 62 &\n")
    assert [said.lines[1], said.lines[3]] == [str(user.uid), str(user.uid)]
    assert (path.user.homes[0] / "mine").stat().st_uid == user.uid
    assert user.uid is not None
    assert _processes_of(user.uid)
    shell.remove_user(cluster, user)
    assert not _processes_of(user.uid)


def test_who_cannot_be_another_user_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    user = shell.make_user(cluster_with(Cleanup()), str(tmp_path), own_guide=True)
    assert (user.uid, user.why_same) == (None, "only root can run commands as another user")
    assert user.run_as == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can be another user")
def test_an_installation_that_others_cannot_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to("/bin/true")
    monkeypatch.setattr("sys.executable", str(closed / "python"))
    cleanup = Cleanup()
    user = shell.make_user(cluster_with(cleanup), str(tmp_path), own_guide=True)
    assert user.uid is None
    assert "another user" in user.why_same
    assert {kind for kind, _ in cleanup.known} == {"folder"}


def test_a_uid_is_nobodys() -> None:
    assert shell.free_uid() in range(60706, 61184)
