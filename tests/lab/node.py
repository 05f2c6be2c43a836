"""Starts one node, runs commands in it, and switches it off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from tests.lab import network, nvml
from tests.lab.cgroups import NodeGroup
from tests.lab.shell import LabError
from tests.support.paths import REPO
from tests.support.processes import read_words, runs_program

PORT = 6379
PROGRAMS = (sys.prefix, sys.base_prefix)
TAPES = (
    [path] if (path := os.environ.get("SEATRIAL_TEST_TAPES")) else []
)  # see tests/recordings/tape
# With one GPU for all: each process is a host to NCCL, and packages may be in folders of their own.
ONE_GPU = Path(__file__).with_name("one_gpu")
HOST_PATHS = [str(ONE_GPU), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
DEATH_SECONDS = 20  # until killed processes are gone: far more than a busy machine takes
SHARED = "/shared"
AUTH_TOKEN = "token"  # Ray's token authentication, as RAY_AUTH_MODE has it
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def token_file(home: Path) -> Path:
    """Return the file with the token of a lab; nodes read it under the same path."""
    return home / "auth_token"


class Node:
    """Node `index` of lab `lab`; `home` is the lab's folder on the host.

    `nvml` is whether its processes find the stand-in NVML.  `auth` is "token" where Ray asks for
    a token.  Without `ray` the node only starts.
    """

    def __init__(
        self,
        lab: str,
        index: int,
        home: Path,
        nodes: int,
        gpus: int = 1,
        nvml: bool = False,
        auth: str = "",
        rails: int = 1,
        ray: bool = True,
        one_gpu: bool = False,
    ) -> None:
        self.lab, self.index, self.home, self.nodes, self.gpus = lab, index, home, nodes, gpus
        self.has_nvml, self.auth, self.rails, self.starts_ray = nvml, auth, rails, ray
        self.one_gpu = one_gpu
        self.name = f"node{index}"
        self.group = NodeGroup(lab, index)
        self.work = home / self.name

    @property
    def pid(self) -> int | None:
        """Host number of the node's process 1; None when it is off."""
        return self.group.init_pid()

    def environment(self, interface: str = "fab0") -> dict[str, str]:
        """Return what an operator would export before `ray start`, and nothing of our own shell.

        If `interface` is "", no interface is chosen.
        """
        chosen = {}
        if interface:
            rails = network.interfaces(self.rails)[:-1]
            all_rails = ",".join(rails if interface in rails else [interface])
            chosen = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": all_rails}
        stand_in = {
            "LD_LIBRARY_PATH": str(nvml.library_folder(self.work)),
            "SEATRIAL_LAB_NVML": str(nvml.settings_file(self.work)),
            "PYTHONPATH": str(nvml.TORCH),
        }
        # GPUs are emulated, whatever the host has: Ray counts these ids, CUDA stops at the first.
        gpus = [0] * self.gpus if self.one_gpu else [-1 - gpu for gpu in range(self.gpus)]
        no_gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        if self.one_gpu:
            own = os.environ.get("LD_LIBRARY_PATH", "")
            no_gpus |= {"PYTHONPATH": os.pathsep.join(HOST_PATHS), "LD_LIBRARY_PATH": own}
        variables = {
            **(stand_in if self.has_nvml else no_gpus),
            "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            **chosen,
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            **self.auth_variables(),
            # Two cores run the complete lab: no idle workers, and a lost node is seen in seconds.
            "RAY_prestart_worker_first_driver": "0",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "3000",
            "RAY_health_check_failure_threshold": "3",
            **self.planted.get("environment", {}),
        }
        return {name: value for name, value in variables.items() if value is not None}

    def auth_variables(self) -> dict[str, str]:
        """Return the variables of Ray's authentication, for `ray start` and for a driver."""
        if self.auth == AUTH_TOKEN:
            path = str(token_file(self.home))
            return {"RAY_AUTH_MODE": AUTH_TOKEN, "RAY_AUTH_TOKEN_PATH": path}
        # Ray 2.60 asks for a token where it finds one in HOME; the lab has no way in or out.
        return {"RAY_AUTH_MODE": "disabled"}

    @property
    def planted(self) -> dict[str, Any]:
        """What a fault changed in how Ray starts: `environment`, words `before`, and the `python`.

        A variable that is None is not set.
        """
        path = self.work / "planted.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def plant(self, change: dict[str, Any]) -> None:
        """Change how Ray starts here the next time; {} is as usual."""
        (self.work / "planted.json").write_text(json.dumps(change))

    def ray_program(self) -> list[str]:
        """Return the words that run Ray's command line."""
        python = self.planted.get("python", sys.executable)
        return [python, "-m", "ray.scripts.scripts"]

    def ray_command(self, head: int = 0) -> list[str]:
        """Return `ray start` for this node, on the management network as on real clusters.

        `head` is the node whose cluster it joins, or begins.
        """
        here = network.address("eth0", self.index)
        command = [
            *self.planted.get("before", []),
            *self.ray_program(),
            "start",
            "--node-ip-address",
            here,
            "--num-gpus",
            str(self.gpus),
            "--num-cpus",
            "4",
            "--object-store-memory",
            "100000000",
            "--disable-usage-stats",
        ]
        if self.index != head:
            return [*command, "--address", f"{network.address('eth0', head)}:{PORT}"]
        return [*command, "--head", "--port", str(PORT), "--dashboard-host", "0.0.0.0"]

    def start(self, interface: str = "fab0", own_name_at: str = "") -> None:
        """Start the namespaces and Ray; return at once (Lab.start_ray waits).

        The node's own name leads to its own address first, or to `own_name_at`.
        """
        self.work.mkdir(parents=True, exist_ok=True)
        self.new_boot_id()
        self.furnished.unlink(missing_ok=True)
        if self.has_nvml:
            nvml.make_healthy(self.work, self.lab, self.gpus)
            nvml.show_library(self.home, self.work)
        hosts = [f"{network.address('eth0', i)} node{i}" for i in range(self.nodes)]
        hosts = [f"{own_name_at} {self.name}"] * bool(own_name_at) + hosts
        (self.work / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(hosts) + "\n")
        self.group.make()
        own_paths = HOST_PATHS if self.one_gpu else []
        spec = {
            "hostname": self.name,
            "work": str(self.work),
            # The real paths: a checkout's .venv may be a link to elsewhere in /tmp.
            "keep": sorted({os.path.realpath(p) for p in (REPO, *PROGRAMS, *TAPES, *own_paths)}),
            "shared": str(self.home / "shared"),
            "shared_at": SHARED,
            "head": self.index == 0,
            "head_address": f"{network.address('eth0', 0)}:{PORT}",
            "ray": self.ray_command() if self.starts_ray else [],
            "env": self.environment(interface),
        }
        self._launch(json.dumps(spec))

    @property
    def furnished(self) -> Path:
        """File that is there once the node has its own mounts."""
        return self.work / "furnished"

    @property
    def boot_id(self) -> Path:
        """File that the node sees as /proc/sys/kernel/random/boot_id."""
        return self.work / "boot_id"

    def new_boot_id(self) -> None:
        """Write a new boot id for the node, as each boot of a machine has."""
        self.boot_id.write_text(f"{uuid.uuid4()}\n")  # in place: a node that is up sees this file

    def _launch(self, spec: str) -> None:
        enter = ["nsenter", f"--net=/run/netns/{network.namespace(self.lab, self.index)}"]
        isolate = ["unshare", "-m", "-p", "-u", "-i", "--fork", "--kill-child", "--mount-proc"]
        init = [sys.executable, "-I", "-S", str(Path(__file__).with_name("node_init.py")), spec]
        with open(self.work / "init.log", "ab") as log:
            subprocess.run(  # --fork: the node has no parent here, it outlives this command
                ["setsid", "--fork", *self.join(), *enter, *isolate, *init],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                check=True,
                cwd="/",
            )

    def pids_of(self, program: str) -> list[int]:
        """List the processes that run a program, a script or an actor, as numbered on the host."""
        return [pid for pid in self.group.pids() if runs_program(read_words(pid), program)]

    def join(self) -> list[str]:
        """Return the words before a command that put it into the node's control group.

        They come first, because the group's files are not visible inside the node.
        """
        procs = str(self.group.path / "cgroup.procs")
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', procs]

    def command(self, *command: str, cwd: str | None = None, space: str = "") -> list[str]:
        """Return the argument list that runs `command` inside this node; LabError if it is off.

        With `space` it has the network of that namespace, and the node's files and processes.
        """
        pid = self.pid
        if pid is None:
            raise LabError(f"{self.name} is off; `python -m tests.lab fault clear` brings it back")
        inside = [
            "nsenter",
            "-t",
            str(pid),
            f"--net=/run/netns/{space}" if space else "-n",
            "-m",
            "-p",
            "-u",
            "-i",
            f"--wd={cwd or os.getcwd()}",
        ]
        return [*self.join(), *inside, *command]

    def run(self, *command: str, seconds: float = 60, check: bool = True) -> str:
        """Run a command in the node with the operator's environment; return its output.

        Raises LabError if it fails and `check` is true.
        """
        done = subprocess.run(
            self.command(*command, cwd="/"),
            env=self.environment(),
            text=True,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        if check and done.returncode:
            raise LabError(f"`{' '.join(command)}` on {self.name} failed: {done.stderr.strip()}")
        return done.stdout

    def power_off(self) -> None:
        """Kill everything on the node at once; return when it is gone.

        Raises LabError when it does not die.
        """
        deadline = time.monotonic() + DEATH_SECONDS
        while pids := self.group.pids():
            if time.monotonic() > deadline:
                raise LabError(f"processes {pids} of {self.name} do not die")
            self.group.kill()
            time.sleep(0.01)
