"""Signals of a run: what each one does, in the process and in other threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from probes.session.signals import ENDING, RunLost, Signals
from tests.support.paths import REPO


class HeardSignals(Signals):
    """Signals that keep what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Keep a line."""
        self.said.append(text)


@pytest.fixture
def signals() -> Iterator[HeardSignals]:
    """Signals of a run, which are given back afterwards."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in ENDING]
    one = HeardSignals()
    with one.taken():
        yield one
    assert [signal.getsignal(number) for number in ENDING] == before


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.05)  # Python handles it between two of its steps


@pytest.mark.parametrize("number", ENDING)
def test_the_first_interrupts_and_the_second_says_what_is_awaited(
    signals: HeardSignals, number: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        send(number)
    assert signals.came_in_time
    signals.wait_for("the cluster is left")
    send(number)
    (text,) = signals.said
    assert text == (
        "the run has been ending for 0 s: it waits until the cluster is left. "
        "One more signal ends the run at once."
    )


@pytest.mark.parametrize("count", [1, 2])
def test_one_that_is_held_waits_for_its_release(signals: HeardSignals, count: int) -> None:
    signals.hold()
    for _ in range(count):
        send(signal.SIGTERM)
    assert not signals.came_in_time
    with pytest.raises(KeyboardInterrupt):
        signals.release()
    assert signals.came_in_time
    signals.release()  # it came once


def test_a_lost_cluster_waits_for_the_release_too(signals: HeardSignals) -> None:
    signals.hold()
    signals.lose("the head is lost")
    time.sleep(0.05)  # Python would raise it between two of its steps
    with pytest.raises(RunLost, match="the head is lost"):
        signals.release()


def test_one_that_comes_late_interrupts_nothing(signals: HeardSignals) -> None:
    signals.wait_for("the report is written")
    send(signal.SIGTERM)
    assert not signals.came_in_time
    assert "2 more signals end the run at once." in signals.said[0]


def test_the_third_leaves_in_a_thread_that_the_main_one_does_not_block(
    signals: HeardSignals,
) -> None:
    left = threading.Event()
    signals.leave = left.set
    signals.wait_for("the report is written")
    for _ in range(3):
        send(signal.SIGTERM)
    assert left.wait(5)


def test_ray_may_take_a_signal_meanwhile(signals: HeardSignals) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
    signals.take()
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)


def test_what_was_ignored_stays_ignored() -> None:
    """As under nohup."""
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    one = Signals()
    with one.taken():
        one.take()
        send(signal.SIGHUP)
        assert one.count == 0
    signal.signal(signal.SIGHUP, old)


def test_a_lost_cluster_ends_a_call_that_blocks_the_main_thread(signals: HeardSignals) -> None:
    threading.Timer(0.2, signals.lose, ["the head is gone"]).start()
    begun = time.monotonic()
    with pytest.raises(RunLost, match="the head is gone"):
        time.sleep(20)  # the call that blocks
    assert time.monotonic() - begun < 10
    assert (signals.lost, signals.ends_run, signals.came_in_time) == (
        "the head is gone", True, False,
    )  # fmt: skip


def test_a_cluster_that_is_lost_while_the_run_ends_changes_nothing(signals: HeardSignals) -> None:
    signals.wait_for("the report is written")
    signals.lose("the head is gone")
    time.sleep(0.1)  # Python handles the signal meanwhile
    assert (signals.lost, signals.count) == ("", 0)


def test_inside_another_block_nothing_changes(signals: HeardSignals) -> None:
    signals.wait_for("the report is written")
    send(signal.SIGTERM)
    with signals.taken():
        assert signals.count == 1


def test_another_thread_takes_nothing() -> None:
    """signal.signal would raise there."""
    failed = []

    def take() -> None:
        try:
            with Signals().taken():
                pass
        except ValueError as error:
            failed.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert failed == []


@pytest.mark.parametrize("number", ENDING)
def test_after_the_run_a_signal_ends_the_process_with_its_code(number: int) -> None:
    code = (
        "import atexit, os, sys, time; from probes.session.signals import SIGNALS;"
        f"SIGNALS.settle(20); print('a'); os.kill(os.getpid(), {number}); time.sleep(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, timeout=60)
    assert done.returncode == 20
