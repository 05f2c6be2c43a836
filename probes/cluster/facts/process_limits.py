"""Reads the limits of a process, and how many more threads its user may start.

Sources: proc(5), capabilities(7), getrlimit(2), and the kernel's cgroup-v1/pids and cgroup-v2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNLIMITED = -1  # as RLIM_INFINITY of Python's resource module
ROWS = {
    "open_files": "Max open files",
    "locked_bytes": "Max locked memory",
    "stack_bytes": "Max stack size",
    "processes": "Max processes",
}
IPC_LOCK = 14  # bit of CAP_IPC_LOCK in linux/capability.h: RLIMIT_MEMLOCK does not hold
SYS_ADMIN = 21  # bit of CAP_SYS_ADMIN: RLIMIT_NPROC does not hold
SYS_RESOURCE = 24  # bit of CAP_SYS_RESOURCE: RLIMIT_NPROC does not hold
ALL_IDS = "0 0 4294967295"  # uid_map of the first user namespace: only its capabilities count here


def read_limits(pid: str = "self", proc: str = "/proc") -> dict[str, Any]:
    """Read the limits of a process as {name: [soft, hard]}, and which limits do not hold for it.

    A limit is -1 where there is none.  Raises OSError or ValueError if one cannot be read.
    """
    own = Path(proc, pid)
    text, status = (own / "limits").read_text(), parse_status((own / "status").read_text())
    first_namespace = " ".join((own / "uid_map").read_text().split()) == ALL_IDS
    capabilities = int(status["CapEff"], 16) if first_namespace else 0
    is_root = first_namespace and status["Uid"].split()[0] == "0"
    exempt = is_root or bool(capabilities & (1 << SYS_ADMIN | 1 << SYS_RESOURCE))
    return {
        **{name: parse_limit(text, row) for name, row in ROWS.items()},
        "locks_any": bool(capabilities & 1 << IPC_LOCK),
        "starts_any": exempt,
    }


def parse_limit(text: str, row: str) -> list[int]:
    """Parse soft and hard limit of one row of /proc/PID/limits.  Raises ValueError without it."""
    for line in text.splitlines():
        if line.startswith(f"{row} "):
            soft, hard = line.removeprefix(row).split()[:2]
            return [UNLIMITED if word == "unlimited" else int(word) for word in (soft, hard)]
    raise ValueError(f"/proc/PID/limits has no row {row!r}")


def parse_status(text: str) -> dict[str, str]:
    """Parse /proc/PID/status."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def read_thread_room(
    limits: dict[str, Any], pid: str = "self", proc: str = "/proc", cgroups: str = "/sys/fs/cgroup"
) -> dict[str, int]:
    """Read how many more threads the user of a process may start, by each bound.

    In a container only the container's own threads are seen, so the room may be smaller.
    """
    bounds = read_kernel_room(proc)
    if not limits["starts_any"] and limits["processes"][0] != UNLIMITED:
        uid = parse_status(Path(proc, pid, "status").read_text())["Uid"].split()[0]
        bounds["RLIMIT_NPROC"] = limits["processes"][0] - count_threads(uid, proc)
    for folder in find_pid_cgroups(pid, proc, cgroups):
        most = (folder / "pids.max").read_text().strip()
        if most != "max":
            room = int(most) - int((folder / "pids.current").read_text())
            bounds[f"pids.max of {folder}"] = room
    return {name: max(0, room) for name, room in bounds.items()}


def read_kernel_room(proc: str = "/proc") -> dict[str, int]:
    """Read the room that the kernel's own bounds leave to all users together."""
    # The fourth word is "running/all" threads of the machine, also inside of a container.
    used = int(Path(proc, "loadavg").read_text().split()[3].partition("/")[2])
    files = {"kernel.pid_max": "pid_max", "kernel.threads-max": "threads-max"}
    return {
        name: int(Path(proc, "sys/kernel", file).read_text()) - used for name, file in files.items()
    }


def count_threads(uid: str, proc: str = "/proc") -> int:
    """Count the threads of a user, for the kernel counts threads as processes."""
    count = 0
    for path in Path(proc).glob("[0-9]*/status"):
        try:
            status = parse_status(path.read_text())
        except OSError:
            continue  # it has ended
        if status.get("Uid", "").split()[:1] == [uid]:
            count += int(status.get("Threads", "1"))
    return count


def find_pid_cgroups(pid: str, proc: str, cgroups: str) -> Iterator[Path]:
    """Find the cgroups that bound a process's number of threads: its own, and those above it.

    Where a container does not see the path of its group, the mount itself is its group.
    """
    for line in Path(proc, pid, "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        roots = {"pids": ["pids"], "": ["", "unified"]}
        names = next((roots[name] for name in controllers.split(",") if name in roots), [])
        for root in (Path(cgroups, name) for name in names):
            group = root / path.lstrip("/")
            group = group if group.is_dir() else root
            while True:
                if (group / "pids.max").exists():
                    yield group
                if group == root:
                    break
                group = group.parent
