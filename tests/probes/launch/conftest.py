"""A recorder of LAUNCH's, in memory, and a folder for homes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.launch import shell
from tests.probes.launch.another_user import cluster_without_dashboard
from tests.support import controls


@pytest.fixture
def recorder() -> controls.MemoryRecorder:
    return controls.recorder("LAUNCH")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that each user passes through, as /tmp is; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def user(place: Path) -> Iterator[shell.User]:
    """Another user, with all that root may do."""
    cluster = cluster_without_dashboard()
    user = shell.make_user(cluster, str(place), own_guide=False)
    yield user
    shell.remove_user(cluster, user)
