"""HOSTS' control of limits: a process that has half of each, and no room."""

from __future__ import annotations

import resource
import signal
import subprocess
from typing import Any
from unittest.mock import patch

import pytest

from probes.cluster.system_facts import read_system
from probes.hosts.limits import end_child, halve_limits, read_strained_system
from reports.measurement import Verdict
from tests.support.controls import recorder
from tests.support.simulated_system import ALL, RDMA, StandInSystem, run_system


@pytest.mark.parametrize(
    ("exempt", "lost"), [("locks_any", "locked_memory"), ("starts_any", "processes")]
)
def test_limits_that_do_not_hold_for_the_process_are_not_proven(exempt: str, lost: str) -> None:
    cluster = StandInSystem()
    limits = cluster.facts[2]["system"]["limits"]
    planted = {"open_files": [2048, 4096], "locked_bytes": [2**31, -1], "stack_bytes": [4096, -1]}
    cluster.strained = {"limits": {**limits, **planted, exempt: True}}
    if exempt == "starts_any":
        cluster.strained["threads"] = {"kernel.pid_max": 4_000_000}
    (control,) = [c for c in run_system(cluster, **RDMA).controls if c.name == "strained process"]
    assert (control.caught, control.proves) == (True, [t for t in ALL if t != lost])


@pytest.mark.parametrize(
    ("part", "blind"),
    [("limits", "open_files"), ("raylets", "stray_raylets"), ("session", "temp_room")],
)
def test_a_control_that_one_measure_does_not_see_is_not_caught(part: str, blind: str) -> None:
    cluster = StandInSystem()
    system = cluster.facts[2]["system"]
    cluster.strained = {part: system[part]}
    if part == "session":
        cluster.strained["temporary"] = system["temporary"]
    result = run_system(cluster, **RDMA)
    (control,) = [c for c in result.controls if c.name == "strained process"]
    assert control.caught is False
    assert result.verdict is Verdict.UNPROVEN


def test_a_node_that_answers_no_control_proves_nothing() -> None:
    cluster = StandInSystem()
    cluster.strained = None
    result = run_system(cluster, **RDMA)
    (control,) = [c for c in result.controls if c.name == "strained process"]
    assert (control.caught, control.saw) == (None, "n2: no answer in time")
    assert result.verdict is Verdict.UNPROVEN
    cluster.errors["id2"] = "RuntimeError: no process"
    (control,) = [c for c in run_system(cluster).controls if c.name == "strained process"]
    assert control.saw == "n2: RuntimeError: no process"


def test_a_control_process_that_does_not_start_is_an_error() -> None:
    child = 'import sys; sys.exit("no memory")'
    with (
        patch("probes.hosts.limits.CHILD", child),
        pytest.raises(RuntimeError, match="did not start"),
    ):
        read_strained_system({})


def test_the_controls_limits_are_half_of_what_is_owed() -> None:
    measure = recorder("HOSTS")
    gib = 2**30
    planted = {"RLIMIT_NOFILE": 2048, "RLIMIT_MEMLOCK": 2 * gib, "RLIMIT_NPROC": 1024}
    planted["RLIMIT_STACK"] = 4 * 2**20
    assert halve_limits(8, measure) == planted


def test_the_controls_process_has_what_is_planted() -> None:
    """For real: the same reader looks at a process of this machine."""
    with patch("probes.hosts.limits.read_node_system", read_here):
        system = read_strained_system({"RLIMIT_NOFILE": 200, "RLIMIT_NPROC": 100})
    assert system["limits"]["open_files"][0] == 200
    assert system["limits"]["processes"][0] == 100
    assert system["threads"].get("RLIMIT_NPROC", 0) < 100
    assert system["shared_memory"]["error"]
    assert system["session"]["error"]
    assert "seatrial_control" in {one["session"] for one in system["raylets"]["others"]}
    own = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert read_here()["limits"]["open_files"][0] == own, "the worker keeps its own limits"


def test_a_control_process_that_does_not_end_is_killed() -> None:
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, text=True)
    with patch("probes.hosts.limits.END_SECONDS", 0.1):
        end_child(child)
    assert child.returncode == -signal.SIGKILL


def read_here(pid: str = "self", folder: str = "") -> dict[str, Any]:
    """Read the system of this machine, without Ray."""
    return read_system(lambda: ("session", "/tmp"), pid, folder)
