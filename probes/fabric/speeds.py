"""Times other collectives, and finds out whether NVLink carries data inside nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probes.check.judging import is_agreed, judge_if_agreed
from probes.check.recorder import Recorder
from probes.cluster.network_facts import RDMA
from probes.fabric import criterion as check
from probes.fabric import sweep
from probes.fabric.addresses import ranks_by_node
from probes.fabric.detect import by_number, name_runs
from probes.fabric.judge import FabricRig
from probes.fabric.sweep import CHECK_SIZE, Rows, SweepResult, check_ops, gang_env, run_sweep
from probes.fabric.transport import RankLogs
from probes.findings import finding, join_names
from reference_trainer.launch.gang import Gang, GangError
from reports.numbers import percent, quantity, size_text
from reports.record import Finding
from scaling.collectives.line_rate import all_to_all_ratio

FSDP_OPS = ("all_gather", "reduce_scatter")
ALL_TO_ALL = "alltoall"
# gloo has no reduce-scatter: it reduces the complete buffer on every rank (torch 2.13,
# ProcessGroupGloo.cpp), twice the bytes.
GLOO_BYTES = {"reduce_scatter": 2.0}
# All published figures of all-to-all are of RDMA.  Over TCP, sockets to all ranks share one link.
TCP_ALL_TO_ALL = 0.64  # of what RDMA lets expect: less than 35 % of the all-reduce's rate fails
PRECISE_S = 0.25  # budget of one size and placement, as in the sweep of all-reduce


@dataclass(frozen=True)
class CollectiveSpeed:
    """Bus bandwidth (GB/s) of a collective at `size` bytes, and what the all-reduce lets expect."""

    name: str
    size: int
    busbw: float
    spread: float
    samples: int
    expected: float

    @property
    def share(self) -> float:
        """Busbw as a ratio of what the all-reduce of this run lets expect."""
        return self.busbw / self.expected if self.expected else 0.0


def small_size(run: SweepResult) -> int:
    """Return the size (bytes) that every collective runs at; a very slow fabric has less."""
    return min(CHECK_SIZE, large_size(run))


def large_size(run: SweepResult) -> int:
    """Return the largest size (bytes) of the all-reduce."""
    return max(int(row["size"]) for row in run.rows)


def measure_collectives(gang: Gang, run: SweepResult, tier: str) -> tuple[dict[str, Rows], str]:
    """Run the other five collectives, their values checked; return (rows by name, problem).

    FSDP's own run at the largest size of the all-reduce too; from tier standard on also all-to-all.
    `problem` is why they did not; "" if they did.  Raises GangError if the small size fails.
    """
    small, large = small_size(run), large_size(run)
    rows = check_ops(gang, small)
    try:
        more = check_ops(gang, large, None, judged_ops(tier), PRECISE_S) if large > small else {}
    except GangError as error:
        return rows, str(error)
    for name, found in more.items():
        rows[name] += found
    missing = [name for name in judged_ops(tier) if large not in (r["size"] for r in rows[name])]
    of = "GPU memory" if run.backend == "nccl" else "memory"
    reason = f"{', '.join(missing)} did not run at {size_text(large)}: too little free {of}"
    return rows, reason if missing else ""


def collective_speeds(
    rows: dict[str, Rows], run: SweepResult, names: tuple[str, ...], size: int
) -> dict[str, CollectiveSpeed]:
    """Return the speed of these collectives at `size` (bytes); the better placement counts.

    The all-reduce of the same size lets expect it.  Collectives without that size are left out.
    """
    speeds = {}
    for name in names:
        at_size = [row for row in rows[name] if row["size"] == size]
        if at_size:
            best = max(at_size, key=lambda row: float(row["busbw"]))
            all_reduce = max(row["busbw"] for row in run.rows if row["size"] == size)
            expected = all_reduce * expected_ratio(name, run)
            values = best["busbw"], best["spread"], best["samples"]
            speeds[name] = CollectiveSpeed(name, size, *values, expected)
    return speeds


def judged_ops(tier: str) -> tuple[str, ...]:
    """Name the collectives that this tier judges."""
    return FSDP_OPS if tier == "quick" else (*FSDP_OPS, ALL_TO_ALL)


def expected_ratio(name: str, run: SweepResult) -> float:
    """Return the busbw of a collective that a sound fabric gives, by that of the ring all-reduce.

    A ring of all-gather or reduce-scatter has the same busbw (nccl-tests, doc/PERFORMANCE.md).
    """
    if run.backend == "gloo" and name in GLOO_BYTES:
        return 1 / GLOO_BYTES[name]
    if name != ALL_TO_ALL:
        return 1.0
    inside = max(map(len, ranks_by_node(run.rank_nodes).values()))
    part = 1.0 if run.main_device == RDMA else TCP_ALL_TO_ALL
    return part * all_to_all_ratio(run.ranks, inside)


def judge_collectives(
    speeds: dict[str, CollectiveSpeed], names: tuple[str, ...], problem: str, measure: Recorder
) -> None:
    """Judge each collective by the all-reduce, and by the agreed figure if there is one.

    Those of `names` that have no speed are not proven, because of the `problem`.
    """
    for name in (name for name in names if name not in speeds):
        measure(f"{name}_against_all_reduce", None, note=problem)
        if is_agreed(measure, f"{name}_busbw"):
            measure(f"{name}_busbw", None, note=problem)
    judge_shares(speeds, measure)
    for name, speed in speeds.items():
        on = size_text(speed.size)
        if is_agreed(measure, f"{name}_busbw"):
            measure(f"{name}_busbw", speed.busbw, on=on, spread=speed.spread, samples=speed.samples)
        else:
            measure.note(f"{name}_busbw", speed.busbw, "GB/s", on=on)
    shares = {name: sweep.lowest(measure, f"{name}_against_all_reduce") for name in speeds}
    agreed = {name: sweep.lowest(measure, f"{name}_busbw") for name in speeds}
    measure.explain(find_slow_collectives(speeds, shares, agreed))
    if speeds:
        measure.covered(f"{', '.join(speeds)} at the size of the largest all-reduce")


def judge_shares(speeds: dict[str, CollectiveSpeed], measure: Recorder) -> None:
    """Judge each collective as a share of what the all-reduce lets expect."""
    for name, speed in speeds.items():
        on = size_text(speed.size)
        measure(f"{name}_against_all_reduce", speed.share, on=on, samples=speed.samples)


def find_slow_collectives(
    speeds: dict[str, CollectiveSpeed], shares: dict[str, float], agreed: dict[str, float]
) -> Iterator[Finding]:
    """Make one finding per collective that is slower than the all-reduce lets expect, or its limit.

    `shares` are the least shares of what is expected, `agreed` the least GB/s, by name.
    """
    for name, speed in speeds.items():
        found = f"{name} of {size_text(speed.size)}: {quantity(speed.busbw, 'GB/s')}"
        if speed.share < shares[name]:
            message = f"{found}, {percent(speed.share)} of the "
            message += f"{quantity(speed.expected, 'GB/s')} expected from the all-reduce"
            yield finding("FAB-SLOW-COLLECTIVE", message, [])
        elif speed.busbw < agreed[name]:
            message = f"{found}. Expected: {quantity(agreed[name], 'GB/s')} or more"
            yield finding("FAB-SLOW-COLLECTIVE", message, [])


MODELS = ("GB200", "GB300")  # up to 72 of these GPUs share NVLink over nodes


def has_nvlink_between(facts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all nodes have GPUs that reach other nodes by NVLink."""
    return len(facts) > 1 and all(
        fact["gpus"] and all(any(model in gpu["name"] for model in MODELS) for gpu in fact["gpus"])
        for fact in facts
    )


COMPLETED, SUCCESS = 3, 0  # nvmlGpuFabricState_t, nvmlReturn_t: the GPU is in its domain
Domain = tuple[str, int]  # clusterUuid, cliqueId: all GPUs with both reach each other by NVLink
BETWEEN = "NVLink between nodes"


def read_domain(fact: Mapping[str, Any]) -> Domain | None:
    """Read the NVLink domain in which all GPUs of a node are; None if it is not known.

    A GPU that is not registered, or has no clusterUuid, is in none: NCCL uses no NVLink from it.
    """
    found: set[Domain | None] = set()
    for fabric in (board.get("fabric") for board in fact["gpu_health"]["boards"]):
        is_in = fabric and (fabric["state"], fabric["status"]) == (COMPLETED, SUCCESS)
        known = is_in and fabric["cluster"].strip("0")
        found.add((fabric["cluster"], fabric["clique"]) if known else None)
    return found.pop() if len(found) == 1 else None


def find_domains(
    rank_nodes: Sequence[str], known: Mapping[str, Domain | None]
) -> tuple[dict[str, list[int]], dict[str, str], list[str]]:
    """Group ranks by NVLink domain; return (ranks, problems, nodes alone in a rack).

    `rank_nodes` names each rank's node, `known` each node's domain.  Ranks and problems, which are
    why nodes cannot be tested, are by what they are: `NVLink of node0 to node17`.  A node whose
    domain is not known is put into no other's.  One that is alone in a clique of a rack that others
    share was split from them, by order or by mistake.
    """
    everyone = sorted({*rank_nodes}, key=by_number)
    groups, lost, alone = dict[Domain, list[str]](), list[str](), list[str]()
    for node in everyone:
        domain = known.get(node)
        (groups.setdefault(domain, []) if domain else lost).append(node)
    ranks, problems = dict[str, list[int]](), dict[str, str]()
    racks = [rack for rack, _ in groups]
    for (rack, _), nodes in groups.items():
        where = name_domain(nodes, everyone)
        if len(nodes) > 1:
            ranks[where] = [at for at, node in enumerate(rank_nodes) if node in nodes]
        elif racks.count(rack) > 1:
            problems[where] = "it is alone in its clique, and other nodes share its rack"
        else:
            alone += nodes
    if lost:
        why = "registration with the NVLink fabric is not completed, or NVML does not show it"
        problems[name_domain(lost, everyone)] = why
    if not ranks and not problems:
        problems[BETWEEN] = "no two nodes are in one NVLink domain"
    return ranks, problems, alone


def name_domain(nodes: Sequence[str], everyone: Sequence[str]) -> str:
    """Name the NVLink of these nodes; both lists are in order."""
    return f"NVLink of {join_names(name_runs(nodes, everyone))}"


def measure_nvlink(rig: FabricRig, logs: RankLogs) -> None:
    """Sweep all-reduce in each NVLink domain, with NVLink and the algorithm that NCCL chooses.

    It takes new ranks, because NCCL reads its environment once per process.
    """
    cluster, measure = logs.cluster, rig.measure
    if not cluster.on_gpu or not has_nvlink_between(cluster.facts):
        return
    measure.progress("fabric: NVLink between nodes")
    own_choice: dict[str, str | None] = {"NCCL_MNNVL_ENABLE": None, "NCCL_ALGO": None}
    rig.gang.remove()
    names = cluster.node_names
    known = {names[fact["node"]]: read_domain(fact) for fact in cluster.facts}
    runs, problems, domains = dict[str, SweepResult](), dict[str, str](), dict[str, list[int]]()
    try:
        with cluster.gang(environment={**gang_env(logs), **own_choice}) as gang:
            nodes = [names[place.node] for place in gang.places]
            domains, problems, alone = find_domains(nodes, known)
            cliques = Counter(rack for rack, _ in {*filter(None, known.values())})
            for count in (count for count in cliques.values() if count > 1):
                message = f"a rack is split into {count} cliques"
                measure.covered(f"{message}: NVLink does not connect one with another")
            if alone:
                why = "each is alone in its NVLink domain"
                measure.covered(f"{BETWEEN} was not tested on {join_names(alone)}: {why}")
            for where, ranks in domains.items():
                runs[where] = run_sweep(gang, names, logs, rig.terms.fabric, ranks=ranks)
    except GangError as error:
        problems |= dict.fromkeys(domains.keys() - runs.keys() or {BETWEEN}, str(error))
    record_nvlink(runs, problems, measure)


def record_nvlink(
    runs: Mapping[str, SweepResult], problems: Mapping[str, str], measure: Recorder
) -> None:
    """Judge the slowest domain by the agreed figure, or note it; bytes on the network prove none.

    `runs` and `problems`, the reasons why others were not tested, are by names of `find_domains`.
    """
    crossed, speeds = dict(problems), dict[str, float]()
    for where, run in runs.items():
        if used := {run.main_devices[node] for node in run.sent if run.is_counted(node)}:
            crossed[where] = f"data between nodes used {', '.join(sorted(used))}, not NVLink"
        else:
            speeds[where] = run.plateau["busbw"]
            measure.covered(f"all-reduce over {where}: {quantity(speeds[where], 'GB/s')}")
    for where, why in crossed.items():
        judge_if_agreed(measure, check.NVLINK_BUSBW, None, "GB/s", on=where, note=why)
        measure.covered(f"{where}: {why}")
    if speeds:
        slowest = min(speeds, key=lambda where: speeds[where])
        noise = {name: runs[slowest].plateau[name] for name in ("spread", "samples")}
        judge_if_agreed(measure, check.NVLINK_BUSBW, speeds[slowest], "GB/s", on=slowest, **noise)
