"""Manages the stand-in NVML of a lab's nodes: one library, one folder and one file per node.

The library is nvml_standin.c. It reads the node's file at each call, so one more line injects a
fault.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path

from tests.lab.shell import LabError, sh

# The folder of the module that makes torch count the node's GPUs as well.
TORCH = Path(__file__).with_name("standin_torch")
SOURCE = Path(__file__).with_name("nvml_standin.c")
LIBRARY = "libnvidia-ml.so.1"
# Keys that the library reads, and what they mean.
KEYS = {
    "gpus": "how many GPUs NVML shows",
    "name": "model of the GPUs",
    "memory_mib": "memory of each GPU",
    "used_mib": "how much of it is in use",
    "uuid": "a GPU's own UUID (3.uuid=GPU-...)",
    "mig": "into how many MIG instances each GPU is split",
    "driver": "version of the driver",
    "vbios": "version of the GPUs' vBIOS",
    "torch": "how many GPUs torch counts, where that is another number",
    "recovery": "recovery action that the driver asks for: 1 reset, 2 reboot of the node",
    "ecc": "whether ECC is on (1 or 0)",
    "ecc_default": "whether it is on by default",
    "ecc_errors": "uncorrected memory errors since the driver was loaded",
    "lifetime_errors": "uncorrected memory errors in the GPU's lifetime",
    "sram": "1: SRAM errors are above the threshold for replacement",
    "remapped": "memory rows that were remapped",
    "remap_pending": "1: a row waits to be remapped",
    "remap_failed": "1: a row could not be remapped",
    "retired_pending": "1: a page waits to be retired (GPUs before the A100)",
    "slowdown": "bits why clocks are slow: 1 idle, 4 power cap, 8 hardware, 64 heat, 128 brake",
    "power_limit": "power limit in W",
    "power_default": "default power limit in W",
    "pcie_width": "lanes of the PCIe link",
    "pcie_max_width": "lanes that GPU and slot support",
    "pcie_replays": "packets that PCIe has repeated",
    "heat": "seconds for which heat has slowed the clocks",
    "nvlinks": "how many NVLinks a GPU has",
    "nvlinks_down": "how many of them are inactive",
    "nvlink_errors": "packets that NVLinks have repeated",
    "nvlink_recoveries": "as a Blackwell counts them: how often NVLinks recovered",
    "fabric_state": "registration with the NVLink fabric: 0 not supported, 2 in progress, 3 done",
    "fabric_status": "code with which the registration ended",
    "fabric_health": "health mask of the fabric: 1 degraded bandwidth, 16 unhealthy route",
    "compute_mode": "0 default, 2 prohibited, 3 exclusive process",
    "clock": "application clock of the SMs in MHz",
    "persistence": "whether persistence mode is on",
    "xid": "Xid that the driver reports now (3.xid=79)",
    "events": "unsupported: NVML passes no Xids on",
    "error": "code that every call returns: 9 no driver, 15 lost, 18 versions differ, 999 unknown",
}
KEY_TEXT = "; ".join(f"{key}: {meaning}" for key, meaning in KEYS.items())


def build_library(home: Path) -> Path:
    """Compile the stand-in into the lab's folder; raises LabError without a compiler."""
    built = home / LIBRARY
    sh("cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(built), str(SOURCE))
    return built


def settings_file(work: Path) -> Path:
    """Return the file of a node from which its NVML answers."""
    return work / "nvml.txt"


def library_folder(work: Path) -> Path:
    """Return the folder of a node where its processes look for the library."""
    return work / "lib"


def show_library(home: Path, work: Path) -> None:
    """Copy the library to where the node's next processes find it."""
    library_folder(work).mkdir(parents=True, exist_ok=True)
    shutil.copy(home / LIBRARY, library_folder(work) / LIBRARY)


def hide_library(work: Path) -> None:
    """Remove the library for the node's next processes."""
    (library_folder(work) / LIBRARY).unlink(missing_ok=True)


def make_healthy(work: Path, lab: str, gpus: int) -> None:
    """Write what a healthy node of this lab answers; no other node has its UUIDs."""
    begin = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{work.name}.{lab}"))[:24]
    lines = [
        f"gpus {gpus}",
        "name NVIDIA H100 80GB HBM3",
        "memory_mib 81559",  # as such a board reports it
        f"uuid GPU-{begin}",
        "driver 550.54.15",
        "vbios 96.00.89.00.01",
    ]
    _replace(settings_file(work), lines)


def plant(work: Path, what: str) -> None:
    """Add a line to what the node answers: `gpus=7`, or of GPU 3 alone `3.error=15`.

    Raises LabError for anything else.
    """
    match = re.fullmatch(r"((?:\d+\.)?([a-z_]+))=([^\n]{1,200})", what)
    if not match or match[2] not in KEYS:
        raise LabError(f"expected KEY=VALUE or GPU.KEY=VALUE, found {what!r}; {KEY_TEXT}")
    lines = settings_file(work).read_text().splitlines()
    _replace(settings_file(work), [*lines, f"{match[1]} {match[3]}"])


def _replace(path: Path, lines: list[str]) -> None:
    """Replace the file at once: a call that reads it meanwhile gets the old one or the new one."""
    (new := path.with_suffix(".new")).write_text("\n".join(lines) + "\n")
    os.replace(new, path)
