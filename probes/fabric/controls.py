"""The controls of FABRIC: a changed element, and a sweep that is forced off the fabric."""

from __future__ import annotations

from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Recorder
from probes.fabric.detect import wrong_data
from probes.fabric.library_report import RankLogs
from probes.fabric.sweep import CHECK_SIZE, SweepResult, check_ops, gang_env, run_sweep
from probes.findings import join_names
from reference_trainer.launch.gang import Gang, GangError
from scaling.collectives.line_rate import line_rate

SLOWER_RATIO = 0.95  # of the straight run's bandwidth: what a slower path must stay under


def control_wrong_element(gang: Gang, rank_nodes: list[str], measure: Recorder) -> None:
    """Plant a changed element on one rank: it must be found, with rank and offset."""
    bad_rank = gang.size - 1
    fault = f"one element of each result on rank {bad_rank} is changed"
    try:
        rows = [row for results in check_ops(gang, 1 << 16, bad_rank).values() for row in results]
    except GangError as error:
        measure.control("wrong element", fault, caught=None, saw=str(error))
        return
    wrong_ranks = {rank for row in rows for rank, _ in row["first_wrong"]}
    results = wrong_data(rows, rank_nodes)
    measure.control(
        "wrong element",
        fault,
        caught=wrong_ranks == {bad_rank} and all(row["wrong"] for row in rows),
        saw=results[0].statement if results else "no wrong element",
    )


def control_off_fabric(
    gang: Gang, terms: ClusterTerms, normal: SweepResult | None, logs: RankLogs, measure: Recorder
) -> None:
    """Force the same all-reduce off the fabric: it must look different to everybody who looks."""
    management, cluster = terms.management, logs.cluster
    fault = f"all-reduce is forced onto {management or 'sockets'}"
    if not management and not (cluster.on_gpu and terms.fabric == "rdma"):
        message = "no other interface is agreed: name one in the contract, [cluster] management"
        measure.control("wrong road", fault, caught=None, saw=message)
        return
    environment: dict[str, str | None] = {**gang_env(logs), "NCCL_NET": "Socket"}
    if management:
        environment |= {"GLOO_SOCKET_IFNAME": management, "NCCL_SOCKET_IFNAME": f"={management}"}
    try:
        if cluster.on_gpu:  # NCCL reads its environment once per process
            gang.remove()
            with cluster.gang(environment=environment) as fresh_gang:
                run = run_sweep(fresh_gang, cluster.node_names, logs, only=CHECK_SIZE)
        else:
            run = run_sweep(gang, cluster.node_names, logs, environment, only=CHECK_SIZE)
    except GangError as error:
        measure.control("wrong road", fault, caught=None, saw=str(error))
        return
    slower, note = forced_run_is_slower(run, normal, terms, cluster.facts)
    caught = forced_path_observed(run, terms) and slower is not False
    measure.control("wrong road", fault, caught=caught, saw=f"{describe_forced_run(run)}; {note}")


def forced_path_observed(run: SweepResult, terms: ClusterTerms) -> bool:
    """Tell whether the counters and the library both show the forced path.

    Where no interface is agreed, sockets may take several at once, and others on each node.
    """
    port = terms.management
    shares = [
        run.share(node, port) if port else run.share_on_other_interfaces(node, terms.fabric or "")
        for node in run.sent
    ]
    by_bytes = run.main_device != terms.fabric and min(shares) >= 0.9
    by_report = bool(run.library.transports) and terms.fabric not in run.library.transports.values()
    return by_bytes and by_report


def forced_run_is_slower(
    run: SweepResult, normal: SweepResult | None, terms: ClusterTerms, facts: list[dict[str, Any]]
) -> tuple[bool | None, str]:
    """Tell whether the forced path shows less bandwidth than the fabric did, and the words for it.

    Sockets never show what RDMA does; of two Ethernet ports nothing follows (None) unless the
    forced one is known to carry less than the fabric showed.
    """
    port_gbytes = 0.0 if terms.fabric == "rdma" else management_rate(terms, facts)
    if port_gbytes is None:
        message = "neither the contract (management_gbps) nor the devices say how fast it is"
        return None, f"{message}, so bandwidth is not compared"
    rows = normal.rows if normal else []
    straight = next((row["busbw"] for row in rows if row["size"] == CHECK_SIZE), None)
    if straight is None:
        return False, "there is no straight run to compare with"
    message = f"straight {straight:.3f} GB/s"
    if port_gbytes >= SLOWER_RATIO * straight:
        return None, f"{message}, which {terms.management} may carry too: bandwidth is not compared"
    return run.peak["busbw"] < SLOWER_RATIO * straight, message


def management_rate(terms: ClusterTerms, facts: list[dict[str, Any]]) -> float | None:
    """Give the GB/s that the management port can carry; None where nobody says."""
    if terms.management_gbps:
        return terms.management_gbps / 8
    rate = line_rate(facts, terms.management) if terms.management else None
    return rate.gbytes_per_s if rate else None


def describe_forced_run(run: SweepResult) -> str:
    """Describe the forced path in one line."""
    devices = {device for sent in run.sent.values() for device in sent}
    used = {device for device in devices if any(run.share(n, device) >= 0.05 for n in run.sent)}
    transports = ", ".join(sorted(set(run.library.transports.values()))) or run.library.problem
    return (
        f"bytes on {join_names(sorted(used)) or 'no device'}, {run.library.source}: {transports}, "
        f"{run.peak['busbw']:.3f} GB/s"
    )
