"""Tests that orders to Ray need the cluster's token, where a token is agreed or in use."""

import pytest

from probes.cluster.access.entrances import CLIENT
from probes.hosts.exposure.controls import control_entrance
from probes.hosts.exposure.entrances import (
    OFF,
    TOKEN,
    count_answers,
    describe_entrances,
    find_mode,
    judge_entrances,
)
from probes.hosts.exposure.listening import (
    judge_public,
    list_ports,
    note_listeners,
    read_all_listeners,
)
from probes.hosts.exposure.plan import ask_cluster, find_client_port
from probes.hosts.exposure.stranger_job import judge_stranger_job, try_stranger_job


@pytest.mark.criterion("HOSTS")
def test_entrances_keep_to_the_authentication(cluster, terms, measure):
    """Where a token is agreed or in use, each entrance of Ray refuses orders without it.

    Entrances are the GCS, raylets, dashboard agents, dashboard and Ray client.  A request without
    a token, one with a wrong token, and a harmless job without a token are tried.
    """
    client_port = find_client_port(cluster, terms.ray_client_port)
    asked = ask_cluster(cluster, client_port)
    mode, reason = find_mode(asked, terms.authentication)
    measure.covered(describe_coverage(asked, mode, reason, client_port))
    caption = "entrances of Ray, and what each does with a request without its token"
    measure.keep("entrances.json", describe_entrances(asked), caption=caption)
    judge_entrances(asked, mode, measure)
    if cluster.own_dashboard:
        job = try_stranger_job(cluster, cluster.own_dashboard)
        judge_stranger_job(job, cluster.own_dashboard, mode == TOKEN, measure)
    elif mode == TOKEN:
        measure("stranger_jobs", None, note="the cluster has no dashboard")
    nodes = [node for node in cluster.known_nodes() if node["alive"]]
    ports = list_ports(asked, nodes)
    listeners = read_all_listeners(cluster, ports, nodes)
    note_listeners(ports, listeners, measure)
    if cluster.kind != "local":
        facts = cluster.facts + cluster.read_facts(cluster.bystanders)
        judge_public(asked, facts, listeners, measure)
    control_entrance(cluster, asked, mode, measure)


def describe_coverage(asked, mode, reason, client_port):
    """Describe what was tried, and what no node can see."""
    counts = ", ".join(f"{count} {answer}" for answer, count in count_answers(asked).items())
    tried = f"{len(asked)} entrances without a token: {counts}"
    if client_port and CLIENT not in {one.entrance.kind for one in asked}:
        tried += f"; no Ray client answers at port {client_port}"
    if mode == TOKEN:
        return f"{tried}; a token is needed ({reason})"
    if mode == OFF:
        return (
            f"{tried}; {reason}, so anyone who reaches an entrance runs code. Firewalls and "
            "addresses behind NAT were not tested: no node sees them"
        )
    return f"{tried}; whether a token is needed is not known"
