"""A process for tests of who is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not end by itself."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()
