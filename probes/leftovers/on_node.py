"""Finds and removes our files and our users' processes on one node (in a task there)."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Names that a run gives its files: a dot where users would see them, and a token of 12 or 16 hex
# digits.  One without a letter could be a user's date; one token of 300 has none, and stays.
OURS = re.compile(
    r"\.?seatrial-(?:user-|submit-)?(?=[0-9]*[a-f])(?:[0-9a-f]{12}|[0-9a-f]{16})(?:-[0-9a-f]{4,56})?"
)
MAX_ENTRIES = 20_000  # of a folder that are looked at for the last change


def list_files(folders: Iterable[str]) -> list[dict[str, Any]]:
    """List our files and folders in these folders: path, and seconds since the last change."""
    found = {}
    for folder in folders:
        for path in _entries(Path(folder)):
            if OURS.fullmatch(path.name):
                found[str(path)] = {
                    "path": str(path),
                    "idle_s": max(0.0, time.time() - _last(path)),
                }
    return list(found.values())


def remove_files(paths: Iterable[str]) -> dict[str, str]:
    """Remove what `list_files` listed; return why some could not be removed, by path."""
    errors = {}
    for path in map(Path, paths):
        if not OURS.fullmatch(path.name):
            raise ValueError(f"{path} has no name of ours")
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            errors[str(path)] = str(error)
    return errors


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # no such folder here, or not for us
        return []


def _last(path: Path) -> float:
    """Time of the last change in a folder, or of a file."""
    return max(_times(path), default=0.0)


def _times(path: Path) -> Iterator[float]:
    try:
        yield path.lstat().st_mtime
    except OSError:  # it has just gone
        return
    count = 0
    for folder, names, files in os.walk(path):  # links are not followed
        for name in (*names, *files):
            count += 1
            if count > MAX_ENTRIES:
                return
            try:
                yield (Path(folder) / name).lstat().st_mtime
            except OSError:
                continue
