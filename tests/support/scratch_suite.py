"""Copies the suite into a scratch folder, where its declarations may be broken, or added to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from reports.version import PACKAGES
from tests.support.paths import REPO
from tests.support.stand_in import STAND_IN


def copy_suite(target: Path) -> Path:
    """Copy the packages, with a stand-in for a cluster."""
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPO / name, target / name, ignore=ignored)
    shutil.copy(REPO / "pyproject.toml", target)
    (target / "conftest.py").write_text(STAND_IN)
    return target


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy's packages; what it writes is text."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def run_probes(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the copy's suite on the stand-in."""
    where = ("probes", "--cluster", "auto", "--run-dir", "run", "-p", "no:cacheprovider")
    return run_python(folder, "-m", "pytest", *where, *options)


def edit_file(folder: Path, name: str, old: str, new: str) -> None:
    """Replace a text in a file of the copy; it must be there."""
    file = folder / name
    text = file.read_text()
    assert old in text, f"{name} has no {old!r}"
    file.write_text(text.replace(old, new, 1))
