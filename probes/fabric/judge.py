"""What FABRIC is judged by: reach, speed, data, road, rails, pairs, groups, settings."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.environment.collect import settings
from probes.environment.lint import lint
from probes.fabric.detect import (
    log_faults,
    narrow,
    odd_mtu,
    of_the_log,
    settings_wrong,
    slow_in_groups,
    slow_links,
    unreachable,
    wrong_data,
    wrong_road,
)
from probes.fabric.node_pairs import Crowds, Cut
from probes.fabric.rails import idle_rails, missing_rails, shares
from probes.fabric.sweep import CHECKED, Journey
from reference_trainer.launch.gang import Gang
from reports.record import Limit
from scaling.collectives.alpha_beta import fit
from scaling.collectives.fault_search import Hunt
from scaling.collectives.nccl_tests_format import document, table
from scaling.collectives.operations import OPERATIONS

ALL_REDUCE = OPERATIONS["all_reduce"]


def judge_settings(cluster: Cluster, fabric: str | None, measure: Ledger) -> None:
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


def judge_reach(cut: Cut, measure: Ledger) -> None:
    """Pairs that do not reach each other at all, or not with full-size packets."""
    measure("unreachable_pairs", len(cut.pairs))
    measure("odd_mtu", len(odd_mtu(cut)) if cut.mtu else None, note="no MTU is known")
    measure(
        "narrow_pairs", None if cut.narrow is None else len(cut.narrow), note=cut.untried or "-"
    )
    measure.explain(unreachable(cut), narrow(cut))


def judge_speed(journey: Journey, limits: Callable[[str], Limit | None], measure: Ledger) -> None:
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


def judge_data(
    journey: Journey,
    more: dict[str, list[dict[str, Any]]],
    gang: Gang,
    names: dict[str, str],
    measure: Ledger,
) -> None:
    """Every element of every collective."""
    rows = [*journey.rows, *(row for found in more.values() for row in found)]
    measure("wrong_elements", sum(row["wrong"] for row in rows))
    measure.explain(wrong_data(rows, gang, names))
    for name, found in more.items():
        measure.keep(
            f"{name}.txt", table(found, OPERATIONS[name]), caption=f"{name}: values checked"
        )
    measure.covered(f"five more collectives at {CHECKED >> 10} KiB")


def judge_road(journey: Journey, fabric: str | None, measure: Ledger) -> None:
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


def judge_rails(
    journey: Journey, terms: ClusterTerms, limits: Callable[[str], Limit | None], measure: Ledger
) -> None:
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
    slowest = limits("slowest_rail")
    measure.explain(
        missing_rails(counts, wanted, journey.rates),
        idle_rails(parts, slowest.low if slowest and slowest.low else 0),
    )


def judge_pairs(pairs: Hunt, journey: Journey, measure: Ledger) -> None:
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


def judge_groups(crowds: Crowds, pairs: Hunt, measure: Ledger) -> None:
    """What is slow, or wrong, in groups of about sqrt(n) nodes."""
    measure("slow_in_groups", len(crowds.nodes) + len(crowds.groups))
    measure("wrong_elements", sum(crowds.wrong.values()), on="groups of nodes")
    measure.explain(slow_in_groups(crowds, pairs))
    measure.covered(f"all-reduce in groups: {crowds.coverage}")
