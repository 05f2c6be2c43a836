"""Finds the log files in folders: regular files, without waiting or following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from probes.nccl.lines import STDIN, UnreadableLog


def find_logs(given: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """List the log files among the given paths and in given folders, and what is not read.

    Returns (files, one sentence for each thing in the folders that is not read). A pipe is read if
    it is given itself, as by users who unpack a log into it. In a folder it is not read, because it
    may never deliver data. Raises UnreadableLog for a given path that is no log.
    """
    paths: list[Path] = []
    skipped: list[str] = []
    for path in given:
        if path == STDIN:
            paths.append(path)
            continue
        mode = _mode_of(path)
        if stat.S_ISDIR(mode):
            paths += sorted(_walk(path, skipped))
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            paths.append(path)
        else:
            raise UnreadableLog(f"{path}: expected a log file, found a device or a socket")
    return paths, skipped


def _mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise UnreadableLog(f"expected a log file, found nothing at {path}") from None
    except OSError as error:
        raise UnreadableLog(f"{path} cannot be read: {error.strerror}") from None


def _walk(root: Path, skipped: list[str]) -> Iterator[Path]:
    """Yield the regular files below a folder; report in `skipped` why anything else is not read."""
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            skipped.append(f"{folder} cannot be read: {error.strerror}")
            continue
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif entry.is_file(follow_symlinks=False):
                yield path
            elif not entry.is_symlink():
                skipped.append(f"{path} is a pipe, a socket or a device: in a folder none is read")
            elif not _leads_into(path, root):  # its target is read in its own place
                skipped.append(
                    f"{path} is a link that leads out of {root}, or nowhere: it is not followed; "
                    "give the file itself"
                )


def _leads_into(link: Path, root: Path) -> bool:
    target, top = os.path.realpath(link), os.path.realpath(root)
    return os.path.exists(target) and os.path.commonpath([target, top]) == top
