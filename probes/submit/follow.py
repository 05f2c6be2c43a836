"""Follows a submission to its end: prints what the suite prints, and says why it did not begin."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable

from probes.submit.entry import INSTALLING, MARK
from probes.submit.jobs_api import JobsApi, SubmissionState
from reports.sanitize import clean

POLL_S = 1.0
# What the suite prints for GitHub: these commands only show a text.
ANNOTATION = re.compile(r"::(?:error|warning|notice) title=")
LAST_LINES = 15  # of a job that ended before the suite began


class Follower:
    """Prints each line of a submission's suite once, however often the connection is lost."""

    def __init__(
        self,
        api: JobsApi,
        id: str,
        show: Callable[[str], None],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._api, self._id, self._show, self._say = api, id, show, say
        self._shown = 0  # lines
        self._said = ""

    def follow(self, seconds: float = math.inf) -> SubmissionState:
        """Follow until the job has ended, for so many seconds; return its last state.

        Raises TimeoutError if it has not ended.
        """
        deadline = time.monotonic() + seconds
        while True:
            state = self._api.insist(lambda: self._api.state(self._id))
            log = self._api.insist(lambda: self._api.log(self._id))
            lines = suite_lines(log)
            self._say_once(before_suite(state, log))
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

    def _say_once(self, line: str) -> None:
        if line and line != self._said:
            self._said = line
            self._say(line)

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
