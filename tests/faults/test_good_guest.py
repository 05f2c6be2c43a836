"""Another job holds accelerators: it is named, and nothing of it is disturbed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reports.record import Verdict
from tests.lab.lab import Lab
from tests.support.paths import REPO
from tests.support.trial import acceptance

HELD_S = 30  # seconds that the other job holds its accelerator
HOLD = """
import ray, sys, time
ray.init("auto", namespace="other", log_to_driver=False)
@ray.remote(num_gpus=1)
class Train:
    def ping(self): return 1
actor = Train.remote()
ray.get(actor.ping.remote())
print("held", flush=True)
for _ in range(600):  # it ends with an error once its actor does not answer
    ray.get(actor.ping.remote(), timeout=30)
    time.sleep(1)
"""


@contextmanager
def foreign_actor(lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """A job of somebody else's, whose actor holds an accelerator until the end."""
    node = lab.nodes[0]
    command = node.command(sys.executable, "-c", HOLD, cwd="/")
    job = subprocess.Popen(command, env=node.environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        assert job.stdout.readline().strip() == "held"
        yield job
    finally:
        job.kill()
        end_their_jobs(lab)
        job.wait()
        if job.stdout:
            job.stdout.close()


def end_their_jobs(lab: Lab) -> None:
    lab.nodes[0].run("pkill", "-f", "namespace=.other", check=False)


def diagnose(lab: Lab) -> tuple[int, str]:
    """Run `seatrial doctor` on the head."""
    node = lab.nodes[0]
    words = [sys.executable, "-m", "probes.cli.main", "doctor", "--contract", "lab"]
    done = subprocess.run(
        node.command(*words, "--nodes", "4", cwd=str(REPO)),
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_the_doctor_names_what_holds_an_accelerator(lab: Lab) -> None:
    code, said = diagnose(lab)
    assert code == 0, said
    assert "nothing was found that would prevent an accepted run" in said
    with foreign_actor(lab) as job:
        code, said = diagnose(lab)
        assert job.poll() is None
    assert code == 20, said
    assert "is held by actor Train of job" in said
    assert "namespace other" in said
    assert "SCALING, RESTART, GANG, LAUNCH would be UNPROVEN here" in said


@pytest.mark.soak(criterion="gang")
@pytest.mark.parametrize(
    ("criterion", "arguments"),
    [
        ("RESTART", ["probes/restart", "-k", "resumes_as_if"]),
        ("LAUNCH", ["probes/launch/test_launch.py"]),
    ],
)
def test_a_cluster_without_room_is_not_accused(
    lab: Lab, criterion: str, arguments: list[str]
) -> None:
    with foreign_actor(lab) as job:
        record, trial = acceptance(lab, f"no-room-{criterion.lower()}", *arguments)
        assert job.poll() is None
    said = trial.log.read_text()
    assert record.verdict(criterion) is Verdict.UNPROVEN, said[-3000:]
    assert [result.findings for result in record.results] == [[]]
    assert "is held by actor Train of job" in said
    assert "Traceback" not in said
    assert "gang.py" not in said


@pytest.mark.soak(criterion="gang")
def test_a_run_waits_for_room_and_says_for_what(lab: Lab) -> None:
    arguments = ["probes/gang", "-k", "cancelled", "--wait-for-room", "10m"]
    with foreign_actor(lab) as job:
        threading.Timer(HELD_S, end_their_jobs, [lab]).start()
        record, trial = acceptance(lab, "waits", *arguments)
        job.wait(20)
    said = trial.log.read_text()
    assert "waiting   1 GPU on node" in said
    assert "for other jobs to free accelerators" in said
    assert [(result.state, result.problems()) for result in record.results] == [("finished", [])]
