"""Faults of a node's system: limits, shared memory, a full /tmp, a stray raylet, another clock.

A fault is a pair of functions, as in `faults`.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.lab import network
from tests.lab.cgroups import BoundGroup
from tests.lab.lab import Lab
from tests.lab.link_faults import Action
from tests.lab.node import Node
from tests.lab.shell import LabError, require_machine, sh

MIB = 2**20
SHM_SIZE, TMP_SIZE = "1g", "2g"  # as node_init mounts them
FILLED = 512 * MIB  # of memory, to fill a node's /tmp
LEFT = 0.03  # share of a full /tmp that is free: Ray still unpacks a job's packages there
FULL_FILE = "/tmp/full"
STRAY = "/tmp/stray"  # folder of the other cluster, by which its processes are known
STRAY_PORT = 7399
STRAY_SECONDS = 60  # for another head to start on a busy machine
CLOCK_SOURCE = Path(__file__).with_name("clock_standin.c")


RAYLET_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,
    "addresses": resource.RLIMIT_AS,
    "fsize": resource.RLIMIT_FSIZE,
}
CONTROLLERS = {"pids": "pids", "cpus": "cpuset", "memory": "memory"}


def _number(word: str) -> int:
    if not word.isdigit():
        raise LabError(f"a limit is a whole number, found {word!r}")
    return int(word)


def _limit(lab: Lab, name: str, what: str, value: str) -> str:
    node, number = lab.node(name), _number(value)
    limits: dict[str, Callable[[Lab, Node, int], str]] = {
        "nofile": _limit_files,
        "memlock": _limit_memory,
        "stack": _limit_stack,
        "addresses": _limit_addresses,
        "fsize": _limit_file_size,
        "pids": _limit_processes,
        "cpus": _limit_cpus,
        "memory": _limit_ram,
    }
    if what not in limits:
        raise LabError(f"a limit is one of {', '.join(limits)}, found {what!r}")
    return f"{node.name}: {limits[what](lab, node, number)}"


def _unlimit(lab: Lab, name: str, what: str, _value: str) -> str:
    node = lab.node(name)
    if what in RAYLET_LIMITS and node.pid:
        kind = RAYLET_LIMITS[what]
        resource.prlimit(raylet_of(node), kind, resource.prlimit(node.pid, kind))
    elif what == "memlock":
        node.plant({})
        restart_ray(lab, node)
    elif what in CONTROLLERS:
        BoundGroup(lab.name, node.index, CONTROLLERS[what]).remove()
        if node.pid:
            node.run("umount", "-R", "-l", "/sys/fs/cgroup", check=False)
    return f"{node.name}: {what} as before"


def _limit_files(_lab: Lab, node: Node, value: int) -> str:
    _limit_raylet(node, "nofile", value)
    return f"Ray's next workers may open {value} files"


def _limit_stack(_lab: Lab, node: Node, value: int) -> str:
    _limit_raylet(node, "stack", value * 1024)
    return f"the stack of Ray's next workers may have {value} KiB"


def _limit_addresses(_lab: Lab, node: Node, value: int) -> str:
    _limit_raylet(node, "addresses", value * MIB)
    return f"Ray's next workers may have {value} MiB of addresses"


def _limit_file_size(_lab: Lab, node: Node, value: int) -> str:
    _limit_raylet(node, "fsize", value * MIB)
    return f"Ray's next workers may write files of {value} MiB"


def _limit_raylet(node: Node, what: str, value: int) -> None:
    """Lower the raylet's limit: its next workers inherit it."""
    raylet, kind = raylet_of(node), RAYLET_LIMITS[what]
    _, hard = resource.prlimit(raylet, kind)
    resource.prlimit(raylet, kind, (value, hard))


def _limit_memory(lab: Lab, node: Node, value: int) -> str:
    """Restart Ray without the right to lock memory: root is not bound by the limit with it."""
    limit = f"--memlock={value * 1024}:"  # the soft limit: a higher hard one needs another right
    node.plant({"before": ["prlimit", limit, "setpriv", "--bounding-set=-ipc_lock"]})
    restart_ray(lab, node)
    return f"Ray's processes may lock {value} KiB"


def _limit_processes(lab: Lab, node: Node, value: int) -> str:
    """Bound the node's threads by a cgroup that the node sees; root is not bound by `ulimit -u`."""
    _bound(lab, node, "pids", value, more=True)
    return f"at most {value} threads more than now"


def _limit_cpus(lab: Lab, node: Node, value: int) -> str:
    _bound(lab, node, "cpuset", f"0-{value - 1}")
    return f"a CPU set of {value}"


def _limit_ram(lab: Lab, node: Node, value: int) -> str:
    _bound(lab, node, "memory", value * MIB)
    return f"a cgroup of {value} MiB"


def _bound(lab: Lab, node: Node, controller: str, value: int | str, *, more: bool = False) -> None:
    """Bound the node's processes by a cgroup that the node sees."""
    group = BoundGroup(lab.name, node.index, controller)
    group.limit(node.group.pids(), value, more=more)
    node.run("mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup")
    folder = "/sys/fs/cgroup" if group.version == 2 else f"/sys/fs/cgroup/{controller}"
    node.run("mkdir", "-p", folder)
    options = [] if group.version == 2 else ["-o", controller]
    kind = "cgroup2" if group.version == 2 else "cgroup"
    node.run("mount", "-t", kind, *options, "cgroup", folder)


def raylet_of(node: Node) -> int:
    """Return the host number of the node's raylet."""
    for pid in node.group.pids():
        if _read(pid, "comm").strip() == "raylet" and STRAY not in _read(pid, "environ"):
            return pid
    raise LabError(f"no raylet runs on {node.name}")


def _read(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def restart_ray(lab: Lab, node: Node) -> None:
    node.power_off()
    lab.start_ray([node])


def _shrink_shm(lab: Lab, name: str, size: str) -> str:
    if not re.fullmatch(r"\d+[kmg]", size):
        raise LabError(f"a size is written as mount does (64m, 1g), found {size!r}")
    node = lab.node(name)
    node.run("mount", "-o", f"remount,size={size}", "/dev/shm")
    return f"{node.name}: /dev/shm has {size}"


def _full_shm(lab: Lab, name: str, _size: str) -> str:
    return _shrink_shm(lab, name, SHM_SIZE) if lab.node(name).pid else f"{name}: off"


def _fill_tmp(lab: Lab, name: str) -> str:
    node = lab.node(name)
    size = os.statvfs(f"/proc/{node.pid}/root/tmp")
    used = (size.f_blocks - size.f_bfree) * size.f_frsize
    whole = used + FILLED
    node.run("mount", "-o", f"remount,size={whole}", "/tmp")
    node.run("fallocate", "-l", str(int(whole * (1 - LEFT)) - used), FULL_FILE)
    return f"{node.name}: {1 - LEFT:.0%} of /tmp is in use"


def _empty_tmp(lab: Lab, name: str) -> str:
    node = lab.node(name)
    if node.pid:
        node.run("rm", "-f", FULL_FILE)
        node.run("mount", "-o", f"remount,size={TMP_SIZE}", "/tmp")
    return f"{node.name}: /tmp has room again"


def _start_stray(lab: Lab, name: str) -> str:
    node = lab.node(name)
    if node.index == 0:
        raise LabError("node0's driver would find two clusters; start it on another node")
    here = network.address("eth0", node.index)
    options = ["--head", "--port", str(STRAY_PORT), "--node-ip-address", here]
    options += ["--num-cpus", "0", "--num-gpus", "0", "--object-store-memory", "80000000"]
    options += ["--min-worker-port", "0", "--max-worker-port", "0", "--disable-usage-stats"]
    options += ["--include-dashboard", "false", "--ray-client-server-port", "7398"]
    command = ["env", f"RAY_TMPDIR={STRAY}", *node.ray_program(), "start", *options]
    try:
        node.run(*command, "--temp-dir", STRAY, seconds=STRAY_SECONDS)
    except BaseException:
        _end_stray(lab, name)
        raise
    return f"{node.name}: a raylet of another cluster runs"


def _end_stray(lab: Lab, name: str) -> str:
    node = lab.node(name)
    deadline = time.monotonic() + STRAY_SECONDS
    while pids := list(_find_stray(node)):
        if time.monotonic() > deadline:
            raise LabError(f"processes {pids} of the other cluster on {node.name} do not die")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    if node.pid:
        node.run("rm", "-rf", STRAY)
    return f"{node.name}: one raylet again"


def _find_stray(node: Node) -> Iterator[int]:
    """Find the processes of the other cluster: each inherits its variable."""
    return (pid for pid in node.group.pids() if f"RAY_TMPDIR={STRAY}" in _read(pid, "environ"))


def _set_clock(lab: Lab, name: str, seconds: str) -> str:
    node, ahead = lab.node(name), _number(seconds.removeprefix("+").removesuffix("s"))
    require_machine(compiler=True)
    library = lab.home / "clock.so"
    sh("cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(CLOCK_SOURCE))
    preload = {"LD_PRELOAD": str(library), "SEATRIAL_LAB_CLOCK": str(ahead)}
    node.plant({"environment": preload})
    restart_ray(lab, node)
    return f"{node.name}: the clock of Ray's workers is {ahead} s ahead"


def _right_clock(lab: Lab, name: str, _seconds: str) -> str:
    node = lab.node(name)
    node.plant({})
    restart_ray(lab, node)
    return f"{node.name}: the clock is right"


# name: (arguments, explanation, (break, heal)), as in `faults`
SYSTEM_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "limit": (
        ["node", "what", "value"],
        "NODE's workers may open VALUE files (`nofile`), lock VALUE KiB (`memlock`; Ray restarts), "
        "have a stack of VALUE KiB (`stack`), VALUE MiB of addresses (`addresses`) or in a file "
        "(`fsize`), start VALUE more threads than now (`pids`), run on "
        "VALUE CPUs (`cpus`, a CPU set), or use VALUE MiB of memory (`memory`, a cgroup).",
        (_limit, _unlimit),
    ),
    "shm": (["node", "size"], "NODE's /dev/shm has SIZE, as 64m.", (_shrink_shm, _full_shm)),
    "tmp-full": (["node"], "97 % of NODE's /tmp is in use.", (_fill_tmp, _empty_tmp)),
    "stray-raylet": (
        ["node"],
        "A raylet of another Ray cluster runs on NODE.",
        (_start_stray, _end_stray),
    ),
    "clock": (
        ["node", "seconds"],
        "The clock of NODE's workers is SECONDS ahead; Ray restarts there.",
        (_set_clock, _right_clock),
    ),
}
