"""Submits a run to Ray's Jobs API and follows it to its end."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import time
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from probes.cluster import dashboard
from probes.cluster.cleanup import ENDED
from probes.cluster.dashboard import MAX_ANSWER, AnswerTooLong, request_dashboard
from probes.submit.entry import INSTALLING, MARK
from reports.run_folder.event_log import parse_json
from reports.sanitize import clean, last_line

Reply = TypeVar("Reply")
PATIENCE_S = 600.0  # a connection may be lost for so long
RETRY_S = 2.0
ANSWER_S = 15.0  # for one answer to begin, and again to end
UPLOAD_S = 300.0
MAX_PACKAGE = 100 * 2**20  # bytes: what Ray's dashboard accepts in one request, unless it is set
MAX_SMALL = 1 << 20  # bytes of an answer that is no log: a job's state has some kB
MAX_VERSION = 100  # characters of Ray's version
EXIT_CODES = (0, 1, 2, 3, 4, 5, 20)  # of the suite: another one, as 256, may be 0 to a shell


class SubmitError(RuntimeError):
    """The cluster refuses what was asked; asking again would not help."""


class Refused(SubmitError):
    """Something between here and the dashboard refuses: a login, a proxy, an expired token.

    While a run is under way this may pass.
    """


class UnknownJob(SubmitError):
    """The cluster does not know the job."""


class ConnectionLost(RuntimeError):
    """The dashboard does not answer; the cluster may be well."""


@dataclass(frozen=True)
class SubmissionState:
    """State of a submitted job, as Ray reports it."""

    status: str
    message: str = ""
    exit_code: int | None = None  # of the suite; None while it runs, or where it was killed
    host: str = ""  # address of the node where its command runs

    @property
    def ended(self) -> bool:
        """Whether its command has ended, or will never begin."""
        return self.status in ENDED


class JobsApi:
    """The Jobs API of one cluster.

    Every call raises SubmitError if the cluster refuses it, and ConnectionLost if no answer comes.
    `say` prints a line for the user.
    """

    def __init__(self, address: str, say: Callable[[str], None] = lambda line: None) -> None:
        self.address = address.rstrip("/")
        self._say, self.patience_s = say, PATIENCE_S
        self.is_under_way = False  # a run is: then a refusal may pass, as an outage does

    def ray_version(self) -> str:
        """Return the version of the cluster's Ray.  Asked once: a wrong address is no outage."""
        version = self._parse(self._ask("/api/version")).get("ray_version")
        if not isinstance(version, str) or not 0 < len(version) <= MAX_VERSION:
            do = "Give the dashboard of the head (port 8265)"
            raise SubmitError(f"{self.address} is not a Ray dashboard. {do}")
        return version

    def upload(self, name: str, content: bytes) -> str:
        """Upload a package, unless the cluster has it; return its URI."""
        path = f"/api/packages/gcs/{name}"

        def put() -> None:
            try:
                self._ask(path)
            except UnknownJob:
                kind = "application/octet-stream"
                self._ask(path, "PUT", body=content, kind=kind, seconds=UPLOAD_S)

        self.insist(put)
        return f"gcs://{name}"

    def submit(self, id: str, entrypoint: str, package: str, **more: Any) -> None:
        """Submit a job with this id; `more` are fields of Ray's request.  Never submits twice."""
        environment = {"working_dir": package, **more.pop("environment", {})}
        body = {"entrypoint": entrypoint, "submission_id": id, "runtime_env": environment, **more}
        sent = False

        def post() -> None:
            nonlocal sent
            if sent:  # the answer may have been lost, and not the job
                with suppress(UnknownJob):
                    self.state(id)
                    return
            sent = True
            self._ask("/api/jobs/", "POST", body=json.dumps(body).encode())

        self.insist(post)

    def state(self, id: str) -> SubmissionState:
        """Read the state of a job.  Raises UnknownJob."""
        job = self._parse(self._ask(f"/api/jobs/{id}"))
        agent = str(job.get("driver_agent_http_address") or "")
        code = job.get("driver_exit_code")
        return SubmissionState(
            status=str(job.get("status")),
            message=str(job.get("message") or ""),
            exit_code=code if type(code) is int and code in EXIT_CODES else None,
            host=agent.partition("://")[2].rpartition(":")[0].strip("[]"),
        )

    def log(self, id: str) -> str:
        """Read all that a job has printed."""
        answer = self._parse(self._ask(f"/api/jobs/{id}/logs", most=MAX_ANSWER))
        return str(answer.get("logs") or "")

    def stop(self, id: str) -> None:
        """Ask Ray to stop a job; it takes a while."""
        self._ask(f"/api/jobs/{id}/stop", "POST")

    def forget(self, id: str) -> None:
        """Remove an ended job from Ray's list."""
        self._ask(f"/api/jobs/{id}", "DELETE")

    def insist(self, question: Callable[[], Reply]) -> Reply:
        """Ask until an answer comes, and say so.  Raises ConnectionLost after the patience."""
        lost_at: float | None = None
        passing = (ConnectionLost, Refused) if self.is_under_way else (ConnectionLost,)
        while True:
            try:
                answer = question()
            except passing as lost:
                now = time.monotonic()
                if lost_at is None:
                    lost_at = now
                    self._say(f"connection lost ({lost}); trying again for {self.patience_s:.0f} s")
                if now - lost_at > self.patience_s:
                    raise ConnectionLost(str(lost)) from None
                time.sleep(RETRY_S)
                continue
            if lost_at is not None:
                self._say(f"connected again after {time.monotonic() - lost_at:.0f} s")
            return answer

    def _ask(self, path: str, method: str = "GET", **more: Any) -> bytes:
        """Send a request; `more` is as in request_dashboard."""
        how: dict[str, Any] = {"seconds": ANSWER_S, "most": MAX_SMALL, **more}
        try:
            return request_dashboard(self.address, path, method, **how)
        except urllib.error.HTTPError as error:
            self._explain(error)
        except ValueError as error:  # of the token
            raise SubmitError(f"RAY_AUTH_TOKEN or the token file: {error}") from None
        except AnswerTooLong as error:
            raise SubmitError(f"{self.address} is not a Ray dashboard: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", "") or error
            raise ConnectionLost(f"{self.address}: {reason}") from None

    def _explain(self, error: urllib.error.HTTPError) -> NoReturn:
        """Raise what a refusal means."""
        text = ""
        with error, suppress(OSError, http.client.HTTPException):
            text = error.read(10_000).decode(errors="replace").strip()
        last = last_words(text)
        if error.code in (401, 403):
            was_sent = dashboard.authorization_header()
            what = "the token that was sent" if was_sent else "access without a token"
            raise Refused(
                f"the dashboard at {self.address} refuses {what} (HTTP {error.code}): set"
                " RAY_AUTH_TOKEN to the cluster's token, or RAY_AUTH_TOKEN_PATH to its file"
            )
        if 300 <= error.code < 400:
            target = error.headers.get("Location", "another address")
            raise Refused(f"{self.address} redirects to {target}: use that address")
        if error.code >= 500:
            raise ConnectionLost(f"{self.address}: HTTP {error.code}: {last}")
        if is_page(text):
            raise Refused(
                f"{self.address}: HTTP {error.code} ({error.reason}), page {last!r}: a proxy "
                "answers. Give the address of the dashboard itself, with its port (8265)"
            )
        if error.code == 404:
            raise UnknownJob(last or f"HTTP 404 from {self.address}")
        raise SubmitError(f"{self.address}: HTTP {error.code}: {last}")

    def _parse(self, content: bytes) -> dict[str, Any]:
        answer: Any = None
        with suppress(ValueError):
            answer = parse_json(content)
        if not isinstance(answer, dict):
            raise Refused(f"{self.address} is not a Ray dashboard: its answer is not JSON")
        return answer


def is_page(text: str) -> bool:
    """Return whether an answer is a page of HTML."""
    return text[:200].lstrip().lower().startswith(("<!doctype", "<html"))


def last_words(text: str) -> str:
    """Return the title of a page, or the last line of another answer."""
    if is_page(text):
        title = re.search(r"(?is)<title[^>]*>(.{0,200}?)</title>", text)
        return " ".join(title[1].split()) if title else "without a title"
    return last_line(text)


POLL_S = 1.0
# What the suite prints for GitHub: these commands only show a text.
ANNOTATION = re.compile(r"::(?:error|warning|notice) title=")
LAST_LINES = 15  # of a job that ended before the suite began


class Follower:
    """Prints each line of a submission's suite once, however often the connection is lost."""

    def __init__(
        self, api: JobsApi, id: str, show: Callable[[str], None], say: Callable[[str], None]
    ) -> None:
        self._api, self._id, self._show, self._say = api, id, show, say
        self._shown = 0  # lines
        self._announced = ""

    def follow(self, seconds: float = math.inf) -> SubmissionState:
        """Follow until the job has ended, for so many seconds; return its last state.

        Raises TimeoutError if it has not ended.
        """
        deadline = time.monotonic() + seconds
        while True:
            state = self._api.insist(lambda: self._api.state(self._id))
            log = self._api.insist(lambda: self._api.log(self._id))
            lines = suite_lines(log)
            if (now := before_suite(state, log)) not in ("", self._announced):
                self._announced = now
                self._say(now)
            if not state.ended:
                lines = lines[:-1]  # it may be half a line yet
            for line in lines[self._shown :]:
                self._show(shown_line(line))
            self._shown = max(self._shown, len(lines))
            if state.ended:
                return state
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(POLL_S)

    def why_not_begun(self, state: SubmissionState) -> str:
        """Return why the suite did not begin; "" if it did."""
        log = self._api.insist(lambda: self._api.log(self._id))
        if suite_lines(log) or MARK in log:
            return ""
        lines = [line for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return errors[-1].removeprefix("error: ")
        return " ".join([state.message, *lines[-LAST_LINES:]]) or f"the job is {state.status}"


def before_suite(state: SubmissionState, log: str) -> str:
    """Return what happens before the suite begins; "" once it has."""
    if state.ended or MARK in log:
        return ""
    installing = [line for line in log.splitlines() if line.startswith(INSTALLING)]
    return installing[-1] if installing else "Ray prepares the job on the cluster"


def shown_line(line: str) -> str:
    """Return a line without escape sequences and CI commands; on GitHub annotations stay."""
    found = ANNOTATION.match(line) if on_github() else None
    return f"{found[0]}{clean(line[found.end() :])}" if found else clean(line)


def on_github() -> bool:
    """Whether this process is a step of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def suite_lines(log: str) -> list[str]:
    """Return the lines of a job's log that the suite printed; the last one may be incomplete."""
    _, mark, printed = log.partition(f"{MARK} ")
    return printed.split("\n")[1:] if mark else []
