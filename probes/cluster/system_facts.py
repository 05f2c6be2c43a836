"""Reads limits, room, processes, clocks and devices of the node, as a worker meets them."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.ask import TASK_SECONDS, ActorSet, on_node
from probes.cluster.ray_internals import read_session

RDMA_SYSFS = "/sys/class/infiniband"
BOOT_ID = "/proc/sys/kernel/random/boot_id"  # of each start of the kernel


def read_text(path: Path) -> str:
    """Read a file of the kernel or the system, stripped of blanks; "" if it is unreadable."""
    with suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


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
    return {
        **{name: parse_limit(text, row) for name, row in ROWS.items()},
        "locks_any": bool(capabilities & 1 << IPC_LOCK),
        "starts_any": is_root or bool(capabilities & (1 << SYS_ADMIN | 1 << SYS_RESOURCE)),
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
    for folder in find_cgroups("pids", pid, proc, cgroups):
        if not (folder / "pids.max").exists():
            continue
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
    bounds = {name: Path(proc, "sys/kernel", file).read_text() for name, file in files.items()}
    return {name: int(text) - used for name, text in bounds.items()}


def count_threads(uid: str, proc: str = "/proc") -> int:
    """Count the threads of a user, for the kernel counts threads as processes."""
    count = 0
    for path in Path(proc).glob("[0-9]*/status"):
        status = parse_status(read_text(path))  # of one that has ended: nothing
        if status.get("Uid", "").split()[:1] == [uid]:
            count += int(status.get("Threads", "1"))
    return count


def find_cgroups(controller: str, pid: str, proc: str, cgroups: str) -> Iterator[Path]:
    """Find the cgroups that bound what a process uses (v1 and v2): its own, and those above it.

    Where a container does not see the path of its group, the mount itself is its group.
    """
    for line in Path(proc, pid, "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        roots = {controller: [controller], "": ["", "unified"]}
        names = next((roots[name] for name in controllers.split(",") if name in roots), [])
        for root in (Path(cgroups, name) for name in names):
            group = root / path.lstrip("/")
            group = group if group.is_dir() else root
            while True:
                yield group
                if group == root:
                    break
                group = group.parent


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
    with suppress(FileNotFoundError):
        return tempfile.gettempdir()
    return "/tmp"


def name_file_system(path: str, mounts: str) -> str:
    """Name the file system of a folder by kind and mount point: `tmpfs at /tmp`; "" if unknown."""
    found = mount_of(read_text(Path(mounts)), path)
    return f"{found[1][0]} at {found[2]}" if found else ""


def mount_of(text: str, folder: str) -> tuple[list[str], list[str], Path] | None:
    """Find the mount of a folder in the text of mountinfo; None if there is none.

    Returns the words before and after the dash, and the mount point.
    """
    real = Path(os.path.realpath(folder))
    found, longest = None, -1
    for line in text.splitlines():
        before, _, after = (part.split() for part in line.partition(" - "))
        if len(before) < 5 or len(after) < 2:
            continue
        point = Path(before[4].replace(r"\040", " "))
        deep = len(point.parts)  # of two at one point, the later mount is seen
        if deep >= longest and (point == real or point in real.parents):
            found, longest = (before, after, point), deep
    return found


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
        found = next((match[1] for word in words if (match := SESSION.fullmatch(word))), "")
        if found == session:
            own += 1
        else:
            others.append({"pid": int(folder.name), "session": found})
    return {"own": own, "others": sorted(others, key=lambda one: one["pid"]), "hidden": hidden}


def read_words(path: Path) -> list[str]:
    """Read the words of a process's command line."""
    return [word.decode(errors="replace") for word in path.read_bytes().split(b"\0") if word]


SHARED_MEMORY = "/dev/shm"
# What a file of the kernel that is missing, refused or of another form raises.
FAILURES = (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError)


def read_node_system(pid: str = "self", folder: str = "") -> dict[str, Any]:
    """Read this node's system in a Ray worker; see `read_system`."""
    return read_system(read_session, pid, folder)


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


EXCHANGES = 8  # with each node: some of them meet no other work
MOST_EXCHANGES = 20  # with a node that is busy, or far away
SHORT_SECONDS = 0.01  # half of a round trip; a shorter one changes no verdict on 100 ms
ANSWER_SECONDS = 5.0  # of one exchange; a node that takes longer is not asked again
CLOCK = "CLOCK_REALTIME"


@dataclass(frozen=True)
class ClockOffset:
    """Clock of a node less the driver's (s), and the most that this may be wrong (s)."""

    seconds: float
    error: float


class ClockReader:
    """Ray actor on one node that reads its clock."""

    def read(self, clock: str) -> float:
        """Read a clock of this node (s), by its name in `time`."""
        return time.clock_gettime(getattr(time, clock))


class ClockReaders(ActorSet):
    """The readers of these nodes.  `close` ends them; so does the end of the job."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self.actors, self.errors = {id: on_node(ClockReader, id).remote() for id in nodes}, {}

    def wait_until_up(self) -> list[str]:
        """Wait until the readers answer; return the nodes where one does."""
        return list(self.call_each("read", dict.fromkeys(self.actors, (CLOCK,)), TASK_SECONDS))

    def compare(self, nodes: Iterable[str], clock: str = CLOCK) -> dict[str, ClockOffset]:
        """Compare the clocks of these nodes with the driver's; silent ones are left out."""
        import ray

        found = {}
        for id in nodes:
            read = self.actors[id].read

            def ask(read: Any = read) -> float:
                return float(ray.get(read.remote(clock), timeout=ANSWER_SECONDS))

            with suppress(ray.exceptions.RayError):
                if offset := exchange_times(ask):
                    found[id] = offset
        return found


def exchange_times(
    ask: Callable[[], float], now: Callable[[], float] = time.time
) -> ClockOffset | None:
    """Ask for a node's clock several times; return the offset by the shortest exchange, if any."""
    best = None
    for count in range(1, MOST_EXCHANGES + 1):
        sent = now()
        answer = ask()
        error = (now() - sent) / 2
        # A negative trip is a driver's clock that was set meanwhile.
        if error >= 0 and (best is None or error < best.error):
            best = ClockOffset(answer - sent - error, error)
        if best and count >= EXCHANGES and best.error <= SHORT_SECONDS:
            break
    return best


VERBS_SYSFS = "/sys/class/infiniband_verbs"
VERBS_DEVICES = "/dev/infiniband"
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")  # of the driver, and of Mellanox before it
NVIDIA_DRIVER = "/proc/driver/nvidia/version"
NO_VERBS = "it has no uverbs device: the module ib_uverbs may not be loaded"


def read_rdma_access(
    devices: str = VERBS_DEVICES, verbs: str = VERBS_SYSFS, root: str = RDMA_SYSFS
) -> dict[str, str]:
    """Read of each RDMA device why a worker cannot open its file in `devices`, "" if it can.

    libibverbs finds the file by the device's name in `verbs` (kernel
    Documentation/infiniband/user_verbs.rst).
    """
    files = {read_text(path / "ibdev"): path.name for path in Path(verbs).glob("uverbs*")}
    return {
        path.name: _try_device(Path(devices, files[path.name])) if path.name in files else NO_VERBS
        for path in sorted(Path(root).glob("*"))
    }


def read_peer_memory(modules: str = "/sys/module", driver: str = NVIDIA_DRIVER) -> str:
    """Read by what a NIC reaches the memory of NVIDIA's GPUs; "" for nothing, or no driver.

    The driver's open kernel modules export it as DMA-BUF (NVIDIA's GPUDirect RDMA guide).
    """
    for name in PEER_MODULES:
        if Path(modules, name).exists():
            return name
    return "DMA-BUF" if "Open Kernel Module" in read_text(Path(driver)) else ""


def _try_device(file: Path) -> str:
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{file}: {error.strerror}"
    return ""
