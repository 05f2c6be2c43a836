"""Judges how far the clocks of two nodes are apart; plants a node whose clock was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.clocks import ClockOffset, ClockReaders
from probes.findings import finding, join_names
from reports.numbers import quantity
from reports.record import Finding

LOST_CLOCK = "CLOCK_MONOTONIC"  # what a machine without a battery has: the time since 1970 is lost


def measure_clocks(cluster: Cluster, measure: Recorder) -> None:
    """Measure the largest offset between two nodes' clocks, and its control."""
    names = cluster.node_names
    nodes = [node["id"] for node in [*cluster.nodes, *cluster.bystanders]]
    if len(nodes) < 2:
        measure.covered("one node: no clocks to compare")
        return
    readers = ClockReaders(nodes)
    try:
        offsets = readers.compare(readers.wait_until_up())
        victim = nodes[len(cluster.nodes) - 1]
        lost = readers.compare([victim] if victim in offsets else [], LOST_CLOCK)
    finally:
        readers.close()
    silent = [names[id] for id in nodes if id not in offsets]
    by_name = {names[id]: offset for id, offset in offsets.items()}
    measure.keep("clocks.json", describe_offsets(by_name), caption="clock of each node")
    judge_clocks(by_name, silent, measure)
    control_lost_clock(by_name, {names[id]: offset for id, offset in lost.items()}, measure)


def describe_offsets(offsets: Mapping[str, ClockOffset]) -> dict[str, dict[str, float]]:
    """Describe each node's clock, less the driver's, as evidence."""
    return {
        name: {"seconds": offset.seconds, "error": offset.error} for name, offset in offsets.items()
    }


def judge_clocks(
    offsets: Mapping[str, ClockOffset], silent: Sequence[str], measure: Recorder
) -> None:
    """Judge the largest offset between two clocks.

    An offset that passes or fails only within its error proves nothing, and neither does one that
    passes while nodes are `silent`.
    """
    if len(offsets) < 2:
        measure("clock_offset", None, note=f"no answer from {join_names(silent)}")
        return
    ends = [(offset.seconds, offset.error) for offset in offsets.values()]
    value = max(seconds for seconds, _ in ends) - min(seconds for seconds, _ in ends)
    most = max(s + e for s, e in ends) - min(s - e for s, e in ends)
    least = max(0.0, max(s - e for s, e in ends) - min(s + e for s, e in ends))
    fails, note = measure.would_fail("clock_offset", least), ""
    if not fails and silent:
        note = f"no answer from {join_names(silent)}"
    elif not fails and measure.would_fail("clock_offset", most):
        note = f"answers are slow: {quantity(value, 's', spread=most - value)}"
    measure("clock_offset", None if note else value, spread=most - value, note=note)
    if fails:
        measure.explain(find_odd_clocks(offsets, measure))


def find_odd_clocks(offsets: Mapping[str, ClockOffset], measure: Recorder) -> Finding:
    """Name the nodes that are far from the median; where none is, the two that are farthest."""
    middle = median(offset.seconds for offset in offsets.values())
    apart = {name: offset.seconds - middle for name, offset in offsets.items()}
    odd = [name for name, by in apart.items() if measure.would_fail("clock_offset", abs(by))]
    odd = odd or [min(apart, key=apart.__getitem__), max(apart, key=apart.__getitem__)]
    parts = [
        f"{name} is {quantity(abs(apart[name]), 's')} {'ahead' if apart[name] > 0 else 'behind'}"
        for name in odd
    ]
    text = f"against the median of {len(offsets)} clocks, {join_names(parts)}"
    return finding("HOST-CLOCK", text, odd)


def control_lost_clock(
    offsets: Mapping[str, ClockOffset], lost: Mapping[str, ClockOffset], measure: Recorder
) -> None:
    """Check that a node whose clock began at its boot is detected and named."""
    fault = f"{join_names(lost) or 'a node'} reads its clock since boot, as if the time was lost"
    if not lost:
        measure.control("lost clock", fault, None, saw="the node does not answer")
        return
    trial = measure.trial()
    planted = {**offsets, **lost}
    judge_clocks(planted, [], trial)
    located = set(lost) <= set(find_odd_clocks(planted, trial).suspects)
    measure.control("lost clock", fault, trial, located=located)
