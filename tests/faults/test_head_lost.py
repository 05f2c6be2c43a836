"""Ray's head dies in the middle of a probe: the suite ends, passes nothing, and leaves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from reports.measurement import Verdict
from tests.faults.launchers.leftovers import processes
from tests.faults.test_driver_death import in_the_middle
from tests.lab.lab import Lab
from tests.lab.node import SHARED
from tests.support.trial import lab_of, start

pytestmark = pytest.mark.soak(criterion="endings")
LONGEST_SECONDS = 240  # the run ends after 40 s; Ray's processes look for a lost head for a minute


@pytest.fixture
def mortal() -> Iterator[Lab]:
    """A lab of its own: without its head it is of no more use."""
    with lab_of(2, "headless") as lab:
        yield lab


def test_a_head_that_dies_ends_the_run_and_proves_nothing(mortal: Lab) -> None:
    trial = start(mortal, "headless", "probes/restart", "-k", "killed_run")
    try:
        in_the_middle(mortal, trial, "restart")
        (head,) = mortal.nodes[0].pids_of("gcs_server")
        os.kill(head, signal.SIGKILL)
        trial.process.wait(timeout=LONGEST_SECONDS)
    finally:
        trial.process.kill()
        trial.process.wait()
    record = trial.record
    assert record.verdict("RESTART") is not Verdict.PASS, trial.log.read_text()
    assert not trial.summary.decision.accepted
    found = [finding for result in record.results for finding in result.findings]
    log = trial.log.read_text()
    assert "HOST-HEAD" in [finding.code for finding in found], log
    assert trial.summary.findings[0].code == "HOST-HEAD"
    assert trial.process.returncode == trial.summary.exit_code == 20, log
    assert record.state == "finished"
    assert (trial.folder / "report.html").is_file()
    assert "exit 20" in log, "the table"
    assert f"report  {SHARED}/runs/headless/report.html" in log
    deadline = time.monotonic() + LONGEST_SECONDS
    while left := processes(mortal):
        assert time.monotonic() < deadline, left
        time.sleep(1)
