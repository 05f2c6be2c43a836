"""Mounts a small file system, which is soon full. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# tests/reference_trainer/test_train_on_ranks.py shows without root that every rank gets the error
# when a disk is full. A file system that is really full needs a mount.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: to mount one needs root")


@contextmanager
def small_disk(where: Path, size: str) -> Iterator[str]:
    """Mount a new folder that holds `size` (`256k`), and yield its path."""
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], check=True)
    try:
        yield str(where)
    finally:
        subprocess.run(["umount", str(where)], check=True)
