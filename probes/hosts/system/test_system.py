"""Tests that each node gives a job the limits, the room and the clock that it needs."""

import pytest

from probes.hosts.needs.judge import judge_needs
from probes.hosts.system.clock_offset import measure_clocks
from probes.hosts.system.controls import control_strained_process
from probes.hosts.system.limits import judge_system, judged_measures
from probes.hosts.system.notes import note_settings


@pytest.mark.criterion("HOSTS")
def test_jobs_get_the_limits_they_need(cluster, terms, measure):
    """A worker has the open files, memory, threads and disk space it needs, and a right clock.

    Limits are read inside a worker on each node: those of a login shell may be others.  Nodes also
    have the same image, and the models and ways out that the contract names.
    """
    facts = cluster.facts
    ranks = {node["id"]: int(node["resources"].get("GPU", 1)) for node in cluster.nodes}
    measures = judged_measures(cluster.kind == "local", terms.fabric == "rdma")
    systems = {fact["name"]: fact.get("system") for fact in facts}
    measure.keep("system.json", systems, caption="limits and room of every node")
    measure.covered(f"{len(facts)} of {len(cluster.nodes)} nodes answered")
    if cluster.kind == "local":
        measure.covered("limits of the host are not judged: embedded raylets inherit a shell's")
    answered = {fact["node"] for fact in facts}
    silent = [node["name"] for node in cluster.nodes if node["id"] not in answered]
    judge_system(facts, ranks, measures, measure, silent)
    note_settings(facts, measures, measure)
    if facts:
        control_strained_process(cluster, facts, ranks, measures, measure)
    measure_clocks(cluster, measure)
    judge_needs(cluster, terms, measure)
