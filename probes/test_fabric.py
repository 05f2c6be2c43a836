"""Does gradient traffic use the fabric, at the speed the fabric was sold at?"""

import pytest

from probes.fabric_findings import slow_links, unreachable, wrong_data, wrong_road
from probes.findings import finding
from probes.pairs import pair_speeds, reachability
from probes.roads import travel
from reference_trainer.gang import GangError
from scaling.collectives import table
from scaling.search import typical

# Bytes are counted against what a ring must move; a tree over two nodes moves less per port.
PINNED = {"NCCL_ALGO": "Ring"}


@pytest.mark.criterion("FABRIC")
def test_allreduce_takes_the_fabric_at_line_rate(cluster, terms, limits, measure):
    """All-reduce over every accelerator moves exact data over the agreed fabric, at its speed.

    A job that took the wrong road still trains and its loss still falls; only its bandwidth and
    the byte counters give it away.  So we time it, check every element, and count the bytes.
    """
    fabric, names = terms.fabric, cluster.names
    if len(cluster.nodes) < 2:
        pytest.fail("one node has no fabric to other nodes", pytrace=False)
    with cluster.gang(environment=PINNED) as gang:
        measure.progress("fabric: who reaches whom")
        cut = reachability(gang, names, fabric)
        measure.explain(unreachable(cut))
        if cut.pairs:
            measure("busbw", None, note="not every pair of nodes reaches each other")
        else:
            observe(gang, names, fabric, limits, measure)
        measure("unreachable_pairs", len(cut.pairs))
        control(cluster, gang, terms, measure)


def observe(gang, names, fabric, limits, measure):
    """The sweep, the road and the pairs."""
    try:
        measure.progress("fabric: all-reduce sweep")
        journey = travel(gang, names)
        measure.progress("fabric: every pair of nodes")
        pairs = pair_speeds(gang, names)
    except GangError as error:
        measure("busbw", None, note=str(error))
        measure.explain(finding("FAB-NO-START", str(error)))
        return
    peak = journey.peak
    measure.keep(
        "all-reduce.txt", table(journey.rows), caption="all-reduce sweep, nccl-tests' columns"
    )
    measure.keep("bytes-per-road.json", journey.sent, caption="bytes sent per node and road")
    measure.covered(
        f"all-reduce over {journey.ranks} ranks ({journey.backend}) on {len(journey.sent)} "
        f"nodes up to {peak['size'] >> 10} KiB; {len(pairs)} pairs of nodes"
    )

    measure(
        "busbw",
        peak["busbw"],
        on=f"{len(journey.sent)} nodes",
        spread=peak["spread"],
        samples=peak["samples"],
    )
    measure("wrong_elements", sum(row["wrong"] for row in journey.rows))
    measure("road", journey.road)
    judge_shares(journey, pairs, fabric, measure)
    measure.explain(
        wrong_data(journey, gang, names),
        wrong_road(journey, fabric),
        slow_links(journey, pairs, limits),
    )
    draw(journey, pairs, limits, measure)


def judge_shares(journey, pairs, fabric, measure):
    """Each node's bytes on the fabric and elsewhere, and the slowest pair of nodes."""
    for node in journey.sent:
        measure(
            "fabric_share",
            journey.share(node, fabric) if fabric else None,
            on=node,
            note="no fabric was agreed or derived",
        )
        measure(
            "other_share",
            journey.elsewhere(node, fabric) if fabric else None,
            on=node,
            note="no fabric was agreed or derived",
        )
    if len(pairs) > 2:  # fewer cannot be told apart
        (a, b), slowest = min(pairs.items(), key=lambda item: item[1])
        measure("slowest_pair", slowest / typical(pairs), on=f"{a} - {b}")


def draw(journey, pairs, limits, measure):
    """Numbers for the two figures."""
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
    both = pairs | {(b, a): gbs for (a, b), gbs in pairs.items()}
    measure.series(
        "pairs", {"nodes": nodes, "gbs": [[both.get((a, b)) for b in nodes] for a in nodes]}
    )


def control(cluster, gang, terms, measure):
    """The same all-reduce, forced off the agreed fabric, must come back as the wrong road."""
    other, on_gpu = terms.management, cluster.resource == "GPU" and not cluster.emulated
    fault = f"all-reduce is forced onto {other or 'sockets'}"
    if not other and not (on_gpu and terms.fabric == "rdma"):
        saw = "no other interface is agreed: name one in the contract, [cluster] management"
        measure.control("wrong road", fault, caught=None, saw=saw)
        return
    forced = {**PINNED, "NCCL_NET": "Socket"}
    if other:
        forced |= {"GLOO_SOCKET_IFNAME": other, "NCCL_SOCKET_IFNAME": other}
    try:
        if on_gpu:  # NCCL reads its environment once per process
            gang.remove()
            with cluster.gang(environment=forced) as fresh:
                journey = travel(fresh, cluster.names, only=1 << 22)
        else:
            journey = travel(gang, cluster.names, forced, only=1 << 20)
    except GangError as error:
        measure.control("wrong road", fault, caught=None, saw=str(error))
        return
    measure.control(
        "wrong road",
        fault,
        caught=journey.road != terms.fabric
        and other in (None, journey.road)
        and all(journey.share(node, journey.road) >= 0.9 for node in journey.sent),
        saw=f"bytes on {journey.road}, {journey.peak['busbw']:.3f} GB/s",
    )
