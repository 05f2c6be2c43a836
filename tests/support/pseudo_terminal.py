"""Runs a command on a pseudo terminal of 80 columns, as a user sees it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.paths import REPO

COLOURS = ("NO_COLOR", "PY_COLORS", "FORCE_COLOR", "CI", "PYTEST_ADDOPTS")


def run_on_terminal(module: str, *arguments: str, folder: Path, **variables: str) -> str:
    """Run `python -m module` there; return all that it wrote.

    Of the variables that turn colours on or off, only those that are given are set.
    """
    master, slave = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in COLOURS}
    child = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(REPO), "COLUMNS": "80", **variables},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    written = b""
    while True:
        try:
            chunk = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(master)
    child.wait(timeout=60)
    return written.decode().replace("\r\n", "\n")
