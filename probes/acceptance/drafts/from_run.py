"""Drafts a contract from what a run found; people change it to what was ordered."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probes.acceptance.cluster_terms import VERSION
from probes.acceptance.contract import NOT_PROVABLE, SCHEMA
from probes.acceptance.criteria import CRITERIA
from probes.acceptance.criteria.criterion import Measure
from probes.acceptance.derived_limits import DERIVED_EFFICIENCY, detect_fabric
from probes.acceptance.drafts.toml_lines import (
    Line,
    bound_lines,
    format_line,
    marginal_bound,
    toml_text,
)
from probes.acceptance.limit_terms import LimitTerms
from probes.cluster.byte_counters import interfaces_of
from probes.cluster.node_facts import software_versions
from probes.environment.rails import admitted_facts, count_rails
from reports.measurement import Limit
from reports.numbers import percent
from reports.record import TIERS, RunRecord
from reports.sanitize import one_line
from scaling.collectives.line_rate import installed_rails

# Share of the largest RAM of a node: firmware keeps up to 1 %, a memory module is 3 % or more.
RAM_SHARE = 0.98
Facts = Mapping[str, Any]


def draft_contract(record: RunRecord, run: str) -> str:
    """Write the text of a contract whose values are what the run found; it is not agreed yet.

    Raises ValueError where the record has no facts of nodes.
    """
    nodes = [fact for fact in record.cluster.get("nodes") or [] if isinstance(fact, Mapping)]
    if not nodes:
        raise ValueError("expected the facts of the cluster's nodes in the record, found none")
    terms = record.cluster.get("terms") or {}
    emulated = bool(record.rehearsal) or terms.get("accelerators") == "emulated"
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", str(record.cluster.get("name", ""))).strip("-")
    tier, run = record.tier if record.tier in TIERS else TIERS[0], one_line(run)
    network = list(_network_lines(nodes, terms))
    lines = [
        f"# Draft from {run}. No party has agreed it yet.",
        f"# Each value is what was seen in {run}; change it to what was ordered.",
        f"schema = {SCHEMA}",
        f"name = {toml_text(name or 'cluster')}",
        f"title = {toml_text(f'Draft from {run}')}",
        f"tier = {toml_text(tier)}  # quick, standard or soak: how long a run must look",
        "",
        "[cluster]",
        *map(format_line, _machine_lines(nodes, terms, emulated)),
        *map(format_line, network),
        *map(format_line, _job_lines(terms)),
        *_version_lines(nodes),
        *_limit_lines(record, emulated, network[0][1]),
    ]
    return "\n".join(lines) + "\n"


def _machine_lines(nodes: list[Facts], terms: Facts, emulated: bool) -> Iterator[Line]:
    """Yield what was ordered of each node, else what the best node has: all should have it."""
    found = [("nodes", len(nodes), "that answered"), *_node_lines(nodes)]
    found += [] if emulated else _gpu_lines(nodes)
    yield "accelerators", "emulated" if emulated else "real", ""
    if emulated:
        yield "gpus_per_node", terms.get("gpus_per_node", 1), "emulated"
    for key, value, comment in found:
        ordered = terms.get(key)
        yield (key, value, comment) if ordered is None else (key, ordered, "as that run's contract")


def _node_lines(nodes: list[Facts]) -> Iterator[Line]:
    keys = ("cpus", "ram_gib", "disk_gib")
    cpus, ram, disk = (_best(fact.get(key) for fact in nodes) for key in keys)
    yield "cpus_per_node", cpus and math.floor(cpus), "the least that a node must have"
    comment = f"the least that a node must have; {percent(RAM_SHARE)} of the most that one shows"
    yield "ram_gib", ram and math.floor(RAM_SHARE * ram), comment
    yield "disk_gib", disk and math.floor(disk), "the least that all disks of a node have together"


def _gpu_lines(nodes: list[Facts]) -> Iterator[Line]:
    gpus = [(_text(fact.get("name")), _list(fact.get("gpus"))) for fact in nodes]
    count = max(len(found) for _, found in gpus)
    fewer = ", ".join(f"{len(found)} on {name}" for name, found in gpus if len(found) < count)
    yield "gpus_per_node", count or None, f"of the best node; {fewer}" if fewer else ""
    known = [gpu for _, found in gpus for gpu in found if isinstance(gpu, Mapping)]
    models = Counter(_text(gpu["name"]) for gpu in known if gpu.get("name")).most_common()
    others = ", ".join(name for name, _ in models[1:])
    model = models[0][0] if models else None
    yield "gpu_model", model, f"most GPUs; also seen: {others}" if others else "as NVML names it"
    memory = _best(gpu.get("memory_gib") for gpu in known)
    yield "gpu_memory_gib", memory and math.floor(memory), "the least that a GPU must have"


def _network_lines(nodes: list[Facts], terms: Facts) -> Iterator[Line]:
    """Yield the lines of the fabric, its rails and rate, and of the management interface."""
    facts = [_network_facts(fact) for fact in nodes]
    fabric = terms.get("fabric") or detect_fabric(facts)
    yield "fabric", fabric, 'the interface that carries gradients, or "rdma"'
    rails, rate = terms.get("rails"), terms.get("line_rate_gbps")
    if fabric == "rdma":
        hcas = {fact["node"]: fact["environment"].get("NCCL_IB_HCA", "") for fact in facts}
        used = admitted_facts(facts, hcas)
        found = [rail for node in installed_rails([f["rdma"] for f in used]) for rail in node or []]
        yield "rails", rails or count_rails(used), "RDMA ports of a node that carry gradients"
        rate = rate or _best(rail.gbps for rail in found)
    elif fabric:
        names = interfaces_of(fabric)
        speeds = [fact["interfaces"].get(n, {}).get("speed") for fact in facts for n in names]
        rate = rate or (_best(speeds) or 0.0) / 1000
    yield "line_rate_gbps", rate or None, "of one rail, or of the interface"
    yield "management", terms.get("management"), "another interface, for FABRIC's control"
    if terms.get("management"):
        yield "management_gbps", terms.get("management_gbps"), "where the device does not say it"


def _network_facts(fact: Facts) -> dict[str, Any]:
    """Extract the facts from which limits are derived, each of its expected type."""
    ports = [
        {key: _text(port.get(key)) for key in ("device", "port", "rate", "link_layer", "state")}
        for port in _list(fact.get("rdma"))
        if isinstance(port, Mapping)
    ]
    environment, interfaces = fact.get("environment"), fact.get("interfaces")
    return {
        "node": _text(fact.get("node")),
        "rdma": ports,
        "environment": {k: _text(v) for k, v in _as_table(environment).items()},
        "interfaces": {
            k: {"address": None, **_as_table(v)} for k, v in _as_table(interfaces).items()
        },
    }


def _job_lines(terms: Facts) -> Iterator[Line]:
    """Yield what the run's contract stated about the jobs, which no node fact shows."""
    yield "shared", terms.get("shared"), "the folder that every node sees, for checkpoints"
    for key in ("pace_seconds", "rungs", "shards", "save_minutes", "save_gb", "queue"):
        if terms.get(key):
            yield key, terms[key], "as in that run's contract"


def _version_lines(nodes: list[Facts]) -> Iterator[str]:
    """Yield the software versions that most nodes have."""
    versions: list[Line] = []
    for part in software_versions():  # known parts only, not the record's own keys
        seen = [_text(_as_table(fact.get("software")).get(part)) for fact in nodes]
        counts = Counter(version for version in seen if VERSION.fullmatch(version)).most_common()
        if counts:
            others = ", ".join(version for version, _ in counts[1:])
            least = f'exactly; ">={counts[0][0].partition("+")[0]}" is at least'
            versions.append(
                (part, counts[0][0], f"{least}; also seen: {others}" if others else least)
            )
    if versions:
        yield from ("", "[cluster.versions]", *map(format_line, versions))


def _limit_lines(record: RunRecord, emulated: bool, fabric: Any) -> Iterator[str]:
    """Yield the limits of the run, agreed or derived, and the criteria that it could not prove."""
    reasons = {c.id: c.not_provable for c in record.contract.criteria if c.id in CRITERIA}
    for id, reason in reasons.items():
        if emulated and reason:
            yield from ("", f"[{id}]", f"{NOT_PROVABLE} = {toml_text(reason)}")
    limits = _known_limits(record, emulated)
    if isinstance(fabric, str):
        seen = Limit(one_of=[fabric], because="the fabric of [cluster]; another is a fallback")
        limits.setdefault(("FABRIC", "network"), seen)
    for (id, name), limit in limits.items():
        if not (emulated and reasons.get(id)):
            yield from ("", f"[{id}.{name}]  # a proposal", *bound_lines(limit))


def _known_limits(record: RunRecord, emulated: bool) -> dict[tuple[str, str], Limit]:
    """Return the limits of the run's measurements that a contract may give."""
    limits = {} if emulated else {("SCALING", "efficiency"): DERIVED_EFFICIENCY}
    for result in record.results:
        measures = CRITERIA[result.criterion].measures if result.criterion in CRITERIA else {}
        for measured in result.measurements:
            measure, limit = measures.get(measured.name), measured.limit
            if measure and measure.agreeable and limit and limit != measure.default:
                with contextlib.suppress(ValueError):  # of a modified record
                    limits[result.criterion, measured.name] = _check_limit(limit, measure)
    return limits


def _check_limit(limit: Limit, measure: Measure) -> Limit:
    """Convert a limit to what a contract may give.  Raises ValueError if it may not."""
    terms = LimitTerms(
        at_least=limit.low,
        at_most=limit.high,
        one_of=limit.one_of,
        marginal=marginal_bound(limit),
        unit=limit.unit,
        because=limit.because,
    )
    return terms.to_limit(measure, limit.source)


def _best(values: Iterable[Any]) -> float | None:
    """Return the largest finite number; None where there is none."""
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    return max(numbers, default=None)


def _text(value: Any) -> str:
    return one_line(value) if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
