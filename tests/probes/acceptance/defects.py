"""Says what each shipped contract makes of each defect that a fleet shares: reference/defects.md.

python -m tests.probes.acceptance.defects

SYNTHETIC: speeds are those of sound clusters (tests/probes/sound/systems.py), times the factors of
defects.toml.  Limits and judges are the product's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from probes.cluster.network_facts import RDMA, interfaces_of
from probes.contract.contract import Contract, load, shipped_contracts
from probes.contract.derived_limits import size_contract
from probes.contract.limits import LANE_GBS
from probes.fabric import judge, speeds
from probes.fabric.node_pairs import InsideSpeeds, judge_inside, run_pair_search
from probes.fabric.sweep import SweepResult
from probes.fabric.transport import TransportReport
from probes.scaling.base_speed import judge_speed, speed_tests
from probes.toml_tables import tomllib
from reference_trainer.model.devices import find_device
from reports.measurement import Measurement, Verdict
from reports.numbers import quantity
from tests.probes.fabric.test_library_report import NAMES, gang, written
from tests.probes.scaling.test_base_speed import on_gpu
from tests.probes.sound.systems import (
    GPUS,
    INSIDE,
    MFU,
    SYSTEMS,
    TCP,
    TCP_ALLTOALL,
    Rates,
    System,
    newest,
)
from tests.recordings.generate.nccl_logs import Job
from tests.support.controls import MemoryRecorder, recorder
from tests.support.paths import REPO
from tests.support.public_series import ring_rate
from tests.support.simulated_hosts import StandInHosts, run_hosts
from tests.support.simulated_ladder import ladder
from tests.support.simulated_leaves import Leaves
from tests.support.simulated_work import SimulatedWork, run_work
from tests.support.sweep_results import ROW

PAGE = REPO / "docs" / "reference" / "defects.md"
TABLE = Path(__file__).with_name("defects.toml")
SIZES = (64, 512)  # GPUs
# Bytes: what latency, 64 and 256 MiB, and the plateau are judged by.
SWEEP = [1 << power for power in (10, 20, 26, 28, 30, 31, 32, 33, 34)]
RACK = 72  # GPUs of one NVLink domain at most; each domain has its own sweep
SHORT = 2 << 30  # bytes: below the sizes whose busbw is judged
# What sound GPUs reach where no source has a figure: of a matrix product 60 % of the data sheet, as
# the slowest that is published.  Copies reach 82 % of what the PCIe link carries (Azure).
OF_SHEET, OF_LINK = 0.60, 0.82
C2C_GBS = 193.0  # copies of a GB200, which has no PCIe link to the host (Azure ND GB200 v6)
# 8.8 GB a step at 7.9 GB/s, and 0.14 s of arithmetic on eight H100: the contract's own model.
ETHERNET = System(
    7.9, TCP_ALLTOALL, INSIDE["H100"], MFU["H100"], TCP, efficiency={1: 1.0, 2: 0.115}
)  # fmt: skip
BYTES = {"rails", "slowest_rail"}
NETWORK = "rails", "idle", "admitted", "spine", "short", "inside", "gdr"
HEAD = """# Defects that a whole fleet shares

Written by `python -m tests.probes.acceptance.defects`; do not edit.

If all nodes have the same defect, no comparison between them shows it: only a limit does. This
table says what each contract that comes with seatrial makes of such a defect. It is computed from
what sound clusters reach, and judged by the limits and judges of seatrial.

- *red*: a measure fails, so the cluster is not accepted.
- *MARGINAL*: the report names the measure. Up to three such measures are accepted (`max_marginal`).
- *green*: nothing shows it. The reason is below the table, and each report's coverage says it.
- *n/a*: the cluster has no such part.

Speeds of few nodes are carried to 64 and 512 GPUs. Where the two differ, a cell has both.

"""


@dataclass(frozen=True)
class Green:
    """Cells in which nothing is seen: contracts and sizes (none: each), why, and who says so."""

    reason: str
    shown: str
    contracts: Sequence[str] = ()
    sizes: Sequence[int] = SIZES

    def holds(self, contract: str, size: int) -> bool:
        """Return whether it is about this cell."""
        return size in self.sizes and contract in (self.contracts or [contract])


@dataclass(frozen=True)
class Defect:
    """What a defect does to a sound fleet, as factors of its figures (defects.toml)."""

    title: str
    how: str = ""
    rails: float = 1.0
    idle: int = 0
    only_speed: bool = False
    admitted: float = 1.0
    spine: float = 1.0
    short: float = 1.0
    inside: float = 1.0
    generations: int = 0
    compute: float = 1.0
    memory: float = 1.0
    one_gpu: float = 1.0
    board: dict[str, float] = field(default_factory=dict)
    gdr: bool = True
    green: Sequence[Green] = ()


SOUND = Defect("none")
sound_ladder = cache(ladder)


@cache
def read_defects() -> dict[str, Defect]:
    """Read the table of defects."""
    rows = tomllib.loads(TABLE.read_text())
    return {
        id: Defect(**{**row, "green": tuple(Green(**one) for one in row.get("green", ()))})
        for id, row in rows.items()
    }


@dataclass(frozen=True)
class Fleet:
    """A cluster under a shipped contract: `ethernet` orders no machines, so it gets H100."""

    contract: Contract
    system: System
    gpus: int  # of a node
    nodes: int

    @property
    def model(self) -> str:
        return str(self.contract.cluster.gpu_model)

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @property
    def fabric(self) -> str:
        return ",".join(interfaces_of(self.contract.cluster.fabric)) or RDMA

    @property
    def rails(self) -> int:
        terms = self.contract.cluster
        return terms.rails or max(len(interfaces_of(terms.fabric)), 1)

    def lacks(self, defect: Defect) -> bool:
        """Return whether it has no part that could have this defect."""
        between = defect.rails * defect.admitted * defect.spine * defect.short
        network = between != 1 or defect.idle or not defect.gdr
        device = find_device(self.model)
        return (
            bool(network and self.nodes == 1)
            or ((defect.idle or defect.admitted < 1) and self.rails == 1)
            or (defect.inside < 1 and not self.contract.limit("FABRIC", "all_reduce_inside_node"))
            or bool(defect.generations and not (device and device.pcie))
            or (not defect.gdr and self.fabric != RDMA)
        )


@cache
def fleet_of(name: str, size: int) -> Fleet:
    """Make the fleet of so many GPUs that a contract describes."""
    contract, system = load(name), SYSTEMS.get(name, ETHERNET)
    terms = contract.cluster
    if name == "ethernet":
        more = {"gpu_model": load("h100-ndr400").cluster.gpu_model, "gpus_per_node": 8}
        terms = terms.model_copy(update=more)
    gpus = terms.gpus_per_node or 8
    nodes = terms.nodes or size // gpus
    contract = contract.model_copy(update={"cluster": terms})
    return Fleet(size_contract(contract, nodes, nodes * gpus), system, gpus, nodes)


CONTRACTS = sorted(n for n in shipped_contracts() if load(n).cluster.accelerators == "real")


@dataclass(frozen=True)
class Cell:
    """What was judged: the worst measurement of each measure, and what the reports say they cover.

    `most` is how many measures may be MARGINAL.
    """

    worst: dict[str, Measurement]
    coverage: str
    most: int

    def names(self, *verdicts: Verdict) -> list[str]:
        """Name the measures with these verdicts."""
        return [name for name, one in self.worst.items() if one.verdict in verdicts]

    @property
    def is_green(self) -> bool:
        return not self.names(Verdict.FAIL, Verdict.MARGINAL, Verdict.UNPROVEN)

    def __str__(self) -> str:
        failed, close = self.names(Verdict.FAIL, Verdict.UNPROVEN), self.names(Verdict.MARGINAL)
        if failed or len(close) > self.most:
            return f"red ({(failed or close)[0]})"
        return f"MARGINAL ({', '.join(close)})" if close else "green"


@cache
def judge_cell(name: str, defect_id: str, size: int) -> Cell | None:
    """Judge one defect of a fleet by its contract; None if the fleet has no such part."""
    fleet, defect = fleet_of(name, size), read_defects().get(defect_id, SOUND)
    if fleet.lacks(defect):
        return None
    network = tuple((key, getattr(defect, key)) for key in NETWORK)
    recorders = [_judge_fabric(name, size, network), judge_scaling(fleet, defect)]
    results = [one.result("finished", 1.0) for one in recorders]
    covered = [text for one in recorders for text in one._coverage]
    work = judge_work(fleet.contract, fleet.gpus, defect)
    results += [work, judge_boards(fleet, defect)]
    found: dict[str, Measurement] = {}
    for one in (one for result in results for one in result.measurements if one.judged):
        if not (defect.only_speed and one.name in BYTES):
            found[one.name] = max(found.get(one.name, one), one, key=lambda each: each.severity)
    most = fleet.contract.max_marginal
    return Cell(found, "; ".join([*covered, work.coverage]), 0 if most is None else most)


@cache
def _judge_fabric(name: str, size: int, network: Sequence[tuple[str, Any]]) -> MemoryRecorder:
    """Judge once what defects of machines leave as it is."""
    return judge_fabric(fleet_of(name, size), Defect("", **dict(network)))


def judge_fabric(fleet: Fleet, defect: Defect) -> MemoryRecorder:
    """Let FABRIC's judges judge a sweep, rails, pairs and collectives of this fleet."""
    measure, system = MemoryRecorder(fleet.contract, "p", "FABRIC"), fleet.system
    inside = system.inside_short(fleet.gpus) * defect.inside
    names = [f"n{at}" for at in range(fleet.nodes)]
    few = names[:4]
    parts = InsideSpeeds(
        dict.fromkeys(few, inside), dict.fromkeys(few, 0), [], dict.fromkeys(few, fleet.gpus)
    )
    judge_inside(parts, measure, alone=fleet.nodes == 1)
    if fleet.nodes == 1:
        return measure
    run = make_run(fleet, defect, names)
    judge.judge_speed(run, measure)
    judge.judge_sizes(run.rows, run, measure)
    judge.judge_rails(run, fleet.contract.cluster, measure)
    judge_others(fleet, defect, run, measure)
    if defect.spine != 1:
        gang: Any = Leaves(fleet.nodes, narrow=defect.spine, noise=0.01, dips=0)
        every = judge.meets_all("standard", fleet.nodes, True)
        found = run_pair_search(gang, gang.names, full=every)
        judge.judge_slowest_pair(found.speed, measure)
    if system.nvlink:
        ranks = min(fleet.ranks, RACK)
        rows = make_rows(ranks, ranks, system.nvlink * defect.inside, defect)
        speeds.record_nvlink({"NVLink": replace(run, rows=rows, sent={})}, {}, measure)
    if fleet.fabric == RDMA and not defect.gdr:
        judge.judge_transport(replace(run, library=read_log(fleet, defect.gdr)), RDMA, measure)
    return measure


def make_rows(ranks: int, inside: int, link: float, defect: Defect) -> list[dict[str, Any]]:
    """Model the sweep of an all-reduce whose slowest link has this rate (GB/s).

    So many ranks `inside` reach each other by NVLink.
    """
    rows = list[dict[str, Any]]()
    for size in SWEEP:
        slowed = defect.short if size < SHORT else 1.0
        rate = ring_rate(ranks, size, link, inside) / slowed
        seconds = 2 * (ranks - 1) / ranks * size / rate / 1e9
        each = {"size": size, "busbw": rate, "low": rate, "high": rate, "seconds": seconds}
        counts = {"algbw": size / seconds / 1e9, "count": size // 4, "elements": size // 4}
        same = {"rank_seconds": [seconds] * ranks, "rank_cv": 0.01, "samples": 10}
        rows.append({**ROW, **each, **counts, **same})
    return rows


def make_run(fleet: Fleet, defect: Defect, names: list[str]) -> SweepResult:
    """Model the sweep, and the bytes that each node counts on each of its rails."""
    share = defect.rails * (1 - defect.idle / fleet.rails) * defect.admitted
    link = min(fleet.system.ring_at(fleet.nodes) * share, fleet.system.inside * defect.inside)
    rows = make_rows(fleet.ranks, fleet.gpus, link, defect)
    ranks = [name for name in names for _ in range(fleet.gpus)]
    run = SweepResult(len(ranks), "nccl", rows, {}, rank_nodes=ranks)
    sent = round(run.expected_bytes)
    used = round(fleet.rails * defect.admitted)
    of = interfaces_of(fleet.contract.cluster.fabric) or [f"mlx5_{at}/1" for at in range(used)]
    rails: dict[str, int | None] = {
        port: 0 if at < defect.idle else sent // (used - defect.idle)
        for at, port in enumerate(of[:used])
    }
    rate = fleet.contract.cluster.line_rate_gbps or 0.0
    return replace(
        run,
        sent={name: {fleet.fabric: sent} for name in names},
        rails=dict.fromkeys(names, rails),
        rail_gbps=dict.fromkeys(names, rate),
    )


def judge_others(fleet: Fleet, defect: Defect, run: SweepResult, measure: MemoryRecorder) -> None:
    """Judge the other collectives: rings as the all-reduce, and an all-to-all over two leaves."""
    crossing = fleet.nodes / 2 / max(fleet.nodes - 1, 1)
    share = defect.rails * defect.admitted * (1 - defect.idle / fleet.rails)
    alltoall = newest(fleet.system.alltoall, fleet.nodes) * share / max(1, crossing * defect.spine)
    ring = run.rows[-1]["busbw"]
    rows = {
        name: [{"size": SWEEP[-1], "busbw": rate, "spread": 0.01, "samples": 12}]
        for name, rate in (("all_gather", ring), ("reduce_scatter", ring), ("alltoall", alltoall))
    }
    names = speeds.judged_ops("standard")
    found = speeds.collective_speeds(rows, run, names, SWEEP[-1])
    speeds.judge_collectives(found, names, "", measure)


@cache
def read_report(network: str, gdr: bool, gpu: str) -> TransportReport:
    """Read the log of two nodes, as FABRIC does."""
    with tempfile.TemporaryDirectory() as folder:
        logs: Any = written(Path(folder), Job(gdr=gdr, network=lambda _: network))
        facts = [{"name": name, "gpus": 8 * [{"name": gpu}]} for name in ("n0", "n1")]
        logs.cluster.facts.extend(facts)  # of a stand-in: a cluster's own cannot be changed
        return cast(TransportReport, logs.report(gang(), NAMES))


def read_log(fleet: Fleet, gdr: bool) -> TransportReport:
    """Return what NCCL's log of this fleet's network shows."""
    network = "AWS Libfabric" if "efa" in fleet.contract.name else "IB"
    nodes = dict.fromkeys((f"n{at}" for at in range(fleet.nodes)), RDMA)
    return replace(read_report(network, gdr, fleet.model), transports=nodes)


def judge_scaling(fleet: Fleet, defect: Defect) -> MemoryRecorder:
    """Judge the speed of one node, and the efficiency: what is sent longer is not hidden."""
    measure = recorder("SCALING", fleet.contract)
    base = on_gpu(sound_ladder(), fleet.system.mfu * defect.compute, fleet.model).rungs[0]

    def limits(name: str) -> Any:
        return fleet.contract.limit("SCALING", name)

    judge_speed(base, speed_tests(base, limits, False), measure)
    if fleet.nodes > 1 and (series := fleet.system.efficiency):
        share = defect.rails * defect.admitted * (1 - defect.idle / fleet.rails)
        sent = (1 / newest(series, fleet.nodes) - 1) / share
        measure("efficiency", 1 / (1 + sent))
    return measure


@cache
def sound_rates(model: str) -> dict[str, float]:
    """Return what sound GPUs of a model reach: TFLOP/s, and GB/s; without a source, as derived."""
    device, known = find_device(model), find_rates(model)
    assert device is not None
    generation, lanes = device.pcie or (0, 0)
    copies = OF_LINK * LANE_GBS[generation] * lanes if lanes else C2C_GBS
    gemm = known.gemm if known else OF_SHEET * (device.tflops or 0)
    hbm = known.hbm if known else device.reached["hbm"][0]
    return {"gemm": gemm, "hbm": hbm, "h2d": copies, "d2h": copies}


def find_rates(model: str) -> Rates | None:
    """Find what a source that devices.toml does not have says of a GPU."""
    return next((GPUS[word] for word in model.split() if word in GPUS), None)


def judge_work(contract: Contract, gpus: int, defect: Defect) -> Any:
    """Run HOSTS' probe of what GPUs compute, over two nodes."""
    name = str(contract.cluster.gpu_model)
    factors = defect.compute, defect.memory, defect.one_gpu, defect.generations
    return _run_work(name, gpus, *factors)


@cache
def _run_work(
    model: str, gpus: int, compute: float, memory: float, one: float, generations: int
) -> Any:
    """Run it once for all contracts of a model: none agrees on rates."""
    cluster, device = SimulatedWork(2, gpus), find_device(model)
    generation = device.pcie[0] if device and device.pcie else 6
    for gpu in cluster.every:
        rates = sound_rates(model)
        gpu.model, copies = model, rates["h2d"] / 2**generations
        gpu.rates = {
            "gemm": rates["gemm"] * compute, "hbm": rates["hbm"] * memory,
            "h2d": copies, "d2h": copies,
        }  # fmt: skip
        used = generation - generations
        gpu.link |= {"generation": used, "most_generation": used, "board_generation": generation}
    cluster.every[0].rates["gemm"] *= one
    return run_work(cluster)


def judge_boards(fleet: Fleet, defect: Defect) -> Any:
    """Run HOSTS' probe of what NVML reports; a key of a board is times its factor."""
    return _run_boards(fleet.model, fleet.gpus, tuple(defect.board.items()))


@cache
def _run_boards(model: str, gpus: int, changed: Sequence[tuple[str, float]]) -> Any:
    device = find_device(model)
    power = round(1000 * ((device and device.watts) or 1200))
    cluster = StandInHosts(3, gpus)
    for fact in cluster.facts:
        for gpu in fact["gpus"]:
            gpu["name"] = model
        for board in fact["gpu_health"]["boards"]:
            board |= {"name": model, "power_limit_mw": power, "power_default_mw": power}
            board |= {key: board[key] * value for key, value in changed}
    return run_hosts(cluster, nodes=3, gpus_per_node=gpus, gpu_model=model)


def cells(defect: str) -> Iterator[tuple[str, int, Cell]]:
    """Yield the cells of a defect: contract, GPUs, and what is seen."""
    for name in CONTRACTS:
        for size in SIZES:
            if cell := judge_cell(name, defect, size):
                yield name, size, cell


def write_page() -> str:
    """Return the whole page."""
    parts = [HEAD, _line(["defect", *CONTRACTS]), _line(["---"] * (len(CONTRACTS) + 1))]
    for id, defect in read_defects().items():
        parts.append(_line([defect.title, *(_text(name, id) for name in CONTRACTS)]))
    parts.append("\n## What stays green\n\n")
    for defect in read_defects().values():
        for one in defect.green:
            where = ", ".join(one.contracts) or "each contract"
            sizes = f", {one.sizes[0]} GPUs" if len(one.sizes) == 1 else ""
            parts.append(f"- *{defect.title}* ({where}{sizes}): {one.reason}.\n")
    parts.append("\n## What a defect does\n\n")
    parts += [f"- *{one.title}*: {one.how}.\n" for one in read_defects().values()]
    parts.append("\n## Sound clusters\n\n")
    head = [
        "contract",
        "ring",
        "inside a node, 8 GB",
        "256 MiB",
        "MFU",
        "GEMM",
        "memory",
        "source of the ring",
    ]
    parts += [_line(head), _line(["---"] * len(head))]
    for name in CONTRACTS:
        fleet = fleet_of(name, SIZES[0])
        system, rates = fleet.system, sound_rates(fleet.model)
        short = system.inside_short(fleet.gpus)
        rings = [system.ring_at(fleet_of(name, size).nodes) for size in SIZES]
        figures = [(system.inside, "GB/s"), (short, "GB/s"), (system.mfu, "ratio")]
        both = [quantity(ring, "GB/s") if ring else "-" for ring in dict.fromkeys(rings)]
        texts = [" to ".join(both), *(quantity(value, unit) for value, unit in figures)]
        mark = "" if find_rates(fleet.model) else " (derived)"
        for name_of, unit in (("gemm", "TFLOP/s"), ("hbm", "GB/s")):
            texts.append(f"{quantity(rates[name_of], unit)}{mark}")
        parts.append(_line([name, *texts, system.source]))
    parts.append(
        "\nInside a node, 256 MiB is modelled: each step of a ring adds 14 us to the time of its\n"
        "bytes, as with four GPUs and 6 steps (Azure ND GB200 v6). Eight GPUs take 14 steps.\n"
        "Limits of GPUs are shares of the figures in `reference_trainer/model/devices.toml`.\n"
        "*derived*: no other source has the figure, so a wrong one there is not seen. The other\n"
        "GPUs have figures of their own here:\n"
        "\n"
    )
    parts += [f"- {name}: {one.source}.\n" for name, one in GPUS.items()]
    parts.append(
        "\nHost copies reach 82 % of what the PCIe link carries (Azure).\n"
        "`ethernet` orders no machines: eight H100 a node are assumed.\n"
    )
    return "".join(parts)


def _text(name: str, defect: str) -> str:
    """Return the text of a cell: one for both sizes if they are alike."""
    texts = {size: str(cell) for size in SIZES if (cell := judge_cell(name, defect, size))}
    if len({*texts.values()}) < 2:
        return next(iter(texts.values()), "n/a")
    return "<br>".join(f"{size} GPUs: {text}" for size, text in texts.items())


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |\n"


if __name__ == "__main__":
    PAGE.write_text(write_page())
