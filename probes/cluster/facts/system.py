"""Reads the system of one node as a job sees it: limits, shared memory, room, raylets, settings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probes.cluster.facts.folder_room import find_temporary_folder, read_room
from probes.cluster.facts.process_limits import read_limits, read_thread_room
from probes.cluster.facts.raylets import read_raylets
from probes.cluster.facts.system_files import read_text

SHARED_MEMORY = "/dev/shm"
# What a file of the kernel that is missing, refused or of another form raises.
FAILURES = (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError)


def read_node_system(pid: str = "self", folder: str = "") -> dict[str, Any]:
    """Read this node's system in a Ray worker; see `read_system`."""
    return read_system(find_session, pid, folder)


def find_session() -> tuple[str, str]:
    """Find name and folder of the session of this worker's cluster."""
    import ray

    node = ray._private.worker._global_node
    return node.session_name, node.get_session_dir_path()


def read_system(
    session: Callable[[], tuple[str, str]], pid: str = "self", folder: str = ""
) -> dict[str, Any]:
    """Read the system in parts.  A part that cannot be read is {"unreadable": why}.

    `session` finds name and folder of Ray's session.  `pid` is the process whose limits are read.
    `folder` stands in for the folders of shared memory, of temporary files and of Ray's session,
    for a control.
    """
    parts: dict[str, Callable[[], Any]] = {
        "limits": lambda: read_limits(pid),
        "threads": lambda: read_thread_room(read_limits(pid), pid),
        "shared_memory": lambda: read_room(folder or SHARED_MEMORY),
        "temporary": lambda: read_room(folder or find_temporary_folder()),
        "session": lambda: read_room(folder or session()[1]),
        "raylets": lambda: read_raylets(session()[0]),
        "settings": read_settings,
    }
    return {name: try_reading(read) for name, read in parts.items()}


def try_reading(read: Callable[[], Any]) -> Any:
    """Return what `read` returns, or why it could not: a part must not take the others with it."""
    try:
        return read()
    except FAILURES as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def read_settings(proc: str = "/proc", sys: str = "/sys") -> dict[str, Any]:
    """Read what only informs: memory, swap in use, CPUs, governor, huge pages, NUMA nodes."""
    lines = read_text(Path(proc, "meminfo"))
    memory = dict(re.findall(r"^(\w+):\s+(\d+) kB$", lines, re.MULTILINE))
    governors = {
        read_text(path)
        for path in Path(sys, "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    huge = re.search(r"\[(\w+)\]", read_text(Path(sys, "kernel/mm/transparent_hugepage/enabled")))
    swap = [int(memory[name]) for name in ("SwapTotal", "SwapFree") if name in memory]
    return {
        "ram_gib": int(memory["MemTotal"]) / 2**20 if "MemTotal" in memory else None,
        "swap_gib": round((swap[0] - swap[1]) / 2**20, 2) if len(swap) == 2 else None,
        "cpus": os.cpu_count(),
        "governor": ", ".join(sorted(governors)),
        "huge_pages": huge[1] if huge else "",
        "numa_nodes": len(list(Path(sys, "devices/system/node").glob("node[0-9]*"))),
    }
