"""Whatever ends the driver in the middle of a probe, nothing of ours stays on the cluster."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Trial, driver_pid, leftovers, start
from tests.lab.lab import Lab

PROBES = ["hosts", "fabric", "gang", "launch", "restart", "scaling"]
INTO_THE_PROBE = {"hosts": 0, "fabric": 6, "gang": 3, "launch": 9, "restart": 8, "scaling": 8}
# The driver's own way out is the same in all six; the three others have more to clear up.
LONG = pytest.mark.soak
OURS = ("ray::", "gang_job.py", "keeper.py", "local_cluster.py", "pytest", "reference_trainer")

RAYS_OWN = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


def processes(lab: Lab) -> list[str]:
    """Command lines of our processes on any node; Ray's own and the observer's are not ours."""
    found = []
    for node in lab.nodes:
        for pid in node.group.pids():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            line = b" ".join(words).decode("utf-8", "replace")
            rays_own = line.startswith(RAYS_OWN) or "site-packages/ray/" in line
            if any(word in line for word in OURS) and not rays_own:
                found.append(f"{node.name}: {line[:120]}")
    return found


def files(lab: Lab) -> list[str]:
    """Our temporary files, on the shared folder and in any node's /tmp."""
    found = [str(path) for path in (lab.home / "shared").glob(".seatrial*")]
    for node in lab.nodes:
        found += node.run(
            "sh", "-c", "ls -d /tmp/*seatrial* /tmp/sea-* 2>/dev/null || true"
        ).split()
    return found


def nothing_left(lab: Lab, seconds: float = 15) -> None:
    """Assert that all is gone within `seconds`; says what is left otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        ray, ours, temporary = leftovers(lab.nodes[0]), processes(lab), files(lab)
        if not (ray["groups"] or ray["actors"] or ray["gpus"] or ours or temporary):
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left after {seconds:.0f} s: {ray} {ours} {temporary}")
        time.sleep(0.5)


def in_the_middle(trial: Trial, probe: str) -> None:
    """Wait until the probe is well under way."""
    deadline = time.monotonic() + 60
    while not any(event["event"] == "probe_started" for event in trial.events()):
        assert time.monotonic() < deadline, trial.log.read_text()
        assert trial.process.poll() is None, trial.log.read_text()
        time.sleep(0.02)
    time.sleep(INTO_THE_PROBE[probe])
    assert trial.process.poll() is None, "the probe ended before it could be interrupted"


def end_driver(lab: Lab, probe: str, number: signal.Signals) -> Trial:
    """Start one probe, send the signal in its middle, and see that nothing is left."""
    import os

    name = f"{number.name.lower()}-{probe}"
    trial = start(lab, name, f"probes/test_{probe}.py")
    try:
        in_the_middle(trial, probe)
        os.kill(driver_pid(lab), number)
        trial.process.wait(timeout=30)
    finally:
        trial.process.kill()
        trial.process.wait()
    nothing_left(lab)
    return trial


@pytest.mark.parametrize("probe", PROBES)
def test_sigkill_of_the_driver(lab: Lab, probe: str) -> None:
    trial = end_driver(lab, probe, signal.SIGKILL)
    record = trial.record
    assert record.state == "interrupted"
    assert [result.state for result in record.results] == ["interrupted"]
    assert record.exit_code != 0


@pytest.mark.parametrize(
    "probe",
    [
        probe if probe in ("fabric", "gang", "restart") else pytest.param(probe, marks=LONG)
        for probe in PROBES
    ],
)
def test_ctrl_c(lab: Lab, probe: str) -> None:
    trial = end_driver(lab, probe, signal.SIGINT)
    assert trial.process.returncode == 2
    assert trial.record.state == "interrupted"
    assert (trial.folder / "report.html").is_file()
    assert "INTERRUPTED" in trial.log.read_text()
