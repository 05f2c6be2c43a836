"""Controls of FABRIC: wrong data, slow ranks, another network, counters and settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from probes.check.judging import plant, worst_of
from probes.check.recorder import Recorder, Trial
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import RDMA, interfaces_of
from probes.contract.contract import ClusterTerms
from probes.environment.checks import has_no_nvlink
from probes.environment.collect import gpu_models, read_settings
from probes.fabric import criterion as check
from probes.fabric import judge, links, node_pairs, speeds, sweep
from probes.fabric.addresses import DOCTORED_BYTES, DoctoredPort
from probes.fabric.detect import wrong_data
from probes.fabric.judge import FabricRig
from probes.fabric.node_pairs import BadSender, InsideSpeeds, PairSearch, first_rail, run_few_pairs
from probes.fabric.reach import FabricNodes, ReachabilityResult, judge_reach
from probes.fabric.sweep import CHECK_SIZE, SweepResult, check_ops, highest, lowest
from probes.fabric.transport import RankLogs
from probes.findings import join_names
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.rank_environment import LEADING, changed_variables
from reports.measurement import Verdict
from reports.numbers import percent, quantity, size_text
from scaling.collectives.line_rate import line_rate, ring_latency
from scaling.collectives.node_groups import MESSAGE_BYTES
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.sweep import Delay

# Times the time of an all-reduce: the collective then has a quarter of the speed.
DATA_SLOWED_BY = 3.0
CORRUPT_BYTES = 1 << 16  # size of each collective whose result is changed
STALLED_BY = 1.5  # times the limit of a stall: beyond any doubt


def control_wrong_element(gang: Gang, rank_nodes: list[str], measure: Recorder) -> None:
    """Check that a changed element on one rank is found, with rank and offset."""
    bad_rank = gang.size - 1
    fault = f"one element of each result on rank {bad_rank} is changed"
    try:
        rows = [row for each in check_ops(gang, CORRUPT_BYTES, bad_rank).values() for row in each]
    except GangError as error:
        measure.control(check.WRONG_ELEMENT, fault, None, saw=str(error))
        return
    wrong_ranks = {rank for row in rows for rank, _ in row["first_wrong"]}
    located = wrong_ranks == {bad_rank} and all(row["wrong"] for row in rows)
    findings = wrong_data(rows, rank_nodes)
    saw = findings[0].statement if findings else "no wrong element"
    judge_rows = partial(judge.judge_elements, rows)
    plant(measure, check.WRONG_ELEMENT, fault, judge_rows, located=located, saw=saw)


def control_late_call(rig: FabricRig, run: SweepResult) -> None:
    """Check that one call that a rank begins late is found: all others stall in it."""
    bad_rank = rig.gang.size - 1
    late_s = STALLED_BY * highest(rig.measure, check.LONGEST_STALL, 0.0)

    def judge_fault(trial: Trial) -> None:
        delay = Delay([bad_rank], late_s)
        rows = check_ops(rig.gang, CHECK_SIZE, None, ("all_reduce",), 0.25, delay)
        links.judge_stalls(replace(run, rows=rows["all_reduce"]), False, trial)

    fault = f"rank {bad_rank} begins one all-reduce {late_s:.2g} s after the other ranks"
    plant(rig.measure, check.LATE_CALL, fault, judge_fault)


def control_slow_collective(rig: FabricRig, run: SweepResult) -> None:
    """Check that FSDP's collectives are found slow if half of the ranks begin every call late.

    One late rank of many would hardly change how much the times of all differ.
    """
    names, size = speeds.FSDP_OPS, speeds.small_size(run)
    delay_s = DATA_SLOWED_BY * max(row["seconds"] for row in run.rows if row["size"] == size)
    late = range(rig.gang.size // 2, rig.gang.size)

    def judge_fault(trial: Trial) -> None:
        delay = Delay([*late], delay_s, every_call=True)
        rows = check_ops(rig.gang, size, None, names, delay=delay)
        speeds.judge_shares(speeds.collective_speeds(rows, run, names, size), trial)
        uneven = max(rows[names[0]], key=lambda row: row["rank_cv"])
        judge.judge_variation(uneven, names[0], trial)

    fault = f"ranks {late[0]} and above begin each {' and '.join(names)} "
    fault += f"{quantity(delay_s, 's', 2)} late"
    plant(rig.measure, check.SLOW_COLLECTIVE, fault, judge_fault)


LATE_BY = 6.0  # a third of the ranks or more wait: the mean is twice what the limit allows


def control_late_ring(rig: FabricRig, run: SweepResult) -> None:
    """Check that latency and medium sizes are found slow if half of the ranks begin late.

    Calls of each medium size are as late as the looser of both limits asks for.
    """
    if run.backend != "nccl":
        return
    times, late = judge.least_seconds(run.rows), range(rig.gang.size // 2, rig.gang.size)
    sizes = [size for part in judge.MEDIUM_PARTS if (size := max(times) // part) in times]
    least = min(lowest(rig.measure, name) or 1.0 for name in check.LATE_RING.fails)
    sound_s = ring_latency(run.ranks, len(run.sent), run.main_device == RDMA)
    late_s = {size: LATE_BY * (sound_s + times[size]) / least for size in (min(times), *sizes)}

    def judge_fault(trial: Trial) -> None:
        rows = []
        for size, seconds in late_s.items():
            delay = Delay([*late], seconds, every_call=True)
            rows += check_ops(rig.gang, size, None, ("all_reduce",), delay=delay)["all_reduce"]
        judge.judge_sizes(rows, run, trial)

    long = quantity(max(late_s.values()), "s", 2)
    fault = f"ranks {late[0]} and above begin each all-reduce up to {long} late"
    plant(rig.measure, check.LATE_RING, fault, judge_fault)


INSIDE_SLOWED_BY = 2.0  # times the time of a call: the node then has a third of the speed


def control_slow_inside(rig: FabricRig, run: SweepResult, inside: InsideSpeeds) -> None:
    """Check that a node whose last rank begins each call late is located."""
    if not inside.shares():
        if inside.busbw:
            fault = "the last rank of a node begins each all-reduce late"
            rig.measure.control(check.SLOW_INSIDE, fault, None, saw=node_pairs.UNLIKE)
        return
    victim = [*inside.shares()][-1]
    agreed = lowest(rig.measure, check.ALL_REDUCE_INSIDE_NODE)
    speed = min(inside.busbw[victim], agreed or math.inf)
    fault, measure_late = _delay_inside(rig.gang, run.rank_nodes, victim, speed, run.backend)

    def judge_fault(trial: Trial) -> bool:
        found = replace(measure_late(), models=inside.models)
        node_pairs.judge_inside(found, trial)
        return worst_of(found.shares(), min)[0] == victim

    without = set() if agreed else {check.ALL_REDUCE_INSIDE_NODE}
    plant(rig.measure, check.SLOW_INSIDE, fault, judge_fault, without=without)


def _delay_inside(
    gang: Gang, rank_nodes: list[str], victim: str, speed: float, backend: str
) -> tuple[str, Callable[[], InsideSpeeds]]:
    """Return the fault of a victim whose last rank is late, and what measures all nodes with it.

    The delay follows from the GB/s that the node must show without it.
    """
    ranks = [rank for rank, node in enumerate(rank_nodes) if node == victim]
    sent = MESSAGE_BYTES[backend] * OPERATIONS["all_reduce"].factor(len(ranks))
    delay_s = INSIDE_SLOWED_BY * sent / (speed * 1e9) if speed else 1.0
    fault = f"rank {ranks[-1]} on {victim} begins each all-reduce {quantity(delay_s, 's', 2)} late"
    return fault, partial(node_pairs.measure_inside, gang, rank_nodes, (ranks[-1], delay_s))


def control_slow_node(
    rig: FabricRig, rank_nodes: list[str], inside: InsideSpeeds, backend: str
) -> None:
    """Check that the only node fails the agreed figure if its last rank begins each call late.

    No other node shows what is slow: the delay follows from the figure, and breaks it.
    """
    fault = "the last rank begins each all-reduce late"
    limit = lowest(rig.measure, check.ALL_REDUCE_INSIDE_NODE)
    if not limit or not inside.busbw:
        saw = "no speed inside the node is agreed" if inside.busbw else "the node has one rank"
        rig.measure.control(check.SLOW_NODE, fault, None, saw=saw)
        return
    ((node, speed),) = inside.busbw.items()
    late = _delay_inside(rig.gang, rank_nodes, node, min(speed or limit, limit), backend)
    fault, measure_late = late

    def judge_fault(trial: Trial) -> bool:
        node_pairs.judge_inside(measure_late(), trial, alone=True)
        return any(node in one.suspects for one in trial.findings)

    plant(rig.measure, check.SLOW_NODE, fault, judge_fault)


LINK_SLOWED_BY = 2.0  # times the time of a transfer: the sender then has a third of the speed
RESENT_SHARE = 0.05  # of its packets that the bad sender reports as resent
FEW_NODES = 3  # nodes of the control: the least from which one can be identified


def control_bad_sender(rig: FabricRig, run: SweepResult, pairs: PairSearch) -> None:
    """Check that a sender that is slow and reports resent packets is located."""
    rail, typical = pairs.rails[-1], pairs.speed.typical
    victim = [*rail.ports][:FEW_NODES][-1]
    transfer_s = MESSAGE_BYTES[run.backend] / (typical * 1e9) if typical else 1.0
    bad = BadSender(rail.ports[victim], LINK_SLOWED_BY * transfer_s, RESENT_SHARE)
    uncounted = links.is_left_out(rig.measure, check.LOST_PACKETS)
    without = [check.LOST_PACKETS] * uncounted + [check.SLOWEST_PAIR] * (len(rail.ports) < 3)
    if len(without) > 1:
        return  # neither is owed

    def judge_fault(trial: Trial) -> bool:
        found = run_few_pairs(rig.gang, rail, FEW_NODES, bad=bad)
        judge.judge_slowest_pair(found.speed, trial)
        slowest = min(found.speed.speeds, key=lambda link: found.speed.speeds[link])
        if uncounted:
            return slowest[0] == victim
        shares = links.name_links(found.lost)
        links.record_worst(trial, check.LOST_PACKETS, shares, links.UNCOUNTED)
        lossiest = max(found.lost, key=lambda link: found.lost[link] or 0.0)
        return slowest[0] == lossiest[0] == victim

    fault = f"{victim} sends each message {quantity(bad.delay_s, 's', 2)} late"
    if not uncounted:
        share = percent(RESENT_SHARE)
        fault += f", and counts {share} of its packets as resent, although none was resent"
    plant(rig.measure, check.BAD_SENDER, fault, judge_fault, without=without)


def control_doctored_counters(rig: FabricRig, fabric: dict[str, str]) -> None:
    """Check that a node whose ports report a lost link, and errors, is located."""
    assert rig.watch is not None
    victim = [*fabric][-1]
    grown = rig.watch.growth(fabric, victim)
    uncounted = links.is_left_out(rig.measure, check.LINK_CHANGES)
    lost = "a lost carrier, and " * (not uncounted)
    judge_fault = partial(links.judge_ports, grown, fabric)
    fault = f"the ports of {victim} report {lost}errors in 1 % of packets"
    without, row = [check.LINK_CHANGES] * uncounted, check.DOCTORED_COUNTERS
    plant(rig.measure, row, fault, judge_fault, without=without, suspects=[victim])


def control_doctored_rails(rig: FabricRig, run: SweepResult) -> None:
    """Check that a node is located that has no rails, or one that carried a quarter of its part."""
    fabric = rig.terms.fabric
    if fabric != RDMA and (run.backend != "nccl" or len(interfaces_of(fabric)) < 2):
        return  # no rail is owed
    victim, rails = [*run.rails.items()][-1]
    port = max(rails, key=lambda name: rails[name] or 0, default="")
    doctored = {**rails, port: (rails[port] or 0) // 4} if rails else {}
    compared = min(len(rails), rig.terms.rails or len(rails))

    def judge_fault(trial: Trial) -> None:
        for shown in (doctored, {}):
            changed = replace(run, rails={**run.rails, victim: shown})
            for kind in judge.split_kinds(changed, rig.models):
                judge.judge_rails(kind, rig.terms, trial)

    fault = f"{victim} reports a quarter of the bytes of {port}, and then no rail at all"
    unable = "" if rails else f"{victim} has no active rail"
    without, row = [check.SLOWEST_RAIL] * (compared < 2), check.DOCTORED_RAILS
    plant(rig.measure, row, fault, judge_fault, unable=unable, without=without, suspects=[victim])


SLOWER_RATIO = 0.95  # of the normal run's bandwidth: a slower path must stay below it


def control_off_fabric(rig: FabricRig, normal: SweepResult | None, logs: RankLogs) -> None:
    """Check that an all-reduce and a pair of nodes that are forced off the fabric are detected."""
    management, cluster, terms = rig.terms.management, logs.cluster, rig.terms
    measure = rig.measure
    fault = f"all-reduce is forced onto {management or 'sockets'}"
    if not management and not (cluster.on_gpu and terms.fabric == "rdma"):
        message = "the contract names no interface outside the fabric: set [cluster] management"
        measure.control(check.WRONG_NETWORK, fault, None, saw=message)
        return
    try:
        run, pairs = run_off_fabric(rig, logs)
    except GangError as error:
        measure.control(check.WRONG_NETWORK, fault, None, saw=str(error))
        return
    slower, note = forced_run_is_slower(run, normal, terms, cluster.facts)
    trial = measure.trial()
    judge.judge_speed(run, trial)
    judge.judge_transport(run, terms.fabric, trial)
    links.judge_networks(pairs, dict.fromkeys(pairs.sent, terms.fabric or ""), {}, trial)
    taken = forced_path_observed(run, terms)
    located = taken and slower is not False
    saw = f"{describe_forced_run(run)}; {note}"
    without = unjudged_off_fabric(rig, trial, slower)
    measure.control(check.WRONG_NETWORK, fault, trial, located=located, saw=saw, without=without)
    if normal and taken:
        judge.record_curves(normal, terms, measure, forced=run)
    if normal:
        control_other_witness(rig, normal, run)


def run_off_fabric(rig: FabricRig, logs: RankLogs) -> tuple[SweepResult, PairSearch]:
    """Run a sweep of one size, and a pair of nodes, in an environment that leaves the fabric."""
    management, cluster, few = rig.terms.management, logs.cluster, 2
    environment: dict[str, str | None] = {**sweep.gang_env(logs), "NCCL_NET": "Socket"}
    if cluster.on_gpu:
        environment["NCCL_SOCKET_IFNAME"] = LEADING
    if management:
        environment |= {"GLOO_SOCKET_IFNAME": management, "NCCL_SOCKET_IFNAME": f"={management}"}
    names = cluster.node_names
    if not cluster.on_gpu:
        run = sweep.run_sweep(rig.gang, names, logs, rig.terms.fabric, environment, CHECK_SIZE)
        rail = first_rail(rig.gang, names)
        return run, run_few_pairs(rig.gang, rail, few, environment=environment)
    rig.gang.remove()  # NCCL reads its environment once per process
    with cluster.gang(environment=environment) as fresh_gang:
        run = sweep.run_sweep(fresh_gang, names, logs, rig.terms.fabric, only=CHECK_SIZE)
        return run, run_few_pairs(fresh_gang, first_rail(fresh_gang, names), few)


def unjudged_off_fabric(rig: FabricRig, trial: Trial, slower: bool | None) -> set[str]:
    """Name the measures that the forced path cannot fail here.

    They are RDMA's log errors, links that are not judged, and a bandwidth that the path may reach:
    over Ethernet, not where the fabric is RDMA.
    """
    without: set[str] = set() if rig.terms.fabric == "rdma" else {check.LOG_ERRORS}
    if rig.watch is None:
        without.add(check.LINKS_ON_OTHER_NETWORKS)
    kept = slower is None or trial.worst(check.BUSBW).verdict is not Verdict.FAIL
    # Sockets never reach RDMA's bandwidth: a limit that they keep is too loose to prove anything.
    if kept and (rig.terms.fabric != RDMA or not lowest(rig.measure, check.BUSBW)):
        without.add(check.BUSBW)
    return without


def control_other_witness(rig: FabricRig, normal: SweepResult, forced: SweepResult) -> None:
    """Check that the normal run's bytes contradict the library's report of the forced run."""
    mixed = replace(normal, library=forced.library)
    judge_fault = partial(judge.judge_transport, mixed, rig.terms.fabric)
    fault = "the report of NCCL (or gloo) is replaced by that of an all-reduce on another network"
    plant(rig.measure, check.OTHER_REPORT, fault, judge_fault)


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
        message = f"the speed of {terms.management} is unknown, so the bandwidth was not compared"
        return None, f"{message}: set management_gbps in the contract"
    straight = next((row["busbw"] for row in normal.rows if row["size"] == CHECK_SIZE), None)
    if straight is None:
        return False, f"no comparison: the normal run did not measure {size_text(CHECK_SIZE)}"
    message = f"normal run: {quantity(straight, 'GB/s')}"
    if port_gbytes >= SLOWER_RATIO * straight:
        return None, f"{message} ({terms.management} may be as fast, so speeds are not compared)"
    return run.plateau["busbw"] < SLOWER_RATIO * straight, message


def read_management_rate(terms: ClusterTerms, facts: list[dict[str, Any]]) -> float | None:
    """Return the rate (GB/s) of the management port; None if it is not known."""
    if terms.management_gbps:
        return terms.management_gbps / 8
    rate = line_rate(facts, terms.management) if terms.management else None
    return rate.gbytes_per_s if rate else None


def describe_forced_run(run: SweepResult) -> str:
    """Describe the forced path in one line."""
    used = {name for n in run.sent for name in run.sent[n] if (run.share(n, name) or 0.0) >= 0.05}
    transports = ", ".join(sorted(set(run.library.transports.values()))) or run.library.problem
    return (
        f"byte counters: {join_names(sorted(used)) or 'no device'}; {run.library.source}: "
        f"{transports}; busbw {quantity(run.plateau['busbw'], 'GB/s')}"
    )


# Harmful whatever the fabric; the first one not on boards without NVLink.
HARMFUL = {"NCCL_P2P_DISABLE": "1", "NCCL_COMM_ID": "127.0.0.1:29500"}


def control_harmful_setting(cluster: Cluster, fabric: str | None, measure: Recorder) -> None:
    """Check that a harmful variable in a worker of one node is found."""
    victim = cluster.nodes[-1]
    each = {node["id"]: node["id"] == victim["id"] for node in cluster.nodes}
    found = cluster.on_each_node(read_doctored_settings, each=each)
    shown = found.get(victim["id"], {}).get("effective", {})
    planted = [name for name, to in HARMFUL.items() if shown.get(name, {}).get("value") == to]
    variable = planted[-1] if planted else next(iter(HARMFUL))

    def judge_fault(trial: Trial) -> bool:
        flags = judge.judge_lint(found, cluster, fabric, trial)
        harmful = [flag for flag in flags if flag.severity == "fail"]
        return any(flag.variable == variable and victim["name"] in flag.nodes for flag in harmful)

    fault = f"{variable}={HARMFUL[variable]} is set on {victim['name']}"
    unable = "" if victim["id"] in found else f"{victim['name']} does not answer"
    plant(measure, check.HARMFUL_VARIABLE, fault, judge_fault, unable=unable)


def read_doctored_settings(doctored: bool) -> dict[str, Any]:
    """Read this node's NCCL settings, with a harmful variable set if `doctored`."""
    if not doctored:
        return read_settings()
    first, other = HARMFUL
    variable = other if has_no_nvlink(gpu_models()) else first
    with changed_variables({variable: HARMFUL[variable]}):
        return read_settings()


ANSWER_SECONDS = 1.0  # wait for packets that are too large: none of them is answered


def control_reach(nodes: FabricNodes, measure: Recorder) -> None:
    """Run the controls of reachability."""
    control_closed_door(nodes, nodes.names[-1], measure)
    if nodes.chosen.has_ip:
        control_large_packets(nodes, measure)
    control_doctored_port(nodes, nodes.names[-1], nodes.names[0], measure)


def control_closed_door(nodes: FabricNodes, victim: str, measure: Recorder) -> None:
    """Check that a node that does not listen is found: all its pairs fail, and no other."""

    def judge_fault(trial: Trial) -> bool:
        pairs = nodes.unreachable_pairs(closed={victim})
        judge_reach(ReachabilityResult(nodes.names, pairs, {}), trial)
        return all(victim in pair for pair in pairs)

    fault = f"on {victim}, the port that the other ranks connect to is closed"
    plant(measure, check.CLOSED_DOOR, fault, judge_fault)


def control_large_packets(nodes: FabricNodes, measure: Recorder) -> None:
    """Check that packets larger than the MTU do not pass."""

    def judge_fault(trial: Trial) -> None:
        narrow, note = nodes.narrow_pairs([], DOCTORED_BYTES, ANSWER_SECONDS)
        judge_reach(ReachabilityResult(nodes.names, [], {}, narrow, nodes.mtu, note), trial)

    fault = f"packets {DOCTORED_BYTES} bytes larger than the MTU are sent without fragmentation"
    plant(measure, check.LARGE_PACKETS, fault, judge_fault)


def control_doctored_port(nodes: FabricNodes, victim: str, other: str, measure: Recorder) -> None:
    """Check that a node that reports another MTU and another node's address is found."""
    address = (nodes.chosen.ports[other] or {}).get("address")
    has_ip = nodes.chosen.has_ip

    def judge_fault(trial: Trial) -> None:
        again = nodes.doctored({victim: DoctoredPort(nodes.chosen.names[victim], address)})
        more: dict[str, Any] = {"mtu": again.mtu, "duplicates": again.duplicates({})}
        judge_reach(ReachabilityResult(nodes.names, [], {}, **more, has_ip=has_ip), trial)

    fault = f"{victim} reports the address of {other}, and an MTU that no other node has"
    without = set() if has_ip else {check.MTU_MISMATCHES}
    if address is None:
        without = {check.MTU_MISMATCHES, check.DUPLICATE_ADDRESSES}
    plant(measure, check.DOCTORED_PORT, fault, judge_fault, without=without)
