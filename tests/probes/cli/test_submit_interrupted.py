"""`seatrial submit` while something goes wrong: outages, refusals, interrupts, a full disk."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import click
import pytest

from probes.cli import submit as module
from probes.submit import verify
from probes.submit.bring_back import BringBack, ForeignRun
from probes.submit.follow import Follower, SubmissionState, SubmitError
from tests.probes.cli.test_submit import ID, LOG, brought, cluster, run
from tests.probes.submit.test_jobs_api import head
from tests.support.paths import REPO

CONTRACT = ("--contract", "lab")
pytestmark = pytest.mark.usefixtures("here")


def interrupt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a run when it is first followed."""
    calls = iter([KeyboardInterrupt()])
    following = Follower.follow

    def follow_once(self: Follower, *rest: Any) -> SubmissionState:
        for error in calls:
            raise error
        return following(self, *rest)

    monkeypatch.setattr(Follower, "follow", follow_once)


def under_way(monkeypatch: pytest.MonkeyPatch, later: tuple[int, Any]) -> tuple[int, str]:
    """Follow a run whose cluster answers with `later` from its third state on."""
    monkeypatch.setattr("probes.submit.follow.RETRY_S", 0.01)
    monkeypatch.setattr("probes.submit.follow.PATIENCE_S", 0.1)
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
    assert "the connection to the dashboard is lost: " in said
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
    hint = "Check --address. If the head was restarted, its jobs are lost: submit again"
    assert f"Job x does not exist. {hint}" in said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            PermissionError(13, "Permission denied"),
            3,
            "could not be written on this machine: [Errno 13]",
        ),
        (KeyboardInterrupt(), 2, "interrupted before the run was copied here"),
        (SubmitError("came damaged"), 20, "error: came damaged"),
        (ForeignRun("cannot be unpacked"), 4, "error: cannot be unpacked"),
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
        found, said = run("--address", address, "--attach", ID, *CONTRACT)
    assert found == code
    assert words in said
    assert f"seatrial submit --address {address} --attach {ID}" in said
    assert removed == []


def test_a_run_that_is_not_verified_stays_and_can_be_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brought(monkeypatch, 0)
    removed: list[str] = []

    def interrupt(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "find_differences", interrupt)
    monkeypatch.setattr(BringBack, "remove", lambda self: removed.append("x"))
    with cluster([{"status": "SUCCEEDED", "driver_exit_code": 0}]) as (address, _):
        found, said = run(
            "--address", address, "--attach", ID, *CONTRACT, "--run-dir", str(tmp_path / "run")
        )
    assert (found, removed) == (2, [])
    assert "interrupted before the run was copied here: the run is still on the cluster" in said


def test_a_run_that_does_not_stop_is_not_followed_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.05)
    monkeypatch.setattr(module, "STOP_MARGIN_S", 0.05)
    interrupt_once(monkeypatch)
    with cluster([{"status": "RUNNING"}]) as (address, asked):
        code, said = run("--address", address, "--attach", ID)
    assert code == 2
    assert f"POST /api/jobs/{ID}/stop" in asked
    assert "the run did not stop within 0 s, and may still use the cluster" in said
    assert f"--attach {ID}" in said


def test_a_second_signal_leaves_a_run_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Follower, *_: Any) -> SubmissionState:
        raise module.Terminated

    monkeypatch.setattr(Follower, "follow", interrupt)
    with cluster([{"status": "RUNNING"}]) as (address, _):
        code, said = run("--address", address, "--attach", ID)
    assert code == 2
    assert "interrupted before the run had stopped" in said
    assert "goes on" not in said


def interrupted(
    monkeypatch: pytest.MonkeyPatch, *, terminal: str | None
) -> tuple[int, str, list[str]]:
    """Interrupt a run that is followed; `terminal` is what a user answers there."""
    brought(monkeypatch, 2)
    interrupt_once(monkeypatch)
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
    assert "stopping the run: it still removes" in said
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
