"""Checks that a folder can hold a run, before the slow step of joining the cluster."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from reports.sanitize import one_line

# A large run needs as much: rank logs 64 MiB at most, the events of 200,000 measurements 84 MB,
# and the record and the page repeat the events.
MIN_FREE_MIB = 256
TRIAL_BYTES = 1 << 16  # more than any file system keeps in a directory entry, so space is used
NAMES_SHOWN = 3  # of the files found; enough to recognise them


class UnusableFolder(ValueError):
    """Raised if a run cannot be written there. One sentence: expected, found, what to do."""


def prepare_run_folder(path: Path) -> None:
    """Make the folder of a run (mode 0700), or use an empty one unchanged.

    Raises UnusableFolder if it is a link, has files, cannot be written, or lacks free space.
    """
    if os.path.islink(path):
        raise _unusable(path, "is a link")  # the link's owner could redirect the run
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = sorted(os.listdir(path))
    except (OSError, ValueError) as error:
        raise _unusable(path, _reason(error)) from None
    if "events.jsonl" in names:
        raise _unusable(path, "holds a run already")
    if names:
        more = ", ..." if len(names) > NAMES_SHOWN else ""
        raise _unusable(path, f"holds other files ({', '.join(names[:NAMES_SHOWN])}{more})")
    _require_room(path)


def prepare_parent(path: Path) -> None:
    """Make the folder that holds runs, if it does not exist. It may be a link and contain runs.

    Raises UnusableFolder if no run can be created in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unusable(path, _reason(error)) from None
    _require_room(path)


def _require_room(path: Path) -> None:
    """Check free space and write as a run does: a new file, fsync, rename over an old file.

    Raises UnusableFolder.
    """
    try:
        disk = os.statvfs(path)
        free_mib = disk.f_bavail * disk.f_frsize >> 20
        if disk.f_blocks and free_mib < MIN_FREE_MIB:  # some network file systems report none
            raise _unusable(path, f"has {free_mib} MiB left, and a run needs {MIN_FREE_MIB} MiB")
        _try_writing(path)
    except OSError as error:
        raise _unusable(path, _reason(error)) from None


def _try_writing(path: Path) -> None:
    old, new = (path / f".seatrial-{secrets.token_hex(8)}" for _ in range(2))
    try:
        for file in (old, new):
            with file.open("xb") as handle:
                handle.write(bytes(TRIAL_BYTES))
                handle.flush()
                os.fsync(handle.fileno())
        os.replace(new, old)
    finally:
        for file in (old, new):
            with suppress(OSError):
                file.unlink()


def _reason(error: OSError | ValueError) -> str:
    """Describe why the folder cannot be used."""
    code = getattr(error, "errno", None)
    if code == errno.EEXIST:
        return "is not a folder"
    if code == errno.ENOTDIR:
        return "lies in what is not a folder"
    return f"cannot be written ({getattr(error, 'strerror', None) or error})"


def _unusable(path: Path, found: str) -> UnusableFolder:
    advice = "name another with --run-dir"
    return UnusableFolder(
        one_line(f"a run needs a folder of its own, but {path} {found}: {advice}")
    )
