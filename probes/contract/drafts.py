"""Drafts a contract: from a user's answers, or from what a run measured."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from probes.check.declarations import Check
from probes.check.registry import CRITERIA
from probes.cluster.network_facts import RDMA, interfaces_of
from probes.cluster.node_facts import software_versions
from probes.contract.contract import NOT_PROVABLE, SCHEMA, Contract, load, shipped_contracts
from probes.contract.derived_limits import DERIVED_EFFICIENCY, detect_fabric
from probes.contract.limits import LimitTerms, ring_limit
from probes.contract.terms import VERSION, ClusterTerms
from probes.environment.checks import admitted_facts, count_rails
from reports.measurement import Limit
from reports.numbers import percent
from reports.orders import as_table
from reports.record import TIERS, RunRecord
from reports.sanitize import one_line
from scaling.collectives.line_rate import installed_rails

MAX_COMMENT = 500  # characters: a comment must not list the names of a thousand nodes
Line = tuple[str, Any, str]  # key, value, comment; people fill in a value that is None


def marginal_bound(limit: Limit) -> float | None:
    """Return the bound of the warning band of a one-sided limit."""
    return limit.marginal_low if limit.high is None else limit.marginal_high


def bound_lines(limit: Limit) -> Iterator[str]:
    """Yield the lines of one limit as a contract file has them."""
    pairs = {"at_least": limit.low, "at_most": limit.high, "marginal": marginal_bound(limit)}
    yield from (f"{key} = {bound:.6g}" for key, bound in pairs.items() if bound is not None)
    if limit.one_of:
        yield f"one_of = [{', '.join(map(toml_text, limit.one_of))}]"
    if limit.unit:
        yield f"unit = {toml_text(limit.unit)}"
    yield f"because = {toml_text(limit.because.removeprefix('no contract: '))}"


def format_line(line: Line) -> str:
    """Format `key = value  # comment`; without a value the complete line is a comment."""
    key, value, comment = line
    text = value_text(value)
    note = f"  # {one_line(comment)[:MAX_COMMENT]}" if comment else ""
    return f"# {key} ={note}" if value is None else f"{key} = {text}{note}"


def value_text(value: Any) -> str:
    """Write a value as a contract file has it."""
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        pairs = (f"{toml_text(str(key))} = {value_text(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, bool):
        return str(value).lower()
    return toml_text(value) if isinstance(value, str) else str(value)


def toml_text(text: str) -> str:
    """Write `text` as a basic string of TOML; any character may occur in it."""
    escaped = "".join(
        char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08X}"
        for char in text.encode("utf-8", "replace").decode()
    )
    return f'"{escaped}"'


OTHER = "other"  # hardware that no shipped contract is for
COUNTS = ("nodes", "gpus_per_node", "cpus_per_node", "rails")
NUMBERS = ("gpu_memory_gib", "ram_gib", "line_rate_gbps", "save_gb")
MACHINES = {
    "nodes": "How many nodes were ordered?",
    "gpus_per_node": "How many GPUs does each node have?",
    "gpu_model": "Which GPUs, exactly as `nvidia-smi -L` names them?",
    "gpu_memory_gib": "What is the minimum memory of each GPU, in GiB?",
    "cpus_per_node": "What is the minimum number of CPUs of each node?",
    "ram_gib": "What is the minimum memory of each node, in GiB?",
}
NETWORK = {
    "fabric": "Which network carries gradients: rdma, or the name of an interface?",
    "rails": "How many RDMA ports of a node carry gradients?",
    "line_rate_gbps": "What is the rate of one port, in Gbit/s?",
    "management": "Which interface outside the fabric can the self-test of FABRIC use?",
}
JOBS = {
    "shared": "Which folder do all nodes share?",
    "save_gb": "How large is a checkpoint of your training, in GB?",
    "authentication": "Must each request to Ray have a token? (token, or - for no)",
}
ACCEPT = ("", "[accept]", "max_marginal = 3  # measures that may be MARGINAL; as shipped contracts")
NEEDED = ("nodes", "gpus_per_node", "gpu_model", "fabric", "rails", "line_rate_gbps")
KEY = r"(# ?)?{key} *=.*"


@dataclass(frozen=True)
class Question:
    """One question; `kept` is the value that stands if nothing is answered, None if there is none.

    `help` explains it.  A question that is not `needed` may stay open.
    """

    key: str
    text: str
    help: str
    kept: Any = None
    needed: bool = False


def real_contracts() -> dict[str, str]:
    """Return the titles of the shipped contracts for real clusters, by name."""
    found = {name: load(name) for name in shipped_contracts()}
    return {name: one.title for name, one in found.items() if not one.rehearsal}


def list_questions(template: Contract | None) -> Iterator[Question]:
    """Yield the questions on [cluster]; only those on the network depend on the template.

    A template's limits follow from its network, so only the names of interfaces may change.
    """
    terms = template.cluster if template else ClusterTerms()
    asked = {key: text for key, text in MACHINES.items() if not _is_given(key, template)}
    if template is None:
        asked |= NETWORK
    elif terms.fabric not in (None, RDMA):  # without a fabric: one node
        asked |= {key: NETWORK[key] for key in ("fabric", "management")}
    for key, text in (asked | JOBS).items():
        about = ClusterTerms.model_fields[key].description or ""
        yield Question(key, text, about, getattr(terms, key), key in NEEDED)


def _is_given(key: str, template: Contract | None) -> bool:
    """Return whether a template is for this hardware alone: other hardware has other limits."""
    hardware = key in ("gpus_per_node", "gpu_model")
    return template is not None and hardware and getattr(template.cluster, key) is not None


def hardware_of(terms: ClusterTerms) -> dict[str, Any]:
    """Return the terms that the limits of a contract are for, by key; those that are given."""
    given = {key: getattr(terms, key) for key in MACHINES | NETWORK}
    return {key: value for key, value in given.items() if value is not None}


def is_asked(key: str, answers: Mapping[str, Any]) -> bool:
    """Return whether a question still has a meaning after the answers so far."""
    fabric = answers.get("fabric")
    return {"rails": fabric == RDMA, "management": fabric != RDMA}.get(key, True)


def read_answer(key: str, text: str) -> Any:
    """Convert an answer to the value of its key.  Raises ValueError with one sentence."""
    if key not in (*COUNTS, *NUMBERS):
        words = [word.strip() for word in text.split(",")]
        if key == "gpu_model" and "=" in text:
            pairs = [word.rpartition("=") for word in words]
            return {kind.strip(): int(n) if n.strip().isdecimal() else n for kind, _, n in pairs}
        if key == "gpu_model" and len(words) > 1:
            return words
        return ",".join(words) if key == "fabric" else text
    try:
        return int(text) if key in COUNTS else float(text)
    except ValueError:
        expected = "a whole number" if key in COUNTS else "a number"
        raise ValueError(f"expected {expected}, found {text!r}") from None


def propose_limits(terms: ClusterTerms) -> dict[str, Limit]:
    """Propose the limits that a contract for other hardware needs, by criterion and measure."""
    rate = terms.line_gbytes_per_s
    assert rate is not None, "the questions ask for it"
    text = f"{terms.rail_count} x {terms.line_rate_gbps:g} Gbit/s"
    because = DERIVED_EFFICIENCY.because.removeprefix("no contract: ")
    return {
        "FABRIC.busbw": ring_limit(rate, text, "an answer"),
        "SCALING.efficiency": DERIVED_EFFICIENCY.model_copy(update={"because": because}),
    }


def fill_template(name: str, template: str, tier: str, answers: Mapping[str, Any]) -> str:
    """Write a shipped contract with the answers in it; its limits and their reasons stay."""
    shipped = load(template)
    before, _, after = shipped.text.decode().partition("[cluster]\n")
    for key, value in {"name": name, "title": f"{name}: {shipped.title}", "tier": tier}.items():
        before = _set_line(before, key, value)
    terms, bracket, limits = after.partition("\n[")
    terms = re.sub(r"# nodes: .*\n", "", terms)
    for key, value in reversed([*answers.items()]):
        if value != getattr(shipped.cluster, key):
            terms = _set_line(terms, key, value)
    if fabric := answers.get("fabric"):
        limits = limits.replace(toml_text(str(shipped.cluster.fabric)), toml_text(fabric))
    return f"{before}[cluster]\n{terms}{bracket}{limits}"


def _set_line(text: str, key: str, value: Any) -> str:
    """Replace the line of a key, also one that is a comment; without one it becomes the first."""
    line = format_line((key, value, ""))
    changed, count = re.subn(rf"(?m)^{KEY.format(key=key)}$", lambda _: line, text, count=1)
    return changed if count else f"{line}\n{text}"


def write_contract(
    name: str, tier: str, answers: Mapping[str, Any], limits: Mapping[str, Limit]
) -> str:
    """Write a contract for hardware that no shipped contract is for."""
    lines = [
        *_head_lines(name, _describe(name, answers), tier),
        *(format_line((key, value, "")) for key, value in answers.items() if value is not None),
        *ACCEPT,
    ]
    for measure, limit in limits.items():
        lines += ["", f"[{measure}]", *bound_lines(limit)]
    return "\n".join(lines) + "\n"


def _head_lines(name: str, title: str, tier: str, *more: Line) -> Iterator[str]:
    """Yield the first lines of a contract, to the heading of [cluster]."""
    tiers = "quick, standard or soak: how long a run tests"
    head = [("schema", SCHEMA, ""), ("name", name, ""), ("title", title, ""), ("tier", tier, tiers)]
    yield from (*map(format_line, [*head, *more]), "", "[cluster]")


def _describe(name: str, answers: Mapping[str, Any]) -> str:
    rails = f"{answers['rails']} x " if answers.get("rails") else ""
    network = f"{rails}{answers['line_rate_gbps']:g} Gbit/s"
    models = answers["gpu_model"]
    model = models if isinstance(models, str) else " or ".join(models)
    return f"{name}: {answers['gpus_per_node']} x {model} per node, {network}"


REMOVE = "no run takes this contract before this line is removed"


def list_odd(terms: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of these terms no usual node has, as the shipped contracts say of its GPU."""
    models, gpus = terms.get("gpu_model") or [], terms.get("gpus_per_node")
    models = [models] if isinstance(models, str) else [*models]
    model = " or ".join(models) or "GPUs"
    usual = [one for name in shipped_contracts() if (one := load(name).cluster).gpu_model in models]
    counts = sorted({gpus for one in usual for gpus in one.kinds}) or [1, 2, 4, 8, 16]
    if isinstance(gpus, int) and gpus not in counts:
        yield f"gpus_per_node = {gpus}. Usual with {model}: {' or '.join(map(str, counts))}"
    ports = sorted({(one.rails, one.line_rate_gbps or 0.0) for one in usual if one.rails})
    rails, rate = terms.get("rails"), terms.get("line_rate_gbps")
    if rails and rate and ports and (rails, rate) not in ports:
        text = " or ".join(f"{each[0]} x {each[1]:g}" for each in ports)
        yield f"rails = {rails} x {rate:g} Gbit/s. Usual with {model}: {text} Gbit/s"


# Share of the largest RAM of a node: firmware keeps up to 1 %, a memory module is 3 % or more.
RAM_SHARE = 0.98
Facts = Mapping[str, Any]


def draft_contract(record: RunRecord, run: str) -> str:
    """Write the text of a contract whose values are what the run found; it is not agreed yet.

    Raises ValueError where the record has no facts of nodes.
    """
    nodes = [fact for fact in record.cluster.get("nodes") or [] if isinstance(fact, Mapping)]
    if not nodes:
        raise ValueError(
            "the record of the run has no data of nodes, for example because the run did not join "
            "the cluster. Give a run that joined its cluster"
        )
    terms = record.cluster.get("terms") or {}
    emulated = bool(record.rehearsal) or terms.get("accelerators") == "emulated"
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", str(record.cluster.get("name", ""))).strip("-")
    tier, run = record.tier if record.tier in TIERS else TIERS[0], one_line(run)
    network = list(_network_lines(nodes, terms))
    cluster = [*_machine_lines(nodes, terms, emulated), *network, *_job_lines(terms)]
    odd = () if emulated else list_odd({key: value for key, value, _ in cluster})
    lines = [
        f"# Draft from {run}. No party has agreed to it yet.",
        f"# Each value is what {run} found. Change it to what was ordered, then remove `draft`.",
        *(f"# CHECK {one_line(text)[:MAX_COMMENT]}" for text in odd),
        *_head_lines(name or "cluster", f"Draft from {run}", tier, ("draft", True, REMOVE)),
        *map(format_line, cluster),
        *_version_lines(nodes),
        *ACCEPT,
        *_limit_lines(record, emulated, network[0][1]),
    ]
    return "\n".join(lines) + "\n"


def _machine_lines(nodes: list[Facts], terms: Facts, emulated: bool) -> Iterator[Line]:
    """Yield what was ordered of each node, else what the best node has: all should have it."""
    found = [("nodes", len(nodes), "nodes that answered in that run"), *_node_lines(nodes)]
    found += [] if emulated else _gpu_lines(nodes)
    yield "accelerators", "emulated" if emulated else "real", ""
    if emulated:
        yield "gpus_per_node", terms.get("gpus_per_node", 1), "emulated"
    for key, value, comment in found:
        ordered = terms.get(key)
        yield (
            (key, value, comment)
            if ordered is None
            else (key, ordered, "as in that run's contract")
        )


def _node_lines(nodes: list[Facts]) -> Iterator[Line]:
    keys = ("cpus", "ram_gib", "disk_gib")
    cpus, ram, disk = (_best(fact.get(key) for fact in nodes) for key in keys)
    yield "cpus_per_node", cpus and math.floor(cpus), "each node must have this many"
    comment = f"each node must have this much: {percent(RAM_SHARE)} of the largest node"
    yield "ram_gib", ram and math.floor(RAM_SHARE * ram), comment
    yield "disk_gib", disk and math.floor(disk), "all disks of a node together must have this much"


def _gpu_lines(nodes: list[Facts]) -> Iterator[Line]:
    """Yield the GPUs of the best node: other models that a run saw may not be ordered."""
    gpus = [(_text(fact.get("name")), _list(fact.get("gpus"))) for fact in nodes]
    count = max(len(found) for _, found in gpus)
    fewer = ", ".join(f"{len(found)} on {name}" for name, found in gpus if len(found) < count)
    yield "gpus_per_node", count or None, f"as on the node with most GPUs; {fewer}" if fewer else ""
    known = [gpu for _, found in gpus for gpu in found if isinstance(gpu, Mapping)]
    models = Counter(_text(gpu["name"]) for gpu in known if gpu.get("name")).most_common()
    others = ", ".join(name for name, _ in models[1:])
    model = models[0][0] if models else None
    comment = "as `nvidia-smi -L` names it"
    if others:
        comment = f"model of most GPUs; also seen: {others} (a table orders several models)"
    yield "gpu_model", model, comment
    memory = _best(gpu.get("memory_gib") for gpu in known)
    yield "gpu_memory_gib", memory and math.floor(memory), "each GPU must have this much"


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
    yield "line_rate_gbps", rate or None, "rate of one rail, or of the interface"
    yield "management", terms.get("management"), "interface outside the fabric, for the self-test"
    if terms.get("management"):
        yield "management_gbps", terms.get("management_gbps"), "if the device does not report it"


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
        "environment": {k: _text(v) for k, v in as_table(environment).items()},
        "interfaces": {
            k: {"address": None, **as_table(v)} for k, v in as_table(interfaces).items()
        },
    }


def _job_lines(terms: Facts) -> Iterator[Line]:
    """Yield what the run's contract stated about the jobs, which no node fact shows."""
    yield "shared", terms.get("shared"), "the folder that all nodes share, for checkpoints"
    for key in ("pace_seconds", "rungs", "shards", "save_minutes", "save_gb", "queue"):
        if terms.get(key):
            yield key, terms[key], "as in that run's contract"


def _version_lines(nodes: list[Facts]) -> Iterator[str]:
    """Yield the software versions that most nodes have."""
    versions: list[Line] = []
    for part in software_versions():  # known parts only, not the record's own keys
        seen = [_text(as_table(fact.get("software")).get(part)) for fact in nodes]
        counts = Counter(version for version in seen if VERSION.fullmatch(version)).most_common()
        if counts:
            others = ", ".join(version for version, _ in counts[1:])
            least = f'exactly this; ">={counts[0][0].partition("+")[0]}" also allows later ones'
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
        seen = Limit(
            one_of=[fabric],
            because="agreed as `fabric` of [cluster]; any other network is a fallback",
        )
        limits.setdefault(("FABRIC", "network"), seen)
    for (id, name), limit in limits.items():
        if not (emulated and reasons.get(id)):
            yield from ("", f"[{id}.{name}]  # proposed, not agreed", *bound_lines(limit))


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


def _check_limit(limit: Limit, measure: Check) -> Limit:
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
