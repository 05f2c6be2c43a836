"""What FABRIC is judged by: reach, speed, data, road, rails, pairs, groups, settings."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.environment.collect import read_settings
from probes.environment.lint import lint
from probes.fabric.detect import (
    find_bad_settings,
    find_mtu_faults,
    find_odd_mtu,
    find_off_fabric,
    find_slow_groups,
    find_slow_links,
    find_unreachable,
    log_findings,
    select_log_faults,
    wrong_data,
)
from probes.fabric.node_pairs import NodeGroupsResult, ReachabilityResult
from probes.fabric.rails import find_idle_rails, find_missing_rails, rail_shares
from probes.fabric.sweep import CHECK_SIZE, SweepResult
from reference_trainer.launch.gang import Gang
from reports.record import Limit
from scaling.collectives.alpha_beta import fit_alpha_beta
from scaling.collectives.fault_search import FaultSearchResult
from scaling.collectives.nccl_tests_format import format_table, results_document
from scaling.collectives.operations import OPERATIONS

ALL_REDUCE = OPERATIONS["all_reduce"]


def judge_settings(cluster: Cluster, fabric: str | None, measure: Recorder) -> None:
    """What each node tells NCCL and gloo, as a job there sees it."""
    nodes = {
        cluster.node_names[id]: facts for id, facts in cluster.on_each_node(read_settings).items()
    }
    flags = lint(nodes, fabric)
    measure(
        "harmful_settings",
        sum(flag.severity == "fail" for flag in flags)
        if len(nodes) == len(cluster.nodes)
        else None,
        note="not every node answered",
    )
    measure.explain(find_bad_settings(flags))
    rows = [{**dataclasses.asdict(flag), "said": flag.statement} for flag in flags]
    measure.keep(
        "settings.json",
        {"flags": rows, "nodes": {name: facts["effective"] for name, facts in nodes.items()}},
        caption="what each node tells NCCL and gloo, and what of it is doubtful",
    )


def judge_reach(reach: ReachabilityResult, measure: Recorder) -> None:
    """Pairs that do not reach each other at all, or not with full-size packets."""
    measure("unreachable_pairs", len(reach.pairs))
    measure("odd_mtu", len(find_odd_mtu(reach)) if reach.mtu else None, note="no MTU is known")
    measure(
        "narrow_pairs", None if reach.narrow is None else len(reach.narrow), note=reach.note or "-"
    )
    measure.explain(find_unreachable(reach), find_mtu_faults(reach))


def judge_speed(run: SweepResult, limits: Callable[[str], Limit | None], measure: Recorder) -> None:
    """Bus bandwidth on the plateau; beside it the model's latency and how equal the ranks are."""
    peak, nodes = run.peak, f"{len(run.sent)} nodes"
    model = fit_alpha_beta(run.rows, ALL_REDUCE, run.ranks)
    measure("busbw", peak["busbw"], on=nodes, spread=peak["spread"], samples=peak["samples"])
    measure.note("rank_cv", peak["rank_cv"], "ratio", on=nodes)
    if model:
        measure.note("latency", model.latency_us, "us", on=nodes)
        measure.note("model_residual", model.residual, "ratio", on=nodes)
    measure.keep(
        "all-reduce.txt", format_table(run.rows, ALL_REDUCE), caption=f"all-reduce sweep; {model}"
    )
    measure.keep(
        "all-reduce.json",
        results_document(run.rows, ALL_REDUCE, run.ranks),
        caption="the same with nccl-tests' results[] keys",
    )
    limit = limits("busbw")
    measure.series(
        "busbw",
        {
            "sizes": [row["size"] for row in run.rows],
            **{key: [row[key] for row in run.rows] for key in ("busbw", "low", "high")},
            "limit": limit.low if limit else None,
        },
    )
    measure.covered(
        f"all-reduce over {run.ranks} ranks ({run.backend}) on {nodes} "
        f"up to {run.rows[-1]['size'] >> 10} KiB" + (f"; {run.note}" if run.note else "")
    )


def judge_data(
    run: SweepResult,
    other_ops: dict[str, list[dict[str, Any]]],
    gang: Gang,
    node_names: dict[str, str],
    measure: Recorder,
) -> None:
    """Every element of every collective."""
    rows = [*run.rows, *(row for result in other_ops.values() for row in result)]
    measure("wrong_elements", sum(row["wrong"] for row in rows))
    measure.explain(wrong_data(rows, gang, node_names))
    for name, result in other_ops.items():
        measure.keep(
            f"{name}.txt", format_table(result, OPERATIONS[name]), caption=f"{name}: values checked"
        )
    measure.covered(f"five more collectives at {CHECK_SIZE >> 10} KiB")


def judge_transport(run: SweepResult, fabric: str | None, measure: Recorder) -> None:
    """Each node's bytes on the fabric and elsewhere, and whether both witnesses say the same."""
    measure("road", run.main_device)
    disagreement = run.witness_disagreement()
    measure("witnesses", None if disagreement else 2, note=disagreement)
    for node in run.sent:
        note = "no fabric was agreed or derived"
        share = run.share(node, fabric) if fabric else None
        other_share = run.share_on_other_interfaces(node, fabric) if fabric else None
        measure("fabric_share", share, on=node, note=note)
        measure("other_share", other_share, on=node, note=note)
    measure.keep(
        "roads.json",
        {"bytes_sent": run.sent, run.library.source or "library": run.library.transports},
        caption="bytes sent per node and road, and what the library says",
    )
    for name, data in run.library.logs.items():
        text = gzip.decompress(data).decode("utf-8", "backslashreplace")
        measure.keep(name, text, kind="log", caption="NCCL's log of one rank")
    if run.library.report:
        findings = log_findings(run.library.report.findings, fabric)
        if fabric == "rdma":
            measure("log_faults", len(select_log_faults(findings)))
        measure.explain(findings)
    measure.explain(find_off_fabric(run, fabric))


def judge_rails(
    run: SweepResult, terms: ClusterTerms, limits: Callable[[str], Limit | None], measure: Recorder
) -> None:
    """That each node has the rails that were ordered, and that each rail carried its part."""
    if terms.fabric != "rdma":
        return
    counts = {node: len(ports) for node, ports in run.rails.items()}
    expected = terms.rails or max(counts.values())
    because = "the contract orders them" if terms.rails else "every node has what the best one has"
    best = max(run.rail_gbps.values(), default=0.0)
    rate = f", each at {best:g} Gbit/s as on the best node" if best else ""
    limit = Limit(low=expected, unit="rails", because=because + rate)
    parts = {node: rail_shares(sent, expected) for node, sent in run.rails.items()}
    for node, count in counts.items():
        measure(
            "rails", count if run.rail_gbps.get(node, best) == best else 0, on=node, limit=limit
        )
        port, part = min(parts[node].items(), key=lambda item: item[1], default=("no rail", None))
        measure("slowest_rail", part, on=f"{node} {port}", note="the node has no active RDMA port")
    slowest = limits("slowest_rail")
    measure.explain(
        find_missing_rails(counts, expected, run.rail_gbps),
        find_idle_rails(parts, slowest.low if slowest and slowest.low else 0),
    )


def judge_pairs(pairs: FaultSearchResult, run: SweepResult, measure: Recorder) -> None:
    """The slowest link against the typical one; two nodes have nothing to compare with."""
    if len(pairs.speeds) > 2:
        (sender, receiver), slowest = min(pairs.speeds.items(), key=lambda item: item[1])
        share = slowest / pairs.typical if pairs.typical else 0.0
        measure("slowest_pair", share, on=f"{sender} -> {receiver}", samples=len(pairs.speeds))
    measure.explain(find_slow_links(pairs))
    measure.covered(f"links between nodes, by one rank of each: {pairs.coverage}")
    nodes = list(run.sent)
    measure.series(
        "pairs", {"nodes": nodes, "gbs": [[pairs.speeds.get((a, b)) for b in nodes] for a in nodes]}
    )


def judge_groups(result: NodeGroupsResult, pairs: FaultSearchResult, measure: Recorder) -> None:
    """What is slow, or wrong, in groups of about sqrt(n) nodes."""
    measure("slow_in_groups", len(result.nodes) + len(result.groups))
    measure("wrong_elements", sum(result.wrong.values()), on="groups of nodes")
    measure.explain(find_slow_groups(result, pairs))
    measure.covered(f"all-reduce in groups: {result.coverage}")
