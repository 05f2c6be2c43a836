"""Records settings of the nodes that only inform: the worst value, or the nodes of each value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from probes.acceptance.criteria import CRITERIA
from probes.acceptance.measure import Recorder
from probes.findings import join_names
from probes.hosts.system.limits import READERS, try_reader

Facts = Mapping[str, Any]
# note: (unit, part of the facts, key in it)
SETTINGS = {
    "cpu_governor": ("", "settings", "governor"),
    "huge_pages": ("", "settings", "huge_pages"),
    "numa_nodes": ("nodes", "settings", "numa_nodes"),
    "machine_cpus": ("CPUs", "settings", "cpus"),
}
# the same, and which value is the worst
QUANTITIES: dict[str, tuple[str, str, str, Callable[[Iterable[float]], float]]] = {
    "swap_in_use": ("GiB", "settings", "swap_gib", max),
    "shared_memory_free": ("ratio", "shared_memory", "free_share", min),
}


def note_settings(facts: Sequence[Facts], measures: Sequence[str], measure: Recorder) -> None:
    """Record what only informs: settings, quantities, and the limits that are not judged here."""
    for name, (unit, part, key) in SETTINGS.items():
        _note_values(name, unit, _find_values(facts, part, key), measure)
    for name, (unit, part, key, worst) in QUANTITIES.items():
        _note_worst(name, unit, worst, _find_values(facts, part, key), measure)
    for name in READERS.keys() - set(measures):
        read, unit = READERS[name][1], CRITERIA["HOSTS"].measures[name].unit
        values = {fact["name"]: try_reader(read, fact.get("system", {}), 1).value for fact in facts}
        known = {node: value for node, value in values.items() if value is not None}
        _note_worst(name, unit, max if name == "stray_raylets" else min, known, measure)


def _find_values(facts: Sequence[Facts], part: str, key: str) -> dict[str, Any]:
    """Find a value of each node where it is known."""
    values = {fact["name"]: fact.get("system", {}).get(part, {}).get(key) for fact in facts}
    return {node: value for node, value in values.items() if value not in (None, "")}


def _note_values(name: str, unit: str, values: Mapping[str, Any], measure: Recorder) -> None:
    """Record each value once, with its nodes."""
    nodes: dict[Any, list[str]] = defaultdict(list)
    for node, value in values.items():
        nodes[value].append(node)
    for value, names in nodes.items():
        measure.note(name, value, unit, on="each node" if len(nodes) == 1 else join_names(names))


def _note_worst(
    name: str,
    unit: str,
    worst: Callable[[Iterable[float]], float],
    values: Mapping[str, float],
    measure: Recorder,
) -> None:
    """Record the worst value, with its node."""
    if values:
        value = worst(values.values())
        measure.note(name, value, unit, on=next(n for n in values if values[n] == value))
