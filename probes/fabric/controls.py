"""The controls of FABRIC: a changed element, and a sweep that is forced off the fabric."""

from __future__ import annotations

from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.fabric.detect import wrong_data
from probes.fabric.library_report import RankLogs
from probes.fabric.sweep import CHECKED, Journey, others, pinned, travel
from probes.findings import listed
from reference_trainer.launch.gang import Gang, GangError
from scaling.collectives.line_rate import line_rate

SLOWER = 0.95  # of the straight run's bandwidth: what a slower road must stay under


def wrong_element(gang: Gang, names: dict[str, str], measure: Ledger) -> None:
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


def wrong_road_control(
    cluster: Cluster,
    gang: Gang,
    terms: ClusterTerms,
    journey: Journey | None,
    logs: RankLogs,
    measure: Ledger,
) -> None:
    """The same all-reduce, forced off the fabric, must look different to everybody who looks."""
    other = terms.management
    fault = f"all-reduce is forced onto {other or 'sockets'}"
    if not other and not (cluster.on_gpu and terms.fabric == "rdma"):
        saw = "no other interface is agreed: name one in the contract, [cluster] management"
        measure.control("wrong road", fault, caught=None, saw=saw)
        return
    forced: dict[str, str | None] = {**pinned(cluster, logs), "NCCL_NET": "Socket"}
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


def noticed(astray: Journey, terms: ClusterTerms) -> bool:
    """Whether the counters and the library both show the forced road.

    Where no interface is agreed, sockets may take several at once, and others on each node.
    """
    other = terms.management
    forced = [
        astray.share(node, other) if other else astray.elsewhere(node, terms.fabric or "")
        for node in astray.sent
    ]
    by_bytes = astray.road != terms.fabric and min(forced) >= 0.9
    by_word = bool(astray.word.roads) and terms.fabric not in astray.word.roads.values()
    return by_bytes and by_word


def slowed(
    astray: Journey, journey: Journey | None, terms: ClusterTerms, facts: list[dict[str, Any]]
) -> tuple[bool | None, str]:
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


def port_rate(terms: ClusterTerms, facts: list[dict[str, Any]]) -> float | None:
    """GB/s that the management port can carry; None where nobody says."""
    if terms.management_gbps:
        return terms.management_gbps / 8
    rate = line_rate(facts, terms.management) if terms.management else None
    return rate.gbytes if rate else None


def told(astray: Journey) -> str:
    """The forced road in one line."""
    roads = {road for sent in astray.sent.values() for road in sent}
    used = {road for road in roads if any(astray.share(n, road) >= 0.05 for n in astray.sent)}
    said = ", ".join(sorted(set(astray.word.roads.values()))) or astray.word.trouble
    return (
        f"bytes on {listed(sorted(used)) or 'no device'}, {astray.word.source}: {said}, "
        f"{astray.peak['busbw']:.3f} GB/s"
    )
