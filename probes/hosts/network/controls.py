"""Controls of the nodes' names and ports: the last node gets a real fault of each kind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.connections import Endpoint
from probes.cluster.facts.names import read_names
from probes.hosts.network.choice import judge_choice
from probes.hosts.network.names import judge_addresses, judge_lookups, judge_own_names
from probes.hosts.network.port_round import GCS, JOB, LOCALHOST, Connection, NameLookup, PortRound
from probes.hosts.network.ports import judge_ports
from reference_trainer.rank_environment import set_variables

Facts = Mapping[str, Any]
LOOPBACK = "127.0.0.1"


def read_loopback_names() -> dict[str, Any]:
    """Read the names of this node as if it was called localhost, and Ray had 127.0.0.1 for it.

    No interface is chosen for gloo, and the loopback for NCCL.
    """
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    before = {name: os.environ.get(name) for name in names}
    try:
        set_variables({"GLOO_SOCKET_IFNAME": None, "NCCL_SOCKET_IFNAME": "=lo"})
        return read_names(LOCALHOST, LOOPBACK, os.environ)
    finally:  # Ray uses this worker again
        set_variables(before)


def control_loopback(cluster: Cluster, facts: Sequence[Facts], measure: Recorder) -> None:
    """Check that a node is detected whose address, own name or interface is the loopback's."""
    victim = facts[-1]
    node = [one for one in cluster.nodes if one["id"] == victim["node"]]
    answer = cluster.on_each_node(read_loopback_names, nodes=node).get(victim["node"])
    planted = {
        "loopback address": f"Ray's address of {victim['name']} is {LOOPBACK}",
        "loopback name": f"the own name of {victim['name']} is {LOCALHOST}, without an interface",
        "loopback interface": f"NCCL_SOCKET_IFNAME is =lo in a worker on {victim['name']}",
    }
    judges = (judge_addresses, judge_own_names, judge_choice)
    for (name, fault), judge in zip(planted.items(), judges, strict=True):
        if answer is None:
            measure.control(name, fault, None, saw=f"{victim['name']} does not answer")
            continue
        trial = measure.trial()
        judge([{**victim, "names": answer}], trial)
        measure.control(name, fault, trial)


def control_names(
    ports: PortRound, facts: Sequence[Facts], peers: Mapping[str, list[str]], measure: Recorder
) -> None:
    """Check that a node is detected that finds itself by the names of others."""
    victim = list(ports.nodes)[-1]
    lookups: list[NameLookup] = ports.look_up_names({victim: peers[victim]}, LOCALHOST)
    trial = measure.trial()
    judge_lookups(lookups, facts, trial, agreed=True)
    fault = f"{ports.name(victim)} looks up {LOCALHOST} in place of other nodes"
    measure.control("other name", fault, trial)


def control_ports(
    ports: PortRound, planned: Sequence[Connection], names: Mapping[str, str], measure: Recorder
) -> None:
    """Check that closed ports of Ray are detected, and a listener that is not the right one."""
    victim = list(ports.nodes)[-1]
    faults = {
        "closed port": f"Ray's ports of {ports.name(victim)} are ports without a listener",
        "other listener": f"the listener of {ports.name(victim)} answers as another",
    }
    address = ports.nodes[victim]["address"]
    closed = ports.call_each("plant_fault", {victim: (address,)}).get(victim)
    if closed is None:
        for name, fault in faults.items():
            measure.control(name, fault, None, saw=f"{ports.name(victim)} does not answer")
        return

    def close_port(one: Connection, endpoint: Endpoint) -> Endpoint:
        if one.kind == JOB:
            return endpoint
        return replace(endpoint, address=address, port=closed)

    chosen = [
        one
        for one in planned
        if (one.source == victim if one.kind == GCS else one.target == victim)
    ]
    results = ports.connect(chosen, close_port)
    trial = measure.trial()
    judge_ports(results, names, trial)
    for name, fault in faults.items():
        rows = [one for one in results if (one.kind == JOB) == (name == "other listener")]
        measure.control(name, fault, trial, located=all(one.problem for one in rows))
