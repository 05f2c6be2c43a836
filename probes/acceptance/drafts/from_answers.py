"""Writes a contract from answers: a shipped one that is filled in, or one for other hardware."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from probes.acceptance.cluster_terms import ClusterTerms
from probes.acceptance.contract import SCHEMA, Contract, load, shipped_contracts
from probes.acceptance.derived_limits import DERIVED_EFFICIENCY
from probes.acceptance.drafts.toml_lines import bound_lines, format_line, toml_text
from probes.acceptance.limit_terms import ring_limit
from probes.cluster.byte_counters import RDMA
from reports.measurement import Limit

OTHER = "other"  # hardware that no shipped contract is for
COUNTS = ("nodes", "gpus_per_node", "cpus_per_node", "rails")
NUMBERS = ("gpu_memory_gib", "ram_gib", "line_rate_gbps", "save_gb")
MACHINES = {
    "nodes": "How many nodes were ordered?",
    "gpus_per_node": "How many GPUs has each node?",
    "gpu_model": "Which GPUs, exactly as `nvidia-smi -L` names them?",
    "gpu_memory_gib": "How much memory has each GPU at least, in GiB?",
    "cpus_per_node": "How many CPUs has each node at least?",
    "ram_gib": "How much memory has each node at least, in GiB?",
}
NETWORK = {
    "fabric": "What carries gradients: rdma, or which interface?",
    "rails": "How many RDMA ports of a node carry gradients?",
    "line_rate_gbps": "What is the rate of one port, in Gbit/s?",
    "management": "Which other interface has each node, for FABRIC's control?",
}
JOBS = {
    "shared": "Which folder do all nodes see?",
    "save_gb": "How large is a checkpoint of your training, in GB?",
    "authentication": "Must orders to Ray need a token? (token, or - for no)",
}
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
    elif terms.fabric != RDMA:
        asked |= {key: NETWORK[key] for key in ("fabric", "management")}
    for key, text in (asked | JOBS).items():
        about = ClusterTerms.model_fields[key].description or ""
        kept = getattr(terms, key)
        yield Question(key, text, about, kept, key in NEEDED)


def _is_given(key: str, template: Contract | None) -> bool:
    """Return whether a template is for this hardware alone: other hardware has other limits."""
    hardware = key in ("gpus_per_node", "gpu_model")
    return template is not None and hardware and getattr(template.cluster, key) is not None


def is_asked(key: str, answers: Mapping[str, Any]) -> bool:
    """Return whether a question still has a meaning after the answers so far."""
    fabric = answers.get("fabric")
    return {"rails": fabric == RDMA, "management": fabric != RDMA}.get(key, True)


def read_answer(key: str, text: str) -> Any:
    """Convert an answer to the value of its key.  Raises ValueError with one sentence."""
    if key not in (*COUNTS, *NUMBERS):
        words = [word.strip() for word in text.split(",")]
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
    folder = resources.files("probes.acceptance") / "contracts"
    before, _, after = (folder / f"{template}.toml").read_text().partition("[cluster]\n")
    title = f"{name}: {load(template).title}"
    for key, value in {"name": name, "title": title, "tier": tier}.items():
        before = _set_line(before, key, value)
    terms, bracket, limits = after.partition("\n[")
    terms = re.sub(r"# nodes: .*\n", "", terms)
    kept = load(template).cluster
    for key, value in reversed([*answers.items()]):
        if value != getattr(kept, key):
            terms = _set_line(terms, key, value)
    if fabric := answers.get("fabric"):
        limits = limits.replace(toml_text(str(kept.fabric)), toml_text(fabric))
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
        f"schema = {SCHEMA}",
        f"name = {toml_text(name)}",
        f"title = {toml_text(_describe(name, answers))}",
        f"tier = {toml_text(tier)}  # quick, standard or soak: how long a run must look",
        "",
        "[cluster]",
        *(format_line((key, value, "")) for key, value in answers.items() if value is not None),
    ]
    for measure, limit in limits.items():
        lines += ["", f"[{measure}]", *bound_lines(limit)]
    return "\n".join(lines) + "\n"


def _describe(name: str, answers: Mapping[str, Any]) -> str:
    rails = f"{answers['rails']} x " if answers.get("rails") else ""
    network = f"{rails}{answers['line_rate_gbps']:g} Gbit/s"
    models = answers["gpu_model"]
    model = " or ".join(models) if isinstance(models, list) else models
    return f"{name}: {answers['gpus_per_node']} x {model} per node, {network}"
