"""Chooses the number that stands for a criterion, and writes it in the buyer's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from reports.measurement import Measurement, Verdict
from reports.numbers import number
from reports.record import Criterion, ProbeResult, node_facts
from reports.sanitize import capitalise


def key_measurement(
    results: Iterable[ProbeResult], headlines: Mapping[str, str] | None = None
) -> Measurement | None:
    """Choose the judged measurement that stands for these results; None if none is judged.

    It has the worst verdict.  Of several, a headline comes first, in the order of `headlines`, and
    of one name the subject that is nearest to its limit.  Without a headline it is the one that is
    furthest outside its limit, and where all pass the first.
    """
    judged = [m for result in results for m in result.measurements if m.verdict is not None]
    worst = max((m.severity for m in judged), default=0)
    order = list(headlines or ())

    def rank(m: Measurement) -> tuple[int, float]:
        if m.name in order:
            return order.index(m.name), -distance_outside(m)
        return len(order), -distance_outside(m) if worst else 0.0

    return min((m for m in judged if m.severity == worst), key=rank, default=None)


def distance_outside(m: Measurement) -> float:
    """Return how far a value lies outside its limit: -1 to 1, as a share of value or bound.

    It is below 0 inside the limit, and 0 without a value or without bounds.
    """
    if m.limit is None or isinstance(m.value, str | None):
        return 0.0
    gaps = [m.limit.low - m.value] if m.limit.low is not None else []
    gaps += [m.value - m.limit.high] if m.limit.high is not None else []
    bounds = [abs(bound) for bound in (m.limit.low, m.limit.high) if bound is not None]
    scale = max([abs(m.value), *bounds], default=0.0)
    return max(gaps) / scale if gaps and scale else 0.0


def headline_sentence(criterion: Criterion, key: Measurement, cluster: Mapping[str, Any]) -> str:
    """Write the key measurement in the buyer's words: `All-reduce runs at 41.2 GB/s`."""
    template = criterion.headlines.get(key.name, "")
    if not template or key.value is None:
        on = f" on {key.subject}" if key.subject not in ("cluster", "") else ""
        text = f"{key.title}{on}: {key.value_text}"
    else:
        words = {"value": key.short_text, "subject": key.subject, "work": work_text(key, cluster)}
        text = re.sub(r"\{(\w+)\}", lambda part: words.get(part[1], part[0]), template)
    return capitalise(text)


def claim_end(criterion: Criterion, key: Measurement, verdict: Verdict) -> str:
    """Return how the sentence goes on: with what is proven, or with the limit that is not kept."""
    if verdict.accepted:
        return criterion.proven if key.name in criterion.headlines else ""
    return f". Expected: {key.limit}" if key.limit is not None else ""


def work_text(efficiency: Measurement, cluster: Mapping[str, Any]) -> str:
    """Write an efficiency as work: `64 GPUs do the work of 33`; nodes where GPUs are not known.

    The subject of the measurement begins with its number of nodes.
    """
    nodes = re.match(r"(\d+) nodes?\b", efficiency.subject)
    if nodes is None or isinstance(efficiency.value, str | None):
        return f"{efficiency.title} is {efficiency.value_text}"
    count, per_node = int(nodes[1]), gpus_per_node(cluster)
    units = f"{count * per_node} GPUs" if per_node else f"{count} nodes"
    work = efficiency.value * count * (per_node or 1)
    return f"{units} do the work of {number(work, 2 if work >= 10 else 3)}"


def gpus_per_node(cluster: Mapping[str, Any]) -> int:
    """Return the number of GPUs that every node has; 0 where it is not known, or not the same."""
    told = [node.get("gpus") for node in node_facts(cluster)]
    counts = {len(g) if isinstance(g, list) else g if type(g) is int else 0 for g in told}
    return counts.pop() if len(counts) == 1 else 0
