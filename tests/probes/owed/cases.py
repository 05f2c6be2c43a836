"""The cases in which the golden list asks what is owed: each fact with all its values.

A case is a dict of facts.  The first value of a fact is the one that most runs have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product as combinations
from random import Random
from typing import Any

from tests.probes.owed.product import Case, Product

Facts = dict[str, Any]
SHAPE: dict[str, tuple[Any, ...]] = {
    "nodes": (1, 2, 3, 4, 8),
    "one_host": (False, True),
    "on_gpu": (False, True),
    "emulated": (False, True),
    "ranks_per_node": (0, 1, 2, 8),  # 0 where no one knows
    "ip_fabric": (True, False),
}
UNSET = "unset"
# A value of each key of [cluster] and [launch]; those of several kinds have several.
TERMS: dict[str, tuple[Any, ...]] = {
    "nodes": (8, 1),
    "gpus_per_node": (8,),
    "gpu_model": ("NVIDIA H100",),
    "gpu_memory_gib": (79.0,),
    "cpus_per_node": (96,),
    "ram_gib": (1000.0,),
    "disk_gib": (1000.0,),
    "versions": ({"torch": ">=2"},),
    "shared": ("/shared",),
    "egress": (["https://hub.example/"],),
    "model_files": (["/models/llama"],),
    "dcgm_diag": (True,),
    "ray_client_port": (10001,),
    "agreed_differences": (["vbios"],),
    "gpus_outside_ray": (1,),
    "nodes_at_most": (12,),
    "host_names": (True,),
    "authentication": ("token",),
    "fabric": ("rdma", "eth1", "eth1,eth2"),
    "management": ("eth0",),
    "management_gbps": (10.0,),
    "rails": (8,),
    "line_rate_gbps": (400.0,),
    "pace_seconds": (0.25,),
    "rungs": ([1, 2],),
    "shards": ("/shards",),
    "save_minutes": (10.0,),
    "save_gb": (100.0,),
    "queue": ("kueue", "volcano", "yunikorn", "kai"),
    "components": ({"job": "all"},),
    "parallel": ({"tp": 1, "pp": 1, "dp": 8},),
}
LAUNCH: dict[str, tuple[Any, ...]] = {
    "document": ("guide.md",),
    "section": ("Start",),
    "user": ("own",),
    "launchers": (("torchrun",),),
    "sha256": ("0" * 64,),
    "values": ({"python train.py": "{command}"},),
    "variables": ({"SITE": "here"},),
}
RANDOM_CASES = 300  # a condition on six facts is met by some of them
SHARES = (0.05, 0.5, 0.95)  # of the facts that are set, in turn: some conditions need many unset


def list_facts(product: Product) -> dict[str, tuple[Any, ...]]:
    """Return the values of each fact.  Raises ValueError for a key of a contract without any."""
    keys = {*product.terms} - {"accelerators", "launch"}, product.launch
    for known, expected in zip((TERMS, LAUNCH), keys, strict=True):
        if odd := {*known} ^ expected:
            raise ValueError(f"tests/probes/owed/cases.py: expected a value of {sorted(odd)}")
    measures = (
        f"{name}.{one}" for name, row in product.criteria.items() for one in sorted(row.agreeable)
    )
    return {
        "tier": product.tiers,
        **SHAPE,
        **{f"[cluster] {key}": (UNSET, *values) for key, values in TERMS.items()},
        **{f"[launch] {key}": (UNSET, *values) for key, values in LAUNCH.items()},
        **{f"a limit of {name}": (False, True) for name in measures},
    }


def build_case(facts: Facts, not_provable: frozenset[str] = frozenset()) -> Case:
    """Build the case that has these facts."""
    return Case(
        tier=facts["tier"],
        nodes=facts["nodes"],
        on_gpu=facts["on_gpu"],
        one_host=facts["one_host"],
        ip_fabric=facts["ip_fabric"],
        ranks=facts["ranks_per_node"] * facts["nodes"],
        terms={
            "accelerators": "emulated" if facts["emulated"] else "real",
            **_below("[cluster] ", facts),
        },
        launch=_below("[launch] ", facts),
        agreed=frozenset(name for name, agreed in _below("a limit of ", facts).items() if agreed),
        not_provable=not_provable,
    )


def _below(prefix: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that are set, of those whose name begins so."""
    return {
        name.removeprefix(prefix): value
        for name, value in facts.items()
        if name.startswith(prefix) and value != UNSET
    }


def plain_case(product: Product) -> Facts:
    """Return the first value of each fact, in the longest tier, which owes all probes."""
    return {name: values[0] for name, values in list_facts(product).items()} | {
        "tier": product.tiers[-1]
    }


def typical_cases(product: Product) -> Iterator[Facts]:
    """Yield the cases from which single facts are changed: shapes, with few terms and with all."""
    facts, plain = list_facts(product), plain_case(product)
    shapes: list[Facts] = [
        {"nodes": 1, "emulated": True},
        {"nodes": 1, "on_gpu": True, "ranks_per_node": 8},
        {"nodes": 1, "on_gpu": True, "ranks_per_node": 8, "[cluster] nodes": 1},
        {"nodes": 4, "one_host": True, "ranks_per_node": 1, "emulated": True},
        {"nodes": 2, "on_gpu": True, "ranks_per_node": 8},
        {"nodes": 8, "on_gpu": True, "ranks_per_node": 8},
    ]
    terms = {name: values[1] for name, values in facts.items() if "] " in name}
    agreed = {name: True for name in facts if name.startswith("a limit of ")}
    for shape, some_terms, some_agreed in combinations(shapes, ({}, terms), ({}, agreed)):
        yield {**plain, **some_terms, **some_agreed, **shape}


def random_cases(product: Product) -> Iterator[Facts]:
    """Yield the same cases each time, of all facts at once: few are set, or half, or most."""
    facts, dice = list_facts(product), Random(0)
    for number in range(RANDOM_CASES):
        share = SHARES[number % len(SHARES)]
        yield {
            name: dice.choice(values[1:] if dice.random() < share else values[:1])
            if values[0] in (UNSET, False)
            else dice.choice(values)
            for name, values in facts.items()
        }
