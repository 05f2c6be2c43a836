"""Two drivers in two containers have the same pid: each counts and removes its own things alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from probes.cluster.cleanup import CleanupProcess
from probes.cluster.cluster import Cluster
from probes.contract.contract import ClusterTerms
from probes.session.fixtures import shared_folder
from tests.support.paths import REPO

# A driver of pid 7 whose clock stands still: the names of all that it makes on a cluster.
DRIVER = """
import json, os, sys, time
from types import SimpleNamespace
from unittest.mock import patch
os.getpid, time.monotonic_ns = lambda: 7, lambda: 5
from probes.faults.spare_nodes import SpareNodes
from probes.gang.scenario import ContentionRig
from probes.launch.shell import make_user
from probes.cluster.kept_gang import GANG_NAME
with patch("probes.cluster.ask.on_node"), patch("ray.get", return_value=[]):
    spares = SpareNodes(SimpleNamespace(address="", head_node_id=""), 0)
os.geteuid = lambda: 1000
keeper = SimpleNamespace(cleanup=SimpleNamespace(register=lambda *_: None))
rig, user = ContentionRig(None), make_user(keeper, sys.argv[1], own_guide=True)
print(json.dumps([GANG_NAME, spares.resource, rig.prefix, user.folder.name]))
"""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The names that two drivers of the same pid give, in one folder."""
    command = [sys.executable, "-c", DRIVER, str(tmp_path_factory.mktemp("homes"))]
    runs = [subprocess.run(command, cwd=REPO, capture_output=True, text=True) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    return [json.loads(run.stdout.splitlines()[-1]) for run in runs]


def test_drivers_of_the_same_pid_share_no_name(drivers: list[list[str]]) -> None:
    first, second = drivers
    assert len(first) == 4
    assert not set(first) & set(second)
    for one, other in zip(first, second, strict=True):
        assert not one.startswith(other)


def test_the_groups_of_another_driver_are_not_counted(
    drivers: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [drivers[0][0], drivers[1][0]]
    table = {
        name: {"name": name, "state": "CREATED", "bundles_to_node_id": dict.fromkeys(range(n), "1")}
        for n, name in enumerate(names, 1)
    }
    monkeypatch.setattr(ray.util, "placement_group_table", lambda: table)
    cluster: Any = SimpleNamespace()
    assert [Cluster.groups_named(cluster, name) for name in names] == [[1], [2]]


def test_a_driver_removes_its_own_shared_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5)
    cleanups = CleanupProcess(), CleanupProcess()
    runs = [
        SimpleNamespace(
            cluster=SimpleNamespace(cleanup=cleanup, kind="ray"),
            store=SimpleNamespace(path=tmp_path),
            terms=ClusterTerms(shared=str(tmp_path)),
        )
        for cleanup in cleanups
    ]
    with shared_folder(runs[0]) as ours:
        assert ours is not None
        (ours / "checkpoint").touch()
        with shared_folder(runs[1]) as theirs:
            assert theirs is not None
            assert theirs.parent != ours.parent
        cleanups[1].close()  # what is left of the other is cleared away as well
        assert (ours / "checkpoint").exists()
    cleanups[0].close()
    assert [*tmp_path.iterdir()] == []
