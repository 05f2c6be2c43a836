"""Changes two nodes of a lab right before the last probe, as if it came during the run.

A plugin of the driver: pytest ... -p tests.faults.launchers.faulty_end
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from tests.lab import nvml

# What NVML of node1 reports from then on; the run has lasted for less than a minute.
SICK = (
    *("3.ecc_errors=2", "4.heat=30", "5.pcie_replays=50", "6.lifetime_errors=4"),
    *("7.nvlink_errors=2", "2.xid=79"),
)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make GPUs of node1 sick, take one from node0, give node2 the boot id of another start."""
    if item.get_closest_marker("last") is None:
        return
    home = Path(os.environ["SEATRIAL_LAB_NVML"]).parents[1]
    for what in SICK:
        nvml.plant(home / "node1", what)
    nvml.plant(home / "node0", "gpus=7")
    (home / "node2" / "boot_id").write_text(f"{uuid.uuid4()}\n")
