"""Copies files between two folders, both ways, when they are some seconds old.

A shared file system with a slow cache: each side sees what the other does later, files and their
removal.  Arguments: two folders, and seconds.  It writes `copied` after the first round.  It runs
until it is killed, with the standard library alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

PAUSE_S = 0.05  # s between two looks
State = tuple[bool, float, int]  # folder, time of change, size


def look(root: Path) -> dict[str, State]:
    """Map each path below a folder to its state."""
    found: dict[str, State] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            with suppress(OSError):  # removed in the meantime
                stat = path.stat()
                is_folder = path.is_dir()
                state = (True, 0.0, 0) if is_folder else (False, stat.st_mtime, stat.st_size)
                found[str(path.relative_to(root))] = state
    return found


def apply(change: State | None, source: Path, target: Path) -> None:
    """Make the target what the source is: a folder, a file with its time, or nothing."""
    with suppress(OSError):  # changed in the meantime: the next look finds it
        if change is None:
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        elif change[0]:
            target.mkdir(exist_ok=True)
        else:
            part = target.with_name(f".{target.name}.late")
            shutil.copy2(source, part)
            os.replace(part, target)


def main() -> None:
    """Copy for ever."""
    sides, seconds = [Path(sys.argv[1]), Path(sys.argv[2])], float(sys.argv[3])
    for path, state in sorted(look(sides[0]).items()):
        apply(state, sides[0] / path, sides[1] / path)
    known = [look(side) for side in sides]
    print("copied", flush=True)
    waiting: list[dict[str, tuple[State | None, float]]] = [{}, {}]
    while True:
        time.sleep(PAUSE_S)
        for side, (here, there) in enumerate((sides, sides[::-1])):
            now = look(here)
            for path in now.keys() | known[side].keys():
                state = now.get(path)
                if path.endswith(".late") or state == known[side].get(path):
                    continue
                if waiting[side].get(path, (0,))[0] != state:
                    waiting[side][path] = (state, time.monotonic() + seconds)
            for path in sorted(waiting[side]):
                state, due = waiting[side][path]
                if time.monotonic() >= due:
                    del waiting[side][path]
                    apply(state, here / path, there / path)
                    for which, root in enumerate((here, there)):
                        index = side if which == 0 else 1 - side
                        known[index] = {**known[index], **_state_of(root, path)}
                        if path not in _state_of(root, path):
                            known[index].pop(path, None)


def _state_of(root: Path, path: str) -> dict[str, State]:
    with suppress(OSError):
        stat = (root / path).stat()
        is_folder = (root / path).is_dir()
        return {path: (True, 0.0, 0) if is_folder else (False, stat.st_mtime, stat.st_size)}
    return {}


if __name__ == "__main__":
    main()
