"""Reads how much room a folder has: bytes, files, and whether a file can be written there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

TRIED_BYTES = 2**16  # a file with data: an empty one fits on a full disk


def read_room(path: str, mounts: str = "/proc/self/mountinfo") -> dict[str, Any]:
    """Read the room of a folder's file system, and `error`, why no file can be written there.

    `size_gib` is 0 and the shares are 1 where the file system reports no size: it has no limit of
    its own.  `free_files` is None where it has no limit of files.
    """
    name = name_file_system(path, mounts)
    room: dict[str, Any] = {"path": path, "file_system": name, "error": try_writing(path)}
    try:
        found = os.statvfs(path)
    except OSError as error:
        return {**room, "error": room["error"] or str(error)}
    has_files = found.f_files > 0
    return {
        **room,
        "size_gib": round(found.f_blocks * found.f_frsize / 2**30, 6),
        "free_gib": round(found.f_bavail * found.f_frsize / 2**30, 6),
        # Ray computes its share in use the same way, from what an ordinary user may take.
        "free_share": found.f_bavail / found.f_blocks if found.f_blocks else 1.0,
        "free_files": found.f_favail if has_files else None,
        "free_files_share": found.f_favail / found.f_files if has_files else 1.0,
    }


def try_writing(path: str) -> str:
    """Write a file without a name, and remove it; return the error, or ""."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(TRIED_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def find_temporary_folder() -> str:
    """Find the folder that Python writes temporary files to; /tmp if it can use none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "/tmp"


def name_file_system(path: str, mounts: str) -> str:
    """Name the file system of a folder by kind and mount point: `tmpfs at /tmp`; "" if unknown."""
    real, name, longest = Path(os.path.realpath(path)), "", -1
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace(r"\040", " "))
        deeper = len(point.parts) >= longest  # of two at one point, the later mount is seen
        if deeper and (point == real or point in real.parents):
            name, longest = f"{after.split()[0]} at {point}", len(point.parts)
    return name
