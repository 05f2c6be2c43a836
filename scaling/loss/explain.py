"""Explains the loss of a rung: parts that sum to it, the causes among them, and one sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reports.numbers import percent
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import CriticalPath, critical_path, mean_seconds, transfer_growth
from scaling.loss import causes
from scaling.loss.baseline_difference import CollectiveSegmentGrowth, split_growth
from scaling.loss.causes import CollectiveTimes, LossBudget, LossCause, LossPart
from scaling.loss.significance import standard_error
from scaling.loss.throttling import find_load_slowdown, find_local_growth

NOT_MEASURED = CollectiveTimes()  # for a rung whose collectives were not measured


@dataclass(frozen=True)
class Explanation:
    """A rung's loss: `lost` is 1 - E_n, `parts` sum to it, `causes` are sorted by size."""

    nodes: int
    lost: float
    parts: tuple[LossPart, ...]
    causes: tuple[LossCause, ...]

    def __str__(self) -> str:
        return loss_sentence(self.nodes, self.lost, self.parts)


@dataclass(frozen=True)
class SlowLink:
    """A slow node, or nodes with a slow link, measured between pairs; `said` describes it.

    `names` are those of many nodes, in groups.
    """

    nodes: tuple[str, ...]
    said: str
    names: tuple[str, ...] = ()


def explain(
    base: Rung, rung: Rung, times: CollectiveTimes = NOT_MEASURED, limit: float | None = None
) -> Explanation:
    """Explain what a rung lost against one node: all parts, and the causes among them.

    `base` is the rung of one node, run on every node. Without `times.replayed` communication is
    not judged. Without `times.at_agreed_rate` slow links are not separated from too few tokens.
    `limit` is the required efficiency. Without it too few tokens per GPU are not detected.
    Raises ValueError if a node of `rung` did not run alone.
    """
    base_path, path = critical_path(base.median_node()), critical_path(rung.steps)
    seconds = mean_seconds(rung.steps)
    lost = seconds - mean_seconds(base.median_node())
    budget = LossBudget(seconds, positive_shares(transfer_growth(base.median_node(), rung.steps)))
    raw = split_growth(base, rung)
    growth = _add_unaligned_wait(raw, path, base_path)
    slowdown = find_load_slowdown(base, rung, growth.communication - raw.communication)
    local_growth = find_local_growth(base, rung, path, base_path)
    causes.detect_slow_nodes(budget, growth, local_growth)
    causes.detect_slow_segments(budget, local_growth)
    causes.detect_jitter(budget, growth, local_growth)
    causes.detect_communication(budget, growth, rung, times, limit, lost, slowdown)
    limit = causes.noise_limit(growth.error, path.steps) + times.uncertainty
    causes.detect_unexplained(budget, local_growth, lost, limit)
    found = sorted(budget.causes, key=lambda cause: -cause.share)
    return Explanation(rung.count, lost / seconds, tuple(budget.parts), tuple(found))


def positive_shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return each positive value's share of their sum; empty if no value is positive."""
    grown = {name: each for name, each in seconds.items() if each > 0}
    return {name: each / sum(grown.values()) for name, each in grown.items()}


def _add_unaligned_wait(
    growth: CollectiveSegmentGrowth, path: CriticalPath, base_path: CriticalPath
) -> CollectiveSegmentGrowth:
    """Add to communication the waiting that no rank's local work explains.

    That time is in collectives too. Ranks do not leave a collective together: with gloo on 4
    nodes that was 1 to 4 % of a step.
    """
    unaligned = statistics.fmean(path.unaligned) - statistics.fmean(base_path.unaligned)
    noise = math.hypot(standard_error(path.unaligned), standard_error(base_path.unaligned))
    communication = growth.communication + max(0.0, unaligned)
    return replace(growth, communication=communication, error=math.hypot(growth.error, noise))


def is_link_cause(cause: LossCause) -> bool:
    """Return whether measurements of node pairs may locate this cause.

    It is a cause of links, or of time that may have been due to links.
    """
    is_open = (cause.code, cause.segment) == ("SCALE-UNEXPLAINED", causes.SEGMENTS_TEXT)
    return is_open or cause.code in ("SCALE-LINK", "SCALE-COMMUNICATION")


def explain_ladder(
    rungs: Sequence[Rung],
    times: Mapping[int, CollectiveTimes] | None = None,
    limit: float | None = None,
    slow_links: Sequence[SlowLink] | None = None,
) -> list[Explanation]:
    """Explain each rung above one node; `times` are by node count.

    Rungs are in rising order. `slow_links` come from measurements of node pairs; None if there
    were none. A link cause that first appears when nodes were added is placed at the added
    nodes.
    """
    base, known_nodes, link_seen = rungs[0], set[str](), False
    explanations: list[Explanation] = []
    for rung in rungs[1:]:
        known = (times or {}).get(rung.count, NOT_MEASURED)
        explanation = explain(base.of_kinds(rung), rung, known, limit)
        fabric = ("SCALE-LINK", causes.FABRIC)
        links = [one for one in explanation.causes if (one.code, one.where) == fabric]
        if links and not link_seen and explanations and slow_links is None:
            added = ", ".join(n for n in dict.fromkeys(rung.nodes) if n not in known_nodes)
            where = f"{causes.FABRIC}, first with {added}" if added else causes.FABRIC
            placed = [replace(c, where=where) if c in links else c for c in explanation.causes]
            explanation = replace(explanation, causes=tuple(placed))
        link_seen |= bool(links)
        if slow_links is not None:
            within = [link for link in slow_links if {*link.nodes} <= {*rung.nodes}]
            explanation = _locate_causes(explanation, within)
        explanations.append(explanation)
        known_nodes |= {*rung.nodes}
    return explanations


def _locate_causes(explanation: Explanation, slow_links: Sequence[SlowLink]) -> Explanation:
    """Place the link causes of an explanation at the links that pairs of its nodes showed as slow.

    If there is such a link, time that only may have been in collectives counts as waiting for
    them.
    """
    code, where, messages = "", causes.EVERY_NODE, ["no tested pair of nodes is slow"]
    if slow_links:
        code, messages = "SCALE-LINK", [link.said for link in slow_links]
        named = (name for link in slow_links for name in link.names or link.nodes)
        where = ", ".join(dict.fromkeys(named))
    links = f"Links: {'; '.join(messages)}"
    located = tuple(
        replace(c, code=code or c.code, where=where, statement=f"{c.statement}. {links}")
        if is_link_cause(c)
        else c
        for c in explanation.causes
    )
    parts = [
        replace(p, said=causes.WAITED_PART) if slow_links and p.said == causes.UNKNOWN_PART else p
        for p in explanation.parts
    ]
    return replace(explanation, causes=located, parts=tuple(parts))


def loss_sentence(nodes: int, lost: float, parts: Sequence[LossPart]) -> str:
    """Describe a rung's loss in one sentence, in per cent of its step; printed parts sum to it."""
    if lost < 0:
        text = f"a step is {percent(-lost)} shorter than on one node"
        return f"at {nodes} nodes, nothing is lost: {text}"
    shown = [part for part in parts if round(part.share * 1000)]
    tenths = round_to_sum([part.share * 1000 for part in shown], round(lost * 1000))
    pairs = sorted(zip(tenths, shown, strict=True), key=lambda pair: -pair[0])
    text = ", ".join(f"{tenth / 10:.1f} % {part.said}" for tenth, part in pairs if tenth)
    return f"at {nodes} nodes, {lost * 100:.1f} % of a step is lost" + (f": {text}" if text else "")


def round_to_sum(values: Sequence[float], total: int) -> list[int]:
    """Round `values` to integers that sum to `total`.

    The values with the largest remainders are rounded up.
    """
    result = [math.floor(value) for value in values]
    order = sorted(range(len(values)), key=lambda index: result[index] - values[index])
    missing = total - sum(result)
    if missing < 0:  # the parts exceed the total: the least remainders are rounded down
        order.reverse()
    for turn in range(abs(missing) if values else 0):
        result[order[turn % len(order)]] += 1 if missing > 0 else -1
    return result
