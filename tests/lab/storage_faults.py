"""Faults of the shared folder on one node: of its own, late, slow, read-only, full, or away.

A fault is a pair of functions, as in `faults`.  What is mounted over the folder is seen at once by
the processes that run there: they have the node's mounts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.cgroups import DiskGroup
from tests.lab.lab import Lab
from tests.lab.link_faults import Action
from tests.lab.node import SHARED, Node
from tests.lab.shell import LabError

LATE = Path(__file__).with_name("late_copy.py")
LATE_SECONDS = ("2", "90")  # sound, and longer than any cache of NFS
SLOW_RATE = 4 * 2**20  # bytes/s: a twentieth of a slow disk
FULL_SIZE = "8m"  # room for small files, and for no shard
COPY_SECONDS = 30  # for the first copy of what the folder holds
END_SECONDS = 10  # for one process to end on a busy machine
KINDS = ("private", "late", "later", "slow", "readonly", "full", "unmounted")


def _break_shared(lab: Lab, name: str, kind: str) -> str:
    node = lab.node(name)
    if kind not in KINDS:
        raise LabError(f"the shared folder can be {', '.join(KINDS)}, found {kind!r}")
    if kind == "slow":
        disk = os.stat(lab.home / "shared").st_dev
        device = f"{os.major(disk)}:{os.minor(disk)}"
        DiskGroup(lab.name, node.index).limit(node.group.pids(), device, SLOW_RATE)
        return f"{node.name}: reads and writes {SLOW_RATE // 2**20} MiB/s of the disk"
    if kind == "readonly":
        node.run("mount", "-o", "remount,bind,ro", SHARED)
    elif kind == "unmounted":
        node.run("umount", "-l", SHARED)
    elif kind == "full":
        node.run("mount", "-t", "tmpfs", "-o", f"size={FULL_SIZE}", "tmpfs", SHARED)
    else:
        own = _own_folder(node)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        if kind != "private":
            _start_copying(lab, node, LATE_SECONDS[kind == "later"])
        node.run("mount", "--bind", str(own), SHARED)
    return f"{node.name}: {SHARED} is {kind}"


def _own_folder(node: Node) -> Path:
    return node.work / "own-shared"


def _start_copying(lab: Lab, node: Node, seconds: str) -> None:
    """Start to copy between the node's folder and the shared one; return after the first copy."""
    words = [str(LATE), str(lab.home / "shared"), str(_own_folder(node)), seconds]
    started = node.work / "late-copy.log"
    with started.open("wb") as out:
        subprocess.run(  # --fork: it has no parent here, it outlives this command
            ["setsid", "--fork", *node.join(), sys.executable, "-I", "-S", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=True,
        )
    deadline = time.monotonic() + COPY_SECONDS
    while "copied" not in started.read_text():
        if time.monotonic() > deadline:
            raise LabError(f"{LATE.name} did not start: {started.read_text()[-300:]}")
        time.sleep(0.05)


def _stop_copying(node: Node) -> None:
    deadline = time.monotonic() + END_SECONDS
    while pids := [pid for pid in node.group.pids() if _copies(pid)]:
        if time.monotonic() > deadline:
            raise LabError(f"processes {pids} that copy for {node.name} do not die")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _copies(pid: int) -> bool:
    """Return whether a process is the copier, and not one that has ended and is not yet reaped."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(LATE).encode() in words


def _heal_shared(lab: Lab, name: str, kind: str) -> str:
    node = lab.node(name)
    if kind == "slow":
        DiskGroup(lab.name, node.index).remove()
    elif node.pid is None:
        return f"{node.name}: off"  # its mounts are gone; those of its next start are right
    elif kind == "readonly":
        node.run("mount", "-o", "remount,bind,rw", SHARED)
    elif kind == "unmounted":
        node.run("mount", "--bind", f"{lab.home}/shared", SHARED)
    else:
        _stop_copying(node)
        node.run("umount", "-l", SHARED)
        shutil.rmtree(_own_folder(node), ignore_errors=True)
    return f"{node.name}: {SHARED} is the shared folder again"


# name: (arguments, explanation, (break, heal)), as in `faults`
STORAGE_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "shared": (
        ["node", "kind"],
        f"NODE's shared folder is KIND.  `private` is a folder of its own.  `late` and `later` are "
        f"one that gets the files of others, and gives its own, after {' and '.join(LATE_SECONDS)} "
        "s.  `slow`: what it reads from and writes to the disk, this folder's and any other's, "
        f"has {SLOW_RATE // 2**20} MiB/s.  `full` is a file system of its own without room.",
        (_break_shared, _heal_shared),
    ),
}
