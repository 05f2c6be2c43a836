"""Signals to a rank's process: at its own moment, to itself and what it started."""

import json
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest
import ray

from probes.faults.process_faults import Fault, ProcessAgent, ProcessFault, descendant_pids

pytestmark = pytest.mark.alone


def test_a_hand_waits_for_its_victims_own_moment(tmp_path):
    """What the journal says of an earlier life, with another process, is not its moment."""
    journal, hand = tmp_path / "metrics.rank0.jsonl", ProcessAgent()
    victim = subprocess.Popen(["sleep", "60"])
    old = [{"event": "start", "pid": 1}, {"event": "begin", "step": 9}]
    new = [{"event": "start", "pid": victim.pid}, {"event": "begin", "step": 6}]
    found = []
    try:
        started, _ = hand.start_time(victim.pid)
        lurk = threading.Thread(
            target=lambda: found.append(
                hand.wait_and_signal(victim.pid, started, tmp_path, 0, Fault("begin", 7))
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
    assert hand.wait_and_signal(victim.pid, started, tmp_path, 0, Fault("begin", 99)) == (
        False,
        0.0,
    )


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
