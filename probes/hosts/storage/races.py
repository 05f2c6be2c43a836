"""Lets nodes create, replace, extend and lock the same files at the same time."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.hosts.storage.places import Place, meet_others, poll

CREATED = 32  # files that all nodes try to create: a delay between them is then no escape
REPLACE_S = 1.0  # s for which a file is replaced again and again
FIRST_S = 5.0  # s that a reader waits for the first version of that file
VERSION_LINES = 512  # of that file, 4.5 KiB: more than one block, so that a part can be missing
GAP_S = 0.005  # s that the control leaves the file empty, as a write in place does
APPENDED = 50  # lines that each node appends
LOCKED = 5  # times that each node takes the lock
LOCK_S = 10.0  # s in which a node takes the lock so often, or fewer times
LOCK_POLL_S = 0.002  # s between two tries for the lock


@dataclass(frozen=True)
class Race:
    """What one node does in a race: as writer or reader, and with which others.

    `few` are the nodes that wait for each other before each step, and that alone take part in what
    only some nodes do.  `label` begins the names of all files.  A node that is not `careful`
    creates without O_EXCL, writes in place, and neither appends nor locks, for a control.
    """

    place: Place
    few: tuple[str, ...]
    writer: str  # the node that replaces the file
    label: str = ""
    careful: bool = True

    def path(self, name: str) -> Path:
        """Path of a file of this race."""
        return self.place.folder / f"{self.label}{name}"


def run_races(race: Race) -> dict[str, Any]:
    """Take part in all races; return what this node did and saw.

    Keys: `created` (numbers of files), `replaced` (as in `read_versions`), `appended` (lines),
    `locked` (times, error).  What failed has the key `error` instead.
    """
    answers: dict[str, Any] = {"created": _try(create_files, race)}
    if race.place.node in race.few:
        answers["replaced"] = _try(replace_file, race)
        answers["appended"] = _try(append_lines, race)
        answers["locked"] = _try(take_lock, race)
    return answers


def _try(step: Callable[[Race], dict[str, Any]], race: Race) -> dict[str, Any]:
    try:
        if race.place.node in race.few:
            meet_others(race.place, f"{race.label}{step.__name__}", race.few)
        return step(race)
    except OSError as error:
        return {"error": error.strerror or str(error)}


def create_files(race: Race) -> dict[str, Any]:
    """Try to create each file; return the numbers of those that this node created."""
    flags = os.O_CREAT | os.O_WRONLY | (os.O_EXCL if race.careful else 0)
    if not race.careful:  # the others are first, so that it creates what they have created
        poll(lambda _: race.path("once-0").exists(), FIRST_S)
    mine = []
    for number in range(CREATED):
        try:
            os.close(os.open(race.path(f"once-{number}"), flags, 0o600))
        except FileExistsError:
            continue
        mine.append(number)
    return {"mine": mine}


def replace_file(race: Race) -> dict[str, Any]:
    """Replace a file again and again, or read it meanwhile."""
    path = race.path("newest")
    if race.place.node != race.writer:
        return read_versions(path)
    start = time.monotonic()
    version = 0
    while time.monotonic() < start + REPLACE_S:
        version += 1
        write_version(path, version, race.careful)
    return {"versions": version}


def write_version(path: Path, version: int, by_rename: bool) -> None:
    """Write a version to another file and rename that; or, for a control, write it in place."""
    text = f"{version:08d}\n" * VERSION_LINES
    if by_rename:
        new = path.with_suffix(".tmp")
        new.write_text(text)
        os.replace(new, path)
        return
    with path.open("w") as file:
        time.sleep(GAP_S)
        file.write(text)
        time.sleep(GAP_S)


def read_versions(path: Path) -> dict[str, Any]:
    """Read the file while another node replaces it.

    Returns {"reads", "gaps", "stale"}: reads in all, those that found no file or a part of one, and
    those that had to be repeated because NFS had removed the old version (ESTALE).
    """
    counts = {"reads": 0, "gaps": 0, "stale": 0}
    if not poll(lambda _: path.name in os.listdir(path.parent), FIRST_S):
        return counts
    start = time.monotonic()
    while time.monotonic() < start + REPLACE_S:
        counts["reads"] += 1
        try:
            lines = path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            counts["gaps"] += 1
            continue
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            counts["stale"] += 1
            continue
        counts["gaps"] += len(lines) != VERSION_LINES or len({*lines}) != 1
    return counts


def append_lines(race: Race) -> dict[str, Any]:
    """Append lines to one file, each by one write; return their number."""
    flags = os.O_CREAT | os.O_WRONLY | (os.O_APPEND if race.careful else 0)
    file = os.open(race.path("lines"), flags, 0o600)
    try:
        for number in range(APPENDED):
            line = f"{race.place.node} {number}\n".encode()
            if race.careful:
                os.write(file, line)
            else:
                os.pwrite(file, line, 0)
        os.fsync(file)
    finally:
        os.close(file)
    return {"lines": APPENDED}


def take_lock(race: Race) -> dict[str, Any]:
    """Add 1 to a number in a file, each time under its lock; return how often."""
    lock = os.open(race.path("lock"), os.O_CREAT | os.O_RDWR, 0o600)
    deadline, times = time.monotonic() + LOCK_S, 0
    try:
        if not race.careful:
            write_number(lock, 1)
            return {"times": LOCKED}
        while times < LOCKED and time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_POLL_S)
                continue
            found = os.pread(lock, 16, 0).strip()
            time.sleep(LOCK_POLL_S)  # another that holds the lock too adds to the same number
            write_number(lock, int(found or 0) + 1)
            fcntl.flock(lock, fcntl.LOCK_UN)
            times += 1
    finally:
        os.close(lock)
    return {"times": times}


def write_number(file: int, number: int) -> None:
    """Write the number, until it is on disk."""
    os.pwrite(file, f"{number:15d}\n".encode(), 0)
    os.fsync(file)


def count_traces(race: Race) -> dict[str, int]:
    """Count what the races left: distinct lines, and the number under the lock."""
    counts = {"lines": 0, "number": 0}
    for key, read in (("lines", _count_lines), ("number", _read_number)):
        try:
            counts[key] = read(race)
        except FileNotFoundError:
            continue  # no node took part
    return counts


def _count_lines(race: Race) -> int:
    lines = race.path("lines").read_text(errors="replace").splitlines()
    words = [line.split(" ") for line in lines]
    return len({tuple(pair) for pair in words if len(pair) == 2 and pair[1].isdigit()})


def _read_number(race: Race) -> int:
    text = race.path("lock").read_text(errors="replace").strip()
    return int(text) if text.isdigit() else 0
