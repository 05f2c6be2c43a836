"""Tests that the machines are at the end of the run what they were at its start."""

import pytest

from probes.hosts import hardware
from probes.hosts.closing import (
    control_restarted_node,
    describe_change,
    judge_changes,
    judge_gpu_changes,
)
from probes.hosts.gpu_counts import compared_sources
from probes.hosts.gpu_health import judge_gpu_health
from probes.hosts.gpu_wear import judge_wear
from probes.hosts.sick_gpu import (
    control_fallen_gpu,
    control_sick_gpu,
    control_vanished_gpu,
    control_worn_gpu,
)
from probes.hosts.storage.mounts import control_mount, judge_mounts
from probes.hosts.xids import judge_xids, read_starts


@pytest.mark.last
@pytest.mark.criterion("HOSTS")
def test_hosts_stay_healthy_to_the_end(cluster, terms, measure):
    """After all other probes no node has restarted, and every GPU is as healthy as before.

    What the counters of GPUs gained since the run began is judged as well.  The shared folder is
    still there.
    """
    before, now = cluster.facts, cluster.read_facts(cluster.nodes)
    judge_changes(cluster, before, now, measure)
    if terms.shared:
        started = [fact["node"] for fact in before]
        judge_mounts(cluster, started, cluster.shared_mounts, terms.shared, measure)
        control_mount(cluster, cluster.shared_mounts, terms.shared, measure)
    on_gpus = bool(compared_sources(cluster.kind, cluster.emulated, before))
    if on_gpus:
        measure.keep("health.json", [fact["gpu_health"] for fact in now], caption="GPUs at the end")
        judge_gpu_changes(before, now, measure)
        judge_gpu_health(now, measure)
        judge_wear(before, now, measure)
        listen(cluster, measure)
        for fact in now:
            measure.explain(hardware.find_nvml_faults(fact, True) or [])
    else:
        measure.covered("NVML is not asked: accelerators are emulated, and no node has it")
    unchanged = [fact for fact in before if not describe_change(fact, now)]
    if not unchanged:
        return
    victim = next(fact for fact in now if fact["node"] == unchanged[-1]["node"])
    control_restarted_node(cluster, before, victim, measure)
    if on_gpus:
        control_sick_gpu(cluster, now, victim, measure, "GPU that sickens")
        control_worn_gpu(cluster, before, victim, measure)
        control_fallen_gpu(cluster, victim, measure)
        control_vanished_gpu(cluster, before, victim, measure)


def listen(cluster, measure):
    """Judge the Xids that were heard since the first probe of GPUs began."""
    (heard, errors), names = cluster.hear_xids(), cluster.node_names
    silent = {
        names[node["id"]]: errors.get(node["id"], "it joined later")
        for node in cluster.nodes
        if node["id"] not in heard
    }
    answers = {names[id]: answer for id, answer in heard.items() if id in names}
    if answers:
        least = min(answer["seconds"] for answer in answers.values())
        measure.covered(f"Xids were listened to for {least:.0f} s")
    judge_xids(answers, silent, read_starts(measure), measure)
