"""A file system that is soon full.  Mounting one needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# A disk that is full is told to every rank without root too
# (tests/reference_trainer/test_train_on_ranks.py); that a file system's
# real end is the same needs a mount.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: to mount one needs root")


@contextmanager
def small_disk(where: Path, size: str) -> Iterator[str]:
    """A new folder there that holds so much (`256k`)."""
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], check=True)
    try:
        yield str(where)
    finally:
        subprocess.run(["umount", str(where)], check=True)
