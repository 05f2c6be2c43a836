"""A job without a token: that it ran is shown by its own output."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from probes.cluster.endpoints import REFUSED
from probes.hosts import endpoints
from probes.hosts.endpoints import RAN, StrangerJob, submit_stranger_job
from tests.support.served import serving

JOB = "seatrial-0123"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "POLL_SECONDS", 0.01)


@contextmanager
def jobs_api(
    submit: int = 200, states: tuple[str, ...] = ("PENDING", "SUCCEEDED"), logs: Any = f"{JOB}\n"
) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """A Jobs API that answers as told; yield its URL, and the requests: method, path, body."""
    seen: list[tuple[str, str, Any]] = []
    left = list(states)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            assert "Authorization" not in self.headers
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.command, self.path, json.loads(body) if body else None))
            self.send_response(submit if self.command == "POST" else 200)
            self.end_headers()
            state = left.pop(0) if len(left) > 1 else left[0]
            answer = {"logs": logs} if self.path.endswith("/logs") else {"status": state}
            self.wfile.write(json.dumps(answer).encode() if submit == 200 else b"no")

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as address:
        yield address, seen


def test_a_job_that_runs_prints_its_own_id_and_is_deleted() -> None:
    with jobs_api(states=("x", "PENDING", "RUNNING", "SUCCEEDED")) as (url, seen):
        assert submit_stranger_job(url, JOB) == StrangerJob(RAN)
    assert seen[0] == (
        "POST", "/api/jobs/",
        {"entrypoint": f"echo {JOB}", "submission_id": JOB, "metadata": {"seatrial": "stranger"}},
    )  # fmt: skip
    assert [row[:2] for row in seen[1:]] == [
        *[("GET", f"/api/jobs/{JOB}")] * 3,
        ("GET", f"/api/jobs/{JOB}/logs"),
        ("DELETE", f"/api/jobs/{JOB}"),
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (401, StrangerJob(REFUSED, "HTTP 401")),
        (403, StrangerJob(REFUSED, "HTTP 403")),
        (500, StrangerJob("no answer", "HTTP 500")),
        (404, StrangerJob("no answer", "HTTP 404")),
    ],
)
def test_a_refused_job_leaves_nothing(code: int, expected: StrangerJob) -> None:
    with jobs_api(submit=code) as (url, seen):
        assert submit_stranger_job(url, JOB) == expected
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("states", "logs", "detail"),
    [
        (("x", "FAILED"), "Traceback", "it failed"),
        (("x", "SUCCEEDED"), "something else", "it succeeded"),
        (("x", "SUCCEEDED"), None, "its output could not be read"),
        (("x", "PENDING"), "", "it is PENDING after 0 s"),
    ],
)
def test_a_job_without_its_output_was_only_accepted(
    states: tuple[str, ...], logs: Any, detail: str
) -> None:
    with jobs_api(states=states, logs=logs) as (url, seen):
        job = submit_stranger_job(url, JOB, seconds=0.1)
    assert job.state == "accepted"
    assert job.detail.startswith(detail)
    assert seen[-1][0] == "DELETE"


def test_a_refused_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only once nothing holds the error any more, as here."""
    body = io.BytesIO(b"no")
    error = HTTPError("http://head", 401, "no", Message(), body)

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("probes.cluster.endpoints.open_url", refuse)
    assert submit_stranger_job("http://head", JOB) == StrangerJob(REFUSED, "HTTP 401")
    assert body.closed


def test_a_dashboard_is_not_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=slept.append)
    monkeypatch.setattr(endpoints, "time", clock)
    with jobs_api(states=("x", "PENDING", "RUNNING", "SUCCEEDED")) as (url, _):
        assert submit_stranger_job(url, JOB) == StrangerJob(RAN)
    assert slept == [endpoints.POLL_SECONDS] * 3


def test_no_dashboard_is_no_answer() -> None:
    job = submit_stranger_job("http://127.0.0.1:1", JOB)
    assert job.state == "no answer"
    assert "refused" in job.detail
