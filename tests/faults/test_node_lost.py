"""A node is lost in the middle of a probe: the run names it, ends with 20, and leaves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.faults.launchers.leftovers import nothing_left
from tests.faults.test_driver_death import in_the_middle
from tests.lab import network
from tests.lab.lab import Lab
from tests.support.trial import lab_of, start

pytestmark = pytest.mark.soak(criterion="endings")
LONGEST_S = 120.0  # the lab's head counts a silent node as dead after 12 s
FROZEN_S = 40.0  # longer than that
# A raylet that was cut off hears that it counts as dead when TCP sends again, 30 s later, and ends
# its workers then.
GONE_S, SOON_S = 60.0, 15.0
NODES = 3


@pytest.fixture
def mortal() -> Iterator[Lab]:
    """A lab of its own."""
    with lab_of(NODES, "nodeless") as lab:
        yield lab


def raylet(lab: Lab) -> int:
    """Return the host number of the raylet of node 1."""
    pid, *_ = lab.nodes[1].pids_of("raylet")
    return pid


def kill_raylet(lab: Lab) -> None:
    os.kill(raylet(lab), signal.SIGKILL)


def freeze_raylet(lab: Lab) -> None:
    pid = raylet(lab)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(FROZEN_S)  # the fault lasts so long
    os.kill(pid, signal.SIGCONT)


def lose_power(lab: Lab) -> None:
    lab.nodes[1].power_off()


def cut_off(lab: Lab) -> None:
    network.set_link(lab.name, 1, "eth0", "down")
    time.sleep(FROZEN_S / 2)  # the fault lasts so long
    network.set_link(lab.name, 1, "eth0", "up")


CASES = [
    ("gang", "probes/gang/test_gang.py", freeze_raylet),
    ("gang", "probes/gang/test_gang.py", lose_power),
    ("gang", "probes/gang/test_gang.py", kill_raylet),
    ("fabric", "probes/fabric/test_fabric.py", kill_raylet),
    ("fabric", "probes/fabric/test_fabric.py", cut_off),
    ("restart", "probes/restart", kill_raylet),
    ("hosts", "probes/hosts", cut_off),
]


@pytest.mark.parametrize(
    ("probe", "path", "fault"), CASES, ids=[f"{one[0]}-{one[2].__name__}" for one in CASES]
)
def test_a_lost_node_ends_the_run(
    mortal: Lab, probe: str, path: str, fault: Callable[[Lab], None]
) -> None:
    trial = start(mortal, f"lost-{probe}", path)
    try:
        in_the_middle(mortal, trial, probe)
        begun = time.monotonic()
        fault(mortal)
        trial.process.wait(timeout=LONGEST_S)
        took = time.monotonic() - begun
    finally:
        trial.process.kill()
        trial.process.wait()
    log, summary = trial.log.read_text(), trial.summary
    assert took < LONGEST_S
    assert trial.process.returncode == summary.exit_code == 20, log
    first = summary.findings[0]
    assert (first.code, first.suspects) == ("HOST-NODE-LOST", ["node1"]), log
    assert "did not find the planted fault" not in log
    assert "INIT-MISSING-RANK" not in log
    assert "Traceback" not in log
    assert trial.record.state == "finished"
    assert not summary.integrity.problems
    assert (trial.folder / "report.html").is_file()
    if mortal.nodes[1].pid is None:  # its files can be seen when it is on again
        mortal.start_ray([mortal.nodes[1]])
    nothing_left(mortal, GONE_S if fault is cut_off else SOON_S)
