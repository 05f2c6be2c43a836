"""Judges speed, data and network of a sweep, and names the nodes at fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, permutations
from typing import Any

from probes.check.judging import cover_alike, silent_names
from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import RDMA, UNKNOWN, interfaces_of
from probes.contract.contract import ClusterTerms
from probes.environment.checks import EFA_NAMES
from probes.environment.lint import Flag, lint
from probes.fabric import criterion as check
from probes.fabric import detect, links, node_pairs
from probes.fabric.addresses import RailRanks, find_rails, least_by_nodes, node_of
from probes.fabric.link_counters import read_routes
from probes.fabric.links import LinkWatch
from probes.fabric.node_pairs import InsideSpeeds, NodeGroupsResult, PairSearch
from probes.fabric.rails import find_idle_rails, find_missing_rails, rail_shares
from probes.fabric.reach import ReachabilityResult, check_reach, fails_by_tcp_alone
from probes.fabric.sweep import CHECK_SIZE, Rows, SweepResult, check_ops, highest, lowest
from probes.fabric.transport import RankLogs, keep_logs
from probes.findings import finding, join_names
from reference_trainer.launch.gang import Gang, GangError
from reports.groups import group_pairs
from reports.measurement import Limit, Verdict
from reports.numbers import percent, quantity, size_text
from scaling.collectives.fault_search import FaultSearchResult, Link
from scaling.collectives.line_rate import (
    fit_alpha_beta,
    format_table,
    results_document,
    ring_latency,
)
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.paths import PathsBefore, pack_pairs, unmet_rounds
from scaling.collectives.sweep import plateau_rows

STAGED_SENDS = (
    "NCCL receives with GPUDirect RDMA and sends without it: a fault on GPUs with NVLink (NV in "
    "`nvidia-smi topo -m`), normal on GPUs without NVLink"
)
ALL_REDUCE = OPERATIONS["all_reduce"]
# Speeds that no comparison judges: all links may be slow alike.
ALIKE = check.BUSBW, check.ALLTOALL_BUSBW, check.ALL_REDUCE_INSIDE_NODE, check.NVLINK_BUSBW
MEDIUM_PARTS = (64, 256)  # of the largest size: 256 and 64 MiB of 16 GiB, as FSDP and TP send
# Codes of NCCL's log that are not errors: no proof, judged by the rails' measures, late start.
IGNORED_CODES = ("FAB-UNKNOWN-NET", "FAB-PARTIAL-RAILS", "INIT-SLOW")


def judge_lint(
    settings: Mapping[str, Any], cluster: Cluster, fabric: str | None, measure: Recorder
) -> list[Flag]:
    """Judge the NCCL and gloo settings that a job sees on each node, by its id; return flags."""
    nodes = {cluster.node_names[id]: facts for id, facts in settings.items()}
    flags = lint(nodes, fabric)
    harmful = sum(flag.severity == "fail" for flag in flags)
    silent = join_names(silent_names(cluster.nodes, settings))
    note = f"no answer from {silent}" if silent else ""
    measure(check.HARMFUL_SETTINGS, None if silent else harmful, note=note)
    measure.explain(detect.find_bad_settings(flags))
    rows = [{**asdict(flag), "said": flag.statement} for flag in flags]
    effective = {name: facts["effective"] for name, facts in nodes.items()}
    caption = "settings of NCCL and gloo on each node, and the doubtful ones"
    measure.keep("settings.json", {"flags": rows, "nodes": effective}, caption=caption)
    return flags


def judge_speed(run: SweepResult, measure: Recorder) -> None:
    """Judge bus bandwidth on the plateau; note the model's latency and the variation of ranks."""
    row, nodes = run.plateau, f"{len(run.sent)} nodes"
    model = fit_alpha_beta(run.rows, ALL_REDUCE, run.ranks)
    measure(check.BUSBW, row["busbw"], on=nodes, spread=row["spread"], samples=row["samples"])
    judge_variation(row, nodes, measure)
    if model:
        measure.note("latency", model.latency_us, "us", on=nodes)
        measure.note("model_residual", model.residual, "ratio", on=nodes)
    table = format_table(run.rows, ALL_REDUCE)
    document = results_document(run.rows, ALL_REDUCE, run.ranks)
    measure.keep("all-reduce.txt", table, caption=f"all-reduce sweep; {model}")
    caption = "all-reduce sweep in the format of nccl-tests"
    measure.keep("all-reduce.json", document, caption=caption)
    measure.covered(
        f"all-reduce over {run.ranks} ranks ({run.backend}) on {nodes} "
        f"up to {size_text(run.rows[-1]['size'])}" + (f"; {run.note}" if run.note else "")
    )
    if run.backend == "nccl":
        measure.covered("a ring (NCCL_ALGO) shows no fault of NCCL's trees, NVLS and SHARP")
        cover_alike(measure, "links", {one: measure.contract.limit("FABRIC", one) for one in ALIKE})
        measure.covered("narrow uplinks of switches can stay unseen: pairs are compared with pairs")


def judge_sizes(rows: Rows, run: SweepResult, measure: Recorder) -> None:
    """Judge latency and medium sizes of an all-reduce by GPUs, as a share of what `run` expects.

    A call takes the latency of a sound ring, and its bytes at the rate of the plateau.  The better
    placement counts.
    """
    sound_s = ring_latency(run.ranks, len(run.sent), run.main_device == RDMA)
    shortest_s = min(row["seconds"] for row in rows)
    on = f"{run.ranks} ranks on {len(run.sent)} nodes"
    latency_share, slow = sound_s / shortest_s, []
    measure(check.LATENCY_AGAINST_EXPECTED, latency_share, on=on, samples=len(rows))
    most_s = sound_s / lowest(measure, check.LATENCY_AGAINST_EXPECTED)
    measure.covered(f"short all-reduces pass with up to {quantity(most_s, 's')}")
    if measure.would_fail(check.LATENCY_AGAINST_EXPECTED, latency_share):
        model = f"a sound ring of {on} takes at most {quantity(sound_s, 's')}"
        slow.append(f"the shortest one takes {quantity(shortest_s, 's')}, but {model}")
    bytes_s = ALL_REDUCE.factor(run.ranks) / run.plateau["busbw"] / 1e9
    judged, largest = least_seconds(rows), max(row["size"] for row in run.rows)
    for size in (largest // part for part in MEDIUM_PARTS):
        seconds, expected = judged.get(size), sound_s + size * bytes_s
        share = expected / seconds if seconds else None
        note = "" if seconds else "this size was not timed"
        measure(check.MEDIUM_AGAINST_EXPECTED, share, on=size_text(size), note=note)
        if seconds and measure.would_fail(check.MEDIUM_AGAINST_EXPECTED, share):
            text = f"{size_text(size)} takes {quantity(seconds, 's')}, but latency and the speed of"
            slow.append(f"{text} large messages let expect {quantity(expected, 's')}")
    if slow:
        measure.explain(finding("FAB-SLOW-COLLECTIVE", f"all-reduce: {'; '.join(slow)}", []))


def least_seconds(rows: Rows) -> dict[int, float]:
    """Return the seconds of a call by size; the better placement counts."""
    return {row["size"]: min(one["seconds"] for one in rows if one["size"] == row["size"])
            for row in rows}  # fmt: skip


def judge_variation(row: Mapping[str, Any], on: str, measure: Recorder) -> None:
    """Judge how much the ranks' median times of one size differ."""
    measure(check.RANK_CV, row["rank_cv"], on=on, samples=len(row["rank_seconds"]))


def record_curves(
    run: SweepResult, terms: ClusterTerms, measure: Recorder, forced: SweepResult | None = None
) -> None:
    """Record the chart of bus bandwidth, with the sweep that was `forced` off the fabric."""
    judged = [row["size"] for row in plateau_rows(run.rows)]
    series = {
        **_curve(run),
        **{edge: [row[edge] for row in run.rows] for edge in ("low", "high")},
        "judged": {"sizes": judged, "busbw": run.plateau["busbw"]},
        "limit": lowest(measure, check.BUSBW) or None,
        "line_rate": terms.line_gbytes_per_s,
    }
    measure.series("busbw", {**series, "control": _curve(forced)} if forced else series)


def _curve(run: SweepResult) -> dict[str, list[float]]:
    return {"sizes": [row["size"] for row in run.rows], "busbw": [row["busbw"] for row in run.rows]}


def judge_data(run: SweepResult, other_ops: dict[str, Rows], measure: Recorder) -> Rows:
    """Judge every element of every collective; return the rows with wrong elements."""
    rows = [*run.rows, *(row for result in other_ops.values() for row in result)]
    judge_elements(rows, measure)
    for name, result in other_ops.items():
        table = format_table(result, OPERATIONS[name])
        measure.keep(f"{name}.txt", table, caption=f"{name}: times; every value was checked")
    size = size_text(min(CHECK_SIZE, run.rows[-1]["size"]))
    measure.covered(f"five more collectives, their values checked, at {size}")
    return [row for row in rows if row["wrong"]]


def judge_elements(rows: Rows, measure: Recorder) -> None:
    """Judge the number of wrong elements that collectives returned."""
    measure(check.WRONG_ELEMENTS, sum(row["wrong"] for row in rows))


def judge_other_data(gang: Gang, rank_nodes: list[str], measure: Recorder) -> None:
    """Judge every element of the five other collectives, where no sweep is made."""
    rows = [row for each in check_ops(gang, CHECK_SIZE).values() for row in each]
    judge_elements(rows, measure)
    measure.explain(detect.wrong_data([row for row in rows if row["wrong"]], rank_nodes))
    measure.covered(f"five collectives, their values checked, at {size_text(CHECK_SIZE)}")


def judge_own_log(rig: FabricRig, logs: RankLogs) -> None:
    """Judge the errors in NCCL's log of the only node; a log with gaps proves nothing."""
    if not logs.cluster.on_gpu:
        return
    library = logs.report(rig.gang, rig.node_names)
    findings = keep_logs(library, rig.measure)
    errors = sum(one.code not in IGNORED_CODES for one in findings)
    value = errors or (None if library.missing else 0)
    limit = Limit(high=0, unit="findings", because="NCCL must log no error inside a node")
    rig.measure(check.LOG_ERRORS, value, note="; ".join(library.missing), limit=limit)
    rig.measure.explain(findings)


def judge_transport(run: SweepResult, fabric: str | None, measure: Recorder) -> None:
    """Judge each node's bytes on the fabric and elsewhere, and whether both sources agree."""
    device = run.main_device
    measure(check.NETWORK, None if device == UNKNOWN else device, note=run.unread)
    disagreement = run.witness_disagreement()
    measure(check.AGREEING_SOURCES, None if disagreement else 2, note=disagreement)
    shares = {
        check.FABRIC_SHARE: run.share,
        check.SHARE_ON_OTHER_NETWORKS: run.share_on_other_interfaces,
    }
    for node in run.sent:
        for name, share in shares.items():
            value = share(node, fabric) if fabric else None
            note = run.unread if fabric else "no fabric is known: set [cluster] fabric"
            measure(name, value, on=node, note=note if value is None else "")
    if fabric:
        here, elsewhere = ([share(node, fabric) for node in run.sent] for share in shares.values())
        nodes = {"fabric": fabric, "nodes": [*run.sent]}
        measure.series("bytes", {**nodes, "on_fabric": here, "elsewhere": elsewhere})
    content = {"bytes_sent": run.sent, run.library.source or "library": run.library.transports}
    caption = "bytes sent per node and network, and what NCCL or gloo reports"
    measure.keep("networks.json", content, caption=caption)
    logged = keep_logs(run.library, measure)
    if run.library.report:
        findings = detect.log_findings(logged, fabric)
        if fabric == "rdma":
            errors = sum(item.code not in IGNORED_CODES for item in findings)
            staged = run.library.report.stages_sends and not errors
            note = STAGED_SENDS if staged else ""
            measure(check.LOG_ERRORS, None if staged else errors, note=note)
        measure.explain(findings)


def split_kinds(run: SweepResult, models: Mapping[str, str]) -> Iterator[SweepResult]:
    """Yield the sweep with the rails of one kind of nodes after the other."""
    for nodes in group_pairs((models.get(node, ""), node) for node in run.rails).values():
        rates = {node: gbps for node, gbps in run.rail_gbps.items() if node in nodes}
        rails = {node: run.rails[node] for node in nodes}
        yield replace(run, rails=rails, rail_gbps=rates)


def judge_rails(
    run: SweepResult, terms: ClusterTerms, measure: Recorder, installed: int | None = None
) -> None:
    """Judge that each node has the rails that were ordered, and that each carried its part.

    If no number was ordered, all that the best node has `installed` must be active, and one at
    least.  Interfaces of a fabric are rails too, unless gloo bound one to each rank.
    """
    interfaces = interfaces_of(terms.fabric) if run.backend == "nccl" else []
    if terms.fabric != RDMA and len(interfaces) < 2:
        return
    counts = {node: len(ports) for node, ports in run.rails.items()}
    most = max([installed or 0, *counts.values()])
    expected = terms.rails or len(interfaces) or most or 1
    ordered = (terms.rails or interfaces) and measure.contract.agreed
    because = "RDMA needs at least one rail"
    if ordered:
        because = "the contract says so"
    elif most:
        because = "every node must have as many as the best node"
    best = max(run.rail_gbps.values(), default=0.0)
    efa = any(name.startswith(EFA_NAMES) for ports in run.rails.values() for name in ports)
    # Older drivers of EFA report one rate for every device.
    agreed = 0.0 if efa or terms.fabric != RDMA else terms.line_rate_gbps or 0.0
    need = best and max(best, agreed)
    whose = "agreed" if need > best else "on the best node"
    rate = f"; each must run at {need:g} Gbit/s, as {whose}" if best else ""
    limit = Limit(low=expected, unit="rails", because=because + rate)
    parts = {
        node: rail_shares(sent, expected) if run.is_counted(node) or not interfaces else {}
        for node, sent in run.rails.items()
    }
    for node, count in counts.items():
        as_fast = run.rail_gbps.get(node, need) == need
        measure(check.RAILS, count if as_fast else 0, on=node, limit=limit)
        port, part = min(parts[node].items(), key=lambda item: item[1], default=("", None))
        why = "the bytes of its rails cannot be read" if count else "no rail is active"
        on = f"{node} {port}".rstrip()
        measure(check.SLOWEST_RAIL, part, on=on, note="" if parts[node] else why)
    measure.explain(
        find_missing_rails(counts, expected, run.rail_gbps, need, whose),
        find_idle_rails(parts, lowest(measure, check.SLOWEST_RAIL)),
    )


def judge_pairs(
    pairs: PairSearch, unexplained: FaultSearchResult, run: SweepResult, measure: Recorder
) -> None:
    """Judge the slowest link against the typical one; two nodes have nothing to compare with.

    `unexplained` is its search without the slow links that another finding explains.
    """
    judge_slowest_pair(pairs.speed, measure)
    measure.explain(detect.find_slow_ports(unexplained, pairs.rails))
    several = len(pairs.rails) > 1
    ways = f"on {len(pairs.rails)} rails" if several else "with one rank of each node"
    measure.covered(f"links between nodes, {ways}: {pairs.speed.coverage}")
    if pairs.at_once:
        judge_rails_at_once(pairs, pairs.at_once, measure)
    elif several:
        reason = "ranks of a node share ports, or the number of ports is unknown"
        measure.covered(f"all rails at once were not tested: {reason}")
    if several and (more := len(run.rank_nodes) - sum(len(rail.ports) for rail in pairs.rails)):
        reason = "at least one node has fewer ranks than another"
        measure.covered(f"{quantity(more, 'ranks')} took no part in the test of links: {reason}")
    nodes, least = list(run.sent), least_by_nodes(pairs.speed.speeds)
    places = {node: place for place, node in enumerate(nodes)}
    known = [(link, gbs) for link, gbs in sorted(least.items()) if {*link} <= places.keys()]
    cells = [(places[a], places[b], gbs) for (a, b), gbs in known]
    measure.series("pairs", {"nodes": nodes, "cells": cells, "typical": pairs.speed.typical})


def record_paths(pairs: PairSearch, before: PathsBefore | None, measure: Recorder) -> None:
    """Say how many pairs met, those of `before` too; list them for a run that carries on.

    Nothing is carried on from a run with a slow pair.
    """
    rails = [sorted(rail.ports) for rail in pairs.rails]
    every = {pair for ports in rails for pair in combinations(ports, 2)}
    met = every & {*pairs.speed.speeds, *(before.met if before else ())}
    if before:
        count = f"{len(met)} of {quantity(len(every), 'pairs')} met, in this run or before"
        measure.covered(f"{count}: carried on from the run with fingerprint {before.head}")
    if met == every:
        return
    if measure.worst(check.SLOWEST_PAIR).verdict is Verdict.PASS:
        measure.series("paths", pack_pairs(rails, met))
    missed = f"a chance of {percent(1 - len(met) / len(every))}"
    which = f"tier soak tests every pair, tier standard up to {MATRIX_NODES} nodes"
    also = "and --paths-from tests other pairs than an earlier run"
    measure.covered(f"one bad path between two nodes is missed with {missed}: {which}, {also}")


def judge_rails_at_once(pairs: PairSearch, at_once: FaultSearchResult, measure: Recorder) -> None:
    """Judge the slowest link when all rails send at once, by what a rail reaches alone.

    Both are speeds of pairs that send both ways: a link may be slower than one way alone.
    """
    alone = max(pairs.one_rail, at_once.typical)
    judged = replace(at_once, typical=alone)
    share = judge_slowest_pair(judged, measure, ", all rails at once")
    new = detect.only_at_once(at_once, pairs.speed, pairs.lossy)
    crowd, new = detect.find_crowd(new, pairs.speed.speeds)
    findings = crowd + detect.find_slow_ports(new, pairs.rails, detect.AT_ONCE)
    fails = share is not None and measure.would_fail(check.SLOWEST_PAIR, share)
    if fails and at_once.typical < node_pairs.MIN_RATIO * alone:
        findings = [detect.find_shared_rails(at_once, pairs)]
    measure.explain(findings)
    measure.covered(f"links between nodes, all rails at once: {at_once.coverage}")


def judge_slowest_pair(pairs: FaultSearchResult, measure: Recorder, when: str = "") -> float | None:
    """Judge the slowest link as a share of the typical one, if there is more than one pair.

    Returns the share.
    """
    if len(pairs.speeds) <= 2:
        return None
    (sender, receiver), slowest = min(pairs.speeds.items(), key=lambda item: item[1])
    share, on = slowest / pairs.typical if pairs.typical else 0.0, f"{sender} -> {receiver}"
    measure(check.SLOWEST_PAIR, share, on=on + when, samples=len(pairs.speeds))
    return share


def judge_groups(
    result: NodeGroupsResult,
    pairs: FaultSearchResult,
    measure: Recorder,
    leaves: Sequence[Sequence[str]] = (),
) -> None:
    """Judge slow or wrong groups of about sqrt(n) nodes.

    A slow uplink between `leaves` has its own finding, and explains groups over several of them.
    """
    measure(check.SLOW_GROUPS, len(result.nodes) + len(result.groups))
    measure(check.WRONG_ELEMENTS, sum(result.wrong.values()), on="groups of nodes")
    if leaves:
        rest = [g for g in result.groups if sum(not {*g}.isdisjoint(one) for one in leaves) < 2]
        result = replace(result, groups=rest)
    measure.explain(detect.find_slow_groups(result, pairs))
    measure.covered(f"all-reduce in groups: {result.coverage}")


# Numbers of nodes.  Groups are tried from LARGE on: with fewer, groups are hardly more than pairs.
# MIN_NODES is the least from which groups can identify a node: there they are tried if all is slow
# and pairs do not show why.
MIN_NODES, LARGE = 4, 12
# Findings that explain a slow fabric and locate the cause.
LOCATED = {"FAB-LOSS", "FAB-LOSS-ALL", "FAB-LINK-FLAPS", "FAB-DETOUR"}
LOCATED |= {"FAB-SLOW-LINK", "FAB-SLOW-INSIDE", "FAB-SLOW-UPLINK"}


@dataclass(frozen=True)
class FabricRig:
    """Environment of FABRIC: ranks, agreed terms, link counters, and the recorder.

    `watch` is None on an embedded cluster: its raylets share one host, and no link.  `before` is of
    the run whose meetings of pairs are carried on.  `models` are each node's GPUs, where kinds of
    nodes were ordered: only nodes of one kind are compared.
    """

    gang: Gang
    node_names: dict[str, str]
    terms: ClusterTerms
    tier: str
    watch: LinkWatch | None
    measure: Recorder
    before: PathsBefore | None = None
    models: Mapping[str, str] = field(default_factory=dict)

    def judge_ports(self, fabric: dict[str, str]) -> list[str]:
        """Judge each node's fabric (an interface, or rdma) by its counts; return unstable nodes."""
        if self.watch is None:
            return []
        return links.judge_ports(self.watch.growth(fabric), fabric, self.measure)

    def judge_agreed_ports(self) -> None:
        """Judge the ports of the agreed fabric, if there is one.  Used when nothing was sent."""
        if self.terms.fabric:
            self.judge_ports(dict.fromkeys(self.node_names.values(), self.terms.fabric))


def replace_reach(
    rig: FabricRig, reach: Mapping[str | None, ReachabilityResult], run: SweepResult
) -> Mapping[str | None, ReachabilityResult]:
    """Return the reach by Ray's network, where RDMA passes on its ports and TCP alone does not.

    RDMA passes if the all-reduce took it and was fast enough.  Otherwise `reach` stays.
    """
    if not fails_by_tcp_alone(reach):
        return reach
    trial = rig.measure.trial()
    judge_speed(run, trial)
    judge_transport(run, RDMA, trial)
    proofs = check.BUSBW, check.NETWORK, check.FABRIC_SHARE
    if any(trial.worst(proof).severity > Verdict.MARGINAL.rank for proof in proofs):
        return reach
    pairs = quantity(len(reach[RDMA].pairs), "pairs")
    message = f"on ports of RDMA, TCP does not pass between {pairs} of nodes, but RDMA does: "
    rig.measure.covered(f"{message}TCP and packet sizes were tested on Ray's network instead")
    return {None: check_reach(rig.gang, rig.node_names, None)}


def find_bad_nodes(
    rig: FabricRig, run: SweepResult, wrong: Rows
) -> tuple[PairSearch, InsideSpeeds | None]:
    """Find slow, lossy or wrong nodes: by pairs, inside each node, and by groups if need be.

    `wrong` are the rows of collectives with wrong elements.  Raises GangError when the pairs fail.
    """
    measure, max_lost = rig.measure, highest(rig.measure, check.LOST_PACKETS)
    measure.progress("fabric: every pair of nodes")
    try:
        rails = find_rails(run.rank_nodes, rig.terms.fabric, run.backend)
        at_once = has_port_for_each(rails, run, rig.terms)
        one_pass, first = len(rails) == 1 or at_once, None
        full = meets_all(rig.tier, len({*run.rank_nodes}), one_pass)
        if rig.before and not full:
            most = MATRIX_NODES - 1 if one_pass and rig.tier != "quick" else 1
            first = unmet_rounds([[*rail.ports] for rail in rails], rig.before.met, most)
        how = full, rails, at_once, first
        pairs = node_pairs.run_pair_search(rig.gang, rig.node_names, max_lost, *how)
    except GangError:
        explain_without_pairs(rig, run, wrong)
        raise
    unstable = rig.judge_ports(fabric_devices(rig, run))
    links.judge_loss(run, pairs, max_lost, unstable, measure)
    located = bool(measure.finding_codes & LOCATED)
    links.judge_stalls(run, located, measure)
    links.judge_link_stalls(pairs.stalls, located, measure)
    off = judge_pair_networks(rig, run, pairs)
    slow = explain_uplinks(measure, links.unexplained(pairs, off), pairs.alone)
    judge_pairs(pairs, slow, run, measure)
    record_paths(pairs, rig.before, measure)
    judge_pair_data(rig, run, pairs, wrong)
    measure.progress("fabric: all-reduce inside nodes")
    inside = try_inside(rig, run)
    is_slow = measure.would_fail(check.BUSBW, run.plateau["busbw"])
    is_located = measure.finding_codes & LOCATED
    try_groups(rig, run, pairs, unlocated=is_slow and not is_located)
    return pairs, inside


# Nodes up to which every pair meets once from tier standard on: 31 rounds, some minutes.
MATRIX_NODES = 32


def meets_all(tier: str, nodes: int, one_pass: bool) -> bool:
    """Return whether every pair must meet; `one_pass`: all rails meet in the same rounds."""
    return tier == "soak" or (tier != "quick" and nodes <= MATRIX_NODES and one_pass)


def try_inside(rig: FabricRig, run: SweepResult) -> InsideSpeeds | None:
    """Measure and judge the all-reduce inside nodes; None if the ranks failed in it."""
    try:
        inside = node_pairs.measure_inside(rig.gang, run.rank_nodes)
    except GangError as error:
        rig.measure(check.ALL_REDUCE_INSIDE_NODE_AGAINST_OTHERS, None, note=str(error))
        return None
    inside = replace(inside, models=rig.models)
    node_pairs.judge_inside(inside, rig.measure)
    return inside


def has_port_for_each(rails: Sequence[RailRanks], run: SweepResult, terms: ClusterTerms) -> bool:
    """Return whether no two rails share a port, so that all at once must be as fast as one.

    Of RDMA, ports that cannot be counted do not show it.
    """
    ports = min((len(found) for found in run.rails.values()), default=0)
    return len(interfaces_of(terms.fabric) if terms.fabric != RDMA else range(ports)) >= len(rails)


def fabric_devices(rig: FabricRig, run: SweepResult) -> dict[str, str]:
    """Name the fabric of each node: the agreed one, else the device that carried most bytes."""
    return {node: rig.terms.fabric or device for node, device in run.main_devices.items()}


def explain_without_pairs(rig: FabricRig, run: SweepResult, wrong: Rows) -> None:
    """Report bytes off the fabric and wrong data, as far as the sweep alone shows them."""
    off_fabric = detect.find_off_fabric(run, rig.terms.fabric)
    rig.measure.explain(off_fabric, detect.wrong_data(wrong, run.rank_nodes))


def judge_pair_networks(
    rig: FabricRig, run: SweepResult, pairs: PairSearch
) -> dict[tuple[str, str], str]:
    """Judge which network each pair used.

    Returns the links that left the fabric, each with the device that it used.
    """
    usual = rig.terms.fabric or run.main_device
    expected = {
        (port, peer): rail.fabric or usual
        for rail in pairs.rails
        for port, peer in permutations(rail.ports, 2)
    }
    off = links.links_off(pairs, expected)
    routes = read_routes(rig.gang, rig.node_names, off, expected)
    links.judge_networks(pairs, expected, routes, rig.measure)
    on_fabric = {node_of(sender) for sender, _ in pairs.sent.keys() - off.keys()}
    detours = {node_of(sender) for sender, _ in off} & on_fabric
    rig.measure.explain(detect.find_off_fabric(run, rig.terms.fabric, detours))
    return off


def judge_pair_data(rig: FabricRig, run: SweepResult, pairs: PairSearch, wrong: Rows) -> None:
    """Judge what the pairs received, and find which node made collectives wrong."""
    rig.measure(check.WRONG_ELEMENTS, sum(pairs.wrong.values()), on="pairs of nodes")
    if any(pairs.wrong.values()):
        rig.measure.explain(detect.find_wrong_links(pairs.wrong))
    elif wrong:
        search = node_pairs.run_wrong_search(rig.gang, rig.node_names)
        rig.measure.explain(detect.find_wrong_nodes(wrong, search, run.rank_nodes))


def search_leaves(rig: FabricRig, groups: NodeGroupsResult) -> list[list[str]]:
    """Find and name the leaves behind slow uplinks, where only some groups are fast; else []."""
    if groups.nodes or not groups.groups or len(groups.fast) < MIN_NODES:
        return []
    try:
        found = node_pairs.run_leaf_search(rig.gang, rig.node_names, groups.fast).speed
    except GangError as error:
        rig.measure.covered(f"seatrial could not find groups of nodes that share a switch: {error}")
        return []
    members = {group[0]: group for group in groups.fast}
    leaves = detect.find_leaves(found)
    whole = [[node for first in leaf for node in members[first]] for leaf in leaves]
    rig.measure.explain([detect.uplink_finding(found, leaves, whole)] if leaves else [])
    return whole


def explain_uplinks(
    measure: Recorder, slow: FaultSearchResult, alone: Mapping[Link, float]
) -> FaultSearchResult:
    """Name slow and crowded uplinks; return the search without the links that they explain."""
    if leaves := detect.find_leaves(slow):
        measure.explain([detect.uplink_finding(slow, leaves)])
        slow = detect.without_leaves(slow, leaves)
    crowd, slow = detect.find_crowd(slow, alone)
    measure.explain(crowd)
    return slow


def try_groups(rig: FabricRig, run: SweepResult, pairs: PairSearch, unlocated: bool) -> None:
    """Try groups of nodes on a large cluster, or if all is slow and no pair shows why."""
    measure, nodes = rig.measure, len(run.sent)
    if nodes >= MIN_NODES and (unlocated or (nodes >= LARGE and rig.tier != "quick")):
        measure.progress("fabric: groups of nodes")
        groups = node_pairs.run_group_search(rig.gang, rig.node_names)
        judge_groups(groups, pairs.speed, measure, search_leaves(rig, groups))
        unlocated = unlocated and not (groups.nodes or groups.groups)
    else:
        when = f"on {LARGE} nodes or more in tiers standard and soak, or on {MIN_NODES} or more if "
        when += "all-reduce is slow and all pairs are fast"
        measure.covered(f"groups of nodes were not tested (they are tested {when})")
    if unlocated:
        measure.explain(detect.slow_fabric_finding(run))
