"""Signals to a rank's process: at its own moment, to itself and what it started."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from probes.faults import process_faults
from probes.faults.process_faults import (
    Fault,
    ProcessAgent,
    ProcessFault,
    descendant_pids,
    send_signal,
    start_ticks,
)

pytestmark = pytest.mark.alone


def test_a_hand_waits_for_its_victims_own_moment(tmp_path):
    """What the journal says of an earlier life, with another process, is not its moment."""
    journal, hand = tmp_path / "metrics.rank0.jsonl", ProcessAgent()
    victim = subprocess.Popen(["sleep", "60"])
    old = [{"event": "start", "pid": 1}, {"event": "begin", "step": 9}]
    new = [{"event": "start", "pid": victim.pid}, {"event": "begin", "step": 6}]
    found = []
    try:
        targets, _ = hand.find_targets([victim.pid])
        lurk = threading.Thread(
            target=lambda: found.append(
                hand.wait_and_signal(targets, tmp_path, 0, Fault("begin", 7))
            )
        )
        journal.write_text("".join(json.dumps(line) + "\n" for line in [*old, *new]))
        lurk.start()
        time.sleep(0.2)  # in which a hand that does not wait for step 7 would strike
        assert victim.poll() is None
        with journal.open("a") as file:
            file.write(json.dumps({"event": "begin", "step": 7}) + "\n")
        victim.wait(timeout=10)  # reaps it, or the hand would see a zombie
        lurk.join(timeout=15)
    finally:
        victim.kill()
        victim.wait()
    assert found[0][0] is True
    assert hand.wait_and_signal(targets, tmp_path, 0, Fault("begin", 99)) == (False, 0.0)


def test_the_offspring_of_a_process():
    parent = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"])
    try:
        deadline = time.monotonic() + 10
        while len(descendant_pids(parent.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        children = descendant_pids(parent.pid)
        assert len(children) == 2
    finally:
        subprocess.run(["kill", "-9", *map(str, descendant_pids(parent.pid))], check=False)
        parent.kill()
        parent.wait()


def test_who_cannot_be_aimed_at_is_not_struck_and_why_is_told(tmp_path, monkeypatch):
    def arm(self, gang):
        raise ray.exceptions.GetTimeoutError("the hand did not come")

    monkeypatch.setattr(ProcessFault, "_start_agent", arm)
    strike = ProcessFault(tmp_path, 0, Fault())
    strike.arm(SimpleNamespace(places=["here"]))
    strike.close()
    assert (strike.count, strike.error) == (0, "the hand did not come")
    assert (strike.injected_at, strike.sent) == (0.0, 0.0)


@pytest.fixture
def victim(tmp_path):
    """A process whose name could be taken for the fields of a zombie."""
    program = tmp_path / ") Z 1 (x) Z"
    program.symlink_to(Path(shutil.which("sleep")).resolve())
    process = subprocess.Popen([program, "60"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGCONT])
def test_a_signal_counts_at_once_when_it_took_effect(victim, signum):
    began, started = time.time(), start_ticks(victim.pid)
    took_effect, sent_at = send_signal([(victim.pid, started)], signum)
    assert took_effect is True
    assert began <= sent_at <= time.time() < began + 5
    assert victim.poll() is None
    assert victim.pid in descendant_pids(os.getpid())


def test_another_process_with_its_number_gets_no_signal(victim):
    started = start_ticks(victim.pid)
    assert started > 0
    assert send_signal([(victim.pid, started + 1)], signal.SIGKILL)[0] is False
    with pytest.raises(subprocess.TimeoutExpired):
        victim.wait(timeout=0.2)
    victim.kill()
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which takes any signal
    assert send_signal([(victim.pid, start_ticks(victim.pid))], signal.SIGTERM)[0] is False


class Crowd:
    """Real processes that stand for the ranks of one node."""

    def __init__(self, size: int) -> None:
        self.ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(size)]
        self.targets = [(rank.pid, start_ticks(rank.pid)) for rank in self.ranks]

    def ended(self) -> list[bool]:
        return [start_ticks(pid) != started for pid, started in self.targets]

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def test_all_ranks_of_a_node_are_killed_at_once():
    with contextlib.closing(Crowd(8)) as crowd:
        assert send_signal(crowd.targets, signal.SIGKILL)[0] is True
        assert all(crowd.ended())


def test_without_its_victim_no_rank_of_a_node_is_killed():
    """A rank that ends with the victim, before its own signal, is gone as well."""
    with contextlib.closing(Crowd(2)) as crowd:
        other, (pid, started) = crowd.targets
        ended = (pid, started + 1)  # a later process has its number
        assert send_signal([ended, other], signal.SIGKILL)[0] is False
        assert crowd.ended() == [False, False]
        assert send_signal([other, ended], signal.SIGKILL)[0] is True
        assert crowd.ended() == [True, False]


def test_the_ranks_of_one_node_are_aimed_at(tmp_path, monkeypatch):
    """All of the victim's node, the victim first, and none of another node."""
    asked = []

    class Agent:
        @staticmethod
        def remote():
            found = SimpleNamespace(remote=lambda pids: asked.append(pids) or ([], 0.0))
            return SimpleNamespace(find_targets=found)

    monkeypatch.setattr(process_faults, "on_node", lambda agent, node: Agent)
    monkeypatch.setattr(process_faults.ray, "get", lambda answer, timeout: answer)
    places = [SimpleNamespace(node=f"id{rank // 2}", pid=100 + rank) for rank in range(6)]
    for whole_node, pids, words in (
        (True, [103, 102], "ranks 2-3 on node1, all of this node"),
        (False, [103], "rank 3 on node1"),
    ):
        strike = ProcessFault(tmp_path, 3, Fault("begin", 7, whole_node=whole_node))
        strike.victim = places[3]
        strike._start_agent(SimpleNamespace(places=places))
        assert asked.pop() == asked.pop() == pids
        assert strike.describe_target({"id1": "node1"}) == words


@pytest.mark.parametrize(
    ("offset", "injected", "sent"),
    [(None, (True, 7.0), 7.0), (2.0, (True, 7.0), 5.0), (2.0, (False, 0.0), 0.0)],
)
def test_the_time_of_a_fault_is_by_the_clock_of_the_driver(
    tmp_path, monkeypatch, offset, injected, sent
):
    strike = ProcessFault(tmp_path, 0, Fault())
    monkeypatch.setattr(strike, "_inject", lambda: injected)
    if offset is not None:
        strike._offset = offset
    strike.wait()
    assert (strike.count, strike.injected_at, strike.sent) == (int(injected[0]), injected[1], sent)
