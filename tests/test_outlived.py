"""Ranks that outlive their run: told by host, process and start time, counted, and ended."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.faults import Hand
from probes.outlived import end_running, marks

HERE = socket.gethostname()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not end by itself."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_who_still_runs_is_told_and_ended(child: subprocess.Popen[bytes]) -> None:
    born = Hand().aim(child.pid)[0]
    mark = (HERE, child.pid, born)
    others = [(HERE, child.pid, born + 1), ("elsewhere", child.pid, born), (HERE, 2**22 + 1, 7)]
    assert end_running(others, 0.3) == (HERE, [])
    assert child.poll() is None
    assert end_running([mark, *others], 0) == (HERE, [mark])
    child.wait(timeout=10)
    assert end_running([mark], 0.3) == (HERE, [])


def test_who_ends_in_time_is_not_told() -> None:
    process = subprocess.Popen(["sleep", "0.5"])
    mark = (HERE, process.pid, Hand().aim(process.pid)[0])
    began = time.monotonic()
    assert end_running([mark], 10) == (HERE, [])
    assert time.monotonic() - began < 8
    process.wait()


def test_a_run_says_where_its_ranks_are(tmp_path: Path) -> None:
    lives = [
        {"event": "start", "host": "n1", "pid": 7, "born": 70, "rank": 1},
        {"event": "begin", "step": 1},
        {"event": "start", "host": "n2", "pid": 9, "born": 90, "rank": 1},
        {"event": "start", "host": "mac", "pid": 9, "born": None, "rank": 1},
    ]
    journal = tmp_path / "run-1" / "out" / "metrics.rank1.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lives))
    assert marks(tmp_path) == {("n1", 7, 70): 1, ("n2", 9, 90): 1}
