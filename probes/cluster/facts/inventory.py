"""Reads what else a node has: CUDA of torch, OFED, the firmware of its NICs, its disks."""

from __future__ import annotations

import re
from importlib import util
from pathlib import Path

from probes.cluster.facts.system_files import RDMA_SYSFS, read_text

CUDA_LINE = re.compile(r"^cuda\b[^=\n]*= *'([\d.]+)'", re.MULTILINE)  # of torch/version.py
# Drivers of Mellanox NICs give their version only in OFED's own build, not in the kernel's.
OFED_VERSION = "/sys/module/mlx5_core/version"
BLOCK_SYSFS = "/sys/block"
SECTOR_BYTES = 512  # unit of /sys/block/*/size, whatever the disk's own sectors are


def cuda_version(torch_folder: str | None = None) -> str:
    """Read the CUDA version that torch was built with; "" for a CPU build, or without torch.

    torch is not imported: that takes seconds.
    """
    if torch_folder is None:
        spec = util.find_spec("torch")
        if spec is None or not spec.origin:
            return ""
        torch_folder = str(Path(spec.origin).parent)
    match = CUDA_LINE.search(read_text(Path(torch_folder, "version.py")))
    return match[1] if match else ""


def ofed_version(path: str = OFED_VERSION) -> str:
    """Read the version of OFED's mlx5 driver; "" for the kernel's own driver, or none."""
    return read_text(Path(path))


def nic_firmware(root: str = RDMA_SYSFS) -> list[dict[str, str]]:
    """Read of each RDMA device its board, its firmware and its NUMA node; "" for none."""
    return [
        {
            "device": device.name,
            "board": read_text(device / "board_id") or read_text(device / "hca_type"),
            "firmware": read_text(device / "fw_ver"),
            "numa": read_text(device / "device" / "numa_node"),
        }
        for device in sorted(Path(root).glob("*"))
    ]


def disk_gib(root: str = BLOCK_SYSFS) -> float | None:
    """Read the size of all local disks together, GiB; None if no disk can be read.

    A disk has a device of its own.  A loop device, a partition, RAID and memory have none.  A disk
    that is seen by several paths counts once.
    """
    sizes: dict[str, int] = {}
    for disk in sorted(Path(root).glob("*")):
        if (disk / "device").exists() and not _is_no_disk(disk):
            id = read_text(disk / "wwid") or read_text(disk / "device" / "wwid") or disk.name
            text = read_text(disk / "size")
            sizes |= {id: int(text)} if text.isdigit() else {}
    return round(sum(sizes.values()) * SECTOR_BYTES / 2**30, 2) if sizes else None


def _is_no_disk(disk: Path) -> bool:
    """Return whether it is a removable medium, or one path to a disk that is listed as well."""
    return "1" in (read_text(disk / "removable"), read_text(disk / "hidden"))
