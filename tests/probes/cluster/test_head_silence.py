"""How long Ray's head was silent, by a clock that only queries and pauses move."""

from __future__ import annotations

import socket
from contextlib import closing
from threading import Thread
from typing import Any

import pytest

from probes.cluster import endpoints
from probes.cluster.endpoints import HTTP2_PREFACE, HeadWatch
from reports.record import Finding

SILENT = "timed out"


class Watch(HeadWatch):
    """A watch without a thread: each query takes so many seconds, and has the next answer."""

    def __init__(self, answers: list[str | None], seconds: float) -> None:
        self.now, self.answers, self.seconds = 0.0, [None, *answers], seconds
        self.found: list[Finding] = []
        self.lost: list[str] = []
        self._head, self._endpoint = "10.0.0.1:6379", ("10.0.0.1", 6379)
        self._on_silence, self._on_lost = self.found.append, self.lost.append
        self._stop: Any = self

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        """Pause; the watch ends with the last answer."""
        self.now += seconds
        return not self.answers

    def _problem(self, preface: bytes) -> str | None:
        self.now += self.seconds
        return self.answers.pop(0)


def watched(
    monkeypatch: pytest.MonkeyPatch, answers: list[str | None], seconds: float
) -> tuple[list[str], list[str]]:
    """What a watch says of silences, and of the loss: the words up to the reason."""
    watch = Watch(answers, seconds)
    monkeypatch.setattr(endpoints, "time", watch)
    watch._watch()
    said = [[text.split(":6379 ")[1] for text in texts] for texts in
            ([one.statement for one in watch.found], watch.lost)]  # fmt: skip
    return said[0], said[1]


@pytest.mark.parametrize(
    ("seconds", "silence", "loss"),
    [
        (0.125, 15, 40),  # 8 queries, and 2 s between two: exactly the limit
        (5.0, 19, 40),
        (600.0, 19, 40),  # this process was frozen: a query counts for as long as it may take
    ],
)
def test_a_silence_is_said_at_its_limit_and_once(
    seconds: float, silence: int, loss: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, lost = watched(monkeypatch, [SILENT] * 50, seconds)
    assert found == [f"has not answered for {silence} s: {SILENT}"]
    assert lost == [f"has not answered for {loss} s: {SILENT}"]


def test_each_silence_is_said_and_an_answer_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = [SILENT] * 7, [SILENT] * 9
    found, lost = watched(monkeypatch, [*short, None, *long, None, *long, None], 0.125)
    assert (len(found), lost) == (2, [])


@pytest.mark.parametrize(
    ("with_preface", "without", "answers"),
    [(None, SILENT, True), (SILENT, None, True), (SILENT, SILENT, False)],
)
def test_a_head_answers_with_or_without_tls(
    with_preface: str | None, without: str | None, answers: bool
) -> None:
    watch = Watch([], 0.0)
    watch.answers = [with_preface, without]
    assert watch.head_answers() is answers


@pytest.mark.parametrize(
    ("answer", "preface", "problem"),
    [
        (b"settings", HTTP2_PREFACE, None),
        (b"", HTTP2_PREFACE, "it closes the connection"),
        (b"", b"", None),  # of a port that speaks TLS, an accepted connection is an answer
    ],
)
def test_what_a_query_finds(answer: bytes, preface: bytes, problem: str | None) -> None:
    def serve() -> None:
        line, _ = server.accept()
        with line:
            line.recv(100)
            line.sendall(answer)

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        watch = Watch([], 0.0)
        watch._endpoint = server.getsockname()
        thread = Thread(target=serve)
        thread.start()
        assert HeadWatch._problem(watch, preface) == problem
        thread.join()
