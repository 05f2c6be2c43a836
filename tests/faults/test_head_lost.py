"""Ray's head dies in the middle of a probe: the suite ends, passes nothing, and leaves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.measurement import Verdict
from tests.faults.launchers.leftovers import processes
from tests.faults.test_driver_death import in_the_middle
from tests.lab.lab import Lab
from tests.support.trial import lab_of, start

pytestmark = pytest.mark.soak(criterion="suite")
LONGEST_SECONDS = 240  # Ray's processes look for a lost head for a minute, each in its turn


@pytest.fixture
def mortal() -> Iterator[Lab]:
    """A lab of its own: without its head it is of no more use."""
    with lab_of(2, "headless") as lab:
        yield lab


def test_a_head_that_dies_ends_the_run_and_proves_nothing(mortal: Lab) -> None:
    trial = start(mortal, "headless", "probes/restart", "-k", "killed_run")
    try:
        in_the_middle(mortal, trial, "restart")
        os.kill(gcs_server(mortal), signal.SIGKILL)
        trial.process.wait(timeout=LONGEST_SECONDS)
    finally:
        trial.process.kill()
        trial.process.wait()
    record = trial.record
    assert record.verdict("RESTART") is not Verdict.PASS, trial.log.read_text()
    assert not trial.summary.decision.accepted
    found = [finding for result in record.results for finding in result.findings]
    assert "HOST-HEAD" in [finding.code for finding in found], trial.log.read_text()
    assert trial.process.returncode not in (0, 5), trial.log.read_text()
    deadline = time.monotonic() + LONGEST_SECONDS
    while left := processes(mortal):
        assert time.monotonic() < deadline, left
        time.sleep(1)


def gcs_server(lab: Lab) -> int:
    """Ray's head process, as numbered on the host."""
    for pid in lab.nodes[0].group.pids():
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"gcs_server"):
            return pid
    raise AssertionError("node 0 has no gcs_server")
