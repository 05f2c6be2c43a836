"""Controls of the path: a sweep forced off the fabric, and the library's report of another run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Trial
from probes.fabric.bad_nodes import FabricRig
from probes.fabric.judge import judge_speed, judge_transport, record_curves
from probes.fabric.library_report import RankLogs
from probes.fabric.links.judge import judge_networks
from probes.fabric.node_pairs import PairSearch, first_rail, run_few_pairs
from probes.fabric.sweep import CHECK_SIZE, SweepResult, gang_env, run_sweep
from probes.findings import join_names
from reference_trainer.launch.gang import GangError
from reference_trainer.rank_environment import LEADING
from reports.measurement import Verdict
from reports.numbers import quantity
from scaling.collectives.line_rate import line_rate

SLOWER_RATIO = 0.95  # of the normal run's bandwidth: a slower path must stay below it


def control_off_fabric(rig: FabricRig, normal: SweepResult | None, logs: RankLogs) -> None:
    """Check that an all-reduce and a pair of nodes that are forced off the fabric are detected."""
    management, cluster, terms = rig.terms.management, logs.cluster, rig.terms
    fault = f"all-reduce is forced onto {management or 'sockets'}"
    if not management and not (cluster.on_gpu and terms.fabric == "rdma"):
        message = "no other interface is agreed: name one in the contract, [cluster] management"
        rig.measure.control("wrong network", fault, None, saw=message)
        return
    try:
        run, pairs = run_off_fabric(rig, logs)
    except GangError as error:
        rig.measure.control("wrong network", fault, None, saw=str(error))
        return
    slower, note = forced_run_is_slower(run, normal, terms, cluster.facts)
    trial = judge_forced_run(rig, run, pairs)
    taken = forced_path_observed(run, terms)
    located = taken and slower is not False
    saw = f"{describe_forced_run(run)}; {note}"
    without = unjudged_off_fabric(rig, trial, slower)
    rig.measure.control("wrong network", fault, trial, located=located, saw=saw, without=without)
    if normal and taken:
        record_curves(normal, terms, rig.limits, rig.measure, forced=run)
    if normal:
        control_other_witness(rig, normal, run)


def run_off_fabric(rig: FabricRig, logs: RankLogs) -> tuple[SweepResult, PairSearch]:
    """Run a sweep of one size, and a pair of nodes, in an environment that leaves the fabric."""
    management, cluster, few = rig.terms.management, logs.cluster, 2
    environment: dict[str, str | None] = {**gang_env(logs), "NCCL_NET": "Socket"}
    if cluster.on_gpu:
        environment["NCCL_SOCKET_IFNAME"] = LEADING
    if management:
        environment |= {"GLOO_SOCKET_IFNAME": management, "NCCL_SOCKET_IFNAME": f"={management}"}
    names = cluster.node_names
    if not cluster.on_gpu:
        run = run_sweep(rig.gang, names, logs, rig.terms.fabric, environment, CHECK_SIZE)
        rail = first_rail(rig.gang, names)
        return run, run_few_pairs(rig.gang, rail, few, environment=environment)
    rig.gang.remove()  # NCCL reads its environment once per process
    with cluster.gang(environment=environment) as fresh_gang:
        run = run_sweep(fresh_gang, names, logs, rig.terms.fabric, only=CHECK_SIZE)
        return run, run_few_pairs(fresh_gang, first_rail(fresh_gang, names), few)


def judge_forced_run(rig: FabricRig, run: SweepResult, pairs: PairSearch) -> Trial:
    """Judge the forced run as the normal run is judged."""
    trial, fabric = rig.measure.trial(), rig.terms.fabric
    judge_speed(run, trial)
    judge_transport(run, fabric, trial)
    judge_networks(pairs, dict.fromkeys(pairs.sent, fabric or ""), {}, trial)
    return trial


def unjudged_off_fabric(rig: FabricRig, trial: Trial, slower: bool | None) -> set[str]:
    """Name the measures that the forced path cannot fail here.

    They are RDMA's log errors, links that are not judged, and a bandwidth that the path may reach.
    """
    without = set() if rig.terms.fabric == "rdma" else {"log_errors"}
    if rig.watch is None:
        without.add("links_on_other_networks")
    if slower is None or trial.worst("busbw").verdict is not Verdict.FAIL:
        without.add("busbw")
    return without


def control_other_witness(rig: FabricRig, normal: SweepResult, forced: SweepResult) -> None:
    """Check that the normal run's bytes contradict the library's report of the forced run."""
    trial = rig.measure.trial()
    judge_transport(replace(normal, library=forced.library), rig.terms.fabric, trial)
    fault = "the library reports the other network, the byte counts are of the normal run"
    rig.measure.control("other report", fault, trial)


def forced_path_observed(run: SweepResult, terms: ClusterTerms) -> bool:
    """Return whether the counters and the library both show the forced path.

    If no interface is agreed, sockets may use several at once, and different ones on each node.
    """
    port = terms.management
    shares = [
        run.share(node, port) if port else run.share_on_other_interfaces(node, terms.fabric or "")
        for node in run.sent
    ]
    by_bytes = run.main_device != terms.fabric and all((share or 0.0) >= 0.9 for share in shares)
    by_report = bool(run.library.transports) and terms.fabric not in run.library.transports.values()
    return by_bytes and by_report


def forced_run_is_slower(
    run: SweepResult, normal: SweepResult | None, terms: ClusterTerms, facts: list[dict[str, Any]]
) -> tuple[bool | None, str]:
    """Judge whether the forced path has less bandwidth than the fabric; return a sentence too.

    Sockets never reach RDMA's bandwidth.  Two Ethernet ports prove nothing (None), unless the
    forced port is known to carry less than the fabric showed.
    """
    if normal is None:
        return None, "there is no normal run to compare with"
    port_gbytes = 0.0 if terms.fabric == "rdma" else read_management_rate(terms, facts)
    if port_gbytes is None:
        message = (
            "its speed is unknown: neither the contract (management_gbps) nor the devices give it"
        )
        return None, f"{message}, so bandwidth is not compared"
    straight = next((row["busbw"] for row in normal.rows if row["size"] == CHECK_SIZE), None)
    if straight is None:
        return False, f"the normal run has no row of {CHECK_SIZE} bytes"
    message = f"straight {quantity(straight, 'GB/s')}"
    if port_gbytes >= SLOWER_RATIO * straight:
        return None, f"{message}, which {terms.management} may carry too: bandwidth is not compared"
    return run.plateau["busbw"] < SLOWER_RATIO * straight, message


def read_management_rate(terms: ClusterTerms, facts: list[dict[str, Any]]) -> float | None:
    """Return the rate (GB/s) of the management port; None if it is not known."""
    if terms.management_gbps:
        return terms.management_gbps / 8
    rate = line_rate(facts, terms.management) if terms.management else None
    return rate.gbytes_per_s if rate else None


def describe_forced_run(run: SweepResult) -> str:
    """Describe the forced path in one line."""
    devices = {device for sent in run.sent.values() for device in sent}
    used = {
        device for device in devices if any((run.share(n, device) or 0.0) >= 0.05 for n in run.sent)
    }
    transports = ", ".join(sorted(set(run.library.transports.values()))) or run.library.problem
    return (
        f"bytes on {join_names(sorted(used)) or 'no device'}, {run.library.source}: {transports}, "
        f"{quantity(run.plateau['busbw'], 'GB/s')}"
    )
