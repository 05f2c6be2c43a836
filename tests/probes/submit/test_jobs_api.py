"""The Jobs API over HTTP: what a refusal means, and what an outage."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from ray._private import ray_constants

from probes.submit import follow
from probes.submit.follow import ConnectionLost, JobsApi, Refused, SubmitError, UnknownJob
from tests.probes.cluster.room.test_late_nodes import Clock
from tests.support.dashboard import dashboard
from tests.support.served import serving

Answer = tuple[int, Any]  # status 0: the connection is closed without an answer


class Silent(BaseHTTPRequestHandler):
    """Writes no line for a request."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def head(answer: Callable[[str, str], Answer]) -> Iterator[tuple[str, list[str]]]:
    """Serve a stand-in for the Jobs API; `answer(method, path)` is its status and content."""
    asked: list[str] = []

    class Handler(Silent):
        def serve(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(f"{self.command} {self.path}")
            status, content = answer(self.command, self.path)
            if not status:
                return
            self.send_response(status)
            if status == 302:  # its content is where to go
                self.send_header("Location", content)
            self.end_headers()
            self.wfile.write(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )

        do_GET = do_POST = do_PUT = do_DELETE = serve

    with serving(Handler) as address:
        yield address, asked


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "RETRY_S", 0.01)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


def test_an_outage_is_waited_for_and_shown() -> None:
    answers = iter(
        [
            (503, {}),
            (0, None),
            (500, b"Traceback\nNo available agent"),
            (200, {"status": "RUNNING"}),
        ]
    )
    said: list[str] = []
    with head(lambda *_: next(answers)) as (address, asked):
        api = JobsApi(address, said.append)
        assert api.insist(lambda: api.state("a")).status == "RUNNING"
    assert len(asked) == 4
    assert len(said) == 2
    assert said[0].startswith(f"connection lost ({address}: HTTP 503")
    assert said[1].startswith("connected again after")


def test_a_head_that_is_gone_is_asked_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, answers = Clock(), iter([ConnectionLost("a"), ConnectionLost("b"), "well"])
    monkeypatch.setattr(follow, "time", clock)
    monkeypatch.setattr(follow, "RETRY_S", 2.0)

    def answer() -> str:
        if isinstance(found := next(answers), Exception):
            raise found
        return str(found)

    assert JobsApi("http://x").insist(answer) == "well"
    assert clock.now == 4.0


def test_no_package_is_larger_than_ray_takes() -> None:
    older = 100 * 1024**2  # a plain number in the code of older Rays
    assert getattr(ray_constants, "DASHBOARD_CLIENT_MAX_SIZE", older) == follow.MAX_PACKAGE


def test_an_outage_that_lasts_is_an_end() -> None:
    with head(lambda *_: (503, {})) as (address, _):
        api = JobsApi(address)
        api.patience_s = 0.1
        with pytest.raises(ConnectionLost, match="HTTP 503"):
            api.insist(lambda: api.state("a"))


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    end = pytest.raises(SubmitError, match=r"is not a Ray dashboard: .* more than")
    large = b'{"ray_version": "' + b"a" * (2 << 20) + b'"}'
    with head(lambda *_: (200, large)) as (address, _), end:
        JobsApi(address).ray_version()
    monkeypatch.setattr(follow, "MAX_ANSWER", 1000)
    with head(lambda *_: (200, b" " * 100_000)) as (address, _), end:
        JobsApi(address).log("a")


def test_a_log_may_be_larger_than_other_answers() -> None:
    with head(lambda *_: (200, {"logs": "a" * (2 << 20)})) as (address, _):
        assert len(JobsApi(address).log("a")) == 2 << 20


def test_an_answer_that_is_cut_off_is_an_outage_and_no_other_answer() -> None:
    class Cut(Silent):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"logs": "half"}')

    with serving(Cut) as address, pytest.raises(ConnectionLost, match="IncompleteRead"):
        JobsApi(address).log("a")


def test_an_answer_ends_at_its_length_though_the_connection_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "ANSWER_S", 20.0)
    released = threading.Event()

    class Open(Silent):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "16")
            self.end_headers()
            self.wfile.write(b'{"logs": "full"}')
            self.wfile.flush()
            released.wait(10)

    with serving(Open) as address:
        begun = time.monotonic()
        assert JobsApi(address).log("a") == "full"
        assert time.monotonic() - begun < 5
        released.set()


def test_an_answer_that_drips_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "ANSWER_S", 0.5)

    class Drip(Silent):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                for _ in range(1000):
                    self.wfile.write(b" ")
                    time.sleep(0.05)  # between two bytes

    end = pytest.raises(ConnectionLost, match="the answer did not end in 0 s")
    with serving(Drip) as address, end:
        JobsApi(address).ray_version()


BEGUN = b"HTTP/1.1 200 OK\r\n"
DRIPS = {  # sent at once, and then again and again
    "a header": (BEGUN + b"X: ", b"a"),
    "the size of a chunk": (BEGUN + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "answers before the answer": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "many of them at once": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    "a refusal": (b"HTTP/1.1 409 Conflict\r\nContent-Length: 9999\r\n\r\n", b"a"),
    "a body": (BEGUN + b"Content-Length: 9999\r\n\r\n", b"a"),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize("name", DRIPS)
def test_no_answer_takes_longer_than_its_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "ANSWER_S", 0.5)
    first, again = DRIPS[name]
    begun = time.monotonic()

    class Drip(Silent):
        def do_GET(self) -> None:
            with suppress(OSError):
                self.wfile.write(first)
                while time.monotonic() < begun + 6:
                    self.wfile.write(again)
                    time.sleep(0.05)

    expected = SubmitError if name == "a refusal" else ConnectionLost
    with serving(Drip) as address:
        begun = time.monotonic()
        with pytest.raises(expected):
            JobsApi(address).ray_version()
        assert time.monotonic() - begun < 3


def test_a_job_is_submitted_once_though_the_answer_is_lost() -> None:
    known: list[str] = []

    def answer(method: str, path: str) -> Answer:
        if method == "POST":
            known.append("a")
            return 0, None
        return (200, {"status": "PENDING"}) if known else (404, b"does not exist")

    with head(answer) as (address, asked):
        JobsApi(address).submit("a", "true", "gcs://x.zip")
    assert asked == ["POST /api/jobs/", "GET /api/jobs/a"]


def test_a_job_is_submitted_again_if_the_request_was_lost() -> None:
    posts = iter([(0, None), (200, {})])
    with head(lambda method, _: next(posts) if method == "POST" else (404, b"")) as (
        address,
        asked,
    ):
        JobsApi(address).submit("a", "true", "gcs://x.zip")
    assert asked == ["POST /api/jobs/", "GET /api/jobs/a", "POST /api/jobs/"]


def test_a_package_that_is_there_is_not_sent() -> None:
    for status, expected in ((200, ["GET"]), (404, ["GET", "PUT"])):
        with head(lambda method, _, s=status: (s if method == "GET" else 200, {})) as (
            address,
            asked,
        ):  # type: ignore[misc]
            assert JobsApi(address).upload("p.zip", b"p") == "gcs://p.zip"
        assert [line.split()[0] for line in asked] == expected


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (404, UnknownJob, "the last line"),
        (400, SubmitError, "HTTP 400: the last line"),
        (401, SubmitError, "refuses access without a token"),
        (403, SubmitError, "RAY_AUTH_TOKEN_PATH"),
    ],
)
def test_a_refusal_is_no_outage(status: int, kind: type[Exception], words: str) -> None:
    with head(lambda *_: (status, b"Traceback\nthe last line\n")) as (address, asked):
        api = JobsApi(address)
        with pytest.raises(kind, match=words):
            api.insist(lambda: api.state("a"))
    assert len(asked) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"<html>log in</html>",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 200_000,
        b'{"ray_version": [{}]}',
        b'{"ray_version": "%s"}' % (b"2" * 101),
    ],
)
def test_what_is_no_dashboard_is_named(content: bytes) -> None:
    with (
        head(lambda *_: (200, content)) as (address, _),
        pytest.raises(SubmitError, match="is not a Ray dashboard"),
    ):
        JobsApi(address).ray_version()


def test_the_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with dashboard(token="secret") as (address, served):
        with pytest.raises(SubmitError, match="without a token"):
            JobsApi(address).stop("a")
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
        with pytest.raises(SubmitError, match="refuses the token that was sent") as refused:
            JobsApi(address).stop("a")
        assert "wrong" not in str(refused.value)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
        JobsApi(address).stop("a")
    assert served == ["/api/jobs/a/stop"]


def test_the_state_is_as_ray_reports_it() -> None:
    job = {
        "status": "FAILED",
        "message": "exit code 20",
        "driver_exit_code": 20,
        "driver_agent_http_address": "http://10.0.0.7:52365",
        "metadata": None,
    }
    with head(lambda *_: (200, job)) as (address, _):
        state = JobsApi(address).state("a")
    assert (state.ended, state.exit_code, state.host) == (True, 20, "10.0.0.7")
    assert state.message == "exit code 20"
    with head(lambda *_: (200, {"status": "PENDING"})) as (address, _):
        state = JobsApi(address).state("a")
    assert (state.ended, state.message, state.exit_code, state.host) == (False, "", None, "")


@pytest.mark.parametrize(
    ("reported", "code"), [(0, 0), (1, 1), (20, 20), (256, None), (True, None), ("0", None)]
)
def test_an_exit_code_is_one_of_the_suites(reported: object, code: int | None) -> None:
    with head(lambda *_: (200, {"status": "FAILED", "driver_exit_code": reported})) as (address, _):
        assert JobsApi(address).state("a").exit_code == code


PAGE = b"<!DOCTYPE html><html><head><title>Sign\n in</title></head><body>x</body></html>"


@pytest.mark.parametrize(
    "answer", [(401, b"expired"), (404, PAGE), (302, "http://sso/login"), (200, PAGE)]
)
def test_a_refusal_of_something_between_may_pass_while_a_run_is_under_way(answer: Answer) -> None:
    """An expired login, a proxy that is started anew: the run goes on meanwhile."""
    answers = iter([answer, answer, (200, {"status": "RUNNING"})])
    said: list[str] = []
    with head(lambda *_: next(answers)) as (address, _):
        api = JobsApi(address, said.append)
        api.is_under_way = True
        assert api.insist(lambda: api.state("a")).status == "RUNNING"
    assert said[0].startswith("connection lost (")
    with head(lambda *_: answer) as (address, _), pytest.raises(Refused):
        JobsApi(address).state("a")
    with head(lambda *_: answer) as (address, _):
        api = JobsApi(address)
        api.patience_s = 0.05
        api.is_under_way = True
        with pytest.raises(ConnectionLost):
            api.insist(lambda: api.state("a"))


def test_a_page_of_a_proxy_that_has_no_answer_is_an_outage() -> None:
    """The job may have arrived: it is asked for, and not submitted twice."""
    answers = iter([(504, PAGE), (200, {"status": "RUNNING"})])
    with head(lambda *_: next(answers)) as (address, asked):
        JobsApi(address).submit("a", "run", "gcs://p.zip")
    assert asked == ["POST /api/jobs/", "GET /api/jobs/a"]


def test_a_page_is_named_by_its_title() -> None:
    with (
        head(lambda *_: (413, PAGE)) as (address, _),
        pytest.raises(SubmitError, match=r"HTTP 413 \(.*\), page 'Sign in': a proxy answers"),
    ):
        JobsApi(address).stop("a")


@pytest.mark.parametrize("token", ["two\nlines", "gr\u00fcn", "ab\x7f"])
def test_a_token_that_no_header_can_have_is_refused_without_it(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    with pytest.raises(
        SubmitError, match="RAY_AUTH_TOKEN or the token file: the token has"
    ) as refused:
        JobsApi("http://127.0.0.1:9").stop("a")
    assert token not in str(refused.value)
    assert token[:3] not in str(refused.value)


def test_what_a_job_printed_is_read() -> None:
    with head(lambda *_: (200, {"logs": "one\ntwo"})) as (address, asked):
        assert JobsApi(address).log("a") == "one\ntwo"
    assert asked == ["GET /api/jobs/a/logs"]
    with head(lambda *_: (200, {"logs": None})) as (address, _):
        assert JobsApi(address).log("a") == ""


def test_jobs_are_stopped_and_forgotten() -> None:
    with head(lambda *_: (200, {})) as (address, asked):
        JobsApi(address).stop("a")
        JobsApi(address).forget("a")
    assert asked == ["POST /api/jobs/a/stop", "DELETE /api/jobs/a"]


@pytest.mark.parametrize("status", [300, 307, 399])
def test_a_redirection_says_where_to(status: int) -> None:
    with (
        head(lambda *_: (status, b"")) as (address, _),
        pytest.raises(SubmitError, match="redirects to another address: use that address"),
    ):
        JobsApi(address).stop("a")


def test_a_connection_that_is_refused_says_so() -> None:
    with pytest.raises(ConnectionLost, match=r"http://127\.0\.0\.1:9: .*refused"):
        JobsApi("http://127.0.0.1:9").stop("a")


def test_the_token_follows_no_redirection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    with dashboard() as (target, served), head(lambda *_: (302, f"{target}/x")) as (address, _):
        with pytest.raises(SubmitError, match=f"redirects to {target}/x: use that address"):
            JobsApi(address).stop("a")
        assert served == []
