"""Runs HOSTS' probes of the work of each GPU over simulated accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from probes.cluster.ask import Answers
from probes.contract.contract import Contract, load
from probes.hosts.test_hosts import (
    test_each_gpu_computes_rightly_and_as_fast_as_the_others as work_probe,
)
from probes.hosts.test_hosts import test_no_gpu_slows_down_under_load as drift_probe
from reports.record import ProbeResult
from tests.support.controls import recorder

H100 = "NVIDIA H100 80GB HBM3"
RATES = {"gemm": 680.0, "hbm": 2900.0, "h2d": 54.0, "d2h": 53.0, "fp8": 1200.0}
BUILD = [H100, "132 units", "9.0", "2.13.0", "13.0"]
LINK = {
    "generation": 5,
    "most_generation": 5,
    "board_generation": 5,
    "width": 16,
    "most_width": 16,
    "sm_mhz": 1485,
    "most_sm_mhz": 1980,
}
RIGHT, OTHER = "0a" * 32, "b7" * 32  # hashes of a product


@dataclass
class SimulatedGpu:
    """One accelerator; a test changes what it is and what it does.

    `factors` multiply its rates, call by call (the last one stays).  `alone` multiplies some of
    them where no other is measured.  `errors` are by method.  A method in `silent` gets no answer.
    """

    number: str
    uuid: str
    model: str = H100
    build: list[str] = field(default_factory=lambda: list(BUILD))
    rates: dict[str, float] = field(default_factory=lambda: dict(RATES))
    factors: list[float] = field(default_factory=lambda: [1.0])
    alone: dict[str, float] = field(default_factory=dict)
    wrong: int = 0
    hashes: list[str] = field(default_factory=lambda: [RIGHT] * 8)
    celsius: list[float] = field(default_factory=lambda: [60.0])
    errors: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    link: dict[str, int] = field(default_factory=lambda: dict(LINK))
    obeys: bool = True  # whether faults of controls have an effect
    calls: int = 0
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def prepare(self, on_gpu: bool) -> dict[str, Any]:
        about = {"number": self.number, "error": self.errors.get("prepare", "")}
        if about["error"]:
            return about
        return {**about, "model": self.model, "uuid": self.uuid, "build": self.build}

    def check_sums(self, plant: str) -> dict[str, Any]:
        error = self.errors.get("check_sums", "")
        if plant == "shape" and self.obeys:
            error = "mat1 and mat2 shapes cannot be multiplied"
        if error:
            return {"error": error, "wrong": None, "hashes": []}
        if plant == "element" and self.obeys:
            return {"error": "", "wrong": 4096, "hashes": ["cd" * 32] * 8}
        return {"error": "", "wrong": self.wrong, "hashes": self.hashes}

    def read_link(self, seconds: float, plant: dict[str, int]) -> dict[str, Any]:
        if error := self.errors.get("read_link", ""):
            return {"error": error, "link": {}}
        return {"error": "", "link": {**self.link, **(plant if self.obeys else {})}}

    def measure_speed(
        self, rounds: int, seconds: float, extra: int, only: tuple[str, ...], is_alone: bool
    ) -> dict[str, Any]:
        self.asked.append((rounds, seconds, extra, is_alone))
        factor = self.factors[min(self.calls, len(self.factors) - 1)]
        heat = self.celsius[min(self.calls, len(self.celsius) - 1)]
        self.calls += 1
        if error := self.errors.get("measure_speed", ""):
            return {"error": error, "rates": {}, "launch_us": None, "celsius": None}
        alone = self.alone if is_alone else {}
        factor /= extra if self.obeys else 1
        rates = {
            name: [rate * factor * alone.get(name, 1.0)] * rounds
            for name, rate in self.rates.items()
            if not only or name in only
        }
        return {"error": "", "rates": rates, "launch_us": 4.5, "celsius": heat}


class SimulatedWork:
    """Cluster of nodes with accelerators: `gpus[node][slot]`."""

    kind = "ray"

    def __init__(self, nodes: int = 3, gpus: int = 8, on_gpu: bool = True) -> None:
        self.on_gpu = on_gpu
        self.resource = "GPU" if gpus else "CPU"
        self.gpus = [
            [SimulatedGpu(str(i), f"GPU-{node}-{i}" if on_gpu else "") for i in range(gpus or 1)]
            for node in range(nodes)
        ]
        self.owned = int(gpus > 0)
        self.killed: list[Any] = []
        self.noted: set[str] = set()  # ids of nodes on which workers are ended
        self.ending = False  # whether a node ends with the first worker that is silent
        self.gone: set[str] = set()  # ids of nodes that ended so
        self.peers: dict[str, Any] = {}

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"id{i}",
                "name": f"n{i}",
                "address": f"10.0.0.{i}",
                "resources": {"GPU": len(own) * self.owned},
            }
            for i, own in reversed([*enumerate(self.gpus)])
            if f"id{i}" not in self.gone
        ]

    @property
    def node_names(self) -> dict[str, str]:
        return {node["id"]: node["name"] for node in self.nodes}

    @property
    def every(self) -> list[SimulatedGpu]:
        return [gpu for own in self.gpus for gpu in own]

    def note_kill(self, nodes: set[str]) -> None:
        assert not self.killed
        self.noted |= nodes

    def on_each_node(self, function: Any, nodes: Any, gpus: int) -> dict[str, Any]:
        assert function.__name__ == "measure_peer_copies"
        assert gpus > 1
        return {node["id"]: self.peers[node["id"]] for node in nodes if node["id"] in self.peers}

    def start_worker(self, target: type, node: str, num_gpus: int) -> Any:
        assert target.__name__ == "AcceleratorWorker"
        assert num_gpus == self.owned
        waiting = self._waiting.setdefault(node, list(self.gpus[int(node[2:])]))
        return SimpleNamespace(remote=lambda: SimulatedWorker(waiting.pop(0)))

    _waiting: dict[str, list[SimulatedGpu]]

    def collect_answers(self, calls: Mapping[WorkCall, str], seconds: float) -> Answers:
        assert seconds >= 60
        answers, errors = {}, {}
        for call, key in calls.items():
            assert call.gpu not in self.killed
            if call.method in call.gpu.silent:
                errors[key] = "no answer within 60 s"
                self.gone |= {key.partition(":")[0]} if self.ending else set()
            elif call.method == "measure_speed":
                is_alone = len(calls) < len(self.every)
                answers[key] = call.gpu.measure_speed(*call.values, is_alone=is_alone)
            else:
                answers[key] = getattr(call.gpu, call.method)(*call.values)
        return Answers(answers, errors)


@dataclass(eq=False)
class WorkCall:
    """A call of a simulated worker, which `collect_answers` computes."""

    gpu: SimulatedGpu
    method: str
    values: tuple[Any, ...]


class SimulatedWorker:
    """Handle of the actor on a simulated accelerator."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *values: WorkCall(self.gpu, method, values))


def emulated(nodes: int = 4, gpus: int = 1) -> SimulatedWork:
    """Make a rehearsal: accelerators are threads of a CPU."""
    cluster = SimulatedWork(nodes, gpus, on_gpu=False)
    for gpu in cluster.every:
        gpu.model, gpu.build, gpu.uuid = "AMD EPYC", ["AMD EPYC", "AVX512", "2.13.0"], ""
        gpu.number = "-1"  # as the lab hides GPUs
        gpu.rates = {"gemm": 0.05, "hbm": 20.0, "h2d": 15.0, "d2h": 14.0}
    return cluster


def agree(contract: Contract, **limits: float) -> Contract:
    """Return the contract with these least rates."""
    from reports.measurement import Limit

    units = {name: "TFLOP/s" if name.endswith("tflops") else "GB/s" for name in limits}
    added = {
        name: Limit(low=low, unit=units[name], because="agreed for this test")
        for name, low in limits.items()
    }
    hosts = {**contract.limits.get("HOSTS", {}), **added}
    return contract.model_copy(update={"limits": {**contract.limits, "HOSTS": hosts}})


def run_work(
    cluster: SimulatedWork, contract: Contract | None = None, tier: str = ""
) -> ProbeResult:
    """Run the quick probe over the simulation, or with a `tier` the long one."""
    cluster._waiting = {}
    measure = recorder("HOSTS", contract or load("h100-ndr400" if cluster.on_gpu else "lab"))
    with (
        patch("probes.hosts.compute_fleet.on_node", cluster.start_worker),
        patch("probes.cluster.ask.collect_answers", cluster.collect_answers),
        patch("ray.kill", lambda worker: cluster.killed.append(worker.gpu)),
    ):
        if tier:
            drift_probe(cast(Any, cluster), tier, measure)
        else:
            work_probe(cast(Any, cluster), measure)
    assert len(cluster.killed) == len(cluster.every)
    assert cluster.noted == {*cluster.node_names} | cluster.gone
    result = measure.finish("finished", 1.0)
    return result.model_copy(update={"coverage": "; ".join(measure._coverage)})


def gpu_of(cluster: SimulatedWork, node: int = 1, slot: int = 3) -> SimulatedGpu:
    """Return the accelerator that a test changes."""
    return cluster.gpus[node][slot]


def statement_of(result: ProbeResult) -> str:
    """Return the statement of the only finding."""
    (one,) = result.findings
    return one.statement
