"""Tests that gradient traffic uses the fabric, at the agreed speed."""

import pytest

from probes.check.judging import is_alone
from probes.cluster.network_facts import interfaces_of
from probes.environment.collect import read_settings
from probes.fabric import controls, judge, node_pairs, speeds
from probes.fabric import criterion as check
from probes.fabric.hangs import explain_start_failure
from probes.fabric.judge import FabricRig, explain_without_pairs, fabric_devices, find_bad_nodes
from probes.fabric.links import LinkWatch
from probes.fabric.rails import count_installed, judge_rails_reach, record_reach
from probes.fabric.reach import FabricNodes, check_reach, fails_by_tcp_alone
from probes.fabric.sweep import gang_env, init_seconds, rail_envs, run_sweep
from probes.fabric.transport import RankLogs
from reference_trainer.launch.gang import GangError
from scaling.collectives.sweep import connect, warm_up


@pytest.mark.criterion("FABRIC")
@pytest.mark.keeps_gang
def test_allreduce_takes_the_fabric_at_line_rate(cluster, terms, tier, measure):
    """All-reduce over every accelerator moves exact data over the agreed fabric, fast enough.

    A job that took the wrong network still trains and its loss still falls; only its bandwidth and
    the witnesses give it away.  So we time it, check every element, count the bytes on every
    device, and ask the library itself.  Where one node was ordered, the links inside it stand for
    the fabric.
    """
    alone = is_alone(cluster, terms)
    if len(cluster.nodes) < 2 and not alone:
        pytest.fail("FABRIC needs 2 nodes, and the cluster has one", pytrace=False)
    watch = None if alone or cluster.kind == "local" else LinkWatch(cluster)
    rails = rail_envs(terms.fabric, cluster.on_gpu)
    with (
        RankLogs(cluster) as logs,
        cluster.kept_gang.lend(
            measure.covered, environment=gang_env(logs), by_local_rank=rails
        ) as gang,
    ):
        before = cluster.paths_before
        models = {fact["name"]: terms.kind_of(fact) for fact in cluster.facts}
        rig = FabricRig(gang, cluster.node_names, terms, tier, watch, measure, before, models)
        (run_on_one_node if alone else run_probe)(rig, logs)
    judge.judge_lint(cluster.on_each_node(read_settings), cluster, terms.fabric, measure)
    controls.control_harmful_setting(cluster, terms.fabric, measure)


def run_on_one_node(rig, logs):
    """Judge data, speed and NCCL's log of the ranks inside the only node; plant the faults."""
    gang, measure = rig.gang, rig.measure
    nodes = [rig.node_names[place.node] for place in gang.places]
    try:
        connect_ranks(gang, measure)
        judge.judge_other_data(gang, nodes, measure)
        measure.progress("fabric: all-reduce inside the node")
        inside = node_pairs.measure_inside(gang, nodes)
    except GangError as error:
        measure(check.ALL_REDUCE_INSIDE_NODE, None, note=str(error))
        explain_start_failure(rig, error, logs)
        return
    node_pairs.judge_inside(inside, measure, alone=True)
    judge.judge_own_log(rig, logs)
    measure.progress("fabric: controls")
    controls.control_wrong_element(gang, nodes, measure)
    controls.control_slow_node(rig, nodes, inside, "nccl" if logs.cluster.on_gpu else "gloo")


def connect_ranks(gang, measure):
    """Connect all ranks, and judge their first all-reduce."""
    # All ranks import torch at once, maybe from one file system, and open their GPUs.
    gang.run(warm_up, timeout=2 * init_seconds(gang.size))
    sums = gang.run(connect, timeout=init_seconds(gang.size))
    wrong = sum(total != gang.size for total in sums)
    measure(check.WRONG_ELEMENTS, wrong, on="the first all-reduce")


def run_probe(rig, logs):
    """Run the measurements, then the controls; if the gang fails, explain why."""
    gang, measure = rig.gang, rig.measure
    try:
        run, nodes, port = measure_fabric(rig, logs)
    except GangError as error:
        measure(check.BUSBW, None, note=str(error))
        rig.judge_agreed_ports()
        explain_start_failure(rig, error, logs)
        return
    if run:
        measure.progress("fabric: controls")
        controls.control_wrong_element(gang, run.rank_nodes, measure)
        controls.control_slow_collective(rig, run)
        controls.control_late_ring(rig, run)
        controls.control_doctored_rails(rig, run)
        controls.control_reach(FabricNodes.read(gang, rig.node_names, port), measure)
        if nodes:
            pairs, inside = nodes
            if inside:
                controls.control_slow_inside(rig, run, inside)
            controls.control_late_call(rig, run)
            controls.control_bad_sender(rig, run, pairs)
            controls.control_doctored_counters(rig, fabric_devices(rig, run))
    controls.control_off_fabric(rig, run, logs)
    if run:
        speeds.measure_nvlink(rig, logs)


def measure_fabric(rig, logs):
    """Measure reach, sweep, transport and nodes.

    Returns the sweep, (pairs, inside), and the port whose reach counts; None for what is not known.
    Each is judged as soon as it is measured, so that a later failure loses nothing.
    """
    gang, terms, measure = rig.gang, rig.terms, rig.measure
    measure.progress("fabric: reachability")
    reach = {
        rail: check_reach(gang, rig.node_names, rail)
        for rail in interfaces_of(terms.fabric) or [terms.fabric]
    }
    by_tcp_alone = fails_by_tcp_alone(reach)
    blocked = any(one.pairs or one.narrow or one.duplicates for one in reach.values())
    if blocked and not by_tcp_alone:
        why = "pairs of nodes do not connect, full-size packets fail, or an address is not unique"
        measure(check.BUSBW, None, note=why)
        judge_rails_reach(gang, rig.node_names, reach, measure)
        record_reach(reach, measure)
        rig.judge_agreed_ports()
        return None, None, None
    measure.progress("fabric: all-reduce sweep")
    try:
        run = start_and_sweep(rig, logs)
    except GangError:
        if by_tcp_alone:  # RDMA does not pass either
            judge_rails_reach(gang, rig.node_names, reach, measure)
        raise
    judge.judge_speed(run, measure)
    if run.backend == "nccl":  # gloo's short calls take what the cores leave them
        judge.judge_sizes(run.rows, run, measure)
    judge.record_curves(run, terms, measure)
    judge.judge_transport(run, terms.fabric, measure)
    for kind in judge.split_kinds(run, rig.models):
        installed = count_installed(logs.cluster, terms.fabric, kind.rails)
        judge.judge_rails(kind, terms, measure, installed)
    reach = judge.replace_reach(rig, reach, run)
    judge_rails_reach(gang, rig.node_names, reach, measure)
    measure.progress("fabric: five more collectives")
    rows, problem = speeds.measure_collectives(gang, run, rig.tier)
    wrong = judge.judge_data(run, rows, measure)
    names = speeds.judged_ops(rig.tier)
    found = speeds.collective_speeds(rows, run, names, speeds.large_size(run))
    speeds.judge_collectives(found, names, problem, measure)
    if rig.watch:
        return run, find_bad_nodes(rig, run, wrong), [*reach][-1]
    # On an embedded cluster a pair is two processes that share one host's cores.
    explain_without_pairs(rig, run, wrong)
    measure.covered("pairs of nodes were not tested: all raylets share one host")
    return run, None, [*reach][-1]


def start_and_sweep(rig, logs):
    """Start the ranks, whose first sum must be right, and sweep all-reduce."""
    connect_ranks(rig.gang, rig.measure)
    return run_sweep(rig.gang, rig.node_names, logs, rig.terms.fabric)
