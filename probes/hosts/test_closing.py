"""Tests that the machines are at the end of the run what they were at its start."""

import pytest

from probes.hosts.closing import control_restarted_node, judge_changes
from probes.hosts.gpu_counts import compared_sources
from probes.hosts.gpu_health import add_rates, judge_gpu_health
from probes.hosts.sick_gpu import control_sick_gpu


@pytest.mark.last
@pytest.mark.criterion("HOSTS")
def test_hosts_stay_healthy_to_the_end(cluster, measure):
    """After all other probes no node has restarted, and every GPU is as healthy as before.

    What GPUs gained since the run began is judged as well: time lost to heat, repeated packets.
    """
    before, now = cluster.facts, cluster.read_facts(cluster.nodes)
    judge_changes(before, now, measure)
    if compared_sources(cluster.kind, cluster.emulated, before):
        measure.keep("health.json", [fact["gpu_health"] for fact in now], caption="GPUs at the end")
        judge_gpu_health(add_rates(now, before), measure)
    else:
        measure.covered("NVML is not asked: accelerators are emulated, and no node has it")
    if not now:
        return
    control_restarted_node(cluster, before, now, measure)
    if compared_sources(cluster.kind, cluster.emulated, before):
        control_sick_gpu(cluster, now, measure, "GPU that sickens", before)
