"""Manages CPU control groups, version 1 or 2: one group per lab, one per node inside it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.lab.shell import LabError

PERIOD_US = 100_000


def root(controller: str = "cpu") -> Path:
    """Return the mount point of the hierarchy that has a controller; LabError if none has."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and controller in options.split(","):
            return Path(where)
        if kind == "cgroup2" and controller in _words(Path(where) / "cgroup.controllers"):
            return Path(where)
    raise LabError(f"no control group hierarchy with the {controller} controller is mounted")


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


class NodeGroup:
    """Control group of one node: holds all its processes, and limits their share of a CPU."""

    def __init__(self, lab: str, node: int) -> None:
        self.lab_path = root() / f"lab-{lab}"
        self.path = self.lab_path / f"node{node}"

    def make(self) -> None:
        """Create the group; on version 2 enable the cpu controller in it."""
        for parent in (self.path.parent.parent, self.path.parent):
            parent.mkdir(exist_ok=True)
            if (control := parent / "cgroup.subtree_control").exists():
                control.write_text("+cpu")
        self.path.mkdir(exist_ok=True)

    def limit(self, share: float | None) -> None:
        """Limit the node to `share` of one CPU (0.2 is 20 %); None removes the limit."""
        quota = None if share is None else max(1000, int(share * PERIOD_US))
        if (v1 := self.path / "cpu.cfs_quota_us").exists():
            v1.write_text(str(-1 if quota is None else quota))
        else:
            (self.path / "cpu.max").write_text(f"{quota or 'max'} {PERIOD_US}")

    def pids(self) -> list[int]:
        """List the node's processes, as numbered on the host."""
        return [int(word) for word in _words(self.path / "cgroup.procs")]

    def init_pid(self) -> int | None:
        """Return the host number of the node's process 1; None when the node is off."""
        for pid in self.pids():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            numbers = next(li for li in status.splitlines() if li.startswith("NSpid:")).split()
            if len(numbers) > 2 and numbers[-1] == "1" and "\nState:\tZ" not in status:
                return pid
        return None

    def kill(self) -> None:
        """Kill every process of the node with SIGKILL."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def remove(self) -> None:
        """Remove the group, and the lab's when this was the last node."""
        for path in (self.path, self.lab_path):
            try:
                path.rmdir()
            except OSError:
                return


# controller: (file of version 1, of version 2, what bounds nothing)
BOUNDS = {
    "pids": ("pids.max", "pids.max", "max"),
    "cpuset": ("cpuset.cpus", "cpuset.cpus", "\n"),
    "memory": ("memory.limit_in_bytes", "memory.max", "max"),
}


class BoundGroup:
    """Bound of one node's threads, CPUs or memory.  On version 2 it is the node's own group."""

    def __init__(self, lab: str, node: int, controller: str) -> None:
        self.controller = controller
        self.root = root(controller)
        self.lab_path = self.root / f"lab-{lab}"
        self.path = self.lab_path / f"node{node}"

    @property
    def version(self) -> int:
        """Version of the hierarchy, 1 or 2."""
        return 2 if (self.root / "cgroup.controllers").exists() else 1

    @property
    def file(self) -> Path:
        """File of the node's bound."""
        return self.path / BOUNDS[self.controller][self.version - 1]

    def limit(self, pids: list[int], bound: int | str, *, more: bool = False) -> None:
        """Bound these processes, and those that they start; `more` than they use now."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.version == 2:
            for parent in (self.root, self.lab_path):
                (parent / "cgroup.subtree_control").write_text(f"+{self.controller}")
        elif self.controller == "cpuset":  # a new group has neither CPUs nor memory
            for group in (self.lab_path, self.path):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (group / name).write_text((self.root / name).read_text())
        if self.version == 1:
            _move(pids, self.path)
        used = int((self.path / f"{self.controller}.current").read_text()) if more else 0
        self.file.write_text(str(used + int(bound) if more else bound))

    def remove(self) -> None:
        """Remove the bound; the processes go on without it."""
        if not self.path.exists():
            return
        if self.version == 2:
            self.file.write_text(BOUNDS[self.controller][2])
            return
        _move([int(word) for word in _words(self.path / "cgroup.procs")], self.root)
        for path in (self.path, self.lab_path):
            with suppress(OSError):  # another node's bound is in it
                path.rmdir()


class DiskGroup:
    """Bound of what one node reads from and writes to a disk.  On version 2 it is its own group."""

    def __init__(self, lab: str, node: int) -> None:
        try:
            self.root, self.version = root("blkio"), 1
        except LabError:
            self.root, self.version = root("io"), 2
        self.lab_path = self.root / f"lab-{lab}"
        self.path = self.lab_path / f"node{node}"

    def limit(self, pids: list[int], disk: str, rate: int) -> None:
        """Let these processes, and those that they start, read and write `rate` bytes/s each.

        `disk` is its device number, as 254:0.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if self.version == 2:
            for parent in (self.root, self.lab_path):
                (parent / "cgroup.subtree_control").write_text("+io")
            (self.path / "io.max").write_text(f"{disk} rbps={rate} wbps={rate}")
            return
        for way in ("read", "write"):
            (self.path / f"blkio.throttle.{way}_bps_device").write_text(f"{disk} {rate}")
        _move(pids, self.path)

    def remove(self) -> None:
        """Remove the bound; the processes go on without it."""
        if not self.path.exists():
            return
        if self.version == 2:
            bounded = (self.path / "io.max").read_text().split()[:1]
            for disk in bounded:
                (self.path / "io.max").write_text(f"{disk} rbps=max wbps=max")
            return
        _move([int(word) for word in _words(self.path / "cgroup.procs")], self.root)
        for path in (self.path, self.lab_path):
            with suppress(OSError):  # another node's bound is in it
                path.rmdir()


def bounds(lab: str) -> list[BoundGroup | DiskGroup]:
    """List the bounds of a lab's nodes that are left."""
    found: list[BoundGroup | DiskGroup] = []
    for controller in (*BOUNDS, "blkio", "io"):
        try:
            path = root(controller) / f"lab-{lab}"
        except LabError:
            continue
        for each in sorted(path.glob("node*")) if path.exists() else []:
            node = int(each.name.removeprefix("node"))
            group = BoundGroup(lab, node, controller) if controller in BOUNDS else None
            found.append(group or DiskGroup(lab, node))
    return found


def _move(pids: list[int], group: Path) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended
            (group / "cgroup.procs").write_text(str(pid))
