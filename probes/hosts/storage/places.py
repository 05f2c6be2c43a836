"""Makes, reads and removes a folder for files of one round, on each node by itself.

The driver writes nothing: it may be a laptop, or run as another user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.facts.folder_room import find_temporary_folder, read_room
from probes.cluster.shared_folder import remove_later

# Longest time (s) that a folder outlives its driver.  A round has a dozen calls, of up to 90 s
# each where nodes do not answer.
FOLDER_SECONDS = 1200
POLL_S, MAX_POLL_S = 0.01, 0.5  # s between two looks at a folder: often at first, then rarely
LINE_BYTES = 64  # of one line of a file
LINES = 64  # of a file that others read: 4 KiB, a block
NEVER_SEEN, OTHER_CONTENT = "it does not see", "it reads other content in"
MEET_S = 3.0  # s that a node waits for the others; then it goes on alone


@dataclass(frozen=True)
class Place:
    """Folder `name` of one round on node `node` (its id).

    It is in `parent`, or in the node's temporary folder if that is "".
    """

    parent: str
    name: str
    node: str

    @property
    def folder(self) -> Path:
        """Path on the node."""
        return Path(self.parent or find_temporary_folder()) / self.name


def open_place(place: Place, seconds: int = FOLDER_SECONDS) -> dict[str, Any]:
    """Make the folder, and write a file into it that others can read.

    Returns {"error", "room"}: why that failed, or "", and the room as in `read_room`.  The node
    removes the folder by itself after `seconds`.
    """
    folder = place.folder
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        remove_later(str(folder), seconds)
        os.listdir(folder)  # what a cache keeps of the folder is now older than all files
        write_text(folder / f"from-{place.node}", make_text(place, place.node))
        error = ""
    except (OSError, subprocess.SubprocessError) as problem:
        error = getattr(problem, "strerror", "") or str(problem)
    return {"error": error, "room": read_room(str(folder.parent))}


def close_place(place: Place) -> None:
    """Remove the folder, with all that is in it."""
    shutil.rmtree(place.folder, ignore_errors=True)


def make_text(place: Place, node: str) -> str:
    """Make the content of a node's file: lines that no other round and no other node has."""
    return (f"{place.name} {node} ".ljust(LINE_BYTES - 1, ".") + "\n") * LINES


def write_text(path: Path, text: str) -> None:
    """Write a file, with its data on disk when it is closed."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_others(wait_s: float, ask: tuple[Place, list[str]]) -> dict[str, dict[str, Any]]:
    """Read the files of other nodes, as soon as they are seen, for up to `wait_s`.

    `ask` is this node's place, and the ids of the others.  Returns {"seconds", "problem"} of each:
    how long it took, and "" or what is wrong.
    """
    place, others = ask
    answers: dict[str, dict[str, Any]] = {
        node: {"seconds": None, "problem": NEVER_SEEN} for node in others
    }

    def look(seconds: float) -> bool:
        try:
            names, problem = os.listdir(place.folder), ""
        except FileNotFoundError:
            names, problem = [], ""
        except OSError as error:
            names, problem = [], error.strerror or str(error)
        for node in [node for node in others if answers[node]["problem"]]:
            found = problem or _read_problem(place, node, names)
            answers[node] = {"seconds": None if found else seconds, "problem": found}
        return not any(answer["problem"] for answer in answers.values())

    poll(look, wait_s)
    return answers


def _read_problem(place: Place, node: str, names: list[str]) -> str:
    """Read the file of a node, which must be among the names in the folder; return what is wrong.

    A list of names is asked of the server; a name alone may come from a cache.
    """
    name = f"from-{node}"
    if name not in names:
        return NEVER_SEEN
    try:
        found = (place.folder / name).read_text(errors="replace")
    except FileNotFoundError:
        return NEVER_SEEN
    except OSError as problem:
        return problem.strerror or str(problem)
    return "" if found == make_text(place, node) else OTHER_CONTENT


def poll(is_done: Callable[[float], bool], wait_s: float) -> bool:
    """Call a function with the seconds that have passed, until it returns true or time is up."""
    start, pause = time.monotonic(), POLL_S
    while not is_done(seconds := time.monotonic() - start):
        if seconds > wait_s:
            return False
        time.sleep(pause)
        pause = min(2 * pause, MAX_POLL_S)
    return True


def meet_others(place: Place, what: str, others: Iterable[str]) -> None:
    """Wait until the other nodes come to the same step, so that all take it together."""
    (place.folder / f"{what}-{place.node}").touch()
    wanted = {f"{what}-{node}" for node in others}

    def all_here(_: float) -> bool:
        with contextlib.suppress(OSError):
            return wanted.issubset(os.listdir(place.folder))
        return False

    poll(all_here, MEET_S)


def read_rooms(opened: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Map node id to the room of the folder, for each node that could read it."""
    return {id: one["room"] for id, one in opened.items() if "free_gib" in one["room"]}
