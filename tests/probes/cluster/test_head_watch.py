"""The watch over Ray's head, against servers that answer, stop, end, or speak something else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from probes.cluster import endpoints as head
from probes.cluster.endpoints import HeadWatch
from reports.record import Finding

pytestmark = pytest.mark.alone

# Speaks as gRPC's server does: its own empty settings, once it is greeted.
SERVER = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
while True:
    line, _ = listening.accept()
    if sys.argv[1] == "http2" and line.recv(100).startswith(b"PRI * HTTP/2.0"):
        line.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    line.close()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(head, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(head, "SILENCE_SECONDS", 1.0)


@pytest.fixture(params=["http2", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", SERVER, request.param]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


class Ears(list[Finding]):
    """Hears what the watch says."""

    def wait(self, seconds: float = 10) -> list[Finding]:
        deadline = time.monotonic() + seconds
        while not self and time.monotonic() < deadline:
            time.sleep(0.02)
        return list(self)


def address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return f"127.0.0.1:{server.stdout.readline().strip()}"


def test_a_head_that_ends_is_named_once(server: subprocess.Popen[str]) -> None:
    heard, where = Ears(), address(server)
    watch = HeadWatch(where, heard.append)
    assert heard.wait(1.5) == []  # it answers
    server.kill()
    (found,) = heard.wait()
    time.sleep(1.5)
    watch.close()
    assert len(heard) == 1
    assert found.code == "HOST-HEAD"
    assert found.suspects == [where]
    assert f"{where} has not answered for 1 s" in found.statement


@pytest.mark.parametrize("server", ["http2"], indirect=True)
def test_a_head_that_is_stopped_is_named_and_one_that_was_for_a_moment_is_not(
    server: subprocess.Popen[str],
) -> None:
    heard = Ears()
    watch = HeadWatch(f"ray://{address(server)}", heard.append)
    time.sleep(0.3)
    for seconds, named in ((0.4, 0), (3, 1), (3, 2)):
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(server.pid, signal.SIGCONT)
        time.sleep(0.5)
        assert len(heard) == named
    watch.close()
    assert "timed out" in heard[0].statement


def test_it_ends_at_once(server: subprocess.Popen[str]) -> None:
    watch = HeadWatch(address(server), Ears().append)
    watch.close()
    assert "head watch" not in [thread.name for thread in threading.enumerate()]


def test_an_address_of_the_new_kind() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as gone:
        port = gone.getsockname()[1]
    heard = Ears()
    watch = HeadWatch(f"[::1]:{port}", heard.append)
    (found,) = heard.wait()
    watch.close()
    assert "refused" in found.statement


def test_a_head_that_stays_away_is_lost_once(
    server: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LOST_SECONDS", 1.5)
    heard, lost, where = Ears(), list[str](), address(server)
    watch = HeadWatch(where, heard.append, lost.append)
    time.sleep(0.3)  # it has answered before
    server.kill()
    heard.wait()
    time.sleep(1.5)  # longer than LOST_SECONDS lasts from now: it is told once
    watch.close()
    assert (len(heard), len(lost)) == (1, 1)
    assert lost[0].startswith(f"Ray's head at {where} has not answered for 2 s: ")


def test_a_driver_that_was_frozen_accuses_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP, or where a laptop slept: one query is late, and the next is answered."""
    answers, heard = iter(["", None, "timed out", None]), Ears()
    shift = 0.0

    def ask(watch: HeadWatch, preface: bytes) -> str | None:
        nonlocal shift
        answer = next(answers, None)
        shift += 600 * (answer == "timed out")
        return answer

    monkeypatch.setattr(HeadWatch, "_problem", ask)
    real = time.monotonic
    monkeypatch.setattr("probes.cluster.endpoints.time.monotonic", lambda: real() + shift)
    watch = HeadWatch("127.0.0.1:9", heard.append)
    time.sleep(1)  # for all answers to be asked
    watch.close()
    assert next(answers, "all were asked") == "all were asked"
    assert heard == []
