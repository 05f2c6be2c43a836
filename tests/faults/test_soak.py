"""What takes longer: the standard tier, a lab of eight, spare raylets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from probes.cluster.cluster import SPARE_PREFIX
from reports.measurement import Verdict
from tests.faults.launchers.leftovers import nothing_left
from tests.faults.test_driver_death import end_driver, once
from tests.lab.healthy import LARGE_CONTRACT
from tests.lab.lab import Lab
from tests.lab.test_lab_faults import only
from tests.support.paths import REPO
from tests.support.trial import Trial, acceptance, agreed, lab_of, start


@pytest.mark.soak(criterion="suite")
def test_standard_tier(lab: Lab) -> None:
    record, trial = acceptance(lab, "standard", "probes", "--tier", "standard", seconds=1200)
    assert trial.summary.exit_code == 0, trial.log.read_text()
    assert record.tier == "standard"
    nothing_left(lab)


@pytest.mark.soak(criterion="fabric")
def test_a_rank_that_stops_is_named(lab: Lab) -> None:
    trial = start(lab, "stopped", "probes/fabric/test_fabric.py")
    stopped = stop_worker(lab, trial, "node1")
    record = trial.wait()
    assert not Path(f"/proc/{stopped}").exists(), "the stopped process was left behind"
    assert record.verdict("FABRIC") is Verdict.UNPROVEN
    found = only(record, "INIT-MISSING-RANK")
    assert found.suspects == ["rank 1", "node1"]


def stop_worker(lab: Lab, trial: Trial, name: str) -> int:
    """SIGSTOP the gang's worker on a node a moment after the gang is there; its pid."""
    node, deadline = lab.node(name), time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in node.pids_of("ray::Worker"):
            with suppress(OSError):
                time.sleep(2)  # the moment after the gang is there
                os.kill(pid, signal.SIGSTOP)
                return pid
        assert trial.process.poll() is None, trial.log.read_text()
        time.sleep(0.02)
    raise AssertionError(f"no worker on {name}: {trial.log.read_text()}")


@pytest.mark.soak(criterion="suite")
def test_eight_nodes_in_a_lab_of_their_own() -> None:
    done = subprocess.run(
        [
            *[sys.executable, "-m", "tests.lab", "--name", "eight", "run", "--nodes", "8", "--"],
            *["pytest", "probes", "--cluster", "auto", "--contract", LARGE_CONTRACT],
        ],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "8 nodes" in done.stdout


@pytest.mark.soak(criterion="suite")
def test_nodes_of_two_kinds_are_accepted_as_ordered_and_not_otherwise() -> None:
    longer = {"pace_seconds = 0.25\n": "pace_seconds = 0.4\n", "at_least = 560": "at_least = 430"}
    with lab_of(4, "kinds", larger=2) as lab:
        for name, kinds in (("ordered", "{ 2 = 2, 1 = 2 }"), ("fewer", "{ 2 = 3, 1 = 1 }")):
            order = {"gpus_per_node = 1\n": f"nodes = 4\ngpus_per_node = {kinds}\n", **longer}
            part = "probes" if name == "ordered" else "probes/hosts/test_hosts.py"
            record, trial = acceptance(lab, name, part, contract=agreed(lab, order), seconds=900)
            if name == "ordered":
                assert trial.summary.exit_code == 0, trial.log.read_text()
        assert record.verdict("HOSTS") is Verdict.FAIL
        assert len(only(record, "HOST-GPUS").suspects) == 1


@pytest.mark.soak(criterion="gang")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_spare_raylets_end_with_the_driver(lab: Lab, number: signal.Signals) -> None:
    def middle(trial: Trial) -> None:
        once(lambda: len(spare_raylets(lab)) == 4)(trial)
        time.sleep(2)  # so that the scene which uses them has begun; nothing rests on how far it is

    end_driver(lab, number, ["probes/gang", "--tier", "standard", "-k", "lost"], middle)
    assert not spare_raylets(lab)
    assert spare_folders(lab) == ""


JOB = """
import os, pathlib, sys, tempfile, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
folder = tempfile.mkdtemp()
pathlib.Path(folder, "mine.txt").write_text("x")
ray.init("auto", runtime_env={"working_dir": folder}, log_to_driver=False)
here = On(ray.get_runtime_context().get_node_id(), soft=False)
look = ray.remote(num_cpus=0, scheduling_strategy=here)(type("Look", (), {
    "look": lambda self: os.listdir(".")})).remote()
for _ in range(2):
    print(ray.get(look.look.remote()), flush=True)
    sys.stdin.readline()
"""
SPARES = """
import sys, time
sys.path.insert(0, sys.argv[1])
from probes.faults.spare_nodes import SpareNodes
from probes.cluster.cluster import connect
cluster = connect("auto")
spares = SpareNodes(cluster, 2)
time.sleep(5)  # they unpack what living jobs run in as soon as they are there
spares.close()
cluster.close()
"""


@pytest.mark.soak(criterion="gang")
def test_spare_raylets_leave_alone_what_jobs_run_in(lab: Lab) -> None:
    node = lab.nodes[0]
    job = subprocess.Popen(
        node.command(sys.executable, "-c", JOB, cwd="/"),
        env=node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdin is not None
    assert job.stdout is not None
    with job:
        assert job.stdout.readline() == "['mine.txt']\n"
        node.run(sys.executable, "-c", SPARES, str(REPO), seconds=120)
        job.stdin.write("look again\n")
        job.stdin.flush()
        assert job.stdout.readline() == "['mine.txt']\n"
    assert spare_folders(lab) == ""


def spare_folders(lab: Lab) -> str:
    """What spare raylets have left in the folder of Ray's session."""
    return lab.nodes[0].run("sh", "-c", f"ls -d /tmp/ray/session_latest/{SPARE_PREFIX}* || true")


def spare_raylets(lab: Lab) -> list[int]:
    """Processes on node 0 that know of a spare raylet's resource."""
    found = []
    for pid in lab.nodes[0].group.pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if SPARE_PREFIX.encode() in words and words.split(b"\0")[0].endswith(b"raylet"):
                found.append(pid)
    return found
