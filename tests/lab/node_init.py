"""Runs as process 1 of a lab node: mounts the node's own files, starts Ray, reaps orphans.

It runs inside the node's namespaces with one argument, the JSON text of its spec. Killing it is a
power loss: the kernel then kills every process of the node. Uses the standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def mount(*arguments: str) -> None:
    """Run mount(8), quietly. Raises CalledProcessError when it fails."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def private_folder(folder: str, options: str, keep: list[str], work: Path) -> None:
    """Mount an empty folder of the node's own, in which the paths to `keep` can still be read."""
    hidden = [path for path in keep if path.startswith(f"{folder}/")]
    old = work / "host-folder"
    old.mkdir(exist_ok=True)
    mount("--rbind", folder, str(old))
    mount("-t", "tmpfs", "-o", options, "tmpfs", folder)
    for path in hidden:
        if os.path.exists(path):
            continue  # it is inside one that is kept already
        os.makedirs(path)
        mount("--bind", str(old / path.removeprefix(f"{folder}/")), path)
    subprocess.run(["umount", "-R", "-l", str(old)], check=True)


def closed_folders(paths: list[str]) -> list[str]:
    """List the outermost folders above these paths that other users cannot enter, as /root."""
    above = [[str(parent) for parent in reversed(Path(path).parents)] for path in paths]
    closed = [
        next((folder for folder in folders if not os.stat(folder).st_mode & 0o001), "")
        for folders in above
    ]
    return sorted({*closed} - {""})


def furnish(spec: dict[str, Any]) -> None:
    """Set up host name, boot id, /etc/hosts, /tmp, /dev/shm, /sys and /shared of this node."""
    socket.sethostname(spec["hostname"])
    work = Path(spec["work"])
    mount("--make-rprivate", "/")
    mount("-t", "sysfs", "sysfs", "/sys")  # shows this namespace's interfaces, not the host's
    mount("--bind", str(work / "hosts"), "/etc/hosts")
    mount("--bind", str(work / "boot_id"), "/proc/sys/kernel/random/boot_id")
    # Other users of a node can read the programs there: only this machine's own homes are closed.
    for folder in closed_folders(spec["keep"]):
        private_folder(folder, "mode=755,size=64m", spec["keep"], work)
    private_folder("/tmp", "mode=1777,size=2g", spec["keep"], work)
    mount("-t", "tmpfs", "-o", "size=1g", "tmpfs", "/dev/shm")
    mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", spec["shared_at"])  # shows if /shared is hidden
    mount("--bind", spec["shared"], spec["shared_at"])
    hide_nvml()


def nvml_libraries(cache: str) -> list[str]:
    """Return the paths of NVML's library in the output of `ldconfig -p`."""
    lines = (line.partition(" => ") for line in cache.splitlines())
    return [path.strip() for name, _, path in lines if "libnvidia-ml.so" in name and path]


def hide_nvml() -> None:
    """Hide the host's NVML: a lab's GPUs are emulated, and NVML would report the host's own."""
    said = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True)
    for path in nvml_libraries(said.stdout):
        mount("--bind", "/dev/null", os.path.realpath(path))


def wait_for_head(address: str, seconds: float = 60) -> None:
    """Wait until the head's port accepts, so that no raylet starts in vain."""
    host, port = address.split(":")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


def start_ray(spec: dict[str, Any]) -> None:
    """Start Ray, on a worker once the head listens."""
    log = open(Path(spec["work"]) / "ray-start.log", "ab")  # noqa: SIM115  (open as long as we run)
    if not spec["head"]:
        wait_for_head(spec["head_address"])
    subprocess.Popen(
        spec["ray"], env=spec["env"], cwd="/", stdout=log, stderr=log, stdin=subprocess.DEVNULL
    )


def reap_for_ever() -> None:
    """Collect dead orphans, as process 1 must; SIGTERM ends the node."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


def main() -> None:
    """Set up the node, start Ray, reap orphans."""
    spec = json.loads(sys.argv[1])
    furnish(spec)
    (Path(spec["work"]) / "furnished").touch()
    if spec["ray"]:
        start_ray(spec)
    reap_for_ever()


if __name__ == "__main__":
    main()
