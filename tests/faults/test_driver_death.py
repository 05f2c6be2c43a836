"""Whatever ends the driver in the middle of a probe, nothing of ours stays on the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.launchers.leftovers import leftovers, nothing_left
from tests.lab.lab import Lab
from tests.support.paths import REPO
from tests.support.trial import Trial, driver_pid, start

PROBES = ["hosts", "fabric", "gang", "launch", "restart", "scaling"]
INTO_THE_PROBE = {"hosts": 0, "fabric": 6, "gang": 3, "launch": 9, "restart": 8, "scaling": 8}
LONG = pytest.mark.soak(criterion="suite")


def only(chosen: str) -> list[Any]:
    """Leave the other probes to the soak: the driver's own way out is the same in all six."""
    return [probe if probe == chosen else pytest.param(probe, marks=LONG) for probe in PROBES]


def once(ready: Callable[[], object], seconds: float = 90) -> Callable[[Trial], None]:
    """Waits until it is so, while the suite runs."""
    return lambda trial: trial.wait_until(ready, seconds)


def in_the_middle(lab: Lab, trial: Trial, probe: str) -> None:
    """Wait until the probe is well under way."""
    once(lambda: any(event["event"] == "probe_started" for event in trial.events()), 60)(trial)
    time.sleep(INTO_THE_PROBE[probe])
    if probe == "gang":  # it holds gangs most of the time
        once(lambda: leftovers(lab.nodes[0])["groups"], 60)(trial)
    assert trial.process.poll() is None, "the probe ended before it could be interrupted"


def end_driver(
    lab: Lab, number: signal.Signals, arguments: list[str], middle: Callable[[Trial], None]
) -> Trial:
    """Start the suite, send the driver the signal in its `middle`, and see that nothing is left."""
    trial = start(lab, f"{number.name.lower()}{time.monotonic_ns()}", *arguments)
    try:
        middle(trial)
        os.kill(driver_pid(lab), number)
        trial.process.wait(timeout=60)
    finally:
        trial.process.kill()
        trial.process.wait()
    nothing_left(lab)
    return trial


def end_probe(lab: Lab, probe: str, number: signal.Signals) -> Trial:
    """The same of one probe."""
    arguments = [f"probes/{probe}"]
    return end_driver(lab, number, arguments, lambda trial: in_the_middle(lab, trial, probe))


@pytest.mark.parametrize("probe", only("gang"))
def test_sigkill_of_the_driver(lab: Lab, probe: str) -> None:
    trial = end_probe(lab, probe, signal.SIGKILL)
    record = trial.record
    assert record.state == "interrupted"
    assert [result.state for result in record.results] == ["interrupted"]
    assert trial.summary.exit_code == 2


@LONG
@pytest.mark.parametrize("probe", ["fabric", "gang", "restart"])
def test_sigterm_is_as_ctrl_c(lab: Lab, probe: str) -> None:
    """So that Slurm, Kubernetes and Ray's job supervisor end a run, and not one probe of it."""
    trial = end_probe(lab, probe, signal.SIGTERM)
    assert trial.process.returncode == 2
    assert trial.record.state == "interrupted"


@pytest.mark.parametrize("probe", only("fabric"))
def test_ctrl_c(lab: Lab, probe: str) -> None:
    trial = end_probe(lab, probe, signal.SIGINT)
    assert trial.process.returncode == 2
    assert trial.record.state == "interrupted"
    assert (trial.folder / "report.html").is_file()
    assert "INTERRUPTED" in trial.log.read_text()


@pytest.mark.soak(criterion="suite")
@pytest.mark.parametrize("actor", ["Coordinator", "Cleaner"])
def test_ray_trains_own_actors_go_with_the_driver(lab: Lab, actor: str) -> None:
    def there() -> bool:
        return any(actor in name for name in leftovers(lab.nodes[0])["actors"])

    arguments = ["probes/gang", "--tier", "standard", "-k", "ray_train"]
    end_driver(lab, signal.SIGKILL, arguments, once(there))


def kill_all_at_once(lab: Lab, driver: int) -> None:
    """Kill the driver of a trial and the process that cleans up after it, as a reboot does."""
    for pid in lab.nodes[0].pids_of("cleanup.py"):
        os.kill(pid, signal.SIGKILL)
    os.kill(driver, signal.SIGKILL)


def clean_up(lab: Lab, *words: str) -> tuple[int, str]:
    """Run `seatrial cleanup` on the head."""
    node = lab.nodes[0]
    command = [sys.executable, "-m", "probes.cli.main", "cleanup", "--contract", "lab", *words]
    done = subprocess.run(
        node.command(*command, cwd=str(REPO)),
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    return done.returncode, done.stdout + done.stderr


@LONG
def test_cleanup_removes_what_two_killed_drivers_left(lab: Lab) -> None:
    def count() -> int:
        return len([*(lab.home / "shared").glob(".seatrial-*")])

    for number in (1, 2):
        arguments = ["probes/restart", "--tier", "standard"]
        before = count()
        trial = start(lab, f"killed{time.monotonic_ns()}", *arguments)
        once(lambda before=before: count() > before)(trial)  # type: ignore[misc]
        driver = driver_pid(lab)
        if number == 2:
            code, said = clean_up(lab, "--remove", "--idle", "0")
            assert code == 4, said
            assert "another run of seatrial uses this cluster" in said
        time.sleep(3)  # into the attempt, so that its ranks save
        assert trial.process.poll() is None, trial.log.read_text()[-3000:]
        kill_all_at_once(lab, driver)
        trial.process.wait(timeout=60)
    left = count()
    assert left >= 2
    code, said = clean_up(lab)
    assert code == 20, said
    assert said.count("/shared/.seatrial-") == left
    assert said.count("kept: it changed within the time of --idle") >= left
    assert count() == left
    code, said = clean_up(lab, "--remove", "--idle", "0")
    assert code == 0, said
    nothing_left(lab)
    assert clean_up(lab) == (0, "nothing is left of earlier runs\n")
