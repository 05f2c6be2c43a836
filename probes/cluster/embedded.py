"""Runs an embedded cluster: N raylets on this host, in a process of their own.

The process prints one JSON line with the addresses, or with the `error`.  It ends the cluster when
its standard input ends, so the cluster never outlives the driver, however the driver died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PREFIX, OWNER = "sea-", "seatrial.owner"  # of the folder's name; the file that its owner locks
FOLDER = re.compile(PREFIX + "[a-z0-9_]{8}")  # as mkdtemp ends it
# The same as a whole path: address.py knows the raylets of embedded clusters by it.
OWN_FOLDER = re.compile(f"/tmp/{FOLDER.pattern}(/|$)")
START_SECONDS = 120  # bounds a start that hangs; a sound one takes seconds


class LocalCluster:
    """Driver side of an embedded cluster of `nodes` raylets with one emulated GPU each.

    Raises RuntimeError if they do not start.
    """

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        # A file and not `-m`: the child must not depend on the folder it is started in.
        self._stderr = stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  (`close` closes it)
        self._child = subprocess.Popen(
            [sys.executable, __file__, str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                # A job's `python` must be this one, which has Ray.
                "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_prestart_worker_first_driver": "0",
                # The GPUs are emulated.  A rank that found the host's GPUs would compute there,
                # four ranks on one GPU.  To Ray, -1 is a raylet's only GPU; to CUDA it is none.
                "CUDA_VISIBLE_DEVICES": "-1",
            },
        )
        assert self._child.stdout is not None
        self.info: dict[str, Any] = json.loads(self._child.stdout.readline() or "{}")
        if "address" not in self.info:
            stderr.seek(0)
            last = " ".join(stderr.read().strip().splitlines()[-1:])
            self.close()
            why = self.info.get("error", last)
            raise RuntimeError(f"the cluster of --cluster local:{nodes} did not start: {why}")

    def close(self, seconds: float = 30) -> None:
        """End the cluster; return when its processes and files are gone."""
        self._child.communicate(timeout=seconds)  # the end of its input ends it
        self._stderr.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(nodes: int) -> None:
    """Start the raylets, print their addresses, wait for the end of the input, stop everything."""
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(START_SECONDS)  # a start that hangs must not hang the driver
    # Unix sockets allow some 100 characters, so the folder's name is short.  Ray reads the
    # variable for its sessions, and for the file with the address of "auto": both stay here.
    folder = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix=PREFIX, dir="/tmp")
    hold_folder(folder)
    from ray.cluster_utils import Cluster

    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own output goes to standard error
    cluster = Cluster()
    try:
        port = _free_port()
        resources = {"num_cpus": 4, "num_gpus": 1, "object_store_memory": 100_000_000}
        cluster.add_node(
            **resources, include_dashboard=True, dashboard_port=port, dashboard_host="127.0.0.1"
        )
        for number in range(1, nodes):  # each unpacks runtime environments for itself, as hosts do
            cluster.add_node(**resources, runtime_env_dir_name=f"runtime_resources_{number}")
        signal.alarm(0)
        info = {"address": cluster.address, "dashboard": f"http://127.0.0.1:{port}"}
        print(json.dumps(info), file=stdout, flush=True)
        sys.stdin.read()
    except Exception as error:  # Ray raises many kinds, with lines of its logs after the reason
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(json.dumps({"error": reason}), file=stdout, flush=True)
        raise
    finally:
        cluster.shutdown()
        _kill_session()
        shutil.rmtree(folder, ignore_errors=True)


def hold_folder(folder: str) -> int:
    """Mark a folder as held by this process, however it ends; return the handle of the mark.

    The kernel gives a lock back when its holder ends.  No process that it starts inherits it.
    """
    handle = os.open(os.path.join(folder, OWNER), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def take_folder(folder: str) -> int | None:
    """Take the lock of a folder whose owner has ended; return its handle.

    None if the owner lives, if this user does not own folder and mark, or if one is a link.
    """
    opened: list[int] = []
    try:
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        how = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO would wait for a writer
        opened.append(os.open(OWNER, how, dir_fd=opened[0]))
        states = [os.fstat(handle) for handle in opened]
        is_own = all(state.st_uid == os.geteuid() for state in states)
        if is_own and stat.S_ISREG(states[1].st_mode):
            fcntl.flock(opened[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            return opened.pop()
    except OSError:  # not there, or held
        pass
    finally:
        for handle in opened:
            os.close(handle)
    return None


def _raise_timeout(*_: object) -> None:
    raise TimeoutError(f"the raylets did not start within {START_SECONDS} s")


def _kill_session() -> None:
    """Kill every remaining process of the cluster: all were started in this process's session."""
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):
            if pid != os.getpid() and os.getsid(pid) == os.getsid(0):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
