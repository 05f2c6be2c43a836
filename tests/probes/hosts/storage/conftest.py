"""A simulated cluster whose nodes share a real folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.simulated_storage import SimulatedStorage


@pytest.fixture
def cluster(root: Path) -> SimulatedStorage:
    return SimulatedStorage(root)


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder in memory, where there is one: what is written is on disk at once."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
