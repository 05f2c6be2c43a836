"""Waits right before the last probe until a test has changed the lab.

A plugin of the driver: pytest ... -p tests.faults.launchers.waiting_end
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

WAIT_S = 60.0  # for a test to see `at-end` and to inject its fault


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Write `at-end` into the folder that the test names, and wait there for `go-on`."""
    if item.get_closest_marker("last") is None:
        return
    folder = Path(os.environ["SEATRIAL_TEST_FAULT"])
    (folder / "at-end").touch()
    deadline = time.monotonic() + WAIT_S
    while not (folder / "go-on").exists():
        assert time.monotonic() < deadline, "no test told to go on"
        time.sleep(0.05)
