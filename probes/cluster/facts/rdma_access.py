"""Reads whether a worker can open the RDMA devices of its node, as NCCL does."""

from __future__ import annotations

import os
from pathlib import Path

from probes.cluster.facts.system_files import RDMA_SYSFS, read_text

VERBS_SYSFS = "/sys/class/infiniband_verbs"
VERBS_DEVICES = "/dev/infiniband"
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")  # of the driver, and of Mellanox before it
NVIDIA_DRIVER = "/proc/driver/nvidia/version"
NO_VERBS = "it has no uverbs device: the module ib_uverbs is not loaded"


def read_rdma_access(
    devices: str = VERBS_DEVICES, verbs: str = VERBS_SYSFS, root: str = RDMA_SYSFS
) -> dict[str, str]:
    """Read of each RDMA device why a worker cannot open its file in `devices`, "" if it can.

    libibverbs finds the file by the device's name in `verbs` (kernel
    Documentation/infiniband/user_verbs.rst).
    """
    files = {read_text(path / "ibdev"): path.name for path in Path(verbs).glob("uverbs*")}
    return {
        path.name: _try_device(Path(devices, files[path.name])) if path.name in files else NO_VERBS
        for path in sorted(Path(root).glob("*"))
    }


def read_peer_memory(modules: str = "/sys/module", driver: str = NVIDIA_DRIVER) -> str:
    """Read by what a NIC reaches the memory of NVIDIA's GPUs; "" for nothing, or no driver.

    The driver's open kernel modules export it as DMA-BUF (NVIDIA's GPUDirect RDMA guide).
    """
    for name in PEER_MODULES:
        if Path(modules, name).exists():
            return name
    return "DMA-BUF" if "Open Kernel Module" in read_text(Path(driver)) else ""


def _try_device(file: Path) -> str:
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{file}: {error.strerror}"
    return ""
