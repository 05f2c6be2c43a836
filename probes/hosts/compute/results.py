"""Counts accelerators by node, and explains those that are accused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from probes.acceptance.measure import Recorder
from probes.findings import MAX_NAMES, finding, join_names, name_gpu
from probes.hosts.compute.fleet import Accelerator

Accelerators = Mapping[str, Accelerator]


def count_by_node(
    name: str,
    accelerators: Accelerators,
    accused: Iterable[str],
    unknown: Mapping[str, str],
    measure: Recorder,
) -> None:
    """Record how many accelerators of each node are accused.

    `unknown` maps accelerators that prove nothing to the reason.  A node with one of them
    proves nothing, unless another is accused.
    """
    keys, accused = defaultdict[str, list[str]](list), set(accused)
    for key, one in accelerators.items():
        keys[one.node].append(key)
    for node, own in keys.items():
        count = sum(key in accused for key in own)
        reasons = list(dict.fromkeys(unknown[key] for key in own if key in unknown))
        value = count if count or not reasons else None
        measure(name, value, on=node, note="" if count else join_names(reasons, 2))


def explain_by_node(
    code: str, accelerators: Accelerators, texts: Mapping[str, str], measure: Recorder
) -> None:
    """Explain what is wrong with accelerators, in one finding for each node."""
    nodes = defaultdict[str, list[str]](list)
    for key in texts:
        nodes[accelerators[key].node].append(key)
    for node, keys in nodes.items():
        lines = [f"{accelerators[key].label}: {texts[key]}" for key in keys[:MAX_NAMES]]
        more = f", and {len(keys) - MAX_NAMES} more" if len(keys) > MAX_NAMES else ""
        first = accelerators[keys[0]]
        names = name_gpu(first.uuid, first.number)
        measure.explain(finding(code, "; ".join(lines) + more, [node], names=names))


def same_slot(accelerators: Accelerators, accused: Iterable[str]) -> dict[str, list[str]]:
    """Find the numbers whose accelerator is accused on every node that has it, with its keys.

    There are at least two such nodes.
    """
    by_number, accused = defaultdict[str, list[str]](list), set(accused)
    for key, one in accelerators.items():
        by_number[one.number].append(key)
    return {
        number: keys
        for number, keys in by_number.items()
        if len({accelerators[key].node for key in keys}) > 1 and accused.issuperset(keys)
    }
