"""Nodes that join after the driver are waited for, within a bound."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster import room
from probes.cluster.room import wait_for_nodes

pytest_plugins = ["pytester"]


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(room, "time", clock)
    return clock


class Growing:
    """A cluster whose nodes join at given seconds, each with so many GPUs."""

    def __init__(self, clock: Clock, *joins: tuple[float, int]) -> None:
        self.clock, self.joins = clock, joins

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return [{"resources": {"GPU": gpus}} for at, gpus in self.joins if at <= self.clock.now]


def test_it_waits_until_the_last_node_is_there(clock: Clock) -> None:
    cluster = Growing(clock, (0, 8), (3, 8), (40, 8), (90, 8))
    assert wait_for_nodes(cluster, 3, 8, 600) == 40


def test_each_change_is_said_once(clock: Clock) -> None:
    said: list[str] = []
    wait_for_nodes(Growing(clock, (0, 8), (3, 8), (40, 8)), 3, 8, 600, said.append)
    assert said == [f"{n} of 3 nodes with 8 GPUs each have joined" for n in (1, 2)]
    wait_for_nodes(Growing(clock), 1, 0, 5, said.append)
    assert said[2:] == ["0 of 1 nodes have joined"]


def test_seconds_are_counted_from_the_beginning(clock: Clock) -> None:
    clock.now = 100.25
    assert wait_for_nodes(Growing(clock, (104, 8)), 1, 8, 600) == 4
    assert wait_for_nodes(Growing(clock), 1, 8, 30) == 30


def test_the_wait_is_shown_to_a_tenth_of_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "NODES_POLL_S", 0.26)
    assert wait_for_nodes(Growing(clock, (0.2, 8)), 1, 8, 600) == 0.3


def test_a_node_of_cpus_counts_where_no_gpu_is_ordered(clock: Clock) -> None:
    assert wait_for_nodes(SimpleNamespace(nodes=[{"resources": {}}]), 1, 0, 600) == 0


def test_nodes_that_are_there_are_not_waited_for(clock: Clock) -> None:
    assert wait_for_nodes(Growing(clock, (0, 8), (0, 8)), 2, 8, 600) == 0


def test_a_node_that_never_comes_ends_the_patience_and_not_the_run(clock: Clock) -> None:
    assert wait_for_nodes(Growing(clock, (0, 8)), 2, 8, 30) == 30


def test_a_node_without_its_gpus_is_not_there_yet(clock: Clock) -> None:
    """A head of CPUs alone, or a raylet that found 7 of 8, is no reason to begin."""
    assert wait_for_nodes(Growing(clock, (0, 0), (0, 7), (20, 8), (25, 8)), 2, 8, 600) == 25


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "86401", " 5", "٨"])
def test_seconds_that_are_none_are_refused(pytester: pytest.Pytester, text: str) -> None:
    result = pytester.runpytest_subprocess(
        "-p", "probes.plugin", "--cluster", "auto", f"--wait-for-nodes={text}"
    )
    assert result.ret == 4
    assert "such as 90, 30m or 2h, at most 24h" in result.stderr.str()


def test_waiting_for_an_unknown_number_of_nodes_is_refused(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(
        "-p", "probes.plugin", "--cluster", "auto", "--wait-for-nodes", "60"
    )
    assert result.ret == 4
    assert "add --nodes N, or `nodes` in [cluster]" in result.stderr.str()


def test_a_run_says_that_it_waited(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session counts nodes only once they have been waited for."""
    from probes.contract.contract import load
    from probes.session import session

    seen = []
    cluster = SimpleNamespace(emulated=False, claim=lambda *_: None, close=lambda: None)
    monkeypatch.chdir(pytester.path)
    monkeypatch.setattr(session, "connect", lambda spec: cluster)

    class Waited(Exception):
        pass

    def wait(*asked: Any) -> float:
        seen.append(asked)
        raise Waited

    monkeypatch.setattr(session, "wait_for_nodes", wait)
    with pytest.raises(Waited):
        session.RunSession(
            session.RunSettings("auto", agreed=load("h100-ndr400"), nodes=8, wait_for_nodes_s=60)
        )
    assert seen == [(cluster, 8, 8, 60, session.say_waiting)]


def test_sigterm_while_it_waits_ends_as_ctrl_c(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own handler, which joining sets, would end the process with a traceback."""
    from probes.contract.contract import load
    from probes.session import session

    left = []
    cluster = SimpleNamespace(
        emulated=False, claim=lambda *_: None, close=lambda: left.append("the cluster")
    )

    def connect(spec: str) -> Any:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(15))
        return cluster

    monkeypatch.chdir(pytester.path)
    monkeypatch.setattr(session, "connect", connect)
    monkeypatch.setattr(session, "wait_for_nodes", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    settings = session.RunSettings("auto", agreed=load("h100-ndr400"), nodes=8, wait_for_nodes_s=60)
    with session.SIGNALS.taken():
        run = session.RunSession(settings)
    assert run.was_cut_off
    assert left == ["the cluster"]
    run.store.free_room()
    record = run.store.record()
    assert record.state == "interrupted"
    assert record.cluster["note"] == "the run was interrupted before its first probe"
