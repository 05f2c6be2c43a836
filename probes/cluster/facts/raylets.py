"""Finds the raylets on a node that belong to another cluster, among the processes that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

RAYLET = "raylet"  # name of Ray's program on each node
SESSION = re.compile(r"--session[-_]name=(.+)")  # its option; all nodes of a cluster have one value


def read_raylets(session: str, proc: str = "/proc") -> dict[str, Any]:
    """Read the raylets on this node: how many are of `session`, and which are `others`.

    `hidden` is true where processes of other users cannot be read (mount option hidepid).
    """
    own, others = 0, []
    hidden = not Path(proc, "1").exists()
    for folder in Path(proc).glob("[0-9]*"):
        try:
            words = read_words(folder / "cmdline")
            name = (folder / "comm").read_text().strip()
        except PermissionError:
            hidden = True
            continue
        except OSError:
            continue  # it has ended
        if not words or RAYLET not in (name, Path(words[0]).name):
            continue  # a process that has ended, but is not collected, has no words
        found = find_session(words)
        if found == session:
            own += 1
        else:
            others.append({"pid": int(folder.name), "session": found})
    return {"own": own, "others": sorted(others, key=lambda one: one["pid"]), "hidden": hidden}


def read_words(path: Path) -> list[str]:
    """Read the words of a process's command line."""
    return [word.decode(errors="replace") for word in path.read_bytes().split(b"\0") if word]


def find_session(words: list[str]) -> str:
    """Return the session that a raylet's command line names; "" if it names none."""
    return next((match[1] for word in words if (match := SESSION.fullmatch(word))), "")
