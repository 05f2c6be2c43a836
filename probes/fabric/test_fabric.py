"""Does gradient traffic use the fabric, at the speed the fabric was sold at?"""

import pytest

from probes.fabric import judge
from probes.fabric.controls import control_off_fabric, control_wrong_element
from probes.fabric.detect import (
    find_off_fabric,
    find_wrong_links,
    find_wrong_nodes,
    slow_fabric_finding,
    wrong_data,
)
from probes.fabric.hang_diagnosis import explain_start_failure
from probes.fabric.library_report import RankLogs
from probes.fabric.links.judge import (
    judge_loss,
    judge_networks,
    judge_ports,
    judge_stalls,
    links_off,
    unexplained,
)
from probes.fabric.links.routes import read_routes
from probes.fabric.links.watch import LinkWatch
from probes.fabric.node_pairs import (
    run_group_search,
    run_pair_search,
    run_wrong_search,
)
from probes.fabric.rails import count_installed
from probes.fabric.reach import check_reach
from probes.fabric.reach_judge import judge_reach
from probes.fabric.sweep import CHECK_SIZE, check_ops, gang_env, init_seconds, run_sweep
from reference_trainer.launch.gang import GangError
from scaling.collectives.sweep import connect, warm_up

# Nodes: groups are tried from LARGE on, for fewer make groups that are hardly more than pairs; from
# MIN_NODES on, the least of which groups tell a node, where all is slow and pairs do not show why.
MIN_NODES, LARGE = 4, 12


@pytest.mark.criterion("FABRIC")
def test_allreduce_takes_the_fabric_at_line_rate(cluster, terms, tier, limits, measure):
    """All-reduce over every accelerator moves exact data over the agreed fabric, at its speed.

    A job that took the wrong road still trains and its loss still falls; only its bandwidth and
    the witnesses give it away.  So we time it, check every element, count the bytes on every
    device, and ask the library itself.
    """
    if len(cluster.nodes) < 2:
        pytest.fail("one node has no fabric to other nodes", pytrace=False)
    watch = None if cluster.kind == "local" else LinkWatch(cluster)
    with RankLogs(cluster) as logs, cluster.gang(environment=gang_env(logs)) as gang:
        run_probe(cluster, gang, terms, tier, limits, logs, watch, measure)
    judge.judge_settings(cluster, terms.fabric, measure)


def run_probe(cluster, gang, terms, tier, limits, logs, watch, measure):
    """Observe, then run the controls; of a group that fails, tell why."""
    node_names = cluster.node_names
    try:
        run = measure_fabric(gang, node_names, terms, tier, limits, logs, watch, measure)
    except GangError as error:
        measure("busbw", None, note=str(error))
        if watch and terms.fabric:
            judge_ports(watch, dict.fromkeys(node_names.values(), terms.fabric), limits, measure)
        explain_start_failure(gang, node_names, terms.fabric, error, logs, measure)
        return
    if run:
        control_wrong_element(gang, run.rank_nodes, measure)
    control_off_fabric(gang, terms, run, logs, measure)


def measure_fabric(gang, node_names, terms, tier, limits, logs, watch, measure):
    """Measure who reaches whom, the sweep, the transport and the pairs; the sweep's result, if any.

    Each is judged as soon as it is seen, so that a later failure takes nothing away.
    """
    measure.progress("fabric: who reaches whom")
    reach = check_reach(gang, node_names, terms.fabric)
    if reach.pairs or reach.narrow or reach.duplicates:
        measure("busbw", None, note="not every pair of nodes reaches each other")
        judge_reach(reach, measure)
        if watch and terms.fabric:
            judge_ports(watch, dict.fromkeys(reach.nodes, terms.fabric), limits, measure)
        return None
    measure.progress("fabric: all-reduce sweep")
    gang.run(warm_up, timeout=120)
    sums = gang.run(connect, timeout=init_seconds(gang.size))
    measure("wrong_elements", sum(total != gang.size for total in sums), on="the first all-reduce")
    run = run_sweep(gang, node_names, logs)
    judge.judge_speed(run, limits, measure)
    judge.judge_transport(run, terms.fabric, measure)
    judge.judge_rails(run, terms, limits, measure, count_installed(logs.cluster, terms.fabric))
    judge_reach(reach, measure)
    measure.progress("fabric: five more collectives")
    wrong = judge.judge_data(run, check_ops(gang, CHECK_SIZE), measure)
    if watch:
        find_bad_nodes(gang, node_names, terms, run, wrong, tier, limits, watch, measure)
    else:  # a pair there is two processes that share one host's cores
        measure.explain(find_off_fabric(run, terms.fabric), wrong_data(wrong, run.rank_nodes))
        measure.covered("no pairs of nodes were tried: all raylets share one host")
    return run


def find_bad_nodes(gang, node_names, terms, run, wrong, tier, limits, watch, measure):
    """Try pairs of nodes, and groups where pairs do not suffice: who is slow, lossy, or wrong."""
    measure.progress("fabric: every pair of nodes")
    max_lost = limits("lost_packets").high
    expected = terms.fabric or run.main_device
    try:
        pairs = run_pair_search(gang, node_names, max_lost, full=tier == "soak")
    except GangError:
        measure.explain(find_off_fabric(run, terms.fabric), wrong_data(wrong, run.rank_nodes))
        raise
    fabric = {node: terms.fabric or device for node, device in run.main_devices.items()}
    unstable = judge_ports(watch, fabric, limits, measure)
    judge_loss(run, pairs, max_lost, unstable, measure)
    judge_stalls(run, bool(measure.finding_codes & {"FAB-LOSS", "FAB-LINK-FLAPS"}), measure)
    off = links_off(pairs, expected)
    routes = read_routes(gang, node_names, off, expected)
    judge_networks(pairs, expected, routes, measure)
    detours = {sender for sender, _ in off} & {
        sender for sender, _ in pairs.sent.keys() - off.keys()
    }
    measure.explain(find_off_fabric(run, terms.fabric, detours))
    located = bool(measure.finding_codes & {"FAB-LOSS", "FAB-LINK-FLAPS", "FAB-DETOUR"})
    slow = unexplained(pairs, off)
    judge.judge_pairs(pairs.speed, slow, run, measure)
    measure("wrong_elements", sum(pairs.wrong.values()), on="pairs of nodes")
    if any(pairs.wrong.values()):
        measure.explain(find_wrong_links(pairs.wrong))
    elif wrong:
        search = run_wrong_search(gang, node_names)
        measure.explain(find_wrong_nodes(wrong, search, run.rank_nodes))
    is_slow = measure.would_fail("busbw", run.peak["busbw"])
    unlocated = is_slow and not (slow.slow_nodes or slow.slow_links or located)
    nodes = len(run.sent)
    if nodes >= MIN_NODES and (unlocated or (nodes >= LARGE and tier != "quick")):
        measure.progress("fabric: groups of nodes")
        groups = run_group_search(gang, node_names)
        judge.judge_groups(groups, pairs.speed, measure)
        unlocated = unlocated and not (groups.nodes or groups.groups)
    else:
        when = f"from {LARGE} nodes and tier standard on, and where no pair shows why all is slow"
        measure.covered(f"no groups of nodes were tried: that is done {when}")
    if unlocated:
        measure.explain(slow_fabric_finding(run))
