"""Reads files of the kernel and the system."""

from __future__ import annotations

from pathlib import Path

RDMA_SYSFS = "/sys/class/infiniband"
BOOT_ID = "/proc/sys/kernel/random/boot_id"  # of each start of the kernel


def read_text(path: Path) -> str:
    """Read a file of the kernel or the system, stripped of blanks; "" if it is unreadable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
