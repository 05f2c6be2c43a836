"""Does gradient traffic use the fabric, at the speed the fabric was sold at?"""

import pytest

from probes.fabric.controls import wrong_element, wrong_road_control
from probes.fabric.detect import (
    is_slow,
    slow_everywhere,
    wrong_links,
)
from probes.fabric.hang_diagnosis import tell_why
from probes.fabric.judge import (
    judge_data,
    judge_groups,
    judge_pairs,
    judge_rails,
    judge_reach,
    judge_road,
    judge_settings,
    judge_speed,
)
from probes.fabric.library_report import RankLogs
from probes.fabric.node_pairs import bad_pairs, reachability, slow_groups
from probes.fabric.sweep import CHECKED, init_seconds, others, pinned, travel
from reference_trainer.launch.gang import GangError
from scaling.collectives.sweep import connect, warm

# Nodes: groups are tried from CROWD on, for fewer make groups that are hardly more than pairs; from
# FEW on, the least of which groups tell a node, where all is slow and pairs do not show why.
FEW, CROWD = 4, 12


@pytest.mark.criterion("FABRIC")
def test_allreduce_takes_the_fabric_at_line_rate(cluster, terms, tier, limits, measure):
    """All-reduce over every accelerator moves exact data over the agreed fabric, at its speed.

    A job that took the wrong road still trains and its loss still falls; only its bandwidth and
    the witnesses give it away.  So we time it, check every element, count the bytes on every
    device, and ask the library itself.
    """
    if len(cluster.nodes) < 2:
        pytest.fail("one node has no fabric to other nodes", pytrace=False)
    with RankLogs(cluster) as logs, cluster.gang(environment=pinned(cluster, logs)) as gang:
        prove(cluster, gang, terms, tier, limits, logs, measure)
    judge_settings(cluster, terms.fabric, measure)


def prove(cluster, gang, terms, tier, limits, logs, measure):
    """What is observed, then the controls; of a group that fails, why."""
    names = cluster.names
    try:
        journey = observe(gang, names, terms, tier, limits, logs, measure)
    except GangError as error:
        measure("busbw", None, note=str(error))
        tell_why(cluster, gang, names, terms.fabric, error, logs, measure)
        return
    if journey:
        wrong_element(gang, names, measure)
    wrong_road_control(cluster, gang, terms, journey, logs, measure)


def observe(gang, names, terms, tier, limits, logs, measure):
    """Who reaches whom, the sweep, the road and the pairs; the journey, if there was a way.

    Each is judged as soon as it is seen, so that a later failure takes nothing away.
    """
    measure.progress("fabric: who reaches whom")
    cut = reachability(gang, names, terms.fabric)
    if cut.pairs or cut.narrow:
        measure("busbw", None, note="not every pair of nodes reaches each other")
        judge_reach(cut, measure)
        return None
    measure.progress("fabric: all-reduce sweep")
    gang.run(warm, timeout=120)
    sums = gang.run(connect, timeout=init_seconds(gang.size))
    measure("wrong_elements", sum(one != gang.size for one in sums), on="the first all-reduce")
    journey = travel(gang, names, logs)
    judge_speed(journey, limits, measure)
    judge_road(journey, terms.fabric, measure)
    judge_rails(journey, terms, limits, measure)
    judge_reach(cut, measure)
    measure.progress("fabric: five more collectives")
    judge_data(journey, others(gang, CHECKED), gang, names, measure)
    find_the_bad_one(gang, names, journey, tier, limits, measure)
    return journey


def find_the_bad_one(gang, names, journey, tier, limits, measure):
    """Pairs of nodes, and groups of them where pairs do not suffice: who is slow, or wrong."""
    measure.progress("fabric: every pair of nodes")
    pairs, wrong = bad_pairs(gang, names, whole=tier == "soak")
    judge_pairs(pairs, journey, measure)
    measure("wrong_elements", sum(wrong.values()), on="pairs of nodes")
    measure.explain(wrong_links(wrong))
    unplaced = is_slow(journey, limits("busbw")) and not (pairs.nodes or pairs.links)
    nodes = len(journey.sent)
    if nodes >= FEW and (unplaced or (nodes >= CROWD and tier != "quick")):
        measure.progress("fabric: groups of nodes")
        crowds = slow_groups(gang, names)
        judge_groups(crowds, pairs, measure)
        unplaced = unplaced and not (crowds.nodes or crowds.groups)
    else:
        when = f"from {CROWD} nodes and tier standard on, and where no pair shows why all is slow"
        measure.covered(f"no groups of nodes were tried: that is done {when}")
    if unplaced:
        measure.explain(slow_everywhere(journey))
