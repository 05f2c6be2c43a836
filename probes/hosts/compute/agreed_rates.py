"""Judges each accelerator's rates by what the contract agrees on; without that, notes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from probes.acceptance.criteria import CRITERIA
from probes.acceptance.measure import Recorder
from probes.hosts.compute.fleet import Speed, WorkFleet
from probes.hosts.compute.results import explain_by_node
from reports.numbers import quantity

# measure: operation
AGREED = {
    "gemm_tflops": "gemm",
    "fp8_tflops": "fp8",
    "hbm_gbs": "hbm",
    "h2d_gbs": "h2d",
    "d2h_gbs": "d2h",
}


def is_agreed(name: str, measure: Recorder) -> bool:
    """Return whether the contract has a limit for a rate."""
    return measure.contract.limit("HOSTS", name) is not None


def judge_agreed(fleet: WorkFleet, speeds: Mapping[str, Speed], measure: Recorder) -> None:
    """Judge the slowest rate of each node by the contract; note the median of each model."""
    for name, operation in AGREED.items():
        rates = {
            key: speed.typical[operation]
            for key, speed in speeds.items()
            if operation in speed.typical
        }
        if is_agreed(name, measure):
            _judge_rate(name, fleet, rates, measure)
        else:
            _note_rate(name, fleet, rates, measure)


def _judge_rate(name: str, fleet: WorkFleet, rates: Mapping[str, float], measure: Recorder) -> None:
    unit = CRITERIA["HOSTS"].measures[name].unit
    nodes = defaultdict[str, list[str]](list)
    for key, one in fleet.accelerators.items():
        nodes[one.node].append(key)
    for node, keys in nodes.items():
        silent = [key for key in keys if key not in rates]
        slowest = min((rates[key] for key in keys if key in rates), default=None)
        fails = measure.would_fail(name, slowest)
        note = f"{len(silent)} of {len(keys)} accelerators gave no rate" if silent else ""
        measure(name, slowest if fails or not silent else None, on=node, note=note)
    below = {key: rate for key, rate in rates.items() if measure.would_fail(name, rate)}
    texts = {key: f"{name} is {quantity(rate, unit)}" for key, rate in below.items()}
    explain_by_node("HOST-GPU-RATE", fleet.accelerators, texts, measure)


def _note_rate(name: str, fleet: WorkFleet, rates: Mapping[str, float], measure: Recorder) -> None:
    models = defaultdict[str, list[float]](list)
    for key, rate in rates.items():
        models[fleet.accelerators[key].model].append(rate)
    for model, values in models.items():
        measure.note(name, median(values), CRITERIA["HOSTS"].measures[name].unit, on=model)
