"""Starts, checks and removes a lab: up, wait, status, down."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.lab import cgroups, network, nvml, switch
from tests.lab.node import PORT, SHARED, Node, token_file
from tests.lab.shell import LabError, require_machine, sh

HOMES = Path("/run/seatrial-lab")
RAIL_RATE = "200mbit"  # of each of several rails: two cores carry a dozen of them at once
MAX_RAILS = 4

READY = """
import sys, time
from ray._raylet import GcsClient
gcs, since, want = GcsClient(address=sys.argv[1]), int(sys.argv[2]), set(sys.argv[3:])
while True:
    alive = [n for n in gcs.get_all_node_info().values() if n.state == 0]
    new = {n.node_manager_address for n in alive if n.start_time_ms >= since}
    old = {n.node_manager_address for n in alive if n.start_time_ms < since}
    if want <= new and not want & old:  # a node that was killed is listed until Ray misses it
        break
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class LabSize:
    """What `up` is asked for.

    `auth` is "token" for Ray's token authentication, with a new token in `auth_token` of the lab's
    folder.  An `idle_head` has no accelerators.  Without `ray`, nodes are up and Ray is not: a
    test starts it as users do.  Each node has `rails` fabrics, and at least one
    emulated accelerator for each.  The first `larger` nodes have twice as many accelerators.  With
    several `leaves` (switches), nodes reach those of another leaf by its uplink.  With `one_gpu`
    all accelerators are the host's first GPU, and NCCL takes each process for a host.
    """

    nodes: int
    gpus: int = 1
    with_nvml: bool = False
    auth: str = ""
    idle_head: bool = False
    rails: int = 1
    leaves: int = 1
    ray: bool = True
    larger: int = 0
    one_gpu: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 64:
            raise LabError(f"a lab has 1 to 64 nodes, found {self.nodes}")
        if not 1 <= self.rails <= MAX_RAILS:
            raise LabError(f"a lab has 1 to {MAX_RAILS} rails, found {self.rails}")
        if not 1 <= self.leaves <= self.nodes:
            raise LabError(f"a lab has 1 leaf, or up to one per node, found {self.leaves}")
        if self.gpus < self.rails:  # each rail is one accelerator's
            object.__setattr__(self, "gpus", self.rails)

    def __str__(self) -> str:
        asks = f"; authentication: {self.auth}" if self.auth else ""
        asks += "; none on the head" if self.idle_head else ""
        asks += f"; rails: {self.rails}" if self.rails > 1 else ""
        asks += f"; leaves: {self.leaves}" if self.leaves > 1 else ""
        asks += "" if self.ray else "; without Ray"
        asks += "; all are the host's GPU" if self.one_gpu else ""
        asks += f"; twice as many on the first {self.larger}" if self.larger else ""
        has_nvml = "yes" if self.with_nvml else "no"
        return f"{self.nodes} nodes (GPUs of each: {self.gpus}; NVML: {has_nvml}{asks})"


MADE_SHARED = HOMES / "made-shared"  # marks that we made the host's /shared, and must remove it


class Lab:
    """Lab with this name. Its namespaces, groups and folder are its state; no daemon keeps it."""

    def __init__(self, name: str = "sea") -> None:
        if not re.fullmatch(r"[a-z]{2,8}", name):
            raise LabError(f"a lab's name is 2 to 8 small letters, found {name!r}")
        self.name, self.home = name, HOMES / name

    @property
    def state_file(self) -> Path:
        """File with the lab's size, rates and faults."""
        return self.home / "state.json"

    @property
    def state(self) -> dict[str, Any]:
        """State that `up` and `fault` wrote. Raises LabError when the lab is down."""
        try:
            state: dict[str, Any] = json.loads(self.state_file.read_text())
        except FileNotFoundError:
            hint = "`python -m tests.lab up --nodes 4` starts one"
            raise LabError(f"lab {self.name!r} is down; {hint}") from None
        return state

    def write(self, **changes: Any) -> None:
        """Update the state file."""
        self.home.mkdir(parents=True, exist_ok=True)
        old = self.state if self.state_file.exists() else {}
        self.state_file.write_text(json.dumps({**old, **changes}, indent=1))

    @property
    def nodes(self) -> list[Node]:
        """All nodes, on or off."""
        size = self.size
        own = [size.gpus * (1 + (index < size.larger)) for index in range(size.nodes)]
        if size.idle_head:
            own[0] = 0
        return [
            Node(
                self.name,
                index,
                self.home,
                size.nodes,
                count,
                size.with_nvml and count > 0,
                size.auth,
                size.rails,
                size.ray,
                size.one_gpu,
            )
            for index, count in enumerate(own)
        ]

    @property
    def size(self) -> LabSize:
        """Size that `up` was asked for."""
        return LabSize(**self.state["size"])

    def node(self, word: str | int) -> Node:
        """Return a node by index or name (`2`, `node2`). Raises LabError if there is none."""
        for node in self.nodes:
            if str(word) in (str(node.index), node.name):
                return node
        raise LabError(f"no node {word!r} in lab {self.name!r}: it has {len(self.nodes)} nodes")

    def port(self, word: str) -> tuple[Node, str]:
        """Return a node and one of its rails: `2` or `node2` is fab0 of it, `2:fab1` another."""
        name, _, interface = word.partition(":")
        interface = interface or "fab0"
        if interface not in network.interfaces(self.size.rails)[:-1]:
            rails = ", ".join(network.interfaces(self.size.rails)[:-1])
            raise LabError(f"no rail {interface!r} in lab {self.name!r}: it has {rails}")
        return self.node(name), interface

    def pair(self, first: str, second: str) -> tuple[Node, Node]:
        """Return two nodes by index or name. Raises LabError if they are the same node."""
        a, b = self.node(first), self.node(second)
        if a.index == b.index:
            raise LabError(f"a pair is two nodes, found {a.name} twice")
        return a, b

    def up(
        self,
        nodes: int,
        fabric: str = "",
        management: str = "",
        **more: Any,
    ) -> None:
        """Start the lab, or do nothing when it is up with this size and has no faults.

        `more` are the other fields of LabSize.  `fabric` is the rate of each rail (1gbit of one,
        RAIL_RATE of several), `management` that of eth0 (200mbit, or 50mbit).  Raises LabError when
        it is up with another size, or cannot start.
        """
        size = LabSize(nodes, **more)
        require_machine(compiler=size.with_nvml)
        if self.state_file.exists() and self._whole(size):
            return
        self.down()
        (self.home / "shared").mkdir(parents=True)
        if not Path(SHARED).exists():
            MADE_SHARED.touch()
            Path(SHARED).mkdir()
        fabric = fabric or ("1gbit" if size.rails == 1 else RAIL_RATE)
        management = management or ("200mbit" if size.rails == 1 else "50mbit")
        rates = {**dict.fromkeys(network.interfaces(size.rails), fabric), "eth0": management}
        self.write(size=asdict(size), rates=rates, faults=[])
        if size.auth:
            token_file(self.home).touch(mode=0o600)
            token_file(self.home).write_text(secrets.token_hex(32))
        try:
            if size.with_nvml:
                nvml.build_library(self.home)
            switch.build(self.name, nodes, rates, size.rails, size.leaves)
            self.start_ray(self.nodes)
        except BaseException:
            self.down()
            raise

    def _whole(self, wanted: LabSize) -> bool:
        alive = all(node.pid for node in self.nodes)
        if alive and self.size != wanted:
            raise LabError(
                f"lab {self.name!r} is up with {self.size}, "
                f"{wanted} were asked for; run `python -m tests.lab down` first"
            )
        return alive and not self.state["faults"]

    def start_ray(self, nodes: list[Node], interface: str = "fab0", own_name_at: str = "") -> None:
        """Start these nodes in parallel and wait until Ray counts all nodes of the lab."""
        since = int(time.time() * 1000)
        for node in nodes:
            node.start(interface, own_name_at)
        if self.size.ray:
            self._wait_until_ready(nodes, since)
        else:
            wait_until_on(nodes)

    def _wait_until_ready(self, started: list[Node], since: int, seconds: float = 90) -> None:
        """Return when Ray counts every node of `started` as alive since `since` (epoch ms)."""
        deadline = time.monotonic() + seconds
        while not (self._head_listens() and all(node.pid for node in started)):
            if time.monotonic() > deadline:
                said = f"the head did not listen on port {PORT} in {seconds:.0f} s"
                raise LabError(f"{said}: {_logs(started)}")
            time.sleep(0.1)
        wanted = [network.address("eth0", node.index) for node in started]
        try:
            self.nodes[0].run(
                "python",
                "-c",
                READY,
                f"{network.address('eth0', 0)}:{PORT}",
                str(since),
                *wanted,
                seconds=max(1, deadline - time.monotonic()),
            )
        except subprocess.TimeoutExpired:
            said = f"Ray did not count all nodes in {seconds:.0f} s"
            raise LabError(f"{said}: {_logs(started)}") from None

    def _head_listens(self) -> bool:
        """Return whether the head's port is open, read from inside its namespace."""
        if (pid := self.nodes[0].pid) is None:
            return False
        rows = [
            line.split()
            for kind in ("tcp", "tcp6")
            for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
        ]
        return any(row[1].endswith(f":{PORT:04X}") and row[3] == "0A" for row in rows)

    def status(self) -> dict[str, Any]:
        """Return each node's addresses, rates, processes and state, and the active faults."""
        if not self.state_file.exists():
            return {"lab": self.name, "up": False, "nodes": [], "faults": []}
        rows = []
        for node in self.nodes:
            on = node.pid is not None
            rows.append(
                {
                    "name": node.name,
                    "on": on,
                    "pid": node.pid,
                    "processes": len(node.group.pids()),
                    **{
                        i: {
                            "address": network.address(i, node.index),
                            "rate": network.rate(self.name, node.index, i),
                        }
                        for i in self.state["rates"]
                    },
                }
            )
        return {
            "lab": self.name,
            "up": True,
            "nodes": rows,
            "faults": self.state["faults"],
            "shared": str(self.home / "shared"),
        }

    def down(self) -> None:
        """Remove every process, namespace, link, group, mount and file; safe to repeat."""
        require_machine()
        groups = self._groups()
        deadline = time.monotonic() + 20
        while pids := [pid for group in groups for pid in group.pids()]:
            for group in groups:
                group.kill()
            if time.monotonic() > deadline:
                raise LabError(f"processes {pids} of lab {self.name!r} do not die")
            time.sleep(0.05)
        network.remove(self.name)
        for group in groups:
            group.remove()
        for bound in cgroups.bounds(self.name):
            bound.remove()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (where := line.split()[1]).startswith(f"{self.home}/"):
                sh("umount", "-l", where, quiet=True)
        shutil.rmtree(self.home, ignore_errors=True)
        if HOMES.exists() and [path.name for path in HOMES.iterdir()] == [MADE_SHARED.name]:
            Path(SHARED).rmdir()
            MADE_SHARED.unlink()
        if HOMES.exists() and not list(HOMES.iterdir()):
            HOMES.rmdir()

    def _groups(self) -> list[cgroups.NodeGroup]:
        path = cgroups.root() / f"lab-{self.name}"
        found = sorted(path.glob("node*")) if path.exists() else []
        return [cgroups.NodeGroup(self.name, int(p.name.removeprefix("node"))) for p in found]


def wait_until_on(nodes: list[Node], seconds: float = 20) -> None:
    """Return when each of these nodes has its own files.  Raises LabError after `seconds`."""
    deadline = time.monotonic() + seconds
    for node in nodes:
        while node.pid is None or not node.furnished.exists():
            if time.monotonic() > deadline:
                raise LabError(f"{node.name} was not up in {seconds:.0f} s: {_logs([node])}")
            time.sleep(0.05)


def _logs(nodes: list[Node]) -> str:
    """Return the end of the logs of the nodes and of `ray start` on them."""
    logs = [node.work / name for node in nodes for name in ("init.log", "ray-start.log")]
    return "".join(log.read_text()[-300:] for log in logs if log.exists())
