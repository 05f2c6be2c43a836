"""Listening for Xids, over the stand-in NVML of the lab."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster import ask, gpus
from probes.cluster.ask import Answers
from probes.cluster.gpus import XidListener, XidWatch
from tests.lab import nvml
from tests.support.paths import REPO
from tests.support.simulated_driver import QueuedNvml, wait_until

MOST_S = 20.0  # for a process to start and an event to be heard on a busy machine
# Prints what was heard, once for each line of its input.
PROGRAM = """
import json, sys
from probes.cluster.gpus import XidListener
listener = XidListener()
print(json.dumps(listener.start()), flush=True)
for _ in sys.stdin:
    print(json.dumps(listener.read()), flush=True)
"""
PLANTED = """
import json
from probes.hosts.closing import read_planted_xid
print(json.dumps(read_planted_xid(1)))
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Work folder of a node with two GPUs."""
    if not shutil.which("cc"):
        pytest.skip("NOT RUN: needs a C compiler, `apt-get install gcc libc6-dev`")
    nvml.build_library(tmp_path)
    work = tmp_path / "node"
    work.mkdir()
    nvml.make_healthy(work, "unit", 2)
    nvml.show_library(tmp_path, work)
    return work


def environment(work: Path) -> dict[str, str]:
    stand_in = {
        "LD_LIBRARY_PATH": str(nvml.library_folder(work)),
        "SEATRIAL_LAB_NVML": str(nvml.settings_file(work)),
        "PYTHONPATH": str(REPO),
    }
    return {**os.environ, **stand_in}


@pytest.fixture
def listen(node: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Start a listener; each call returns what it has heard, the first as it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment(node), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    first = True

    def read() -> dict[str, Any]:
        nonlocal first
        assert process.stdin is not None
        assert process.stdout is not None
        if not first:
            process.stdin.write("\n")
            process.stdin.flush()
        first = False
        return dict(json.loads(process.stdout.readline()))

    try:
        yield read
    finally:
        process.kill()
        process.communicate()


def wait_for(listen: Callable[[], dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Wait until so many events were heard."""
    deadline = time.monotonic() + MOST_S
    while len(events := listen()["events"]) < count:
        assert time.monotonic() < deadline, events
        time.sleep(0.1)
    return list(events)


def test_what_the_driver_reports_later_is_heard_with_its_gpu(
    node: Path, listen: Callable[[], dict[str, Any]]
) -> None:
    began = pytest.approx(0, abs=MOST_S)
    assert listen() == {"error": None, "seconds": began, "kills": [], "events": []}
    nvml.plant(node, "1.xid=79")
    (event,) = wait_for(listen, 1)
    assert (event["index"], event["xid"], event["slot"]) == (1, 79, "00000000:11:00.0")
    assert event["uuid"].startswith("GPU-")
    assert 0 <= event["ago"] < MOST_S
    nvml.plant(node, "0.xid=48")
    assert [(one["index"], one["xid"]) for one in wait_for(listen, 2)] == [(1, 79), (0, 48)]


def test_an_xid_of_earlier_times_is_not_of_this_run(
    node: Path, listen: Callable[[], dict[str, Any]]
) -> None:
    listen()
    nvml.plant(node, "0.xid=48")
    assert [one["xid"] for one in wait_for(listen, 1)] == [48]


@pytest.mark.parametrize(
    ("plant", "code"), [("events=unsupported", 3), ("events=failed", 999), ("error=9", 9)]
)
def test_a_node_that_cannot_listen_says_so(
    node: Path, listen: Callable[[], dict[str, Any]], plant: str, code: int
) -> None:
    nvml.plant(node, plant)
    heard = listen()
    assert heard["error"]["code"] == code
    assert heard["events"] == []


def test_a_lost_gpu_does_not_hide_the_others(
    node: Path, listen: Callable[[], dict[str, Any]]
) -> None:
    nvml.plant(node, "0.error=15")
    assert listen()["error"] is None
    nvml.plant(node, "1.xid=48")
    assert [one["index"] for one in wait_for(listen, 1)] == [1]


def test_without_a_library_there_is_an_error(
    node: Path, listen: Callable[[], dict[str, Any]]
) -> None:
    nvml.hide_library(node)
    assert listen()["error"]["text"]


def test_the_control_hears_its_gpu(node: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANTED],
        env=environment(node), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    heard = json.loads(done.stdout)
    assert heard["error"] is None
    assert [(one["index"], one["xid"]) for one in heard["events"]] == [(1, 79)]


def test_a_storm_of_events_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "MAX_EVENTS", 2)
    nvml_module, listener = QueuedNvml(), XidListener()
    listener.start(nvml_module)
    for xid in (137, 137, 48):
        nvml_module.events.put(xid)
    wait_until(lambda: listener.read()["error"] is not None)
    heard = listener.read()
    assert [event["xid"] for event in heard["events"]] == [137, 137]
    assert heard["events"][0]["slot"] == "00000000:07:00.0"
    assert heard["error"]["text"] == "there were more than 2", "so what came then is not known"


def test_an_error_of_nvml_ends_the_listening() -> None:
    nvml_module, listener = QueuedNvml(), XidListener()
    listener.start(nvml_module)
    nvml_module.events.put(-15)
    wait_until(lambda: listener.read()["error"] is not None)
    assert listener.read()["error"]["code"] == 15


def test_an_xid_is_timed_from_the_last_kill_before_it() -> None:
    """By the node's own clock, whether the kill is noted before or after the Xid."""
    nvml_module, listener = QueuedNvml(), XidListener()
    listener.start(nvml_module)

    def since_kill() -> list[float | None]:
        return [event["after_kill"] for event in listener.read()["events"]]

    nvml_module.events.put(13)
    wait_until(lambda: since_kill() == [None])
    listener.note_kill(60.0, None)
    assert since_kill() == [pytest.approx(60, abs=MOST_S)]
    listener.note_kill(0.0, time.time() - 30)
    assert since_kill() == [pytest.approx(30, abs=MOST_S)]
    listener.note_kill(0.0, None)
    assert since_kill() == [pytest.approx(30, abs=MOST_S)], "this kill came after the Xid"
    nvml_module.events.put(137)
    wait_until(lambda: len(since_kill()) == 2)
    assert since_kill()[1] == pytest.approx(0, abs=MOST_S)
    assert listener.read()["kills"] == pytest.approx([60, 30, 0], abs=MOST_S)
    listener.end()


def test_a_listener_ends_when_it_is_told_to() -> None:
    nvml_module, listener = QueuedNvml(), XidListener()
    listener.start(nvml_module)
    wait_until(lambda: bool(nvml_module.waited))
    assert set(nvml_module.waited) == {1000}, "so that it ends within a second"
    listener.end()

    def has_ended() -> bool:
        before = len(nvml_module.waited)
        time.sleep(0.1)
        return len(nvml_module.waited) == before

    wait_until(has_ended)


def test_a_listener_does_not_keep_its_process_alive() -> None:
    before = {*threading.enumerate()}
    listener = XidListener()
    listener.start(QueuedNvml())
    (thread,) = {*threading.enumerate()} - before
    listener.end()
    assert thread.daemon


def test_all_nodes_are_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(calls: dict[Any, str], seconds: float) -> Answers:
        asked.append((sorted(calls.values()), seconds))
        return Answers({"a": {"events": []}}, {"b": "no answer"})

    def actor(_: Any, id: str) -> Any:
        method = SimpleNamespace(remote=object)
        return SimpleNamespace(remote=lambda: SimpleNamespace(start=method, read=method))

    monkeypatch.setattr(gpus, "on_node", actor)
    monkeypatch.setattr(ask, "collect_answers", answer)
    watch = XidWatch.start(["a", "b"])
    assert watch.read() == {"a": {"events": []}}
    assert watch.errors == {"b": "no answer"}
    assert [ids for ids, _ in asked] == [["a", "b"], ["a", "b"]]
