"""What breaks under a run on a lab: exit code, record and table agree, and nothing is left.

Nodes that are lost have a file of their own.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.faults.launchers.leftovers import nothing_left
from tests.faults.test_driver_death import in_the_middle
from tests.lab.lab import Lab
from tests.support.trial import Trial, driver_pid, start

pytestmark = pytest.mark.soak(criterion="endings")
LONGEST_S = 400.0
AWAY_S = 20.0
FROZEN_S = 6.0  # Ray waits longer


Fault = Callable[[Lab, Trial], None]


def send(node: int, program: str, *signals: signal.Signals, every_s: float = 0.3) -> Fault:
    """Make a fault: send signals to each process of a node of this program."""

    def fault(lab: Lab, trial: Trial) -> None:
        found = lab.nodes[node].pids_of(program)
        assert found, f"{program} does not run on node{node}: {trial.log.read_text()}"
        for number in signals:
            for pid in found:
                os.kill(pid, number)
            time.sleep(every_s)  # as who sends them does

    return fault


def freeze_driver(lab: Lab, trial: Trial) -> None:
    pid = driver_pid(lab)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(AWAY_S)  # the fault lasts so long
    os.kill(pid, signal.SIGCONT)
    trial.process.send_signal(signal.SIGCONT)  # nsenter stops with its child


def remove_folder(lab: Lab, trial: Trial) -> None:
    shutil.rmtree(trial.folder)


@dataclass(frozen=True)
class Row:
    """A fault in the middle of a probe, and the end that is due to it."""

    name: str
    probe: str
    fault: Fault
    code: int
    says: str = ""


ROWS = [
    Row("a rank dies in RESTART", "restart", send(1, "ray::Worker", signal.SIGKILL), 20),
    Row("a rank dies in FABRIC", "fabric", send(1, "ray::Worker", signal.SIGKILL), 20),
    Row("an actor of the suite dies", "gang", send(0, "ray::ObserverActor", signal.SIGKILL), 20),
    Row("a raylet is silent, and Ray waits", "fabric",
        send(1, "raylet", signal.SIGSTOP, signal.SIGCONT, every_s=FROZEN_S), 20),
    Row("the driver is frozen", "gang", freeze_driver, 20),
    Row("the process that cleans up dies", "restart", send(0, "cleanup.py", signal.SIGKILL), 3),
    Row("the run folder is deleted", "gang", remove_folder, 3, says="written again"),
    Row("SIGHUP", "gang", lambda lab, _: os.kill(driver_pid(lab), signal.SIGHUP), 2),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_run_ends_with_its_record(lab: Lab, row: Row) -> None:
    name = row.name.replace(" ", "-").replace(",", "")
    trial = start(lab, name, f"probes/{row.probe}")
    try:
        in_the_middle(lab, trial, row.probe)
        row.fault(lab, trial)
        trial.process.wait(timeout=LONGEST_S)
    finally:
        trial.process.kill()
        trial.process.wait()
    log, summary = trial.log.read_text(), trial.summary
    assert (trial.process.returncode, summary.exit_code) == (row.code, row.code), log
    assert not summary.integrity.problems
    assert f"exit {row.code}" in log
    assert (trial.folder / "report.html").is_file()
    assert row.says in log + "\n".join(summary.reasons)
    assert "Traceback" not in log
    nothing_left(lab)


def test_the_next_run_works(lab: Lab) -> None:
    trial = start(lab, "next", "probes/gang")
    record = trial.wait()
    assert record.verdict("GANG").accepted, trial.log.read_text()
