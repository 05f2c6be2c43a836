"""Does gradient traffic use the fabric, at the speed the fabric was sold at?"""

import pytest

from probes.fabric import judge
from probes.fabric.controls import control_off_fabric, control_wrong_element
from probes.fabric.detect import find_wrong_links, slow_fabric_finding
from probes.fabric.hang_diagnosis import explain_start_failure
from probes.fabric.library_report import RankLogs
from probes.fabric.node_pairs import check_reach, run_group_search, run_pair_search
from probes.fabric.rails import count_installed
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
    with RankLogs(cluster) as logs, cluster.gang(environment=gang_env(logs)) as gang:
        run_probe(cluster, gang, terms, tier, limits, logs, measure)
    judge.judge_settings(cluster, terms.fabric, measure)


def run_probe(cluster, gang, terms, tier, limits, logs, measure):
    """Observe, then run the controls; of a group that fails, tell why."""
    node_names = cluster.node_names
    try:
        run = measure_fabric(gang, node_names, terms, tier, limits, logs, measure)
    except GangError as error:
        measure("busbw", None, note=str(error))
        explain_start_failure(gang, node_names, terms.fabric, error, logs, measure)
        return
    if run:
        control_wrong_element(gang, run.rank_nodes, measure)
    control_off_fabric(gang, terms, run, logs, measure)


def measure_fabric(gang, node_names, terms, tier, limits, logs, measure):
    """Measure who reaches whom, the sweep, the transport and the pairs; the sweep's result, if any.

    Each is judged as soon as it is seen, so that a later failure takes nothing away.
    """
    measure.progress("fabric: who reaches whom")
    reach = check_reach(gang, node_names, terms.fabric)
    if reach.pairs or reach.narrow:
        measure("busbw", None, note="not every pair of nodes reaches each other")
        judge.judge_reach(reach, measure)
        return None
    measure.progress("fabric: all-reduce sweep")
    gang.run(warm_up, timeout=120)
    sums = gang.run(connect, timeout=init_seconds(gang.size))
    measure("wrong_elements", sum(total != gang.size for total in sums), on="the first all-reduce")
    run = run_sweep(gang, node_names, logs)
    judge.judge_speed(run, limits, measure)
    judge.judge_transport(run, terms.fabric, measure)
    judge.judge_rails(run, terms, limits, measure, count_installed(logs.cluster, terms.fabric))
    judge.judge_reach(reach, measure)
    measure.progress("fabric: five more collectives")
    judge.judge_data(run, check_ops(gang, CHECK_SIZE), measure)
    if logs.cluster.kind == "local":  # a pair there is two processes that share one host's cores
        measure.covered("no pairs of nodes were tried: all raylets share one host")
    else:
        find_bad_nodes(gang, node_names, run, tier, measure)
    return run


def find_bad_nodes(gang, node_names, run, tier, measure):
    """Try pairs of nodes, and groups where pairs do not suffice: who is slow, or wrong."""
    measure.progress("fabric: every pair of nodes")
    pairs, wrong = run_pair_search(gang, node_names, full=tier == "soak")
    judge.judge_pairs(pairs, run, measure)
    measure("wrong_elements", sum(wrong.values()), on="pairs of nodes")
    measure.explain(find_wrong_links(wrong))
    is_slow = measure.would_fail("busbw", run.peak["busbw"])
    unlocated = is_slow and not (pairs.slow_nodes or pairs.slow_links)
    nodes = len(run.sent)
    if nodes >= MIN_NODES and (unlocated or (nodes >= LARGE and tier != "quick")):
        measure.progress("fabric: groups of nodes")
        groups = run_group_search(gang, node_names)
        judge.judge_groups(groups, pairs, measure)
        unlocated = unlocated and not (groups.nodes or groups.groups)
    else:
        when = f"from {LARGE} nodes and tier standard on, and where no pair shows why all is slow"
        measure.covered(f"no groups of nodes were tried: that is done {when}")
    if unlocated:
        measure.explain(slow_fabric_finding(run))
