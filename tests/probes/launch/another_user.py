"""Another user, who follows a hostile guide, and its processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from probes.cluster.cleanup import CleanupProcess
from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.launch import shell
from probes.launch.guide import LaunchPath, parse_guide
from tests.probes.launch.test_shell import Cleanup, cluster_with

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can be another user")


class Removing(Cleanup):
    """A cleanup that removes folders."""

    def remove_now(self, path: Path) -> None:
        CleanupProcess.remove_now(cast(Any, self), path)


def cluster_without_dashboard() -> Any:
    """A cluster whose cleanup removes folders."""
    cluster = cluster_with(Removing())
    cluster.dashboard = ""
    return cluster


def theirs(user: shell.User, *lines: str) -> LaunchPath:
    """The path of an operator's guide with these lines."""
    terms = ClusterTerms(launch=LaunchTerms(document="theirs.md", values={"JOB": "{command}"}))
    text = "\n".join(["```sh", *lines, "echo JOB", "```", ""])
    return LaunchPath(cluster_without_dashboard(), terms, parse_guide("theirs.md", text), user)


@contextmanager
def left_process(uid: int, function: Callable[..., None], *arguments: Any) -> Iterator[int]:
    """A process of the guide's user that outlives its shell."""
    pid = os.fork()
    if not pid:
        os.setsid()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        try:
            function(*arguments)
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise AssertionError in what takes longer."""

    def ring(*_: object) -> None:
        raise AssertionError(f"it takes more than {seconds} s")

    old = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def can_run(*words: str) -> bool:
    """Whether a command is there, and may do what it does."""
    with suppress(OSError):
        return subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return False
