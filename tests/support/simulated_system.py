"""Runs HOSTS' probe of limits, room and clocks over simulated nodes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, cast
from unittest.mock import patch

from probes.cluster.node_facts import list_packages
from probes.cluster.node_watch import NodeState
from probes.cluster.system_facts import CLOCK, ClockOffset
from probes.contract.contract import ClusterTerms, Contract
from probes.hosts.conditions import read_conditions
from probes.hosts.limits import read_strained_system
from probes.hosts.needs import read_hidden_devices, read_other_image
from probes.hosts.test_hosts import test_jobs_get_the_limits_they_need as system_probe
from reports.record import ProbeResult
from tests.support.simulated_hosts import StandInHosts, run_probe
from tests.support.simulated_needs import DEVICES

RDMA = {"fabric": "rdma"}  # terms by which all limits are judged
ALL = [
    *("open_files", "locked_memory", "stack", "shared_memory", "processes", "temp_room"),
    "stray_raylets",
]
BOOTED = -1.7e9  # s that a clock is behind which began at the boot
# What a worker reads on a sound node: of each row of conditions.toml, and of what is compared.
SOUND: dict[str, Any] = {
    "readings": {
        "limit Max address space": "unlimited",
        "limit Max data size": "unlimited",
        "limit Max file size": "unlimited",
        "limit Max cpu time": "unlimited",
        "limit Max pending signals": "96365",
        "cpus share of Ray's": "1",
        "process scheduler": "SCHED_OTHER",
        "process umask of owner": "0",
        "process clock source": "tsc",
        "setting vm/max_map_count": "65530",
        "setting vm/overcommit_memory": "0",
        "setting vm/swappiness": "60",
        "folder temporary write": "done",
        "folder torch cache execution": "allowed",
        "folder session execution": "allowed",
        "folder session write": "done",
        "folder Triton cache execution": "allowed",
        "ports of Ray in the kernel's range": "0",
        "variable RAY_RAYLET_PID": "4711",
    },
    "unreadable": {},
}


class StandInSystem(StandInHosts):
    """Cluster of healthy nodes; a test changes facts, clocks, or what the control reads."""

    def __init__(self, nodes: int = 3, gpus: int = 8, bystanders: int = 0) -> None:
        super().__init__(nodes, gpus, bystanders)
        everyone = [*self.facts, *self.others]
        self.clocks = {f["node"]: ClockOffset(0.001 * i, 0.0005) for i, f in enumerate(everyone)}
        self.strained: dict[str, Any] | None = {}  # changes of the control's answer, None: silent
        self.conditions = {fact["node"]: copy.deepcopy(SOUND) for fact in self.facts}
        self.short = True  # whether the control's limit of files holds
        self.states: list[NodeState] = []  # of nodes that were lost before

    def node_states(self) -> list[NodeState]:
        return self.states

    def on_each_node(
        self, function: Any, *arguments: Any, nodes: Any = None, **_: Any
    ) -> dict[str, Any]:
        if function in (read_other_image, read_hidden_devices):
            other = {"os": "Debian", "packages": 4, "digest": "another"}
            answer = other if function is read_other_image else dict.fromkeys(DEVICES, "gone")
            return {fact["node"]: answer for fact in self.facts}
        if function is list_packages:
            return {}
        if function is read_conditions:
            asked = self.conditions.keys() & {node["id"] for node in nodes or self.nodes}
            planted = (
                {"limit Max file size": str(arguments[1])} if arguments[1] and self.short else {}
            )
            return {
                id: {
                    **self.conditions[id],
                    "readings": {**self.conditions[id]["readings"], **planted},
                }
                for id in asked
            }
        assert function is read_strained_system
        (planted,), node = arguments, nodes[0]["id"]
        if self.strained is None:
            return {}
        (fact,) = [fact for fact in self.facts if fact["node"] == node]
        return {node: {**strain(fact["system"], planted), **self.strained}}


def strain(system: dict[str, Any], planted: Mapping[str, int]) -> dict[str, Any]:
    """Return what the control's process reads on a node of this system."""
    system = copy.deepcopy(system)
    system["limits"] |= {
        "open_files": [planted["RLIMIT_NOFILE"], 1048576],
        "locked_bytes": [planted["RLIMIT_MEMLOCK"], -1],
        "stack_bytes": [planted["RLIMIT_STACK"], -1],
        "processes": [planted["RLIMIT_NPROC"], -1],
    }
    system["threads"]["RLIMIT_NPROC"] = planted["RLIMIT_NPROC"] - 5
    for name in ("shared_memory", "temporary", "session"):
        system[name] |= {"path": "/proc", "error": "No such file or directory"}
    system["raylets"]["others"] = [{"pid": 99, "session": "seatrial_control"}]
    return system


class StandInClocks:
    """Readers of clocks that answer with a cluster's offsets."""

    def __init__(self, cluster: StandInSystem) -> None:
        self.cluster, self.closed = cluster, False

    def __call__(self, nodes: Iterable[str]) -> StandInClocks:
        self.asked = list(nodes)
        return self

    def wait_until_up(self) -> list[str]:
        return [id for id in self.asked if id in self.cluster.clocks]

    def compare(self, nodes: Iterable[str], clock: str = CLOCK) -> dict[str, ClockOffset]:
        lost = clock != CLOCK
        return {id: ClockOffset(BOOTED, 0.001) if lost else self.cluster.clocks[id] for id in nodes}

    def close(self) -> None:
        self.closed = True


def run_system(
    cluster: StandInSystem, contract: Contract | None = None, **terms: Any
) -> ProbeResult:
    """Run the probe, unchanged, over the stand-in."""
    clocks = StandInClocks(cluster)
    with patch("probes.hosts.limits.ClockReaders", clocks):
        result = run_probe(
            lambda measure: system_probe(cast(Any, cluster), ClusterTerms(**terms), measure),
            contract,
        )
    assert clocks.closed or len(cluster.known) < 2
    return result
