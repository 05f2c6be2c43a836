"""Each way in which seatrial kills a process on a GPU is noted, before the driver reports it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from probes.cluster.cluster import Cluster
from probes.faults.process_faults import Fault, ProcessAgent, ProcessFault, start_ticks
from probes.gang import competing_job
from probes.gang.competing_job import CompetingJob
from probes.restart.faulted_run import LauncherProcess
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.worker import RankLocation
from tests.support.simulated_driver import SimulatedDriver

NOTED, NOT_NOTED = [(137, True)], [(137, False)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDriver]:
    """Drivers of two nodes, which report an Xid as soon as a worker there is killed."""
    driver = SimulatedDriver(monkeypatch, "id0", "id1")
    monkeypatch.setattr(ray, "kill", lambda worker: driver.report(worker.node, 137))
    monkeypatch.setattr(Cluster, "resource", "GPU")
    yield driver
    driver.close()


def gang_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Gang:
    """The cluster's gang of two ranks, one on each node, as if it ran."""
    monkeypatch.setattr(Cluster, "nodes", [])
    cluster.kept_gang = cast(Any, SimpleNamespace(release=lambda: None))
    gang = cluster.gang(2)
    here: dict[str, Any] = {"address": "10.0.0.1", "pid": 7, "gpus": ["0"]}
    gang.places = [RankLocation(node=id, host=id, **here) for id in IDS]
    gang._workers = [SimpleNamespace(node=id, location=CALL) for id in IDS]
    gang._bundles, gang.jobs, gang._calls = [0, 1], [[0, 1]], ["of rank 0", "of rank 1"]
    return gang


IDS, CALL = ("id0", "id1"), SimpleNamespace(remote=lambda: None)


def test_the_end_of_a_gang(driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    gang_on(driver.cluster, monkeypatch).remove()
    assert driver.heard() == {"id0": NOTED, "id1": NOTED}


def test_a_gang_that_never_came_together_kills_no_work(
    driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = gang_on(driver.cluster, monkeypatch)
    gang.places = []
    gang.remove()
    assert driver.heard() == {"id0": NOT_NOTED, "id1": NOT_NOTED}


@pytest.mark.parametrize("waiting", [True, False])
def test_ranks_that_are_replaced(
    driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    gang = gang_on(driver.cluster, monkeypatch)
    dead = {1: RuntimeError("died")}
    monkeypatch.setattr("reference_trainer.launch.gang._failed_calls", lambda *_: dead)
    monkeypatch.setattr("reference_trainer.launch.gang._pending", lambda *_: [])
    for name, answer in (
        ("_group_state", "CREATED"),
        ("_spawn", gang._workers[1]),
        ("_locate_workers", [gang.places[1]]),
        ("busy", [1]),
    ):
        monkeypatch.setattr(gang, name, lambda *_, answer=answer: answer)
    assert (gang.replace_waiting() if waiting else gang.replace_workers([1])) == [1]
    assert driver.heard() == {"id1": NOTED * (2 if waiting else 1)}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_that_restart_kills(
    driver: SimulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    child: subprocess.Popen[bytes],
    signum: int,
) -> None:
    """It is killed on its node, and noted by that node's clock after its Xids were heard."""
    fault = ProcessFault(tmp_path, 1, Fault("", signum=signum))

    def kill() -> tuple[bool, float]:
        args = [(child.pid, start_ticks(child.pid))], tmp_path, 1, fault.fault
        answer = ProcessAgent().wait_and_signal(*args)
        driver.report("id1", 137)
        return answer

    gang = gang_on(driver.cluster, monkeypatch)
    monkeypatch.setattr(fault, "_start_agent", lambda gang: None)
    monkeypatch.setattr(fault, "_inject", kill)
    fault.arm(gang)
    fault._thread.join(30)
    assert fault.count == 1
    # Who is asked to end, ends by itself.
    assert driver.heard() == {"id1": NOTED if signum == signal.SIGKILL else NOT_NOTED}
    driver.report("id0", 137)
    assert driver.heard()["id0"] == NOT_NOTED, "that node had no kill"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_driver_that_gang_kills(
    driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signum: int
) -> None:
    script = tmp_path / "job.py"
    script.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr(competing_job, "SCRIPT", script)
    cluster: Any = driver.cluster
    cluster.cleanup = SimpleNamespace(register=lambda *_: None, unregister=lambda *_: None)
    cluster.address = "10.0.0.1:6379"
    job = CompetingJob("A", cluster)
    try:
        job.signal(signum)
        driver.report("id1", 137)
        assert driver.heard() == {"id1": NOTED if signum == signal.SIGKILL else NOT_NOTED}
    finally:
        job.end()


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_a_launcher_and_its_ranks(
    driver: SimulatedDriver, child: subprocess.Popen[bytes], ends: str
) -> None:
    """A launcher that ends by itself has killed its ranks before."""
    launcher = object.__new__(LauncherProcess)
    launcher.cleanup = cast(Any, SimpleNamespace(unregister=lambda *_: None))
    launcher.child, launcher.note_kill = cast(Any, child), driver.cluster.note_kill
    if ends == "by itself":
        launcher.child = subprocess.Popen([sys.executable, "-c", ""], text=True)
        launcher.child.wait()
        driver.report("id0", 137)
    for _ in range(2):
        launcher.kill()
    if ends == "killed":
        driver.report("id0", 137)
        (kill,) = driver.listeners["id0"].read()["kills"]
        assert kill < 10, "the kill itself, and nothing that came before it"
    assert driver.heard() == {"id0": NOTED}


def test_a_node_or_the_head_is_gone(
    driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ended then ends all the same."""

    def fail(*_: Any) -> None:
        raise ray.exceptions.RaySystemError("the head is gone")

    driver.cluster.note_kill(["another node"])
    monkeypatch.setattr("probes.cluster.gpus.ask_actors", fail)
    driver.cluster.note_kill()
    assert [one.read()["kills"] for one in driver.listeners.values()] == [[], []]
