"""A recorder of LAUNCH's, in memory, and a folder for homes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
