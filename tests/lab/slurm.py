"""Starts Slurm on the nodes of a lab: a controller on the head, a daemon on each node, munge."""

from __future__ import annotations

import secrets
import shutil
import time
from pathlib import Path

from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.shell import LabError

TOOLS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
MUNGE = "/tmp/munge"  # in each node's own /tmp
CONFIGURATION = """
ClusterName=lab
SlurmctldHost=node0({head})
AuthInfo=socket={munge}/socket
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
{nodes}
PartitionName=lab Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


class Slurm:
    """Slurm of a lab that was started without Ray.  It ends with the lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.configuration = lab, lab.home / "slurm.conf"

    def start(self, seconds: float = 30) -> None:
        """Start all daemons; return when each node is idle.  Raises LabError."""
        missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
        if missing:
            raise LabError(f"Slurm in the lab needs `apt-get install {' '.join(missing)}`")
        self._configure()
        for node in self.lab.nodes:
            munged = f"munged --key-file={self._key} --socket={MUNGE}/socket"
            munged += f" --pid-file={MUNGE}/pid --log-file={MUNGE}/log --seed-file={MUNGE}/seed"
            self.run(node, f"mkdir -p -m 755 {MUNGE} /tmp/slurmd && {munged}")
        self.run(self.lab.nodes[0], "mkdir -p /tmp/slurmctld && slurmctld -i")
        for node in self.lab.nodes:
            self.run(node, "slurmd")
        self._wait_until_idle(seconds)

    @property
    def _key(self) -> Path:
        return self.lab.home / "munge.key"

    def _configure(self) -> None:
        self._key.touch(mode=0o400)
        self._key.write_bytes(secrets.token_bytes(128))
        lines = [
            f"NodeName={node.name} NodeAddr={network.address('eth0', node.index)} CPUs=4"
            f" Gres=gpu:{node.gpus} State=UNKNOWN"
            for node in self.lab.nodes
        ]
        self.configuration.write_text(
            CONFIGURATION.format(
                head=network.address("eth0", 0),
                munge=MUNGE,
                home=self.lab.home,
                nodes="\n".join(lines),
            )
        )
        # Slurm 22.05 cannot do without control groups, even where no plug-in uses them.
        self.configuration.with_name("cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        gres = [f"NodeName={node.name} Name=gpu File=/dev/zero" for node in self.lab.nodes]
        self.configuration.with_name("gres.conf").write_text("\n".join(gres) + "\n")

    def run(self, node: Node, script: str, seconds: float = 60, check: bool = True) -> str:
        """Run a shell script on a node, with Slurm's commands; return its output."""
        words = ["env", f"SLURM_CONF={self.configuration}", "sh", "-c", script]
        return node.run(*words, seconds=seconds, check=check)

    def _wait_until_idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        want = len(self.lab.nodes)
        while True:
            said = self.run(self.lab.nodes[0], "sinfo -h -N -o '%T'", check=False).split()
            if said == ["idle"] * want:
                return
            if time.monotonic() > deadline:
                raise LabError(f"Slurm's nodes are {said} after {seconds:.0f} s: {self._logs()}")
            time.sleep(0.2)

    def _logs(self) -> str:
        return "".join(path.read_text()[-500:] for path in sorted(self.lab.home.glob("slurm*.log")))
