"""Judges each node against the order: GPU model, memory, CPUs, RAM, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.criteria.criterion import exactly
from probes.acceptance.measure import Recorder
from probes.findings import finding
from reports.measurement import Limit, Verdict

Facts = Mapping[str, Any]


def judge_order(facts: list[Facts], terms: ClusterTerms, measure: Recorder) -> None:
    """Judge each node by what the contract orders of it; the rest is not judged."""
    for fact in facts:
        for name, value, limit in ordered_values(fact, terms):
            measure(name, value, on=fact["name"], limit=limit, note="it could not be read")
            if limit.judge(value) is Verdict.FAIL:
                text = describe_failure(fact, name, value, limit)
                code = "HOST-GPU-MODEL" if name == "gpu_model" else "HOST-BELOW-ORDER"
                measure.explain(finding(code, text, [fact["name"]]))


def ordered_values(fact: Facts, terms: ClusterTerms) -> list[tuple[str, Any, Limit]]:
    """List (measure, value, limit) of everything that is ordered of one node."""
    values: list[tuple[str, Any, Limit]] = []
    gpus = fact["gpus"]
    if terms.gpu_model is not None:
        models = [terms.gpu_model] if isinstance(terms.gpu_model, str) else terms.gpu_model
        limit = Limit(one_of=models, because="ordered")
        values.append(("gpu_model", _worst_model([gpu["name"] for gpu in gpus], models), limit))
    if terms.gpu_memory_gib is not None:
        smallest = _smallest([gpu["memory_gib"] for gpu in gpus])
        values.append(("gpu_memory", smallest, _at_least(terms.gpu_memory_gib, "GiB")))
    if terms.cpus_per_node is not None:
        values.append(("cpus", fact["cpus"], _at_least(terms.cpus_per_node, "CPUs")))
    if terms.ram_gib is not None:
        values.append(("ram", fact["ram_gib"], _at_least(terms.ram_gib, "GiB")))
    if terms.disk_gib is not None:
        values.append(("disk", fact.get("disk_gib"), _at_least(terms.disk_gib, "GiB")))
    if terms.versions is not None:
        met = [version_met(fact["software"].get(p, ""), o) for p, o in terms.versions.items()]
        count = None if None in met and False not in met else met.count(False)
        text = ", ".join(f"{part} {order}" for part, order in terms.versions.items())
        values.append(("ordered_versions", count, exactly(0, "versions", f"ordered: {text}")))
    return values


def _at_least(least: float, unit: str) -> Limit:
    return Limit(low=least, unit=unit, because="ordered")


def _worst_model(names: list[str], ordered: list[str]) -> str | None:
    """Return a model that was not ordered, if there is one; None if a model is not known."""
    if wrong := [name for name in names if name and name not in ordered]:
        return wrong[0]
    return names[0] if names and all(names) else None


def _smallest(sizes: list[float | None]) -> float | None:
    """Return the smallest size; None if there is none, or one is not known."""
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


def version_met(version: str, order: str) -> bool | None:
    """Return whether a version meets the order; None if it is unknown, or no version.

    An order is a version ("2.13.0" is met by 2.13.0+cu128) or ">=" and the oldest allowed version.
    Of a kernel or OFED (6.8.0-1021-nvidia) the numbers before the first dash count.
    """
    try:
        required = SpecifierSet(order if order.startswith(">=") else f"=={order}")
        return required.contains(Version(version.partition("-")[0]), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return None


def describe_failure(fact: Facts, name: str, value: Any, limit: Limit) -> str:
    """Describe in one sentence what is below the order on a node."""
    if name == "ordered_versions":
        has = ", ".join(f"{part} {version}" for part, version in fact["software"].items())
        return f"{fact['name']} has {has}; {limit.because}"
    unit = f" {limit.unit}" if limit.unit else ""
    return f"{fact['name']}: {name.replace('_', ' ')} is {value}{unit}, ordered {limit}"
