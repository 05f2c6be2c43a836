"""`seatrial submit`: what it refuses, what it prints, and the exit code it ends with."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from probes.cli import submit as module
from probes.cli.main import main
from probes.cli.submit import new_folder
from probes.submit import follow
from probes.submit.baseline_runs import recorded_code
from probes.submit.bring_back import BringBack, NoRun
from probes.submit.follow import suite_lines
from probes.submit.jobs_api import SubmissionState, SubmitError
from tests.probes.submit.test_jobs_api import head
from tests.support.paths import REPO

ID = "seatrial-submit-0123456789ab"
LOG = f"Running entrypoint\nseatrial-submission {ID}\ncluster   atlas\nFABRIC \x1b[31mPASS\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setattr(follow, "POLL_S", 0.01)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["submit", *words], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no cluster: give --address http://head:8265, or set RAY_API_SERVER_ADDRESS"),
        (["--address", "head:8265"], "--address: expected http://head:8265, found head:8265"),
        (["--address", "http://127.0.0.1:9", "--attach", "mine"], "--attach: expected an id as"),
        (
            ["--address", "http://127.0.0.1:9", "--attach", ID, "--tier", "soak", "-k", "x"],
            "the run is under way, so --keyword, --tier would change nothing",
        ),
        (["--address", "http://127.0.0.1:9", "--run-dir", "full"], "full is not empty"),
        (
            ["--address", "http://127.0.0.1:9"],
            "http://127.0.0.1:9: [Errno 111] Connection refused. Is the head up, and the port",
        ),
        (["--address", "http://[::1"], "--address: expected http://head:8265, found no address"),
        (["--address", "http://"], "--address: expected http://head:8265, found http://"),
        (
            ["--address", "http://me:5ecret@head:8265"],
            "--address: expected no user and password in it: set RAY_AUTH_TOKEN",
        ),
        (
            ["--address", "http://127.0.0.1:9", "--run-dir", "full/record.json/x"],
            "the run cannot be brought back to full/record.json/x: ",
        ),
        (["--address", "http://x", "--cluster", "auto"], "No such option '--cluster'"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(words: list[str], sentence: str) -> None:
    Path("full").mkdir()
    (Path("full") / "record.json").touch()
    code, said = run(*words)
    assert code == 4
    assert said.startswith("error: ")
    assert sentence in said
    assert said.count("\n") == 1
    assert "5ecret" not in said


def cluster(states: list[dict[str, Any]], log: str = LOG) -> Any:
    """Answers as a cluster with one submission, whose state is one after the other."""
    left = list(states)

    def answer(method: str, path: str) -> tuple[int, Any]:
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0"}
        if path.endswith("/logs"):
            return 200, {"logs": log}
        if path.startswith("/api/packages"):
            return 200, {}
        return 200, left.pop(0) if len(left) > 1 else left[0]

    return head(answer)


def brought(monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    """As if the run came back, with this exit code on record."""

    def run_to(self: BringBack, target: Path) -> None:
        target.mkdir(parents=True)
        text = "" if code is None else f'seatrial_exit_code{{cluster="a",run="b"}} {code}\n'
        (target / "metrics.prom").write_text(text)

    monkeypatch.setattr(BringBack, "run_to", run_to)
    monkeypatch.setattr(BringBack, "name", lambda self: "2026-atlas")
    monkeypatch.setattr(BringBack, "remove", lambda self: None)


@pytest.mark.parametrize(
    ("state", "recorded", "code", "words"),
    [
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, 0, 0, "run folder runs/2026-atlas"),
        ({"status": "FAILED", "driver_exit_code": 1}, 1, 1, "run folder"),
        ({"status": "FAILED", "driver_exit_code": 20}, 20, 20, "run folder"),
        ({"status": "STOPPED", "driver_exit_code": None}, 2, 2, "run folder"),
        ({"status": "FAILED", "message": "it died"}, None, 3, "was killed on the cluster: it died"),
        ({"status": "FAILED", "driver_exit_code": -9}, None, 3, "exit code -9, and its run says"),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, 20, 3, "exit code 0, and its run says 20"),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, None, 3, "its run says None"),
        ({"status": "FAILED", "driver_exit_code": 1}, 0, 3, "exit code 1, and its run says 0"),
    ],
)
def test_the_exit_code_is_that_of_the_run(
    state: dict[str, Any],
    recorded: int | None,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that succeeded proves nothing without a run that says the same."""
    brought(monkeypatch, recorded)
    with cluster([{"status": "PENDING"}, {"status": "RUNNING"}, state]) as (address, _):
        found, said = run("--address", address, "--contract", "lab")
    assert found == code, said
    assert words in said
    assert "cluster   atlas\nFABRIC PASS\n" in said
    assert "Running entrypoint" not in said


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 3), (4, 4), (5, 5)])
def test_a_suite_without_a_run_proves_nothing(
    exit_code: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: BringBack) -> str:
        raise NoRun("none")

    brought(monkeypatch, 0)
    monkeypatch.setattr(BringBack, "name", none)
    status = "FAILED" if exit_code else "SUCCEEDED"
    with cluster([{"status": status, "driver_exit_code": exit_code}]) as (address, _):
        code, said = run("--address", address, "--contract", "lab")
    assert code == expected
    assert "run folder" not in said


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("Running entrypoint\nerror: python has no torch\n", ": python has no torch"),
        ("sh: exec: : not found\n", "exit code 127 sh: exec: : not found"),
        ("", "exit code 127"),
    ],
)  # fmt: skip
def test_a_suite_that_did_not_begin_says_why(log: str, words: str) -> None:
    job = {"status": "FAILED", "message": "exit code 127", "driver_exit_code": 127}
    with cluster([job], log) as (address, _):
        code, said = run("--address", address, "--contract", "lab")
    assert code == 4
    assert f"the suite did not begin on {address}: " in said
    assert words in said


def test_a_detached_submission_says_how_to_attach() -> None:
    with cluster([{"status": "RUNNING"}]) as (address, asked):
        code, said = run("--address", address, "--contract", "lab", "--detach")
        assert code == 20
        command = said.splitlines()[-1]
        assert command.startswith(f"seatrial submit --address {address} --attach seatrial-submit-")
        assert "nothing is proven yet" in said
        assert asked[-1] == "POST /api/jobs/"


def test_a_connection_that_stays_lost_detaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.submit.jobs_api.RETRY_S", 0.01)
    api = module.JobsApi
    monkeypatch.setattr(module, "JobsApi", lambda address, say: api(address, say, patience_s=0.1))

    def answer(method: str, path: str) -> tuple[int, Any]:
        return (200, {"ray_version": "2.60.0"}) if path == "/api/version" else (503, {})

    with head(answer) as (address, _):
        code, said = run("--address", address, "--attach", ID)
    assert code == 20
    assert "gave up" in said
    assert f"--attach {ID}" in said


def under_way(monkeypatch: pytest.MonkeyPatch, later: tuple[int, Any]) -> tuple[int, str]:
    """Follow a run whose cluster answers with `later` from its third state on."""
    monkeypatch.setattr("probes.submit.jobs_api.RETRY_S", 0.01)
    api = module.JobsApi
    monkeypatch.setattr(module, "JobsApi", lambda address, say: api(address, say, patience_s=0.1))
    states = iter([{"status": "RUNNING"}] * 2)

    def answer(method: str, path: str) -> tuple[int, Any]:
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0"}
        if path.endswith("/logs"):
            return 200, {"logs": LOG}
        return next(((200, state) for state in states), later)

    with head(answer) as (address, _):
        return run("--address", address, "--attach", ID)


@pytest.mark.parametrize("later", [(401, b"expired"), (404, b"<html></html>"), (200, b"<html>")])
def test_a_run_under_way_is_not_left_alone_without_a_word(
    later: tuple[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = under_way(monkeypatch, later)
    assert code == 20
    assert "connection lost (" in said
    assert "gave up: " in said
    assert f"--attach {ID}" in said


def test_a_job_that_is_gone_is_an_error_that_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, said = under_way(monkeypatch, (404, b"Job x does not exist"))
    assert (code, f"--attach {ID}" in said) == (20, True)
    assert "error: Job x does not exist" in said


def test_an_id_that_the_cluster_does_not_know_is_refused() -> None:
    def answer(method: str, path: str) -> tuple[int, Any]:
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0"}
        return 404, b"Job x does not exist"

    with head(answer) as (address, _):
        code, said = run("--address", address, "--attach", ID)
    assert code == 4
    assert "Job x does not exist. Was it another cluster, or was its head started anew?" in said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError(13, "Permission denied"), 3, "could not be written here: [Errno 13]"),
        (KeyboardInterrupt(), 2, "interrupted while the run was brought back"),
        (SubmitError("came damaged"), 20, "error: came damaged"),
    ],
)
def test_a_run_that_does_not_come_back_stays_and_can_be_fetched(
    error: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought(monkeypatch, 0)
    removed: list[str] = []

    def fail(self: BringBack, target: Path) -> None:
        raise error

    monkeypatch.setattr(BringBack, "run_to", fail)
    monkeypatch.setattr(BringBack, "remove", lambda self: removed.append("x"))
    with cluster([{"status": "SUCCEEDED", "driver_exit_code": 0}]) as (address, _):
        found, said = run("--address", address, "--attach", ID)
    assert found == code
    assert words in said
    assert f"seatrial submit --address {address} --attach {ID}" in said
    assert removed == []


def test_a_run_that_does_not_stop_is_not_followed_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.05)
    monkeypatch.setattr(module, "STOP_MARGIN_S", 0.05)
    calls = iter([KeyboardInterrupt()])
    following = module.Follower.follow

    def follow_once(self: module.Follower, *rest: Any) -> SubmissionState:
        for error in calls:
            raise error
        return following(self, *rest)

    monkeypatch.setattr(module.Follower, "follow", follow_once)
    with cluster([{"status": "RUNNING"}]) as (address, asked):
        code, said = run("--address", address, "--attach", ID)
    assert code == 2
    assert f"POST /api/jobs/{ID}/stop" in asked
    assert "the run has not stopped in 0 s, and may hold the cluster" in said
    assert f"--attach {ID}" in said


def test_a_second_signal_leaves_a_run_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: module.Follower, *_: Any) -> SubmissionState:
        raise module.Terminated

    monkeypatch.setattr(module.Follower, "follow", interrupt)
    with cluster([{"status": "RUNNING"}]) as (address, _):
        code, said = run("--address", address, "--attach", ID)
    assert code == 2
    assert "left while the run stops on the cluster" in said
    assert "goes on" not in said


def interrupted(
    monkeypatch: pytest.MonkeyPatch, *, terminal: str | None
) -> tuple[int, str, list[str]]:
    """Interrupt a run that is followed; `terminal` is what a user answers there."""
    brought(monkeypatch, 2)
    calls = iter([KeyboardInterrupt()])
    following = module.Follower.follow

    def follow_once(self: module.Follower, *rest: Any) -> SubmissionState:
        for error in calls:
            raise error
        return following(self, *rest)

    monkeypatch.setattr(module.Follower, "follow", follow_once)
    if terminal is not None:
        monkeypatch.setattr(module, "at_terminal", lambda: True)
        monkeypatch.setattr(click, "prompt", lambda *_, **__: terminal)
    with cluster([{"status": "STOPPED"}]) as (address, asked):
        code, said = run("--address", address, "--attach", ID)
    return code, said, asked


def test_an_interrupt_without_a_terminal_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, asked = interrupted(monkeypatch, terminal=None)
    assert code == 2
    assert f"POST /api/jobs/{ID}/stop" in asked
    assert "stopping the run on the cluster" in said
    assert "run folder" in said


@pytest.mark.parametrize(
    ("answer", "code", "stops"), [("stop", 2, 1), ("detach", 20, 0), ("go on", 2, 0)]
)
def test_an_interrupt_at_a_terminal_asks(
    answer: str, code: int, stops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _, asked = interrupted(monkeypatch, terminal=answer)
    assert found == code
    assert asked.count(f"POST /api/jobs/{ID}/stop") == stops


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".x", "a b", "a\nb"])
def test_a_run_that_names_a_path_is_refused(name: str) -> None:
    with pytest.raises(SubmitError):
        new_folder(name, ID)


def test_a_run_does_not_replace_another() -> None:
    assert new_folder("a", ID) == Path("runs/a")
    (Path("runs") / "a").mkdir(parents=True)
    assert new_folder("a", ID) == Path("runs/a-0123456789ab")


def test_lines_come_after_the_mark() -> None:
    assert suite_lines("") == suite_lines("seatrial-submission") == []
    assert suite_lines(f"x\nseatrial-submission {ID}\na\nb") == ["a", "b"]


def test_an_unreadable_code_is_none(tmp_path: Path) -> None:
    assert recorded_code(tmp_path) is None
    (tmp_path / "metrics.prom").write_bytes(b"\xff")
    assert recorded_code(tmp_path) is None


@pytest.mark.parametrize("github", [True, False])
def test_github_gets_the_annotations_and_the_summary(
    github: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brought(monkeypatch, 1)
    run_to = BringBack.run_to

    def with_summary(self: BringBack, target: Path) -> None:
        run_to(self, target)
        (target / "github-step-summary.html").write_text("<b>FAIL</b>\n")

    monkeypatch.setattr(BringBack, "run_to", with_summary)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    if github:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    log = LOG + "::error title=FABRIC::slow \x1b[2J::add-mask::x\n::add-mask::secret\n"
    with cluster([{"status": "FAILED", "driver_exit_code": 1}], log) as (address, _):
        code, said = run("--address", address, "--contract", "lab")
    assert code == 1
    assert ("\n::error title=FABRIC::slow" in said) == github
    assert "\n::add-mask::" not in said  # a cluster gives no other order to a runner
    assert (tmp_path / "summary").exists() == github
    assert not (tmp_path / "runs/2026-atlas/github-step-summary.html").exists()


@pytest.mark.parametrize(("answer", "code"), [(b"detach\n", 20), (b"\x03", 20), (b"stop\n", 2)])
def test_ctrl_c_at_a_terminal_asks_what_to_do(answer: bytes, code: int) -> None:
    """With a real terminal; a second Ctrl-C detaches."""
    stopped: list[str] = []

    def answer_as_a_cluster(method: str, path: str) -> tuple[int, Any]:
        if path.endswith("/stop"):
            stopped.append(path)
        if path.endswith("/logs"):
            return 200, {"logs": LOG if "parts" not in path else 'seatrial-archive {"name": ""}\n'}
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0"}
        ended = bool(stopped) or "parts" in path
        return 200, {"status": "SUCCEEDED" if ended else "RUNNING", "driver_exit_code": 0}

    with head(answer_as_a_cluster) as (address, _):
        terminal, theirs = pty.openpty()
        command = [sys.executable, "-m", "probes.cli.main", "submit"]
        child = subprocess.Popen(
            [*command, "--address", address, "--attach", ID],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        read_until(terminal, "FABRIC PASS")
        os.write(terminal, b"\x03")
        read_until(terminal, "stop the run, detach")
        time.sleep(1)  # a signal just before the read would wait for the next key
        os.write(terminal, answer)
        rest = read_until(terminal, None)
        found = child.wait(timeout=30)
        os.close(terminal)
    assert found == code, rest
    assert len(stopped) == (code == 2)


def read_until(terminal: int, words: str | None) -> str:
    """Read what a program writes to its terminal, up to these words or to its end."""
    said = ""
    while words is None or words not in said:
        if not select.select([terminal], [], [], 30)[0]:
            raise AssertionError(f"nothing more came after {said!r}")
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # the program has ended
            break
        if not chunk:
            break
        said += chunk.decode(errors="replace")
    return said
