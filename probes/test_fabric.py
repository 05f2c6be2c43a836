"""Does gradient traffic use the fabric, at the speed the fabric was sold at?"""

import dataclasses
import os

import pytest

from probes.env_lint import lint
from probes.fabric_findings import (
    narrow,
    settings_wrong,
    silent_ranks,
    slow_links,
    unreachable,
    wrong_data,
    wrong_road,
)
from probes.findings import finding
from probes.pairs import reachability, slow_pairs
from probes.rails import idle_rails
from probes.roads import others, travel
from probes.settings import settings
from probes.witness import nccl_debug
from reference_trainer.gang import GangError
from reports.record import Limit
from scaling.alphabeta import fit
from scaling.nccl_tests import document, table
from scaling.operations import OPERATIONS

# Bytes are counted against what a ring must move; a tree over two nodes moves less per port, and
# over two nodes shows more than the line rate.
PINNED = {"NCCL_ALGO": "Ring"}
ALL_REDUCE = OPERATIONS["all_reduce"]
CHECKED = 1 << 20  # bytes: the size at which the other collectives and the control run


@pytest.mark.criterion("FABRIC")
def test_allreduce_takes_the_fabric_at_line_rate(cluster, terms, limits, measure):
    """All-reduce over every accelerator moves exact data over the agreed fabric, at its speed.

    A job that took the wrong road still trains and its loss still falls; only its bandwidth and
    the witnesses give it away.  So we time it, check every element, count the bytes on every
    device, and ask the library itself.
    """
    fabric, names = terms.fabric, cluster.names
    if len(cluster.nodes) < 2:
        pytest.fail("one node has no fabric to other nodes", pytrace=False)
    with cluster.gang(environment=pinned(cluster)) as gang:
        try:
            journey = observe(gang, names, terms, limits, measure)
        except GangError as error:
            measure("busbw", None, note=str(error))
            silent = silent_ranks(gang, names, str(error))
            measure.explain(silent or finding("FAB-NO-START", str(error)))
        else:
            if journey:
                wrong_element(gang, names, measure)
            wrong_road_control(cluster, gang, terms, journey, measure)
    judge_settings(cluster, fabric, measure)


def pinned(cluster):
    """What the gang's ranks run with: a ring, and on GPUs a log of each rank's own."""
    on_gpu = cluster.resource == "GPU" and not cluster.emulated
    return {**PINNED, **(nccl_debug(os.urandom(6).hex()) if on_gpu else {})}


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


def observe(gang, names, terms, limits, measure):
    """Who reaches whom, the sweep, the road and the pairs; the journey, if there was a way."""
    measure.progress("fabric: who reaches whom")
    cut = reachability(gang, names, terms.fabric)
    if cut.pairs or cut.narrow:
        measure("busbw", None, note="not every pair of nodes reaches each other")
        judge_reach(cut, measure)
        return None
    measure.progress("fabric: all-reduce sweep")
    journey = travel(gang, names)
    measure.progress("fabric: five more collectives")
    more = others(gang, CHECKED)
    measure.progress("fabric: every pair of nodes")
    pairs = slow_pairs(gang, names)
    judge_speed(journey, measure)
    judge_data(journey, more, measure)
    judge_road(journey, terms.fabric, measure)
    judge_rails(journey, terms, limits, measure)
    judge_pairs(pairs, measure)
    judge_reach(cut, measure)
    measure.explain(
        wrong_data([*journey.rows, *(row for rows in more.values() for row in rows)], gang, names),
        wrong_road(journey, terms.fabric),
        slow_links(journey, pairs, limits),
        journey.word.report.findings if journey.word.report else [],
    )
    draw(journey, pairs, limits, measure)
    return journey


def judge_reach(cut, measure):
    """Pairs that do not reach each other at all, or not with full-size packets."""
    measure("unreachable_pairs", len(cut.pairs))
    measure("narrow_pairs", len(cut.narrow))
    measure.explain(unreachable(cut), narrow(cut))


def judge_speed(journey, measure):
    """Bus bandwidth on the plateau, and how equal the ranks are there."""
    peak, nodes = journey.peak, f"{len(journey.sent)} nodes"
    model = fit(journey.rows, ALL_REDUCE, journey.ranks)
    measure("busbw", peak["busbw"], on=nodes, spread=peak["spread"], samples=peak["samples"])
    measure("rank_cv", peak["rank_cv"], on=nodes, samples=journey.ranks)
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


def judge_data(journey, more, measure):
    """Every element of every collective."""
    rows = [*journey.rows, *(row for rows in more.values() for row in rows)]
    measure("wrong_elements", sum(row["wrong"] for row in rows))
    for name, found in more.items():
        measure.keep(
            f"{name}.txt", table(found, OPERATIONS[name]), caption=f"{name}: values checked"
        )


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
    if journey.word.text:
        measure.keep("nccl.log", journey.word.text, kind="log", caption="NCCL's log of every rank")


def judge_rails(journey, terms, limits, measure):
    """That each node has the rails that were ordered, and that each rail carried its part."""
    if terms.fabric != "rdma":
        return
    counts = {node: len(parts) for node, parts in journey.rails.items()}
    agreed = terms.line_rate_gbps is not None
    wanted = terms.rails if agreed else max(counts.values())
    because = "the contract orders them" if agreed else "every node has what the best one has"
    for node, parts in journey.rails.items():
        limit = Limit(low=wanted, high=wanted, unit="rails", because=because)
        measure("rails", counts[node], on=node, limit=limit)
        port, part = min(parts.items(), key=lambda item: item[1], default=("no rail", None))
        measure("slowest_rail", part, on=f"{node} {port}", note="the node has no active RDMA port")
    measure.explain(idle_rails(journey.rails, limits("slowest_rail").low))


def judge_pairs(pairs, measure):
    """The slowest link against the typical one; two nodes have nothing to compare with."""
    if len(pairs.speeds) > 2:
        (sender, receiver), slowest = min(pairs.speeds.items(), key=lambda item: item[1])
        share = slowest / pairs.typical if pairs.typical else 0.0
        measure("slowest_pair", share, on=f"{sender} -> {receiver}", samples=len(pairs.speeds))
    measure.covered(f"links between nodes: {pairs.coverage}")


def draw(journey, pairs, limits, measure):
    """Numbers for the two figures, and what was covered."""
    measure.covered(
        f"all-reduce over {journey.ranks} ranks ({journey.backend}) on {len(journey.sent)} nodes "
        f"up to {journey.peak['size'] >> 10} KiB; five more collectives at {CHECKED >> 10} KiB"
        + (f"; {journey.note}" if journey.note else "")
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
    nodes = list(journey.sent)
    measure.series(
        "pairs", {"nodes": nodes, "gbs": [[pairs.speeds.get((a, b)) for b in nodes] for a in nodes]}
    )


def wrong_element(gang, names, measure):
    """One changed element on one rank must be found, with rank and offset."""
    culprit = gang.size - 1
    rows = [row for found in others(gang, 1 << 16, culprit).values() for row in found]
    seen = {rank for row in rows for rank, _ in row["first_wrong"]}
    found = wrong_data(rows, gang, names)
    measure.control(
        "wrong element",
        f"one element of each result on rank {culprit} is changed",
        caught=seen == {culprit} and all(row["wrong"] for row in rows),
        saw=found[0].statement if found else "no wrong element",
    )


def wrong_road_control(cluster, gang, terms, journey, measure):
    """The same all-reduce, forced off the fabric, must look different to everybody who looks."""
    other, on_gpu = terms.management, cluster.resource == "GPU" and not cluster.emulated
    fault = f"all-reduce is forced onto {other or 'sockets'}"
    if not other and not (on_gpu and terms.fabric == "rdma"):
        saw = "no other interface is agreed: name one in the contract, [cluster] management"
        measure.control("wrong road", fault, caught=None, saw=saw)
        return
    forced = {**pinned(cluster), "NCCL_NET": "Socket"}
    if other:
        forced |= {"GLOO_SOCKET_IFNAME": other, "NCCL_SOCKET_IFNAME": other}
    try:
        if on_gpu:  # NCCL reads its environment once per process
            gang.remove()
            with cluster.gang(environment=forced) as fresh:
                astray = travel(fresh, cluster.names, only=CHECKED)
        else:
            astray = travel(gang, cluster.names, forced, only=CHECKED)
    except GangError as error:
        measure.control("wrong road", fault, caught=None, saw=str(error))
        return
    measure.control("wrong road", fault, caught=noticed(astray, journey, terms), saw=told(astray))


def noticed(astray, journey, terms):
    """Whether the counters, the library and the bandwidth all show the forced road."""
    by_bytes = astray.road != terms.fabric and terms.management in (None, astray.road)
    whole = all(astray.share(node, astray.road) >= 0.9 for node in astray.sent)
    by_word = bool(astray.word.roads) and terms.fabric not in astray.word.roads.values()
    straight = journey and journey.at(CHECKED)
    slower = not straight or astray.peak["busbw"] < 0.95 * straight["busbw"]
    return by_bytes and whole and by_word and slower


def told(astray):
    """The forced road in one line."""
    said = ", ".join(sorted(set(astray.word.roads.values()))) or astray.word.trouble
    return f"bytes on {astray.road}, {astray.word.source}: {said}, {astray.peak['busbw']:.3f} GB/s"
