"""Judges what the counters of each GPU gained during the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probes.acceptance.measure import Recorder
from probes.hosts.gpu_checks import Board, Facts
from probes.hosts.gpu_health import explain_boards
from reports.numbers import quantity

LEAST_S = 60.0  # a rate is taken over a minute at least: one packet in a short run is no rate


@dataclass(frozen=True)
class GpuCounter:
    """One counter of a GPU, and what a finding says of its gain.

    `factor` turns the gain into the measure's unit; `is_rate` divides it by the seconds of the run.
    """

    name: str
    factor: float
    code: str
    text: str
    unit: str
    is_rate: bool = False


# By measure.
WEAR = {
    "heat_time": GpuCounter(
        *("heat_ns", 1e-9, "HOST-GPU-SLOWED", "heat slowed the clocks for {} of the run", "s")
    ),
    "pcie_replays": GpuCounter(
        *("pcie_replays", 60.0, "HOST-PCIE", "PCIe repeated {} per minute", "packets"),
        is_rate=True,
    ),
    "nvlink_errors": GpuCounter(
        *("nvlink_errors", 1, "HOST-NVLINK"),
        *("{} in the run (replays or recoveries)", "NVLink errors"),
    ),
    "new_memory_errors": GpuCounter(
        *("lifetime_errors", 1, "HOST-ECC", "{} in the run", "uncorrected memory errors")
    ),
}


def judge_wear(before: Sequence[Facts], now: Sequence[Facts], measure: Recorder) -> None:
    """Judge the highest gain of a node's GPUs since `before`.

    A counter that is missing, or went back because the driver was loaded again, proves nothing.
    """
    earlier = {fact["node"]: fact["gpu_health"] for fact in before}
    for fact in now:
        for name in WEAR if fact["node"] in earlier else ():  # another node came later
            gains = _gains(WEAR[name], earlier[fact["node"]], fact["gpu_health"])
            _judge_gains(name, fact["name"], gains, measure)


def _gains(
    counter: GpuCounter, before: Mapping[str, Any], now: Facts
) -> list[tuple[Board, float | None]]:
    boards = {_key(board): board for board in before["boards"] if any(_key(board))}
    seconds = max(now["clock"] - before["clock"], LEAST_S) if counter.is_rate else 1
    gains: list[tuple[Board, float | None]] = []
    for board in now["boards"]:
        first, last = boards.get(_key(board), {}).get(counter.name), board.get(counter.name)
        is_known = first is not None and last is not None and last >= first
        gains.append((board, (last - first) * counter.factor / seconds if is_known else None))
    return gains


def _key(board: Board) -> tuple[str, str]:
    return board["uuid"], board["slot"]


def _judge_gains(
    name: str, node: str, gains: Sequence[tuple[Board, float | None]], measure: Recorder
) -> None:
    known = [gain for _, gain in gains if gain is not None]
    most = max(known, default=None)
    is_proven = bool(gains) and (len(known) == len(gains) or measure.would_fail(name, most))
    note = "a counter of NVML is missing at the start or the end, or began again"
    measure(name, most if is_proven else None, on=node, note=note)
    counter = WEAR[name]
    sick = [
        (board, counter.text.format(quantity(gain, counter.unit)))
        for board, gain in gains
        if gain is not None and measure.would_fail(name, gain)
    ]
    expected = str(measure.contract.limit(measure.criterion, name))
    measure.explain(explain_boards(counter.code, node, sick, expected))
