"""Judges the links: lost packets, lost links, errors, stalled calls, detours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from probes.acceptance.measure import Recorder
from probes.cluster.byte_counters import UNKNOWN, main_device
from probes.fabric.links import findings as tell
from probes.fabric.links.watch import LinkGrowth
from probes.fabric.node_pairs import PairSearch
from probes.fabric.sweep import SweepResult
from reports.measurement import Limit
from scaling.collectives.fault_search import FaultSearchResult, Link

LimitLookup = Callable[[str], Limit | None]


def judge_ports(
    grown: Mapping[str, LinkGrowth | None],
    fabric: Mapping[str, str],
    limits: LimitLookup,
    measure: Recorder,
) -> list[str]:
    """Judge what each node's fabric ports counted; return the nodes whose link went away."""
    measure.keep(
        "links.json",
        {node: one.evidence if one else None for node, one in grown.items()},
        caption="counters of each node's links and of its TCP during the test",
    )
    limit = limits("interface_errors")
    max_errors = limit.high if limit and limit.high is not None else math.inf
    _judge_changes(grown, fabric, measure)
    _judge_errors(grown, fabric, measure)
    measure.explain(tell.find_unstable(grown), tell.find_port_errors(grown, max_errors))
    return [node for node, one in grown.items() if one and one.unstable]


def _judge_changes(
    grown: Mapping[str, LinkGrowth | None], fabric: Mapping[str, str], measure: Recorder
) -> None:
    counts: dict[str, int | None] = {}
    for node, one in grown.items():
        if one is None:
            counts[f"{node} {fabric[node]}"] = None
        else:
            counts |= {f"{node} {port}": count for port, count in one.changes.items()}
    unknown = [where for where, count in counts.items() if count is None]
    known = {where: count for where, count in counts.items() if count is not None}
    if unknown:
        measure("link_changes", None, on=unknown[0], note=f"{len(unknown)} ports do not count them")
    if known:
        worst = max(known, key=lambda where: known[where])
        measure("link_changes", known[worst], on=worst, samples=len(known))


def _judge_errors(
    grown: Mapping[str, LinkGrowth | None], fabric: Mapping[str, str], measure: Recorder
) -> None:
    known = {node: one.errors for node, one in grown.items() if one and one.errors}
    unknown = [f"{node} {fabric[node]}" for node in grown if node not in known]
    if unknown:
        measure("interface_errors", None, on=unknown[0], note="its errors cannot be read")
    for enough in (True, False):
        some = {node: one for node, one in known.items() if one.enough is enough}
        if not some:
            continue
        node = max(some, key=lambda name: some[name].share)
        worst = some[node]
        on = f"{node} {worst.port}, when it {worst.way}"
        few = f"{worst.errors} errors in {worst.packets} packets: too few packets for a share"
        value, note = (worst.share, "") if enough else (None, few)
        measure("interface_errors", value, on=on, samples=len(some), note=note)


def judge_loss(
    run: SweepResult, pairs: PairSearch, max_lost: float, unstable: list[str], measure: Recorder
) -> None:
    """Judge the packets lost between two nodes, and by each node in the all-reduce.

    A link that went away (`unstable` nodes) also loses packets: its own finding reports that.
    """
    judge_link_loss(pairs.lost, measure)
    sends = run.lost_shares
    unknown = [node for node, share in sends.items() if share is None]
    if unknown:
        note = "its packets cannot be counted"
        measure("lost_packets", None, on=f"{unknown[0]} in the all-reduce", note=note)
    known = {node: share for node, share in sends.items() if share is not None}
    if known:
        worst = max(known, key=lambda node: known[node])
        measure("lost_packets", known[worst], on=f"{worst} in the all-reduce", samples=len(known))
    measure.explain(tell.find_loss(pairs.lossy, pairs.lost, known, max_lost, unstable))


def judge_link_loss(lost: Mapping[Link, float | None], measure: Recorder) -> None:
    """Judge the link that lost the largest share, among the links tested two by two."""
    unknown = [link for link, share in lost.items() if share is None]
    if unknown or not lost:
        on = " -> ".join(unknown[0]) if unknown else "pairs of nodes"
        measure("lost_packets", None, on=on, note="its packets cannot be counted")
    known = {link: share for link, share in lost.items() if share is not None}
    if known:
        worst = max(known, key=lambda link: known[link])
        measure("lost_packets", known[worst], on=" -> ".join(worst), samples=len(known))


def judge_stalls(run: SweepResult, explained: bool, measure: Recorder) -> None:
    """Judge the worst call against the median of its size.

    If the stall is `explained` by a located fault, it gets no finding of its own.
    """
    stall = run.longest_stall
    node = run.rank_nodes[stall.rank]
    on = f"rank {stall.rank} on {node}, {stall.size} bytes"
    measure("longest_stall", stall.seconds, on=on, samples=sum(row["samples"] for row in run.rows))
    if measure.would_fail("longest_stall", stall.seconds) and not explained:
        measure.explain(tell.stall_finding(stall, run.lost_shares))


def judge_networks(
    pairs: PairSearch, expected: Mapping[Link, str], routes: Mapping[Link, str], measure: Recorder
) -> None:
    """Judge which network each pair used; `routes` are those of the links that left it.

    `expected` is the device that each link must use.
    """
    unknown = [link for link, device in networks(pairs).items() if device in ("none", UNKNOWN)]
    if unknown:
        note = "no device counted its bytes, or the counter of one cannot be read"
        measure("links_on_other_networks", None, on=" -> ".join(unknown[0]), note=note)
    off = links_off(pairs, expected)
    measure("links_on_other_networks", len(off), samples=len(pairs.sent))
    measure.explain(tell.find_detours(pairs, off, expected, routes))


def networks(pairs: PairSearch) -> dict[Link, str]:
    """Name the device that carried most bytes of each link; `none` if nothing was counted."""
    return {link: main_device(sent) for link, sent in pairs.sent.items()}


def links_off(pairs: PairSearch, expected: Mapping[Link, str]) -> dict[Link, str]:
    """Map each link whose bytes left by another device than `expected` to that device."""
    return {
        link: device
        for link, device in networks(pairs).items()
        if device not in (expected[link], "none", UNKNOWN)
    }


def unexplained(pairs: PairSearch, off: Mapping[Link, str]) -> FaultSearchResult:
    """Return the search for slow links without those that lose packets or take a detour.

    These have findings of their own.
    """
    lossy_links = {*pairs.lossy.slow_links, *off}
    return replace(
        pairs.speed,
        slow_nodes={
            node: way
            for node, way in pairs.speed.slow_nodes.items()
            if node not in pairs.lossy.slow_nodes
        },
        slow_links=[
            link
            for link in pairs.speed.slow_links
            if link not in lossy_links and not {*link} & {*pairs.lossy.slow_nodes}
        ],
    )
