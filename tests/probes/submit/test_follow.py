"""A submission is followed: each line once, half lines later, and why it did not begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from probes.submit import follow
from probes.submit.entry import MARK
from probes.submit.follow import Follower, SubmissionState
from tests.probes.cluster.room.test_late_nodes import Clock

BEGUN = f"Running entrypoint\n{MARK} 1\n"


class Api:
    """A job whose log grows; it ends with the last text (a mock)."""

    def __init__(self, *logs: str, status: str = "SUCCEEDED", message: str = "") -> None:
        self.logs, self.at, self.status, self.message = logs, -1, status, message

    def state(self, id: str) -> SubmissionState:
        self.at = min(self.at + 1, len(self.logs) - 1)
        ended = self.at == len(self.logs) - 1
        return SubmissionState(self.status if ended else "RUNNING", self.message)

    def log(self, id: str) -> str:
        return self.logs[max(self.at, 0)]

    def insist(self, call: Callable[[], Any]) -> Any:
        return call()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(follow, "time", clock)
    return clock


def followed(*logs: str) -> list[str]:
    shown: list[str] = []
    Follower(cast(Any, Api(*logs)), "id", shown.append, lambda _: None).follow()
    return shown


def test_each_line_is_shown_once_and_whole(clock: Clock) -> None:
    logs = ["", "Running entrypoint\n", f"{BEGUN}one\ntw", f"{BEGUN}one\ntwo\n", BEGUN]
    assert followed(*logs, f"{BEGUN}one\ntwo\nlast") == ["one", "two", "last"]
    assert clock.now == 5 * follow.POLL_S


def test_a_log_that_was_cut_shows_no_line_again() -> None:
    """After the head started anew its log may be shorter for a while."""
    assert followed(f"{BEGUN}one\ntwo\n", f"{BEGUN}one\n", f"{BEGUN}one\ntwo\nlast") == [
        "one",
        "two",
        "last",
    ]


def test_what_happens_before_the_suite_is_said_once(clock: Clock) -> None:
    said: list[str] = []
    installing = "Running entrypoint\ninstalling pydantic for seatrial only\n"
    api = Api("", "", installing, f"{installing}{MARK} 1\n", f"{installing}{MARK} 1\none")
    Follower(cast(Any, api), "id", lambda _: None, said.append).follow()
    assert said == ["Ray prepares the job on the cluster", "installing pydantic for seatrial only"]


def test_it_follows_no_longer_than_asked(clock: Clock) -> None:
    with pytest.raises(TimeoutError):
        Follower(cast(Any, Api(*[BEGUN] * 500)), "id", lambda _: None, lambda _: None).follow(10)
    assert 10 <= clock.now <= 10 + 2 * follow.POLL_S


def why(log: str, status: str = "FAILED", message: str = "exit code 1") -> str:
    api = Api(log, status=status, message=message)
    state = SubmissionState(status, message)
    return Follower(cast(Any, api), "id", lambda _: None, lambda _: None).why_not_begun(state)


def test_why_the_suite_did_not_begin() -> None:
    assert why(f"{BEGUN}one\n") == ""
    assert why(f"x {MARK}") == "", "it had begun, and the line is cut"
    assert why("noise\nerror: first\nerror: python has no torch\n") == "python has no torch"
    assert why("a\n\n  \nb\n") == "exit code 1 a b"
    assert why("\n".join(f"line{n}" for n in range(20)), message="") == " " + " ".join(
        f"line{n}" for n in range(5, 20)
    )
    assert why("", message="") == "the job is FAILED"
