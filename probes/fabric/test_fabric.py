"""Does gradient traffic use the fabric, at the speed the fabric was sold at?"""

import dataclasses
import gzip

import pytest

from probes.environment.collect import settings
from probes.environment.lint import lint
from probes.environment.rails import idle_rails, missing_rails, shares
from probes.fabric.detect import (
    is_slow,
    log_faults,
    narrow,
    odd_mtu,
    of_the_log,
    settings_wrong,
    slow_everywhere,
    slow_in_groups,
    slow_links,
    unreachable,
    wrong_data,
    wrong_links,
    wrong_road,
)
from probes.fabric.hang_diagnosis import RECORDED, tell_why
from probes.fabric.library_report import RankLogs
from probes.fabric.node_pairs import bad_pairs, reachability, slow_groups
from probes.fabric.sweep import init_seconds, others, travel
from probes.findings import listed
from reference_trainer.launch.gang import GangError
from reports.record import Limit
from scaling.collectives.alpha_beta import fit
from scaling.collectives.line_rate import line_rate
from scaling.collectives.nccl_tests_format import document, table
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.sweep import connect, warm

# Bytes are counted against what a ring must move; a tree over two nodes moves less per port, and
# over two nodes shows more than the line rate.
PINNED = {"NCCL_ALGO": "Ring"}
ALL_REDUCE = OPERATIONS["all_reduce"]
# Nodes: groups are tried from CROWD on, for fewer make groups that are hardly more than pairs; from
# FEW on, the least of which groups tell a node, where all is slow and pairs do not show why.
FEW, CROWD = 4, 12
CHECKED = 1 << 20  # bytes: the size at which the other collectives and the control run
SLOWER = 0.95  # of the straight run's bandwidth: what a slower road must stay under


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


def pinned(cluster, logs):
    """What the gang's ranks run with: a ring, logs of their own, and NCCL where GPUs are real."""
    backend = {"SEATRIAL_BACKEND": "nccl"} if cluster.on_gpu else {}
    return {**PINNED, **RECORDED, **logs.environment, **backend}


def judge_settings(cluster, fabric, measure):
    """What each node tells NCCL and gloo, as a job there sees it."""
    found = {cluster.names[id]: seen for id, seen in cluster.on_each_node(settings).items()}
    flags = lint(found, fabric)
    measure(
        "harmful_settings",
        sum(flag.severity == "fail" for flag in flags)
        if len(found) == len(cluster.nodes)
        else None,
        note="not every node answered",
    )
    measure.explain(settings_wrong(flags))
    said = [{**dataclasses.asdict(flag), "said": flag.statement} for flag in flags]
    measure.keep(
        "settings.json",
        {"flags": said, "nodes": {name: seen["effective"] for name, seen in found.items()}},
        caption="what each node tells NCCL and gloo, and what of it is doubtful",
    )


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


def judge_reach(cut, measure):
    """Pairs that do not reach each other at all, or not with full-size packets."""
    measure("unreachable_pairs", len(cut.pairs))
    measure("odd_mtu", len(odd_mtu(cut)) if cut.mtu else None, note="no MTU is known")
    measure(
        "narrow_pairs", None if cut.narrow is None else len(cut.narrow), note=cut.untried or "-"
    )
    measure.explain(unreachable(cut), narrow(cut))


def judge_speed(journey, limits, measure):
    """Bus bandwidth on the plateau; beside it the model's latency and how equal the ranks are."""
    peak, nodes = journey.peak, f"{len(journey.sent)} nodes"
    model = fit(journey.rows, ALL_REDUCE, journey.ranks)
    measure("busbw", peak["busbw"], on=nodes, spread=peak["spread"], samples=peak["samples"])
    measure.note("rank_cv", peak["rank_cv"], "ratio", on=nodes)
    if model:
        measure.note("latency", model.latency_us, "us", on=nodes)
        measure.note("model_residual", model.residual, "ratio", on=nodes)
    measure.keep(
        "all-reduce.txt", table(journey.rows, ALL_REDUCE), caption=f"all-reduce sweep; {model}"
    )
    measure.keep(
        "all-reduce.json",
        document(journey.rows, ALL_REDUCE, journey.ranks),
        caption="the same with nccl-tests' results[] keys",
    )
    limit = limits("busbw")
    measure.series(
        "busbw",
        {
            "sizes": [row["size"] for row in journey.rows],
            **{key: [row[key] for row in journey.rows] for key in ("busbw", "low", "high")},
            "limit": limit.low if limit else None,
        },
    )
    measure.covered(
        f"all-reduce over {journey.ranks} ranks ({journey.backend}) on {nodes} "
        f"up to {journey.rows[-1]['size'] >> 10} KiB"
        + (f"; {journey.note}" if journey.note else "")
    )


def judge_data(journey, more, gang, names, measure):
    """Every element of every collective."""
    rows = [*journey.rows, *(row for found in more.values() for row in found)]
    measure("wrong_elements", sum(row["wrong"] for row in rows))
    measure.explain(wrong_data(rows, gang, names))
    for name, found in more.items():
        measure.keep(
            f"{name}.txt", table(found, OPERATIONS[name]), caption=f"{name}: values checked"
        )
    measure.covered(f"five more collectives at {CHECKED >> 10} KiB")


def judge_road(journey, fabric, measure):
    """Each node's bytes on the fabric and elsewhere, and whether both witnesses say the same."""
    measure("road", journey.road)
    dispute = journey.dispute()
    measure("witnesses", None if dispute else 2, note=dispute)
    for node in journey.sent:
        unknown = "no fabric was agreed or derived"
        share = journey.share(node, fabric) if fabric else None
        other = journey.elsewhere(node, fabric) if fabric else None
        measure("fabric_share", share, on=node, note=unknown)
        measure("other_share", other, on=node, note=unknown)
    measure.keep(
        "roads.json",
        {"bytes_sent": journey.sent, journey.word.source or "library": journey.word.roads},
        caption="bytes sent per node and road, and what the library says",
    )
    for name, text in journey.word.logs.items():
        said = gzip.decompress(text).decode("utf-8", "backslashreplace")
        measure.keep(name, said, kind="log", caption="NCCL's log of one rank")
    if journey.word.report:
        found = of_the_log(journey.word.report.findings, fabric)
        if fabric == "rdma":
            measure("log_faults", len(log_faults(found)))
        measure.explain(found)
    measure.explain(wrong_road(journey, fabric))


def judge_rails(journey, terms, limits, measure):
    """That each node has the rails that were ordered, and that each rail carried its part."""
    if terms.fabric != "rdma":
        return
    counts = {node: len(ports) for node, ports in journey.rails.items()}
    wanted = terms.rails or max(counts.values())
    because = "the contract orders them" if terms.rails else "every node has what the best one has"
    best = max(journey.rates.values(), default=0.0)
    rate = f", each at {best:g} Gbit/s as on the best node" if best else ""
    limit = Limit(low=wanted, unit="rails", because=because + rate)
    parts = {node: shares(sent, wanted) for node, sent in journey.rails.items()}
    for node, count in counts.items():
        measure(
            "rails", count if journey.rates.get(node, best) == best else 0, on=node, limit=limit
        )
        port, part = min(parts[node].items(), key=lambda item: item[1], default=("no rail", None))
        measure("slowest_rail", part, on=f"{node} {port}", note="the node has no active RDMA port")
    measure.explain(
        missing_rails(counts, wanted, journey.rates),
        idle_rails(parts, limits("slowest_rail").low or 0),
    )


def judge_pairs(pairs, journey, measure):
    """The slowest link against the typical one; two nodes have nothing to compare with."""
    if len(pairs.speeds) > 2:
        (sender, receiver), slowest = min(pairs.speeds.items(), key=lambda item: item[1])
        share = slowest / pairs.typical if pairs.typical else 0.0
        measure("slowest_pair", share, on=f"{sender} -> {receiver}", samples=len(pairs.speeds))
    measure.explain(slow_links(pairs))
    measure.covered(f"links between nodes, by one rank of each: {pairs.coverage}")
    nodes = list(journey.sent)
    measure.series(
        "pairs", {"nodes": nodes, "gbs": [[pairs.speeds.get((a, b)) for b in nodes] for a in nodes]}
    )


def judge_groups(crowds, pairs, measure):
    """What is slow, or wrong, in groups of about sqrt(n) nodes."""
    measure("slow_in_groups", len(crowds.nodes) + len(crowds.groups))
    measure("wrong_elements", sum(crowds.wrong.values()), on="groups of nodes")
    measure.explain(slow_in_groups(crowds, pairs))
    measure.covered(f"all-reduce in groups: {crowds.coverage}")


def wrong_element(gang, names, measure):
    """One changed element on one rank must be found, with rank and offset."""
    culprit = gang.size - 1
    fault = f"one element of each result on rank {culprit} is changed"
    try:
        rows = [row for found in others(gang, 1 << 16, culprit).values() for row in found]
    except GangError as error:
        measure.control("wrong element", fault, caught=None, saw=str(error))
        return
    seen = {rank for row in rows for rank, _ in row["first_wrong"]}
    found = wrong_data(rows, gang, names)
    measure.control(
        "wrong element",
        fault,
        caught=seen == {culprit} and all(row["wrong"] for row in rows),
        saw=found[0].statement if found else "no wrong element",
    )


def wrong_road_control(cluster, gang, terms, journey, logs, measure):
    """The same all-reduce, forced off the fabric, must look different to everybody who looks."""
    other = terms.management
    fault = f"all-reduce is forced onto {other or 'sockets'}"
    if not other and not (cluster.on_gpu and terms.fabric == "rdma"):
        saw = "no other interface is agreed: name one in the contract, [cluster] management"
        measure.control("wrong road", fault, caught=None, saw=saw)
        return
    forced = {**pinned(cluster, logs), "NCCL_NET": "Socket"}
    if other:
        forced |= {"GLOO_SOCKET_IFNAME": other, "NCCL_SOCKET_IFNAME": f"={other}"}
    try:
        if cluster.on_gpu:  # NCCL reads its environment once per process
            gang.remove()
            with cluster.gang(environment=forced) as fresh:
                astray = travel(fresh, cluster.names, logs, only=CHECKED)
        else:
            astray = travel(gang, cluster.names, logs, forced, only=CHECKED)
    except GangError as error:
        measure.control("wrong road", fault, caught=None, saw=str(error))
        return
    slower, why = slowed(astray, journey, terms, cluster.facts)
    caught = noticed(astray, terms) and slower is not False
    measure.control("wrong road", fault, caught=caught, saw=f"{told(astray)}; {why}")


def noticed(astray, terms):
    """Whether the counters and the library both show the forced road.

    Where no interface is agreed, sockets may take several at once, and others on each node.
    """
    other = terms.management
    forced = [
        astray.share(node, other) if other else astray.elsewhere(node, terms.fabric)
        for node in astray.sent
    ]
    by_bytes = astray.road != terms.fabric and min(forced) >= 0.9
    by_word = bool(astray.word.roads) and terms.fabric not in astray.word.roads.values()
    return by_bytes and by_word


def slowed(astray, journey, terms, facts):
    """Whether the forced road shows less bandwidth than the fabric did, and the words for it.

    Sockets never show what RDMA does; of two Ethernet ports nothing follows (None) unless the
    forced one is known to carry less than the fabric showed.
    """
    most = 0.0 if terms.fabric == "rdma" else port_rate(terms, facts)
    if most is None:
        said = "neither the contract (management_gbps) nor the devices say how fast it is"
        return None, f"{said}, so bandwidth is not compared"
    straight = journey.at(CHECKED) if journey else None
    if straight is None:
        return False, "there is no straight run to compare with"
    said = f"straight {straight['busbw']:.3f} GB/s"
    if most >= SLOWER * straight["busbw"]:
        return None, f"{said}, which {terms.management} may carry too: bandwidth is not compared"
    return astray.peak["busbw"] < SLOWER * straight["busbw"], said


def port_rate(terms, facts):
    """GB/s that the management port can carry; None where nobody says."""
    if terms.management_gbps:
        return terms.management_gbps / 8
    rate = line_rate(facts, terms.management)
    return rate and rate.gbytes


def told(astray):
    """The forced road in one line."""
    roads = {road for sent in astray.sent.values() for road in sent}
    used = {road for road in roads if any(astray.share(n, road) >= 0.05 for n in astray.sent)}
    said = ", ".join(sorted(set(astray.word.roads.values()))) or astray.word.trouble
    return (
        f"bytes on {listed(sorted(used)) or 'no device'}, {astray.word.source}: {said}, "
        f"{astray.peak['busbw']:.3f} GB/s"
    )
