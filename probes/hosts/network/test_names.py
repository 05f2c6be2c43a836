"""Tests that nodes reach each other by name and port."""

from collections import Counter
from contextlib import closing

import pytest

from probes.cluster.node_facts import add_silent
from probes.hosts.network.choice import judge_choice
from probes.hosts.network.controls import control_loopback, control_names, control_ports
from probes.hosts.network.names import judge_addresses, judge_lookups, judge_own_names
from probes.hosts.network.port_round import DEFAULT_PORTS, PortRound
from probes.hosts.network.ports import judge_ports


@pytest.mark.criterion("HOSTS")
def test_nodes_reach_each_other_by_name_and_port(cluster, terms, measure):
    """Each node has the address that Ray gives to others, and all ports of Ray and jobs are open.

    Every node connects to the GCS, raylet, object manager and worker ports of the others, and to a
    listener that the probe opens there.
    """
    members = add_silent(cluster.facts, cluster.nodes)
    facts = members + add_silent(cluster.read_facts(cluster.bystanders), cluster.bystanders)
    if cluster.kind == "local":
        measure.covered("addresses and names are not compared: all raylets share one host")
    elif len(facts) > 1:
        judge_addresses(facts, measure)
        judge_own_names(members if len(members) > 1 else [], measure)
        judge_choice(members if len(members) > 1 else [], measure)
        if cluster.facts:
            control_loopback(cluster, cluster.facts, measure)
    with closing(PortRound.start(cluster)) as ports:
        measure.covered(ports.coverage())
        if cluster.kind != "local" and len(facts) > 1:
            look_up_hosts(ports, facts, terms, measure)
            note_default_ports(ports, measure)
        planned = ports.plan()
        connections = ports.connect(planned)
        measure.keep("ports.json", describe_connections(connections, ports), caption=CAPTION)
        judge_ports(connections, cluster.node_names, measure)
        control_ports(ports, planned, cluster.node_names, measure)


CAPTION = "connections of every node to the ports of the others"
MOST_KEPT = 5000  # rows of evidence: less than 1 MB


def look_up_hosts(ports, facts, terms, measure):
    """Resolve the names of other nodes: of all peers if it is agreed, else of one each."""
    peers = ports.peers()
    asked = peers if terms.host_names else {id: others[:1] for id, others in peers.items()}
    lookups = ports.look_up_names(asked)
    judge_lookups(lookups, facts, measure, agreed=terms.host_names)
    if terms.host_names:
        control_names(ports, facts, peers, measure)


def note_default_ports(ports, measure):
    """Note how many nodes reach the head's dashboard and Ray client, at Ray's default ports."""
    reached = ports.count_reaching([*DEFAULT_PORTS.values()])
    for (name, port), count in zip(DEFAULT_PORTS.items(), reached, strict=True):
        measure.note(f"{name}_port_reached", count, "nodes", on=f"port {port}")


def describe_connections(connections, ports):
    """Count the connections by port, and list those that failed or are not known."""
    counts = Counter(one.kind for one in connections)
    failed = [
        {
            "port": one.kind,
            "number": one.port,
            "from": ports.name(one.source),
            "to": ports.name(one.target),
            "problem": one.problem or one.unknown,
        }
        for one in connections
        if one.problem != ""
    ]
    return {"tried": counts, "failed": failed[:MOST_KEPT], "failed_in_all": len(failed)}
